//! One device: its context and stream, its kernels, and its memory.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::CUfunction_attribute;
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError,
    PinnedHostSlice, result, sys,
};
use cudarc::nvrtc::Ptx;
use shamrock_model::{Error, Result};

use crate::abi::Ptr;
use crate::geometry::Geometry;
use crate::{BACKEND, CudaOptions, compile};

/// Number of CUDA devices here, or why there is none.
///
/// # Errors
/// [`Error::Device`] when the driver or NVRTC cannot be loaded, or the driver reports an error.
pub fn available() -> Result<usize> {
    let missing = |what: &str| Error::Device { backend: BACKEND, problem: format!("{what} was not found") };
    // SAFETY: only tries to load the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing("libcuda (the driver)"));
    }
    if !compile::available() {
        return Err(missing("libnvrtc (the runtime compiler)"));
    }
    let count = CudaContext::device_count().map_err(driver)?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// A driver error in this crate's terms.
pub(crate) fn driver(error: DriverError) -> Error {
    named(error, "")
}

/// The same, with what failed in front of the message.
fn named(error: DriverError, what: &str) -> Error {
    let problem = format!("{what}{error}");
    match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::DeviceMemory { backend: BACKEND, bytes: None },
        code if breaks_the_context(code) => Error::DeviceLost { backend: BACKEND, problem },
        _ => Error::Device { backend: BACKEND, problem },
    }
}

/// Errors after which every call of the process on this device fails.
fn breaks_the_context(code: sys::CUresult) -> bool {
    use sys::CUresult::*;
    matches!(
        code,
        CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
    )
}

/// Memory on the device, freed in the stream's order when dropped.
pub(crate) struct Buffer {
    slice: CudaSlice<u8>,
    ptr: Ptr,
}

impl Buffer {
    pub(crate) fn ptr(&self) -> Ptr {
        self.ptr
    }

    pub(crate) fn len(&self) -> usize {
        self.slice.len()
    }
}

/// Page-locked host memory that the device copies from or to.
pub(crate) struct Pinned(PinnedHostSlice<u8>);

impl Pinned {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes; waits for copies that were recorded on them.
    pub(crate) fn bytes(&mut self) -> Result<&mut [u8]> {
        self.0.as_mut_slice().map_err(driver)
    }
}

/// Size of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: (u32, u32, u32),
    pub(crate) threads: u32,
    /// Dynamic shared memory in bytes.
    pub(crate) shared: u32,
}

impl Grid {
    pub(crate) fn new(blocks: (usize, usize, usize), threads: u32) -> Grid {
        Grid { blocks: (blocks.0 as u32, blocks.1 as u32, blocks.2 as u32), threads, shared: 0 }
    }

    pub(crate) fn shared(self, bytes: usize) -> Grid {
        Grid { shared: bytes as u32, ..self }
    }
}

/// A device with its compiled kernels, seen through one of its streams: everything below happens in
/// that stream's order.
#[derive(Clone)]
pub(crate) struct Device {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    kernels: Arc<HashMap<&'static str, CudaFunction>>,
    /// Multiprocessors.
    pub(crate) multiprocessors: usize,
    /// Bytes of shared memory that a block may have.
    pub(crate) shared: usize,
    /// Steps of weights that a warp keeps there in products of few rows, see gemm.cu.
    pub(crate) slots: usize,
    /// Kernels may start while the one before still runs (Hopper and later); they wait for it
    /// themselves, see `begin` in common.cuh.
    overlaps: bool,
}

