//! One device: its queue, its kernels and its memory.
//!
//! Nothing runs on the device but between [`Work::wait`]'s commit and its return, so that the host
//! may look at and change all memory at any other time.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use block2::RcBlock;
use bytemuck::Pod;
use half::f16;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSString};
use objc2_metal::{
    MTLBarrierScope, MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue,
    MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineState, MTLCreateSystemDefaultDevice,
    MTLDevice, MTLDispatchType, MTLLanguageVersion, MTLLibrary, MTLMathMode, MTLResourceOptions, MTLSize,
};
use shamrock_cmf::Container;
use shamrock_model::{Error, Result};

use super::kernel::{Kernel, SOURCE};
use crate::BACKEND;

// `MTLCreateSystemDefaultDevice` finds no device in programs that do not link this framework.
#[cfg(target_vendor = "apple")]
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

type Object<T> = Retained<ProtocolObject<T>>;

/// Page of Apple silicon: no-copy buffers begin and end at multiples of it.
pub(crate) const PAGE: usize = 16 << 10;

/// An error of this backend.
pub(crate) fn failure(problem: impl Into<String>) -> Error {
    Error::Device { backend: BACKEND, problem: problem.into() }
}

fn say(error: &NSError) -> String {
    format!("{} (code {})", error.localizedDescription(), error.code())
}

/// Whether there is a device.
///
/// # Errors
/// [`Error::Device`] when there is none.
pub fn available() -> Result<()> {
    let device = autoreleasepool(|_| MTLCreateSystemDefaultDevice());
    device.map(|_| ()).ok_or_else(|| failure("there is no Metal device"))
}

/// Memory that both sides see.
pub(crate) struct Buffer {
    raw: Object<dyn MTLBuffer>,
    len: usize,
}

// SAFETY: a buffer may be used from any thread; its contents are only reached through references to
// this type, and never while the device is at work.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Contents from byte `at` on.
    pub(crate) fn read<T: Pod>(&self, at: usize, count: usize) -> &[T] {
        let bytes = count * size_of::<T>();
        assert!(at + bytes <= self.len, "{bytes} bytes at {at} of a buffer of {}", self.len);
        // SAFETY: the range is inside the buffer, which lives as long as the slice; the device is idle.
        let bytes =
            unsafe { std::slice::from_raw_parts(self.raw.contents().cast::<u8>().as_ptr().add(at), bytes) };
        bytemuck::cast_slice(bytes)
    }

    /// The same to be changed.
    pub(crate) fn write<T: Pod>(&mut self, at: usize, count: usize) -> &mut [T] {
        let bytes = count * size_of::<T>();
        assert!(at + bytes <= self.len, "{bytes} bytes at {at} of a buffer of {}", self.len);
        // SAFETY: as in `read`, and `self` is borrowed exclusively. Only memory that `Device::alloc`
        // made is ever written: views of the mapping are not handed out as mutable.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(self.raw.contents().cast::<u8>().as_ptr().add(at), bytes)
        };
        bytemuck::cast_slice_mut(bytes)
    }

    /// Overwrites the start of the buffer.
    pub(crate) fn put<T: Pod>(&mut self, values: &[T]) {
        self.write(0, values.len()).copy_from_slice(values);
    }

    /// What a kernel gets from byte `offset` on.
    pub(crate) fn at(&self, offset: usize) -> At<'_> {
        At { buffer: self, offset }
    }
}

/// A place in a buffer, as kernels take it.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    buffer: &'a Buffer,
    offset: usize,
}

impl<'a> From<&'a Buffer> for At<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        buffer.at(0)
    }
}

/// A device with its compiled kernels.
pub(crate) struct Device {
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    pipelines: HashMap<Kernel, Object<dyn MTLComputePipelineState>>,
    /// `[2^16]`: two to the power of each half, correctly rounded, which no device function is.
    pub(crate) exp2: Buffer,
}

impl Device {
    /// Opens the system's device and compiles kernels.
    ///
    /// # Errors
    /// [`Error::Device`] when there is no device or the compiler refuses.
    pub(crate) fn open(kernels: &[Kernel]) -> Result<Device> {
        let device = MTLCreateSystemDefaultDevice().ok_or_else(|| failure("there is no Metal device"))?;
        let queue = device.newCommandQueue().ok_or_else(|| failure("the device gives no command queue"))?;
        let options = MTLCompileOptions::new();
        options.setLanguageVersion(MTLLanguageVersion::Version3_1);
        options.setMathMode(MTLMathMode::Safe);
        let library = device
            .newLibraryWithSource_options_error(&NSString::from_str(SOURCE), Some(&options))
            .map_err(|e| failure(format!("the kernels do not compile: {}", say(&e))))?;
        let mut pipelines = HashMap::new();
        for &kernel in kernels {
            let name = kernel.name();
            let function = library
                .newFunctionWithName(&NSString::from_str(&name))
                .ok_or_else(|| failure(format!("there is no kernel {name}")))?;
            let pipeline = device
                .newComputePipelineStateWithFunction_error(&function)
                .map_err(|e| failure(format!("kernel {name}: {}", say(&e))))?;
            pipelines.insert(kernel, pipeline);
        }
        let mut exp2 = allocate(&device, (1 << 16) * 4)?;
        for (bits, value) in exp2.write::<f32>(0, 1 << 16).iter_mut().enumerate() {
            *value = f16::from_bits(bits as u16).to_f64().exp2() as f32;
        }
        Ok(Device { device, queue, pipelines, exp2 })
    }

