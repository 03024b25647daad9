//! The stand-in for Metal (`tools/metal-linux/FakeMetal.m`): what tests ask of it, which is nothing on a Mac; and that
//! it rejects what Metal rejects.

/// Orders in which threads run: ascending, descending, two seeds; under AddressSanitizer, which looks at
/// addresses, one.
#[cfg(metal_host)]
pub(super) fn orders() -> &'static [u32] {
    unsafe extern "C" {
        safe fn fake_metal_is_sanitized() -> bool;
    }
    if fake_metal_is_sanitized() { &[7] } else { &[0, 1, 2, 7] }
}

/// A device has its own.
#[cfg(not(metal_host))]
pub(super) fn orders() -> &'static [u32] {
    &[0]
}

#[cfg(metal_host)]
pub(super) fn set_order(order: u32) {
    unsafe extern "C" {
        safe fn fake_metal_set_order(order: u32);
    }
    fake_metal_set_order(order);
}

#[cfg(not(metal_host))]
pub(super) fn set_order(_order: u32) {}

#[cfg(metal_host)]
mod rejects {
    use std::process::Command;

    use objc2::rc::autoreleasepool;
    use objc2_foundation::NSString;
    use objc2_metal::{
        MTLBuffer, MTLCommandBuffer, MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder,
        MTLCreateSystemDefaultDevice, MTLDevice, MTLLibrary, MTLResourceOptions, MTLSize,
    };
    use shamrock_model::ModelFile;
    use shamrock_testkit::fixture;

    use super::super::super::abi;
    use super::super::super::device::{Device, Grid, PAGE};
    use super::super::super::kernel::Kernel;
    use crate::Precision;

    fn device() -> Device {
        Device::open(&[Kernel::CopyWords], Precision::Full).unwrap()
    }

    /// Views begin and end at pages of 16 KiB, although those of this machine have 4; and the mapping does.
    #[test]
    fn views_of_parts_of_pages() {
        autoreleasepool(|_| {
            let model = ModelFile::open(fixture("small/model.q4tp.cmf")).unwrap();
            let (device, container) = (device(), model.container());
            device.view(container, PAGE, PAGE).unwrap();
            for (start, len) in [(4096, PAGE), (PAGE, 4096), (PAGE, 0)] {
                let error = device.view(container, start, len).err().unwrap().to_string();
                assert!(error.contains("weights must be a mapped file"), "{start}, {len}: {error}");
            }
        });
    }

    /// Neither memory of its own nor a view is beyond the largest buffer.
    #[test]
    fn buffers_beyond_the_largest() {
        unsafe extern "C" {
            safe fn fake_metal_set_max_buffer(bytes: usize) -> usize;
        }
        autoreleasepool(|_| {
            let model = ModelFile::open(fixture("small/model.q4tp.cmf")).unwrap();
            let (device, container) = (device(), model.container());
            let enough = fake_metal_set_max_buffer(2 * PAGE);
            let memory = [2 * PAGE, 2 * PAGE + 1].map(|bytes| device.alloc(bytes).is_ok());
            let views = [2 * PAGE, 3 * PAGE].map(|bytes| device.view(container, PAGE, bytes).is_ok());
            fake_metal_set_max_buffer(enough);
            assert_eq!((memory, views), ([true, false], [true, false]));
            device.view(container, PAGE, 3 * PAGE).unwrap();
        });
    }

    /// A barrier that is missing shows as NaN, since threadgroup memory is poisoned.
    #[test]
    fn a_missing_barrier() {
        let kernel = |name: &str, barrier: &str| {
            format!(
                "kernel void {name}(device float* out [[buffer(0)]], uint t [[thread_index_in_threadgroup]]) {{
                threadgroup float all[64];
                all[t] = float(t);
                {barrier}
                out[t] = all[63 - t];
            }}\n"
            )
        };
        let whole = kernel("whole", "threadgroup_barrier(mem_flags::mem_threadgroup);");
        let source = format!("using namespace metal;\n{whole}{}", kernel("broken", ""));
        for &order in super::orders() {
            super::set_order(order);
            assert_eq!(launch(&source, "whole", 64), (0..64).rev().map(|t| t as f32).collect::<Vec<_>>());
            assert!(launch(&source, "broken", 64).iter().any(|x| x.is_nan()), "order {order} hides it");
        }
    }

    /// What one threadgroup of a kernel writes, a float a thread.
    fn launch(source: &str, kernel: &str, threads: usize) -> Vec<f32> {
        autoreleasepool(|_| {
            let device = MTLCreateSystemDefaultDevice().unwrap();
            let library =
                device.newLibraryWithSource_options_error(&NSString::from_str(source), None).unwrap();
            let function = library.newFunctionWithName(&NSString::from_str(kernel)).unwrap();
            let pipeline = device.newComputePipelineStateWithFunction_error(&function).unwrap();
            let options = MTLResourceOptions::StorageModeShared;
            let out = device.newBufferWithLength_options(threads * 4, options).unwrap();
            let command = device.newCommandQueue().unwrap().commandBuffer().unwrap();
            let encoder = command.computeCommandEncoder().unwrap();
            encoder.setComputePipelineState(&pipeline);
            // SAFETY: the offset is inside the buffer, and a thread writes the float of its number.
            unsafe { encoder.setBuffer_offset_atIndex(Some(&out), 0, 0) };
            let size = |width| MTLSize { width, height: 1, depth: 1 };
            encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(threads));
            encoder.endEncoding();
            command.commit();
            command.waitUntilCompleted();
            // SAFETY: the buffer has so many floats, and the device is idle.
            unsafe { std::slice::from_raw_parts(out.contents().cast::<f32>().as_ptr(), threads) }.to_vec()
        })
    }

    /// What Metal's validation ends the process for.
    #[test]
    fn misuse() {
        for (fault, said) in [
            ("bytes_beyond_4_kib", "setBytes of 8192 bytes"),
            ("threads_beyond_1024", "over 1024 threads in a threadgroup"),
            ("threadgroup_memory_beyond_32_kib", "threadgroup memory over 32 KiB"),
        ] {
            let test = format!("native::tests::stand_in::rejects::{fault}");
            let arguments = ["--ignored", "--exact", &test];
            let output = Command::new(std::env::current_exe().unwrap()).args(arguments).output().unwrap();
            let all = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && all.contains(said), "{fault}: {all}");
        }
    }

    /// Copies nothing, with these arguments and so many threads.
    fn copy<P: bytemuck::Pod>(arguments: &P, threads: usize) {
        autoreleasepool(|_| {
            let device = device();
            let words = device.filled(&[0u32; 4]).unwrap();
            let mut work = device.work(false);
            let buffers = [(&words).into(), (&words).into()];
            work.dispatch(Kernel::CopyWords, Grid::new((1, 1, 1), threads), arguments, &buffers).unwrap();
            work.wait().unwrap();
        });
    }

    #[test]
    #[ignore = "ends the process"]
    fn bytes_beyond_4_kib() {
        copy(&[[0u32; 32]; 64], 32);
    }

    #[test]
    #[ignore = "ends the process"]
    fn threads_beyond_1024() {
        copy(&abi::Copy { words: 0 }, 1056);
    }

    #[test]
    #[ignore = "ends the process"]
    fn threadgroup_memory_beyond_32_kib() {
        let source = "using namespace metal;
            kernel void large(device float* out [[buffer(0)]], uint t [[thread_index_in_threadgroup]]) {
            threadgroup float all[8193];
            all[t] = 1.0f;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            out[t] = all[31 - t];
        }";
        launch(source, "large", 32);
    }
}