impl Device {
    /// Opens a device and compiles (or reads) the kernels for a geometry.
    pub(crate) fn open(geometry: &Geometry, options: &CudaOptions) -> Result<Device> {
        let count = available()?;
        if options.device >= count {
            return Err(Error::Device {
                backend: BACKEND,
                problem: format!("device {} was asked for, {count} are here", options.device),
            });
        }
        let context = CudaContext::new(options.device).map_err(driver)?;
        // SAFETY: a buffer is used on the stream it came from, or on another one that waits for events
        // itself (`after`); no event of cudarc's is needed to keep memory alive.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(driver)?;
        keep_freed_memory(&context)?;
        let (major, minor) = context.compute_capability().map_err(driver)?;
        if major < 8 {
            return Err(Error::Device {
                backend: BACKEND,
                problem: format!("compute capability {major}.{minor}; these kernels need 8.0 or later"),
            });
        }
        let multiprocessors = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(driver)?;
        let arch = (major * 10 + minor) as u32;
        let shared = context
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
            .map_err(driver)?;
        let mut kernels = HashMap::new();
        for (name, names) in KERNELS {
            let code = compile::module(geometry, name, arch, options.kernel_cache.as_deref())?;
            let module = context.load_module(Ptx::from_binary(code)).map_err(driver)?;
            for &kernel in names {
                // Some exist only for one precision, or for heads that are not too wide.
                let Ok(function) = module.load_function(kernel) else { continue };
                let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                let own = function.shared_size_bytes().map_err(driver)?;
                function.set_attribute(attribute, shared - own).map_err(driver)?;
                kernels.insert(kernel, function);
            }
        }
        Ok(Device {
            context,
            stream,
            kernels: Arc::new(kernels),
            multiprocessors: usize::try_from(multiprocessors).unwrap_or(1),
            shared: usize::try_from(shared).unwrap_or(0),
            slots: compile::slots(arch),
            overlaps: major >= 9,
        })
    }

    /// The same device through a stream of its own.
    pub(crate) fn other_stream(&self) -> Result<Device> {
        Ok(Device { stream: self.context.new_stream().map_err(driver)?, ..self.clone() })
    }

    /// Marks the end of what this stream has been given so far.
    pub(crate) fn mark(&self) -> Result<CudaEvent> {
        self.stream.record_event(None).map_err(driver)
    }

    /// Has this stream wait for a mark of another one, without the host waiting.
    pub(crate) fn after(&self, mark: &CudaEvent) -> Result<()> {
        self.stream.wait(mark).map_err(driver)
    }

    /// Bytes of device memory: free and in all.
    pub(crate) fn memory(&self) -> Result<(usize, usize)> {
        self.context.mem_get_info().map_err(driver)
    }

    /// Launches a kernel on the stream.
    pub(crate) fn launch<A: DeviceRepr>(&self, kernel: &str, grid: Grid, args: &A) -> Result<()> {
        let function = self.kernels.get(kernel).ok_or_else(|| Error::Device {
            backend: BACKEND,
            problem: format!("there is no kernel {kernel}"),
        })?;
        if grid.blocks.0 == 0 || grid.blocks.1 == 0 || grid.blocks.2 == 0 {
            return Ok(());
        }
        // SAFETY: `A` mirrors the kernel's one parameter, see `abi`; its pointers come from live
        // buffers of this device that are as large as the kernel's comments say.
        unsafe { self.launch_raw(function, grid, (&raw const *args).cast_mut().cast()) }
            .map_err(|e| named(e, &format!("kernel {kernel}: ")))
    }

    /// # Safety
    /// `args` points at the kernel's one parameter, which refers to live memory only.
    unsafe fn launch_raw(
        &self,
        function: &CudaFunction,
        grid: Grid,
        args: *mut c_void,
    ) -> std::result::Result<(), DriverError> {
        // SAFETY: all bits zero is a valid attribute; the fields that count are set below.
        let mut overlap: sys::CUlaunchAttribute = unsafe { std::mem::zeroed() };
        overlap.id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        overlap.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: grid.blocks.0,
            gridDimY: grid.blocks.1,
            gridDimZ: grid.blocks.2,
            blockDimX: grid.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: grid.shared,
            hStream: self.stream.cu_stream(),
            attrs: &mut overlap,
            numAttrs: self.overlaps.into(),
        };
        let mut parameters = [args];
        self.context.bind_to_thread()?;
        // SAFETY: the configuration and the parameter outlive the call, which copies both.
        unsafe {
            sys::cuLaunchKernelEx(
                &config,
                function.cu_function(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
    }

    /// Memory with all bits zero.
    pub(crate) fn zeroed(&self, bytes: usize) -> Result<Buffer> {
        let buffer = self.uninit(bytes)?;
        self.clear(buffer.ptr, bytes)?;
        Ok(buffer)
    }

    /// Memory that is written before it is read.
    pub(crate) fn uninit(&self, bytes: usize) -> Result<Buffer> {
        // SAFETY: bytes have no invalid value, and the callers' kernels write before they read.
        let slice = unsafe { self.stream.alloc::<u8>(bytes.max(1)) }.map_err(|e| match driver(e) {
            Error::DeviceMemory { backend, .. } => Error::DeviceMemory { backend, bytes: Some(bytes) },
            other => other,
        })?;
        let ptr = slice.device_ptr(&self.stream).0;
        Ok(Buffer { slice, ptr })
    }

    pub(crate) fn pinned(&self, bytes: usize) -> Result<Pinned> {
        // SAFETY: bytes have no invalid value.
        let slice = unsafe { self.context.alloc_pinned_with_flags::<u8>(bytes.max(1), 0) };
        Ok(Pinned(slice.map_err(driver)?))
    }

    pub(crate) fn clear(&self, to: Ptr, bytes: usize) -> Result<()> {
        // SAFETY: the range lies in a live buffer of the caller.
        unsafe { result::memset_d8_async(to, 0, bytes, self.stream.cu_stream()) }.map_err(driver)
    }

    /// Copies on the device.
    pub(crate) fn copy(&self, from: Ptr, to: Ptr, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges lie in live buffers of the caller.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.cu_stream()) }.map_err(driver)
    }

