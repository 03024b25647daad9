//! The kernels in plain Rust: the definition of what the others compute.

use super::{BAND, Few, GROUP, LANES, NibbleBand, PLANES, Planes, Tall};

pub(super) fn few_nibbles(w: &NibbleBand<'_>, scales: &[[f32; BAND]], x: &Few<'_>, out: &mut [[f32; BAND]]) {
    let groups = scales.len();
    for (n, out) in out.iter_mut().enumerate() {
        *out = [0.0; BAND];
        for (g, scales) in scales.iter().enumerate() {
            let (x_scale, quants) = (x.scales[n * groups + g], &x.quants[n * groups + g]);
            let offset = 8 * x.sums[n * groups + g];
            let (even, odd) = quants.split_at(GROUP / 2);
            for r in 0..BAND {
                let bytes = &w.rows[r][g * w.stride..][..GROUP / 2];
                let dot: i32 = bytes
                    .iter()
                    .zip(even)
                    .zip(odd)
                    .map(|((b, e), o)| i32::from(b & 15) * i32::from(*e) + i32::from(b >> 4) * i32::from(*o))
                    .sum();
                out[r] += (scales[r] * x_scale) * (dot - offset) as f32;
            }
        }
    }
}

pub(super) fn few_bytes(w: &[&[u8]; BAND], scales: &[f32; BAND], x: &Few<'_>, out: &mut [[f32; BAND]]) {
    let groups = w[0].len().div_ceil(GROUP);
    for (n, out) in out.iter_mut().enumerate() {
        *out = [0.0; BAND];
        for g in 0..groups {
            let (x_scale, quants) = (x.scales[n * groups + g], &x.quants[n * groups + g]);
            for r in 0..BAND {
                let dot: i32 = w[r][g * GROUP..]
                    .iter()
                    .zip(quants)
                    .map(|(w, x)| i32::from(w.cast_signed()) * i32::from(*x))
                    .sum();
                out[r] += (scales[r] * x_scale) * dot as f32;
            }
        }
    }
}

pub(super) fn tall<const OCTETS: usize>(
    planes: [&[[u8; GROUP]]; PLANES],
    meaning: Planes,
    scales: &[[f32; BAND]],
    first: usize,
    x: &[Tall<'_>; OCTETS],
    acc: &mut [[[f32; LANES]; OCTETS]],
) {
    for (g, scales) in scales.iter().enumerate() {
        for (o, x) in x.iter().enumerate() {
            let dots = planes.map(|plane| plane_dots(&plane[g], &x.quants[g]));
            for (r, acc) in acc.iter_mut().enumerate() {
                for lane in 0..LANES {
                    let dot = match meaning {
                        Planes::Single => dots[r][lane] - 8 * x.sums[g][lane],
                        Planes::Pair => {
                            16 * dots[2 * r][lane] + dots[2 * r + 1][lane] - 128 * x.sums[g][lane]
                        }
                    };
                    acc[o][lane] += (scales[first + r] * x.scales[g][lane]) * dot as f32;
                }
            }
        }
    }
}

/// One group of a plane with eight rows.
fn plane_dots(plane: &[u8; GROUP], x: &[i8; GROUP * LANES]) -> [i32; LANES] {
    let mut dots = [0; LANES];
    for (quad, x) in plane.as_chunks::<4>().0.iter().zip(x.as_chunks::<{ 4 * LANES }>().0) {
        for (dot, x) in dots.iter_mut().zip(x.as_chunks::<4>().0) {
            *dot += quad.iter().zip(x).map(|(w, x)| i32::from(*w) * i32::from(*x)).sum::<i32>();
        }
    }
    dots
}

pub(super) fn unpack_nibbles(row: &[u8], stride: usize, plane: &mut [[u8; GROUP]]) {
    for (g, plane) in plane.iter_mut().enumerate() {
        let (low, high) = plane.split_at_mut(GROUP / 2);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(&row[g * stride..]) {
            (*low, *high) = (byte & 15, byte >> 4);
        }
    }
}

pub(super) fn unpack_bytes(row: &[[u8; GROUP]], high: &mut [[u8; GROUP]], low: &mut [[u8; GROUP]]) {
    let nibbles = high.as_flattened_mut().iter_mut().zip(low.as_flattened_mut());
    for ((high, low), byte) in nibbles.zip(row.as_flattened()) {
        (*high, *low) = ((byte ^ 128) >> 4, byte & 15);
    }
}

pub(super) fn dots(w: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
    let n = x.len() / cols;
    for (w, out) in w.chunks_exact(cols).zip(out.chunks_exact_mut(n)) {
        for (x, out) in x.chunks_exact(cols).zip(out) {
            *out = crate::math::dot(w, x);
        }
    }
}
