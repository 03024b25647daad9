//! Dispatches, from their encoding to the end of the command buffer that they run in.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLBarrierScope, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLComputeCommandEncoder, MTLDispatchType, MTLResource, MTLResourceUsage, MTLSize,
};
use shamrock_model::Result;

use super::super::kernel::Kernel;
use super::{At, Device, Object, failure, say};
use crate::Precision;

/// Size of a dispatch: threadgroups, and threads in each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) groups: (usize, usize, usize),
    pub(crate) threads: usize,
}

impl Grid {
    pub(crate) fn new(groups: (usize, usize, usize), threads: usize) -> Grid {
        Grid { groups, threads }
    }

    /// One thread for each of `count` things.
    pub(crate) fn flat(count: usize) -> Grid {
        Grid::new((count.div_ceil(64), 1, 1), 64)
    }
}

fn size(width: usize, height: usize, depth: usize) -> MTLSize {
    MTLSize { width, height, depth }
}

/// What work cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    /// Time the device computed.
    pub(crate) device: Duration,
    /// The same by stage, when profiling.
    pub(crate) stages: Vec<(&'static str, Duration)>,
    /// Waits for command buffers, and how long they took.
    pub(crate) waits: u64,
    pub(crate) waiting: Duration,
}

struct Open {
    command: Object<dyn MTLCommandBuffer>,
    encoder: Object<dyn MTLComputeCommandEncoder>,
}

/// Dispatches on their way to the device.
///
/// They run concurrently but for [`barrier`](Work::barrier), and begin when [`wait`](Work::wait) is
/// called. What is dropped before has not run.
pub(crate) struct Work<'d> {
    device: &'d Device,
    open: Option<Open>,
    stage: &'static str,
    profile: bool,
    pub(crate) times: Times,
}

impl Device {
    /// Starts encoding; with `profile` every stage runs on its own.
    pub(crate) fn work(&self, profile: bool) -> Work<'_> {
        Work { device: self, open: None, stage: "", profile, times: Times::default() }
    }
}

impl<'d> Work<'d> {
    /// Of products.
    pub(crate) fn precision(&self) -> Precision {
        self.device.precision
    }