    /// Starts a copy to the device. From pageable memory the source may be reused on return; from
    /// pinned memory only after the stream has come past the copy.
    pub(crate) fn upload<T: Pod>(&self, from: &[T], to: Ptr) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the target range lies in a live buffer of the caller.
        unsafe { result::memcpy_htod_async(to, from, self.stream.cu_stream()) }.map_err(driver)
    }

    /// Copies to the host and waits.
    pub(crate) fn download<T: Pod>(&self, from: Ptr, to: &mut [T]) -> Result<()> {
        if !to.is_empty() {
            // SAFETY: the source range lies in a live buffer; `to` outlives the wait below.
            unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) }.map_err(driver)?;
        }
        self.wait()
    }

    /// Waits until everything on the stream is done.
    pub(crate) fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(driver)
    }
}

/// Has the driver keep freed memory for the next allocation instead of giving it back at every wait:
/// undo records and snapshots come and go with every draft.
fn keep_freed_memory(context: &CudaContext) -> Result<()> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    let mut pool = std::ptr::null_mut();
    let mut threshold = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device is valid; both calls write or read only the variable they are given.
    unsafe {
        sys::cuDeviceGetDefaultMemPool(&mut pool, context.cu_device()).result().map_err(driver)?;
        sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut threshold).cast()).result().map_err(driver)
    }
}

/// Kernels of each module.
#[rustfmt::skip]
const KERNELS: [(&str, &[&str]); 8] = [
    ("repack", &["repack_f16", "repack_q8", "repack_q4"]),
    ("norm", &["embed", "rms_norm"]),
    (
        "gemm",
        &[
            "dense_16_8",
            "dense_32_8",
            "dense_64_8",
            "dense_96_8",
            "dense_16_16",
            "dense_32_16",
            "dense_64_16",
            "dense_96_16",
            "dense_16_32",
            "dense_32_32",
            "dense_64_32",
            "dense_96_32",
            "dense_16_8_split",
            "dense_32_8_split",
            "dense_64_8_split",
            "dense_96_8_split",
            "dense_16_16_split",
            "dense_32_16_split",
            "dense_64_16_split",
            "dense_96_16_split",
            "dense_16_32_split",
            "dense_32_32_split",
            "dense_64_32_split",
            "dense_96_32_split",
            "gate_up_8",
            "down_8",
            "gate_up_16",
            "down_16",
            "normed_16",
            "normed_32",
            "normed_64",
            "normed_96",
            "route_few",
            "gate_up_one",
            "down_one",
        ],
    ),
    ("wide", &["dense_wide", "dense_wide_split", "gate_up_wide", "down_wide"]),
    ("gdn", &["gdn_prepare", "gdn_recur", "gdn_solve", "gdn_chunks", "gdn_gate", "gdn_step", "gdn_replay", "gdn_preview"]),
    ("attention", &["attention_prepare", "attention", "attention_few", "attention_finish"]),
    ("routing", &["route", "route_coreset", "group_rows", "choose"]),
    ("head", &["shape", "pick_chunks", "pick_join"]),
];
