//! One device: its queue, its kernels, its memory, and the work that is sent to it.
//!
//! Nothing runs on the device but between [`Work::wait`]'s commit and its return, so that the host
//! may look at and change all memory at any other time.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use block2::RcBlock;
use bytemuck::Pod;
use half::f16;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{NSObjectProtocol, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSError, NSProcessInfo, NSString};
use objc2_metal::{
    MTLBuffer, MTLCommandQueue, MTLCompileOptions, MTLComputePipelineState, MTLCreateSystemDefaultDevice,
    MTLDevice, MTLGPUFamily, MTLLanguageVersion, MTLLibrary, MTLMathMode, MTLResourceOptions,
};
use shamrock_cmf::Container;
use shamrock_model::{Error, Result};

use super::kernel::{Kernel, SOURCE};
use crate::{BACKEND, Precision};

mod work;

pub(crate) use work::{Grid, Work};

// `MTLCreateSystemDefaultDevice` finds no device in programs that do not link this framework.
#[cfg(target_vendor = "apple")]
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

type Object<T> = Retained<ProtocolObject<T>>;

/// Page of Apple silicon: no-copy buffers begin and end at multiples of it.
pub(crate) const PAGE: usize = 16 << 10;

/// The oldest macOS that has all that is used whatever the options: version 3.1 of the shading language is
/// of macOS 14, addresses of buffers are of macOS 13.
const OLDEST_MACOS: isize = 14;

/// An error of this backend.
pub(crate) fn failure(problem: impl Into<String>) -> Error {
    Error::Device { backend: BACKEND, problem: problem.into() }
}

fn say(error: &NSError) -> String {
    format!("{} (code {})", error.localizedDescription(), error.code())
}

/// Whether there is a device that the kernels run on.
///
/// # Errors
/// [`Error::Device`] when there is none, or the system is too old.
pub fn available() -> Result<()> {
    autoreleasepool(|_| system_device()).map(|_| ())
}

fn system_device() -> Result<Object<dyn MTLDevice>> {
    let version = NSProcessInfo::processInfo().operatingSystemVersion();
    if version.majorVersion < OLDEST_MACOS {
        return Err(failure(format!(
            "macOS {}.{} is too old: the kernels need macOS {OLDEST_MACOS}; use --backend cpu",
            version.majorVersion, version.minorVersion
        )));
    }
    let device = MTLCreateSystemDefaultDevice().ok_or_else(|| failure("there is no Metal device"))?;
    // The first family with `simdgroup_matrix`, an M1's. A Mac with another processor has none.
    if !device.supportsFamily(MTLGPUFamily::Apple7) {
        return Err(failure("the GPU is not of Apple silicon; use --backend cpu"));
    }
    Ok(device)
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

    /// Address of its contents on the device, for kernels that find it in a table: [`Device::hold`] must have
    /// been told of it.
    pub(crate) fn address(&self) -> u64 {
        self.raw.gpuAddress()
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
    /// What every command buffer keeps resident, beside what it binds.
    held: Vec<Buffer>,
    precision: Precision,
    /// `[2^16]`: two to the power of each half, correctly rounded, which no device function is.
    pub(crate) exp2: Buffer,
}

impl Device {
    /// Opens the system's device and compiles kernels, whose products are in this precision.
    ///
    /// # Errors
    /// [`Error::Device`] when there is no device or the compiler refuses.
    pub(crate) fn open(kernels: &[Kernel], precision: Precision) -> Result<Device> {
        let device = system_device()?;
        let queue = device.newCommandQueue().ok_or_else(|| failure("the device gives no command queue"))?;
        let options = MTLCompileOptions::new();
        options.setLanguageVersion(MTLLanguageVersion::Version3_1);
        // Before macOS 15 there is one switch for all of fast math.
        if options.respondsToSelector(sel!(setMathMode:)) {
            options.setMathMode(MTLMathMode::Safe);
        } else {
            #[allow(deprecated, reason = "its successor is not there")]
            options.setFastMathEnabled(false);
        }
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
        Ok(Device { device, queue, pipelines, held: Vec::new(), precision, exp2 })
    }

    /// Bytes that the device can keep wired at a time.
    pub(crate) fn working_set(&self) -> u64 {
        self.device.recommendedMaxWorkingSetSize()
    }

    /// Bytes of a buffer, at most.
    pub(crate) fn max_buffer(&self) -> usize {
        self.device.maxBufferLength()
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
    /// [`Error::Device`] when the span is not of pages or the container is no mapping.
    pub(crate) fn view(&self, container: &Arc<Container>, start: usize, len: usize) -> Result<Buffer> {
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

    /// Has every command buffer from now on keep this resident, so that kernels may reach it by its address.
    pub(crate) fn hold<'a>(&mut self, buffers: impl IntoIterator<Item = &'a Buffer>) {
        self.held
            .extend(buffers.into_iter().map(|buffer| Buffer { raw: buffer.raw.clone(), len: buffer.len }));
    }

    /// Makes a new queue: after a failure the old one may refuse what comes next. If the device gives none the
    /// old one stays, and whatever is refused then leads here again.
    pub(crate) fn renew_queue(&mut self) {
        if let Some(queue) = self.device.newCommandQueue() {
            self.queue = queue;
        }
    }
}

fn allocate(device: &ProtocolObject<dyn MTLDevice>, bytes: usize) -> Result<Buffer> {
    let len = bytes.max(16);
    let raw = device
        .newBufferWithLength_options(len, MTLResourceOptions::StorageModeShared)
        .ok_or_else(|| failure(format!("{bytes} bytes of memory are not to be had")))?;
    Ok(Buffer { raw, len })
}
