//! The kernels on NEON with the matrix product extension: `smmla` multiplies two rows of eight signed
//! bytes by two rows of eight and adds the four products to four 32-bit lanes, twice the work of `sdot`.
//! Eight weight rows are kept at a time, so that pairing the activation rows, which lie apart, costs one
//! operation for four products.
//!
//! `smmla` is inline assembly: the standard library's function for it is not stable.

use std::arch::aarch64::*;
use std::arch::asm;

use super::entry::{integer_products, vector_operations};
use super::neon::totals;
use super::shape::{Simd, Tile};
use super::{Group, NIBBLES};

/// NEON in vectors of eight.
#[derive(Clone, Copy)]
struct Eight;

/// Defines an operation on both halves of its operands.
macro_rules! on_halves {
    ($($name:ident($($arg:ident),+) = $intrinsic:ident;)+) => { $(
        /// # Safety
        /// NEON.
        #[inline(always)]
        unsafe fn $name($($arg: float32x4x2_t),+) -> float32x4x2_t {
            // SAFETY: the caller has the instruction set.
            unsafe { float32x4x2_t($intrinsic($($arg.0),+), $intrinsic($($arg.1),+)) }
        }
    )+ };
}

on_halves! {
    add(a, b) = vaddq_f32;
    sub(a, b) = vsubq_f32;
    mul(a, b) = vmulq_f32;
    fma_onto(c, a, b) = vfmaq_f32;
}

/// # Safety
/// NEON.
#[inline(always)]
unsafe fn splat(value: f32) -> float32x4x2_t {
    // SAFETY: the caller has the instruction set.
    unsafe { float32x4x2_t(vdupq_n_f32(value), vdupq_n_f32(value)) }
}

/// # Safety
/// NEON; `from` is valid for eight numbers.
#[inline(always)]
unsafe fn load(from: *const f32) -> float32x4x2_t {
    // SAFETY: the caller's promise.
    unsafe { float32x4x2_t(vld1q_f32(from), vld1q_f32(from.add(4))) }
}

/// # Safety
/// NEON; `to` is valid for eight numbers.
#[inline(always)]
unsafe fn store(to: *mut f32, value: float32x4x2_t) {
    // SAFETY: the caller's promise.
    unsafe {
        vst1q_f32(to, value.0);
        vst1q_f32(to.add(4), value.1);
    }
}

impl Simd for Eight {
    const ROWS: usize = 8;

    vector_operations!(float32x4x2_t, splat: splat, load: load, store: store, add: add, sub: sub, mul: mul);

    #[inline(always)]
    unsafe fn fma(a: float32x4x2_t, b: float32x4x2_t, c: float32x4x2_t) -> float32x4x2_t {
        // SAFETY: the caller has the instruction set.
        unsafe { fma_onto(c, a, b) }
    }

    #[inline(always)]
    unsafe fn totals(values: [float32x4x2_t; 4]) -> [f32; 4] {
        // SAFETY: as above.
        unsafe { totals(values.map(|value| vaddq_f32(value.0, value.1))) }
    }
}

/// Signed weights, `[pair of rows][eight columns]`, the first row's before the second's; `BYTES` of a
/// group in the file.
#[derive(Clone, Copy)]
struct Pairs<const BYTES: usize>([[int8x16_t; 4]; 4]);

/// `sums[2 i + j] += row i of a · row j of b`.
///
/// # Safety
/// The processor has the matrix product extension.
#[inline(always)]
unsafe fn smmla(sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

/// The low halves of both, and the high halves.
///
/// # Safety
/// NEON.
#[inline(always)]
unsafe fn paired(a: int8x16_t, b: int8x16_t) -> [int8x16_t; 2] {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b));
        [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))]
    }
}

/// A row's group, signed, in the order of the activations' columns.
///
/// # Safety
/// NEON; `BYTES` bytes at `row`.
#[inline(always)]
unsafe fn group<const BYTES: usize>(row: *const u8) -> [int8x16_t; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        if BYTES != NIBBLES {
            return [vld1q_s8(row.cast()), vld1q_s8(row.cast::<i8>().add(16))];
        }
        let bytes = vld1q_u8(row);
        let signed = |nibbles| vreinterpretq_s32_s8(vsubq_s8(vreinterpretq_s8_u8(nibbles), vdupq_n_s8(8)));
        // Of every eight columns the even ones are low nibbles, and come first.
        let (even, odd) = (signed(vandq_u8(bytes, vdupq_n_u8(15))), signed(vshrq_n_u8::<4>(bytes)));
        [vreinterpretq_s8_s32(vzip1q_s32(even, odd)), vreinterpretq_s8_s32(vzip2q_s32(even, odd))]
    }
}

impl<const BYTES: usize> Tile<Eight> for Pairs<BYTES> {
    const BYTES: usize = BYTES;

    #[inline(always)]
    unsafe fn load(rows: &[*const u8], at: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let mut pairs = [[vdupq_n_s8(0); 4]; 4];
            for (p, pair) in pairs.iter_mut().enumerate() {
                let (a, b) = (group::<BYTES>(rows[2 * p].add(at)), group::<BYTES>(rows[2 * p + 1].add(at)));
                let (low, high) = (paired(a[0], b[0]), paired(a[1], b[1]));
                *pair = [low[0], low[1], high[0], high[1]];
            }
            Pairs(pairs)
        }
    }

    /// The products are signed already: the bias is not needed. A row without a partner is its own.
    #[inline(always)]
    unsafe fn dots<const N: usize>(&self, x: [*const Group; N]) -> [float32x4x2_t; N] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut dots = [splat(0.0); N];
            for first in (0..N).step_by(2) {
                let second = if first + 1 < N { first + 1 } else { first };
                let mut sums = [vdupq_n_s32(0); 4];
                for half in 0..2 {
                    let rows = [x[first], x[second]].map(|row| vld1q_s8(row.cast::<i8>().add(16 * half)));
                    for (eight, x) in paired(rows[0], rows[1]).into_iter().enumerate() {
                        for (sum, pair) in sums.iter_mut().zip(&self.0) {
                            *sum = smmla(*sum, x, pair[2 * half + eight]);
                        }
                    }
                }
                let sums = sums.map(|sum| vreinterpretq_s64_s32(sum));
                let floats = |four: int64x2_t| vcvtq_f32_s32(vreinterpretq_s32_s64(four));
                let (low, high) = ((sums[0], sums[1]), (sums[2], sums[3]));
                dots[second] =
                    float32x4x2_t(floats(vzip2q_s64(low.0, low.1)), floats(vzip2q_s64(high.0, high.1)));
                dots[first] =
                    float32x4x2_t(floats(vzip1q_s64(low.0, low.1)), floats(vzip1q_s64(high.0, high.1)));
            }
            dots
        }
    }
}

integer_products!("neon,dotprod,i8mm", Eight, nibbles: Pairs<16>, bytes: Pairs<32>);