    /// Bytes that the device can keep wired at a time.
    pub(crate) fn working_set(&self) -> u64 {
        self.device.recommendedMaxWorkingSetSize()
    }

    /// Memory whose contents are written before they are read.
    ///
    /// # Errors
    /// [`Error::Device`] when there is too little.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Buffer> {
        allocate(&self.device, bytes)
    }

    /// Memory with all bits zero.
    pub(crate) fn zeroed(&self, bytes: usize) -> Result<Buffer> {
        let mut buffer = self.alloc(bytes)?;
        let len = buffer.len();
        buffer.write::<u8>(0, len).fill(0);
        Ok(buffer)
    }

    /// Memory with these contents.
    pub(crate) fn filled<T: Pod>(&self, values: &[T]) -> Result<Buffer> {
        let mut buffer = self.alloc(size_of_val(values))?;
        buffer.put(values);
        Ok(buffer)
    }

    /// A buffer over part of a mapped file, from byte `start` on, both multiples of [`PAGE`]. The last
    /// page may pass the end of the file: mappings are padded to whole pages.
    ///
    /// # Errors
    /// [`Error::Device`] when the span is larger than the device allows or the container is no mapping.
    pub(crate) fn view(&self, container: &Arc<Container>, start: usize, len: usize) -> Result<Buffer> {
        let limit = self.device.maxBufferLength();
        if len > limit {
            return Err(failure(format!(
                "a tensor of {len} bytes is beyond this device's buffers of {limit}"
            )));
        }
        let keep = Arc::clone(container);
        let pointer = container.bytes()[start..].as_ptr().cast_mut().cast::<c_void>();
        let pointer = NonNull::new(pointer).ok_or_else(|| failure("the model file is empty"))?;
        // The block owns a reference to the mapping, which goes with the buffer.
        let release = RcBlock::new(move |_: NonNull<c_void>, _: usize| {
            let _ = &keep;
        });
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        // SAFETY: the span lies in the mapping, which the block keeps; `Arc<Container>` is sendable; the
        // kernels only read weights, and `Buffer::write` is never called on a view.
        let raw = unsafe {
            self.device.newBufferWithBytesNoCopy_length_options_deallocator(
                pointer,
                len,
                options,
                Some(&release),
            )
        };
        let raw = raw.ok_or_else(|| {
            failure(format!(
                "no buffer over bytes {start}..{} of {}: weights must be a mapped file",
                start + len,
                container.path().display()
            ))
        })?;
        Ok(Buffer { raw, len })
    }

    /// Starts encoding; with `profile` every stage runs on its own.
    pub(crate) fn work(&self, profile: bool) -> Work<'_> {
        Work { device: self, open: None, stage: "", profile, times: Times::default() }
    }

    /// Makes a new queue: after a failure the old one may refuse what comes next.
    ///
    /// # Errors
    /// [`Error::Device`] when the device gives none.
    pub(crate) fn renew_queue(&mut self) -> Result<()> {
        self.queue =
            self.device.newCommandQueue().ok_or_else(|| failure("the device gives no command queue"))?;
        Ok(())
    }
}

fn allocate(device: &ProtocolObject<dyn MTLDevice>, bytes: usize) -> Result<Buffer> {
    let len = bytes.max(16);
    let raw = device
        .newBufferWithLength_options(len, MTLResourceOptions::StorageModeShared)
        .ok_or_else(|| failure(format!("{bytes} bytes of memory are not to be had")))?;
    Ok(Buffer { raw, len })
}

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

/// What work cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    /// Time the device computed.
    pub(crate) device: Duration,
    /// The same by stage, when profiling.
    pub(crate) stages: Vec<(&'static str, Duration)>,
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

impl<'d> Work<'d> {
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
        let pipeline = self
            .device
            .pipelines
            .get(&kernel)
            .ok_or_else(|| failure(format!("{kernel:?} was not compiled")))?;
        let (x, y, z) = grid.groups;
        if x * y * z == 0 {
            return Ok(());
        }
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
        let size = |width, height, depth| MTLSize { width, height, depth };
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(x, y, z), size(grid.threads, 1, 1));
        Ok(())
    }

    /// Runs what was encoded and waits for it.
    ///
    /// # Errors
    /// [`Error::Device`] when the device could not do it; what it has written by then is undefined.
    pub(crate) fn wait(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        open.encoder.endEncoding();
        open.command.commit();
        open.command.waitUntilCompleted();
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
