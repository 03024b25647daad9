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
        let mut weights = [_mm256_setzero_si256(); BAND];
        for (weights, row) in weights.iter_mut().zip(&w.rows) {
            // SAFETY: the caller checked that every row has 16 bytes at each group.
            let bytes = unsafe { _mm_loadu_si128(row.as_ptr().add(g * w.stride).cast()) };
            let both = _mm256_srlv_epi64(_mm256_broadcastsi128_si256(bytes), shift);
            *weights = _mm256_and_si256(both, low_nibble);
        }
        let scales = load_f32(scales);
        for (n, out) in out.iter_mut().enumerate() {
            let at = n * groups + g;
            let quants = load_i8(&x.quants[at]);
            let mut p = weights;
            for p in &mut p {
                *p = _mm256_maddubs_epi16(*p, quants);
            }
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
        let mut weights = [_mm256_setzero_si256(); BAND];
        for (weights, row) in weights.iter_mut().zip(w) {
            *weights = if here == GROUP {
                // SAFETY: all rows have `cols` bytes and this group ends before that.
                unsafe { _mm256_loadu_si256(row.as_ptr().add(g * GROUP).cast()) }
            } else {
                let mut padded = [0i8; GROUP];
                for (to, from) in padded.iter_mut().zip(&row[g * GROUP..]) {
                    *to = from.cast_signed();
                }
                load_i8(&padded)
            };
        }
        for (n, out) in out.iter_mut().enumerate() {
            let at = n * groups + g;
            let quants = load_i8(&x.quants[at]);
            let mut p = weights;
            for p in &mut p {
                let signed = _mm256_sign_epi8(quants, *p);
                *p = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(*p), signed), ones);
            }
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
    scales: &[[f32; BAND]],
    first: usize,
    x: &[Tall<'_>; OCTETS],
    acc: &mut [[[f32; LANES]; OCTETS]],
) {
    let ones = _mm256_set1_epi16(1);
    for (g, scales) in scales.iter().enumerate() {
        let mut sums = [[_mm256_setzero_si256(); OCTETS]; PLANES];
        for quad in 0..GROUP / 4 {
            let mut four_of = [_mm256_setzero_si256(); OCTETS];
            for (four, x) in four_of.iter_mut().zip(x) {
                // SAFETY: `x` has `groups` groups of 8 quads of 32 bytes.
                *four = unsafe { _mm256_loadu_si256(x.quants.as_ptr().add(g).cast::<__m256i>().add(quad)) };
            }
            for (plane, sums) in planes.iter().zip(&mut sums) {
                // SAFETY: a plane has `groups` groups of 8 quads of 4 bytes.
                let four = unsafe { plane.as_ptr().add(g).cast::<i32>().add(quad).read_unaligned() };
                let four = _mm256_set1_epi32(four);
                for (sum, x) in sums.iter_mut().zip(four_of) {
                    *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(four, x));
                }
            }
        }
        for (o, x) in x.iter().enumerate() {
            // SAFETY: the caller checked that `x` has `groups` scales and sums of eight numbers.
            let (x_scales, x_sums) = unsafe {
                (load_f32(x.scales.get_unchecked(g)), _mm256_loadu_si256(x.sums.as_ptr().add(g).cast()))
            };
            match meaning {
                Planes::Single => {
                    let offset = _mm256_slli_epi32::<3>(x_sums);
                    for ((acc, scale), sums) in acc.iter_mut().zip(&scales[first..]).zip(&sums) {
                        let dots = _mm256_sub_epi32(_mm256_madd_epi16(sums[o], ones), offset);
                        accumulate(&mut acc[o], _mm256_set1_ps(*scale), x_scales, dots);
                    }
                }
                Planes::Pair => {
                    let offset = _mm256_slli_epi32::<7>(x_sums);
                    for ((acc, scale), sums) in
                        acc.iter_mut().zip(&scales[first..]).zip(sums.as_chunks::<2>().0)
                    {
                        let (high, low) =
                            (_mm256_madd_epi16(sums[0][o], ones), _mm256_madd_epi16(sums[1][o], ones));
                        let dots =
                            _mm256_sub_epi32(_mm256_add_epi32(_mm256_slli_epi32::<4>(high), low), offset);
                        accumulate(&mut acc[o], _mm256_set1_ps(*scale), x_scales, dots);
                    }
                }
            }
        }
    }
}

/// # Safety
/// AVX2; `row` has 16 bytes at each of `plane.len()` groups of `stride`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn unpack_nibbles(row: &[u8], stride: usize, plane: &mut [[u8; GROUP]]) {
    let low_nibble = _mm256_set1_epi8(15);
    let shift = _mm256_set_epi64x(4, 4, 0, 0);
    for (g, plane) in plane.iter_mut().enumerate() {
        // SAFETY: the caller's promise; the store is 32 bytes, any alignment.
        unsafe {
            let bytes = _mm_loadu_si128(row.as_ptr().add(g * stride).cast());
            let both = _mm256_srlv_epi64(_mm256_broadcastsi128_si256(bytes), shift);
            _mm256_storeu_si256(plane.as_mut_ptr().cast(), _mm256_and_si256(both, low_nibble));
        }
    }
}

/// # Safety
/// AVX2.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn unpack_bytes(row: &[[u8; GROUP]], high: &mut [[u8; GROUP]], low: &mut [[u8; GROUP]]) {
    let low_nibble = _mm256_set1_epi8(15);
    let offset = _mm256_set1_epi8(8);
    for ((bytes, high), low) in row.iter().zip(high).zip(low) {
        // SAFETY: each is 32 bytes, any alignment.
        unsafe {
            let bytes = _mm256_loadu_si256(bytes.as_ptr().cast());
            let upper = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low_nibble);
            _mm256_storeu_si256(high.as_mut_ptr().cast(), _mm256_xor_si256(upper, offset));
            _mm256_storeu_si256(low.as_mut_ptr().cast(), _mm256_and_si256(bytes, low_nibble));
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
        let mut x = [_mm256_setzero_ps(); X];
        for (x, parts) in x.iter_mut().zip(&x_parts) {
            *x = load_f32(&parts.0[i]);
        }
        for (sums, w) in sums.iter_mut().zip(&w_parts) {
            let w = load_f32(&w.0[i]);
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = _mm256_fmadd_ps(w, x, *sum);
            }
        }
    }
    let mut out = [[0.0; X]; W];
    for ((out, sums), (_, w_tail)) in out.iter_mut().zip(sums).zip(&w_parts) {
        for ((out, sum), (_, x_tail)) in out.iter_mut().zip(sums).zip(&x_parts) {
            *out = sum_lanes(sum);
            for (w, x) in w_tail.iter().zip(*x_tail) {
                *out = w.mul_add(*x, *out);
            }
        }
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum_lanes(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}