    /// The device's table of powers of two.
    pub(crate) fn exp2(&self) -> At<'d> {
        (&self.device.exp2).into()
    }

    /// Names what comes next, in profiles and in errors.
    ///
    /// # Errors
    /// Those of [`wait`](Work::wait), when profiling.
    pub(crate) fn stage(&mut self, stage: &'static str) -> Result<()> {
        if self.profile {
            self.wait()?;
        }
        self.stage = stage;
        Ok(())
    }

    /// What comes next reads what came before, or writes over what that read.
    pub(crate) fn barrier(&mut self) {
        if let Some(open) = &self.open {
            open.encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
    }

    /// Encodes a kernel: `parameters` at buffer 0, `buffers` from 1 on.
    ///
    /// # Errors
    /// [`Error::Device`] when the device gives no command buffer.
    pub(crate) fn dispatch<P: Pod>(
        &mut self,
        kernel: Kernel,
        grid: Grid,
        parameters: &P,
        buffers: &[At<'_>],
    ) -> Result<()> {
        let (x, y, z) = grid.groups;
        if x * y * z == 0 {
            return Ok(());
        }
        let encoder = self.bind(kernel, parameters, buffers)?;
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(x, y, z), size(grid.threads, 1, 1));
        Ok(())
    }

    /// The same with the number of threadgroups, three words, read from `groups` when the dispatch runs.
    ///
    /// # Errors
    /// Those of [`dispatch`](Work::dispatch).
    pub(crate) fn dispatch_indirect<P: Pod>(
        &mut self,
        kernel: Kernel,
        groups: At<'_>,
        threads: usize,
        parameters: &P,
        buffers: &[At<'_>],
    ) -> Result<()> {
        let encoder = self.bind(kernel, parameters, buffers)?;
        assert!(
            groups.offset + 12 <= groups.buffer.len,
            "{kernel:?}: no room for a grid at {}",
            groups.offset
        );
        // SAFETY: the three words are inside the buffer; what they say was written by `route_panels`, whose
        // grids are those of panels that it has written.
        unsafe {
            encoder.dispatchThreadgroupsWithIndirectBuffer_indirectBufferOffset_threadsPerThreadgroup(
                &groups.buffer.raw,
                groups.offset,
                size(threads, 1, 1),
            );
        }
        Ok(())
    }

    /// Sets a kernel with its arguments, in a command buffer that is made if there is none.
    fn bind<P: Pod>(
        &mut self,
        kernel: Kernel,
        parameters: &P,
        buffers: &[At<'_>],
    ) -> Result<&ProtocolObject<dyn MTLComputeCommandEncoder>> {
        let pipeline = self
            .device
            .pipelines
            .get(&kernel)
            .ok_or_else(|| failure(format!("{kernel:?} was not compiled")))?;
        let open = match &mut self.open {
            Some(open) => open,
            none => none.insert(Open::new(self.device)?),
        };
        let encoder = &open.encoder;
        encoder.setComputePipelineState(pipeline);
        // SAFETY: `parameters` is plain data that the call copies.
        unsafe { encoder.setBytes_length_atIndex(NonNull::from(parameters).cast(), size_of::<P>(), 0) };
        for (i, at) in buffers.iter().enumerate() {
            assert!(at.offset < at.buffer.len, "{kernel:?}: buffer {} starts past its end", i + 1);
            // SAFETY: the offset is inside the buffer, which the command buffer retains; that a kernel keeps
            // to the rest of it is checked by running all kernels under AddressSanitizer.
            unsafe { encoder.setBuffer_offset_atIndex(Some(&at.buffer.raw), at.offset, i + 1) };
        }
        Ok(encoder)
    }

    /// Runs what was encoded and waits for it.
    ///
    /// # Errors
    /// [`Error::Device`] when the device could not do it; what it has written by then is undefined.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        open.encoder.endEncoding();
        let start = Instant::now();
        open.command.commit();
        open.command.waitUntilCompleted();
        self.times.waits += 1;
        self.times.waiting += start.elapsed();
        if open.command.status() == MTLCommandBufferStatus::Error {
            let why = open.command.error().map_or_else(|| "for no stated reason".into(), |e| say(&e));
            return Err(failure(format!("a command buffer failed ({}): {why}", self.stage)));
        }
        let seconds = open.command.GPUEndTime() - open.command.GPUStartTime();
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        self.times.device += time;
        if self.profile {
            match self.times.stages.iter_mut().find(|(name, _)| *name == self.stage) {
                Some((_, total)) => *total += time,
                None => self.times.stages.push((self.stage, time)),
            }
        }
        Ok(())
    }
}

impl Open {
    fn new(device: &Device) -> Result<Open> {
        let none = || failure("the device gives no command buffer");
        let command = device.queue.commandBuffer().ok_or_else(none)?;
        let encoder =
            command.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent).ok_or_else(none)?;
        if !device.held.is_empty() {
            let mut held: Vec<NonNull<ProtocolObject<dyn MTLResource>>> = device
                .held
                .iter()
                .map(|buffer| NonNull::from(ProtocolObject::from_ref(&*buffer.raw)))
                .collect();
            // SAFETY: the pointers are to `held.len()` buffers, which the device owns.
            unsafe {
                encoder.useResources_count_usage(
                    NonNull::from(&mut held[0]),
                    held.len(),
                    MTLResourceUsage::Read,
                );
            }
        }
        Ok(Open { command, encoder })
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        // Metal aborts on an encoder that is released before it has ended.
        if let Some(open) = &self.open {
            open.encoder.endEncoding();
        }
    }
}
