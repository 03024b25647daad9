//! The kernels on AVX2 and FMA.
//!
//! `vpmaddubsw` multiplies unsigned by signed bytes and adds neighbours in 16 bits. Nibbles up to 15
//! times activations up to ±127 leave room for a whole group: 16 · 15 · 127 < 2¹⁵ per 16-bit lane.
//! Bytes go through it as magnitude times sign-adjusted activation (128 · 127 · 2 < 2¹⁵) and are
//! added in 32 bits.

use std::arch::x86_64::*;

use super::entry::{float_loops, integer_products, vector_operations};
use super::shape::{Simd, Tile};
use super::{GROUP, Group, NIBBLES};

/// AVX2 and FMA.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

impl Simd for Avx2 {
    const ROWS: usize = 8;

    vector_operations!(
        __m256,
        splat: _mm256_set1_ps,
        load: _mm256_loadu_ps,
        store: _mm256_storeu_ps,
        add: _mm256_add_ps,
        sub: _mm256_sub_ps,
        mul: _mm256_mul_ps
    );

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller has the instruction set.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn totals(values: [__m256; 4]) -> [f32; 4] {
        // SAFETY: as above.
        unsafe { totals(values) }
    }
}

/// Sums over the lanes of each: of neighbours, of the pairs, and of both halves.
///
/// # Safety
/// AVX2.
#[inline(always)]
pub(super) unsafe fn totals([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
    // SAFETY: the caller's promise; a vector of four floats is an array of them.
    unsafe {
        let sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
        let sums = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
        std::mem::transmute::<__m128, [f32; 4]>(sums)
    }
}

/// Columns `4 q ..` of a group, in every lane.
///
/// # Safety
/// AVX2; `x` is a group.
#[inline(always)]
pub(super) unsafe fn splat_quad(x: *const Group, q: usize) -> __m256i {
    // SAFETY: the caller's promise; a group begins with its numbers, and is aligned for 32 bits.
    unsafe { _mm256_set1_epi32(x.cast::<i32>().add(q).read()) }
}

/// 16 bytes of each row, `at` bytes into it: vector `q` holds the `q`-th four of every row.
///
/// # Safety
/// AVX2; 8 rows with 16 bytes there.
#[inline(always)]
unsafe fn turned(rows: &[*const u8], at: usize) -> [__m256i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let row = |r: usize| _mm_loadu_si128(rows[r].add(at).cast());
        // Rows j and j + 4 side by side, so that turning squares inside 128-bit lanes leaves the
        // rows in order.
        let mut lines = [_mm256_setzero_si256(); 4];
        for (j, line) in lines.iter_mut().enumerate() {
            *line = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(row(j)), row(j + 4));
        }
        let a = _mm256_unpacklo_epi32(lines[0], lines[1]);
        let b = _mm256_unpackhi_epi32(lines[0], lines[1]);
        let c = _mm256_unpacklo_epi32(lines[2], lines[3]);
        let d = _mm256_unpackhi_epi32(lines[2], lines[3]);
        [
            _mm256_unpacklo_epi64(a, c),
            _mm256_unpackhi_epi64(a, c),
            _mm256_unpacklo_epi64(b, d),
            _mm256_unpackhi_epi64(b, d),
        ]
    }
}

/// A 4-bit group of each row, unsigned: of every eight columns the even ones, then the odd ones.
///
/// # Safety
/// AVX2; 8 rows with 16 bytes there.
#[inline(always)]
pub(super) unsafe fn turned_nibbles(rows: &[*const u8], at: usize) -> [__m256i; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        let low_nibble = _mm256_set1_epi8(15);
        let mut quads = [_mm256_setzero_si256(); 8];
        for (two, bytes) in quads.as_chunks_mut::<2>().0.iter_mut().zip(turned(rows, at)) {
            two[0] = _mm256_and_si256(bytes, low_nibble);
            two[1] = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low_nibble);
        }
        quads
    }
}

/// An 8-bit group of each row as it is.
///
/// # Safety
/// AVX2; 8 rows with 32 bytes there.
#[inline(always)]
pub(super) unsafe fn turned_bytes(rows: &[*const u8], at: usize) -> [__m256i; 8] {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (turned(rows, at), turned(rows, at + 16));
        [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
    }
}

/// Unsigned nibbles.
#[derive(Clone, Copy)]
struct Nibbles([__m256i; 8]);

impl Tile<Avx2> for Nibbles {
    const BYTES: usize = NIBBLES;

    #[inline(always)]
    unsafe fn load(rows: &[*const u8], at: usize) -> Self {
        // SAFETY: the caller's promise.
        Nibbles(unsafe { turned_nibbles(rows, at) })
    }

    #[inline(always)]
    unsafe fn dots<const N: usize>(&self, x: [*const Group; N]) -> [__m256; N] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [_mm256_setzero_si256(); N];
            for (q, quad) in self.0.iter().enumerate() {
                for i in 0..N {
                    let products = _mm256_maddubs_epi16(*quad, splat_quad(x[i], q));
                    sums[i] = if q == 0 { products } else { _mm256_add_epi16(sums[i], products) };
                }
            }
            let ones = _mm256_set1_epi16(1);
            let mut dots = [_mm256_setzero_ps(); N];
            for i in 0..N {
                let sum = _mm256_madd_epi16(sums[i], ones);
                dots[i] = _mm256_cvtepi32_ps(_mm256_add_epi32(sum, _mm256_set1_epi32((*x[i]).bias)));
            }
            dots
        }
    }
}

/// Bytes and their magnitudes.
#[derive(Clone, Copy)]
struct Bytes {
    signed: [__m256i; 8],
    magnitudes: [__m256i; 8],
}

impl Tile<Avx2> for Bytes {
    const BYTES: usize = GROUP;

    #[inline(always)]
    unsafe fn load(rows: &[*const u8], at: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let signed = turned_bytes(rows, at);
            let mut magnitudes = signed;
            for quad in &mut magnitudes {
                *quad = _mm256_abs_epi8(*quad);
            }
            Bytes { signed, magnitudes }
        }
    }

    /// The products are signed already: the bias is not needed.
    #[inline(always)]
    unsafe fn dots<const N: usize>(&self, x: [*const Group; N]) -> [__m256; N] {
        // SAFETY: the caller's promise.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let mut sums = [_mm256_setzero_si256(); N];
            for (q, (signed, magnitude)) in self.signed.iter().zip(&self.magnitudes).enumerate() {
                for i in 0..N {
                    let x = _mm256_sign_epi8(splat_quad(x[i], q), *signed);
                    let products = _mm256_madd_epi16(_mm256_maddubs_epi16(*magnitude, x), ones);
                    sums[i] = if q == 0 { products } else { _mm256_add_epi32(sums[i], products) };
                }
            }
            let mut dots = [_mm256_setzero_ps(); N];
            for i in 0..N {
                dots[i] = _mm256_cvtepi32_ps(sums[i]);
            }
            dots
        }
    }
}

integer_products!("avx2,fma", Avx2, nibbles: Nibbles, bytes: Bytes);
float_loops!("avx2,fma", Avx2);
