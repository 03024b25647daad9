//! The kernels on NEON with the dot product extension: `sdot` multiplies four signed bytes by four
//! signed bytes of one lane of the activations and adds them to a 32-bit lane. Weights are made signed,
//! so that nothing is left to correct.
//!
//! `sdot` is inline assembly: the standard library's function for it is not stable.

use std::arch::aarch64::*;
use std::arch::asm;

use super::entry::{float_loops, integer_products, vector_operations};
use super::shape::{Simd, Tile};
use super::{Group, NIBBLES};

/// NEON.
#[derive(Clone, Copy)]
struct Neon;

impl Simd for Neon {
    const ROWS: usize = 4;

    vector_operations!(
        float32x4_t,
        splat: vdupq_n_f32,
        load: vld1q_f32,
        store: vst1q_f32,
        add: vaddq_f32,
        sub: vsubq_f32,
        mul: vmulq_f32
    );

    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: the caller has the instruction set.
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn totals(values: [float32x4_t; 4]) -> [f32; 4] {
        // SAFETY: as above.
        unsafe { totals(values) }
    }
}

/// Sums over the lanes of each: of neighbours, then of the pairs.
///
/// # Safety
/// NEON.
#[inline(always)]
pub(super) unsafe fn totals([a, b, c, d]: [float32x4_t; 4]) -> [f32; 4] {
    // SAFETY: the caller's promise; a vector of four floats is an array of them.
    unsafe {
        let sums = vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
        std::mem::transmute::<float32x4_t, [f32; 4]>(sums)
    }
}

/// Asks for the cache line at `at`.
///
/// # Safety
/// None is needed: any address may be prefetched.
#[inline(always)]
pub(super) unsafe fn prefetch(at: *const u8) {
    // SAFETY: a prefetch reads nothing that the program sees.
    unsafe { asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags)) }
}

/// Signed weights; `BYTES` of a group in the file.
#[derive(Clone, Copy)]
struct Quads<const BYTES: usize>([int8x16_t; 8]);

/// `sums += quad · lane LANE of x`.
///
/// # Safety
/// The processor has the dot product extension.
#[inline(always)]
unsafe fn sdot<const LANE: usize>(sums: int32x4_t, quad: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {quad:v}.16b, {x:v}.4b[{lane}]",
            sums = inout(vreg) sums,
            quad = in(vreg) quad,
            x = in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// 16 bytes of each of 4 rows, `at` bytes into it: vector `q` holds the `q`-th four of every row.
///
/// # Safety
/// 4 rows with 16 bytes there.
#[inline(always)]
unsafe fn turned(rows: &[*const u8], at: usize) -> [int8x16_t; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let row = |r: usize| vreinterpretq_s32_u8(vld1q_u8(rows[r].add(at)));
        let (a, b, c, d) = (row(0), row(1), row(2), row(3));
        let even = |x, y| vreinterpretq_s64_s32(vtrn1q_s32(x, y));
        let odd = |x, y| vreinterpretq_s64_s32(vtrn2q_s32(x, y));
        [
            vreinterpretq_s8_s64(vtrn1q_s64(even(a, b), even(c, d))),
            vreinterpretq_s8_s64(vtrn1q_s64(odd(a, b), odd(c, d))),
            vreinterpretq_s8_s64(vtrn2q_s64(even(a, b), even(c, d))),
            vreinterpretq_s8_s64(vtrn2q_s64(odd(a, b), odd(c, d))),
        ]
    }
}

impl<const BYTES: usize> Tile<Neon> for Quads<BYTES> {
    const BYTES: usize = BYTES;

    #[inline(always)]
    unsafe fn load(rows: &[*const u8], at: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let mut quads = [vdupq_n_s8(0); 8];
            if BYTES == NIBBLES {
                let eight = vdupq_n_s8(8);
                for (two, bytes) in quads.as_chunks_mut::<2>().0.iter_mut().zip(turned(rows, at)) {
                    let bytes = vreinterpretq_u8_s8(bytes);
                    two[0] = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15))), eight);
                    two[1] = vsubq_s8(vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes)), eight);
                }
            } else {
                for (half, four) in quads.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    *four = turned(rows, at + 16 * half);
                }
            }
            Quads(quads)
        }
    }

    /// The products are signed already: the bias is not needed.
    #[inline(always)]
    unsafe fn dots<const N: usize>(&self, x: [*const Group; N]) -> [float32x4_t; N] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut dots = [vdupq_n_f32(0.0); N];
            for i in 0..N {
                let mut sums = vdupq_n_s32(0);
                for (half, quads) in self.0.as_chunks::<4>().0.iter().enumerate() {
                    let x = vld1q_s8(x[i].cast::<i8>().add(16 * half));
                    sums = sdot::<0>(sums, quads[0], x);
                    sums = sdot::<1>(sums, quads[1], x);
                    sums = sdot::<2>(sums, quads[2], x);
                    sums = sdot::<3>(sums, quads[3], x);
                }
                dots[i] = vcvtq_f32_s32(sums);
            }
            dots
        }
    }
}

integer_products!("neon,dotprod", Neon, nibbles: Quads<16>, bytes: Quads<32>);
float_loops!("neon,dotprod", Neon);
