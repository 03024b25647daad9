//! Runs a loop compiled for the widest vectors that the processor has.
//!
//! The kernels of this crate are plain loops that the compiler vectorises. Rust never contracts
//! or reorders floating-point operations, so the wide build gives the same bits as the narrow one.

/// A loop. Implementations mark [`Kernel::run`] `#[inline(always)]`, so that it is compiled with
/// the target features of the function it lands in.
pub(super) trait Kernel {
    fn run(self);
}

/// Runs `kernel`, with AVX2 where the processor has it.
#[inline]
pub(super) fn run<K: Kernel>(kernel: K) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn avx2<K: Kernel>(kernel: K) {
            kernel.run();
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { avx2(kernel) };
        }
    }
    kernel.run();
}
