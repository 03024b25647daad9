//! The kernels on AVX2 and FMA.
//!
//! `vpmaddubsw` multiplies unsigned by signed bytes and adds neighbours in 16 bits. Nibbles up to 15
//! times activations up to ±128 leave room for a whole group: 16 · 15 · 128 < 2¹⁵ per 16-bit lane.
//! Bytes go through it as magnitude times sign-adjusted activation where they come straight from
//! the file (128 · 127 · 2 < 2¹⁵), and as two nibble planes where they are unpacked anyway.

use std::arch::x86_64::*;

use super::{BAND, Few, GROUP, LANES, NibbleBand, PLANES, Planes, Tall};

/// # Safety
/// AVX2; `x`, `scales`, `out` and `w` agree in size.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn few_nibbles(
    w: &NibbleBand<'_>,
    scales: &[[f32; BAND]],
    x: &Few<'_>,
    out: &mut [[f32; BAND]],
) {
    let groups = scales.len();
    let low_nibble = _mm256_set1_epi8(15);
    // The upper half of a vector takes the high nibbles.
    let shift = _mm256_set_epi64x(4, 4, 0, 0);
    out.fill([0.0; BAND]);
    for (g, scales) in scales.iter().enumerate() {
        let weights: [__m256i; BAND] = std::array::from_fn(|r| {
            // SAFETY: the caller checked that every row has 16 bytes at each group.
            let bytes = unsafe { _mm_loadu_si128(w.rows[r].as_ptr().add(g * w.stride).cast()) };
            _mm256_and_si256(_mm256_srlv_epi64(_mm256_broadcastsi128_si256(bytes), shift), low_nibble)
        });
        let scales = load_f32(scales);
        for (n, out) in out.iter_mut().enumerate() {
            let at = n * groups + g;
            let quants = load_i8(&x.quants[at]);
            let p: [__m256i; BAND] = std::array::from_fn(|r| _mm256_maddubs_epi16(weights[r], quants));
            // Sums of 8 lanes still fit in 16 bits.
            let low = _mm256_hadd_epi16(_mm256_hadd_epi16(p[0], p[1]), _mm256_hadd_epi16(p[2], p[3]));
            let high = _mm256_hadd_epi16(_mm256_hadd_epi16(p[4], p[5]), _mm256_hadd_epi16(p[6], p[7]));
            let halves = _mm256_hadd_epi16(low, high);
            let dots = _mm256_add_epi32(
                _mm256_cvtepi16_epi32(_mm256_castsi256_si128(halves)),
                _mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(halves)),
            );
            let dots = _mm256_sub_epi32(dots, _mm256_set1_epi32(8 * x.sums[at]));
            accumulate(out, scales, _mm256_set1_ps(x.scales[at]), dots);
        }
    }
}

/// # Safety
/// AVX2; `x`, `out` and `w` agree in size.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn few_bytes(
    w: &[&[u8]; BAND],
    scales: &[f32; BAND],
    x: &Few<'_>,
    out: &mut [[f32; BAND]],
) {
    let cols = w[0].len();
    let groups = cols.div_ceil(GROUP);
    let ones = _mm256_set1_epi16(1);
    let scales = load_f32(scales);
    out.fill([0.0; BAND]);
    for g in 0..groups {
        let here = GROUP.min(cols - g * GROUP);
        let weights: [__m256i; BAND] = std::array::from_fn(|r| {
            if here == GROUP {
                // SAFETY: all rows have `cols` bytes and this group ends before that.
                unsafe { _mm256_loadu_si256(w[r].as_ptr().add(g * GROUP).cast()) }
            } else {
                let mut padded = [0i8; GROUP];
                for (to, from) in padded.iter_mut().zip(&w[r][g * GROUP..]) {
                    *to = from.cast_signed();
                }
                load_i8(&padded)
            }
        });
        for (n, out) in out.iter_mut().enumerate() {
            let at = n * groups + g;
            let quants = load_i8(&x.quants[at]);
            let p: [__m256i; BAND] = std::array::from_fn(|r| {
                let signed = _mm256_sign_epi8(quants, weights[r]);
                _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(weights[r]), signed), ones)
            });
            let low = _mm256_hadd_epi32(_mm256_hadd_epi32(p[0], p[1]), _mm256_hadd_epi32(p[2], p[3]));
            let high = _mm256_hadd_epi32(_mm256_hadd_epi32(p[4], p[5]), _mm256_hadd_epi32(p[6], p[7]));
            let dots = _mm256_add_epi32(
                _mm256_permute2x128_si256::<0x20>(low, high),
                _mm256_permute2x128_si256::<0x31>(low, high),
            );
            accumulate(out, scales, _mm256_set1_ps(x.scales[at]), dots);
        }
    }
}

