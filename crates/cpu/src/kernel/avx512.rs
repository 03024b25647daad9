//! The kernels on AVX-512 with VNNI: 16 weight rows in a vector, `vpdpbusd` with the activations'
//! four columns broadcast from memory.

use std::arch::x86_64::*;

use super::entry::{float_loops, integer_products, vector_operations};
use super::shape::{Simd, Tile};
use super::{Group, NIBBLES, avx2};

/// AVX-512F, BW and VNNI.
#[derive(Clone, Copy)]
struct Avx512;

impl Simd for Avx512 {
    const ROWS: usize = 16;

    vector_operations!(
        __m512,
        splat: _mm512_set1_ps,
        load: _mm512_loadu_ps,
        store: _mm512_storeu_ps,
        add: _mm512_add_ps,
        sub: _mm512_sub_ps,
        mul: _mm512_mul_ps
    );

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller has the instruction set.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn totals(values: [__m512; 4]) -> [f32; 4] {
        // SAFETY: as above.
        unsafe {
            let mut halves = [_mm256_setzero_ps(); 4];
            for (half, value) in halves.iter_mut().zip(values) {
                let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(value)));
                *half = _mm256_add_ps(_mm512_castps512_ps256(value), high);
            }
            avx2::totals(halves)
        }
    }
}

/// Unsigned weights; `BYTES` of a group in the file.
#[derive(Clone, Copy)]
struct Quads<const BYTES: usize>([__m512i; 8]);

/// 16 bytes of each row, `at` bytes into it: vector `q` holds the `q`-th four of every row.
///
/// # Safety
/// AVX-512F; 16 rows with 16 bytes there.
#[inline(always)]
unsafe fn turned(rows: &[*const u8], at: usize) -> [__m512i; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let row = |r: usize| _mm_loadu_si128(rows[r].add(at).cast());
        let mut lines = [_mm512_setzero_si512(); 4];
        for (j, line) in lines.iter_mut().enumerate() {
            // Rows j, j + 4, j + 8 and j + 12, so that turning squares inside 128-bit lanes leaves
            // the rows in order.
            let v = _mm512_castsi128_si512(row(j));
            let v = _mm512_inserti32x4::<1>(v, row(j + 4));
            let v = _mm512_inserti32x4::<2>(v, row(j + 8));
            *line = _mm512_inserti32x4::<3>(v, row(j + 12));
        }
        let a = _mm512_unpacklo_epi32(lines[0], lines[1]);
        let b = _mm512_unpackhi_epi32(lines[0], lines[1]);
        let c = _mm512_unpacklo_epi32(lines[2], lines[3]);
        let d = _mm512_unpackhi_epi32(lines[2], lines[3]);
        [
            _mm512_unpacklo_epi64(a, c),
            _mm512_unpackhi_epi64(a, c),
            _mm512_unpacklo_epi64(b, d),
            _mm512_unpackhi_epi64(b, d),
        ]
    }
}

impl<const BYTES: usize> Tile<Avx512> for Quads<BYTES> {
    const BYTES: usize = BYTES;

    #[inline(always)]
    unsafe fn load(rows: &[*const u8], at: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let mut quads = [_mm512_setzero_si512(); 8];
            if BYTES == NIBBLES {
                let low_nibble = _mm512_set1_epi8(15);
                for (two, bytes) in quads.as_chunks_mut::<2>().0.iter_mut().zip(turned(rows, at)) {
                    two[0] = _mm512_and_si512(bytes, low_nibble);
                    two[1] = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), low_nibble);
                }
            } else {
                let offset = _mm512_set1_epi8(i8::MIN);
                for (half, four) in quads.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    for (quad, bytes) in four.iter_mut().zip(turned(rows, at + 16 * half)) {
                        *quad = _mm512_xor_si512(bytes, offset);
                    }
                }
            }
            Quads(quads)
        }
    }

    #[inline(always)]
    unsafe fn dots<const N: usize>(&self, x: [*const Group; N]) -> [__m512; N] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [_mm512_setzero_si512(); N];
            for i in 0..N {
                sums[i] = _mm512_set1_epi32((*x[i]).bias);
            }
            for (q, quad) in self.0.iter().enumerate() {
                for i in 0..N {
                    let four = _mm512_set1_epi32(x[i].cast::<i32>().add(q).read());
                    sums[i] = _mm512_dpbusd_epi32(sums[i], *quad, four);
                }
            }
            let mut dots = [_mm512_setzero_ps(); N];
            for i in 0..N {
                dots[i] = _mm512_cvtepi32_ps(sums[i]);
            }
            dots
        }
    }
}

integer_products!("avx512f,avx512bw,avx512vnni,avx2,fma", Avx512, nibbles: Quads<16>, bytes: Quads<32>);
float_loops!("avx512f,avx512bw,avx512vnni,avx2,fma", Avx512);
