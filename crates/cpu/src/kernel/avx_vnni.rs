//! The kernels on AVX2 with 256-bit VNNI: `vpdpbusd` multiplies four unsigned by four signed bytes
//! and adds them to a 32-bit lane, without the 16-bit step that [`avx2`](super::avx2) has to watch.

use std::arch::x86_64::*;

use super::Group;
use super::avx2::{Avx2, splat_quad, turned_bytes, turned_nibbles};
use super::entry::integer_products;
use super::shape::Tile;

/// Unsigned weights; `BYTES` of a group in the file.
#[derive(Clone, Copy)]
struct Quads<const BYTES: usize>([__m256i; 8]);

impl<const BYTES: usize> Tile<Avx2> for Quads<BYTES> {
    const BYTES: usize = BYTES;

    #[inline(always)]
    unsafe fn load(rows: &[*const u8], at: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            if BYTES == super::NIBBLES {
                return Quads(turned_nibbles(rows, at));
            }
            let mut quads = turned_bytes(rows, at);
            for quad in &mut quads {
                *quad = _mm256_xor_si256(*quad, _mm256_set1_epi8(i8::MIN));
            }
            Quads(quads)
        }
    }

    #[inline(always)]
    unsafe fn dots<const N: usize>(&self, x: [*const Group; N]) -> [__m256; N] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [_mm256_setzero_si256(); N];
            for i in 0..N {
                sums[i] = _mm256_set1_epi32((*x[i]).bias);
            }
            for (q, quad) in self.0.iter().enumerate() {
                for i in 0..N {
                    sums[i] = _mm256_dpbusd_avx_epi32(sums[i], *quad, splat_quad(x[i], q));
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

integer_products!("avx2,fma,avxvnni", Avx2, nibbles: Quads<16>, bytes: Quads<32>);