/// # Safety
/// AVX2; all parts agree in size.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn tall<const OCTETS: usize>(
    planes: [&[[u8; GROUP]]; PLANES],
    meaning: Planes,
    scales: &[[f32; PLANES]],
    x: &[Tall<'_>; OCTETS],
    acc: &mut [[[f32; LANES]; OCTETS]],
) {
    let ones = _mm256_set1_epi16(1);
    for (g, scales) in scales.iter().enumerate() {
        let mut sums = [[_mm256_setzero_si256(); OCTETS]; PLANES];
        for quad in 0..GROUP / 4 {
            let x: [__m256i; OCTETS] = std::array::from_fn(|o| {
                // SAFETY: `x` has `groups` groups of 8 quads of 32 bytes.
                unsafe { _mm256_loadu_si256(x[o].quants.as_ptr().add(g).cast::<__m256i>().add(quad)) }
            });
            for (plane, sums) in planes.iter().zip(&mut sums) {
                // SAFETY: a plane has `groups` groups of 8 quads of 4 bytes.
                let four = unsafe { plane.as_ptr().add(g).cast::<i32>().add(quad).read_unaligned() };
                let four = _mm256_set1_epi32(four);
                for (sum, x) in sums.iter_mut().zip(x) {
                    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(four, x));
                }
            }
        }
        for (o, x) in x.iter().enumerate() {
            let x_scales = load_f32(&x.scales[g]);
            // SAFETY: eight numbers, any alignment.
            let x_sums = unsafe { _mm256_loadu_si256(x.sums[g].as_ptr().cast()) };
            let dots: [__m256i; PLANES] = std::array::from_fn(|p| _mm256_madd_epi16(sums[p][o], ones));
            match meaning {
                Planes::Single => {
                    let offset = _mm256_slli_epi32::<3>(x_sums);
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let dots = _mm256_sub_epi32(dots[r], offset);
                        accumulate(&mut acc[o], _mm256_set1_ps(scales[r]), x_scales, dots);
                    }
                }
                Planes::Pair => {
                    let offset = _mm256_slli_epi32::<7>(x_sums);
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let both = _mm256_add_epi32(_mm256_slli_epi32::<4>(dots[2 * r]), dots[2 * r + 1]);
                        let dots = _mm256_sub_epi32(both, offset);
                        accumulate(&mut acc[o], _mm256_set1_ps(scales[r]), x_scales, dots);
                    }
                }
            }
        }
    }
}

/// `acc += (a · b) · dots`, every step rounded.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn accumulate(acc: &mut [f32; 8], a: __m256, b: __m256, dots: __m256i) {
    let products = _mm256_mul_ps(_mm256_mul_ps(a, b), _mm256_cvtepi32_ps(dots));
    let sum = _mm256_add_ps(load_f32(acc), products);
    // SAFETY: eight numbers, any alignment.
    unsafe { _mm256_storeu_ps(acc.as_mut_ptr(), sum) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load_f32(from: &[f32; 8]) -> __m256 {
    // SAFETY: eight numbers, any alignment.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load_i8(from: &[i8; 32]) -> __m256i {
    // SAFETY: 32 bytes, any alignment.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

/// # Safety
/// AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn dots(w: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
    let n = x.len() / cols;
    if n == 0 {
        return;
    }
    let mut w_rows = w.chunks_exact(cols);
    let mut out_rows = out.chunks_exact_mut(n);
    // Enough independent sums to cover the latency of a multiply-add.
    while w_rows.len() >= 4 {
        let w: [&[f32]; 4] = std::array::from_fn(|_| w_rows.next().expect("counted"));
        let mut out: [&mut [f32]; 4] = std::array::from_fn(|_| out_rows.next().expect("one per row"));
        let mut x_rows = x.chunks_exact(cols);
        let mut at = 0;
        while x_rows.len() >= 2 {
            let x: [&[f32]; 2] = std::array::from_fn(|_| x_rows.next().expect("counted"));
            for (out, dots) in out.iter_mut().zip(dots_of(&w, &x)) {
                out[at..at + 2].copy_from_slice(&dots);
            }
            at += 2;
        }
        for x in x_rows {
            for (out, [dot]) in out.iter_mut().zip(dots_of(&w, &[x])) {
                out[at] = dot;
            }
        }
    }
    for (w, out) in w_rows.zip(out_rows) {
        for (x, out) in x.chunks_exact(cols).zip(out) {
            *out = dots_of(&[w], &[x])[0][0];
        }
    }
}

/// `W × X` inner products of rows of one length. A sum runs in eight lanes, then over the lanes,
/// then over the columns past the last whole vector.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn dots_of<const W: usize, const X: usize>(w: &[&[f32]; W], x: &[&[f32]; X]) -> [[f32; X]; W] {
    let (w_parts, x_parts) = (w.map(|row| row.as_chunks::<8>()), x.map(|row| row.as_chunks::<8>()));
    let mut sums = [[_mm256_setzero_ps(); X]; W];
    for i in 0..w_parts[0].0.len() {
        let x: [__m256; X] = std::array::from_fn(|n| load_f32(&x_parts[n].0[i]));
        for (sums, w) in sums.iter_mut().zip(&w_parts) {
            let w = load_f32(&w.0[i]);
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = _mm256_fmadd_ps(w, x, *sum);
            }
        }
    }
    std::array::from_fn(|r| {
        std::array::from_fn(|n| {
            let tail = w_parts[r].1.iter().zip(x_parts[n].1);
            tail.fold(sum_lanes(sums[r][n]), |sum, (w, x)| w.mul_add(*x, sum))
        })
    })
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum_lanes(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}
