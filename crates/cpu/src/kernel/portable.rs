//! The kernels in plain Rust: the definition of what the others compute.

use super::{BAND, Band, DeltaRule, GROUP, NIBBLES, Rounded};

pub(super) fn nibbles(
    w: &Band<'_>,
    scales: &[[f32; BAND]],
    x: &Rounded<'_>,
    picked: &[u32],
    out: &mut [[f32; BAND]],
) {
    for (&row, out) in picked.iter().zip(out) {
        *out = [0.0; BAND];
        for (g, scales) in scales.iter().enumerate() {
            let x = &x.groups[row as usize * x.width + g];
            let eights = x.quants.as_chunks::<8>().0;
            for (r, out) in out.iter_mut().enumerate() {
                let bytes = w.rows[r][g * w.stride..][..NIBBLES].as_chunks::<4>().0;
                let mut dot = x.bias;
                for (bytes, x) in bytes.iter().zip(eights) {
                    for (i, byte) in bytes.iter().enumerate() {
                        let (low, high) = (i32::from(byte & 15), i32::from(byte >> 4));
                        dot += low * i32::from(x[i]) + high * i32::from(x[4 + i]);
                    }
                }
                *out = (scales[r] * x.scale).mul_add(dot as f32, *out);
            }
        }
    }
}

pub(super) fn bytes(
    w: &Band<'_>,
    cols: usize,
    scales: &[f32; BAND],
    x: &Rounded<'_>,
    picked: &[u32],
    out: &mut [[f32; BAND]],
) {
    for (&row, out) in picked.iter().zip(out) {
        for ((out, w), scale) in out.iter_mut().zip(w.rows).zip(scales) {
            let mut sum = 0.0f32;
            for (g, w) in w[..cols].chunks(GROUP).enumerate() {
                let x = &x.groups[row as usize * x.width + g];
                let products =
                    w.iter().zip(&x.quants).map(|(w, x)| i32::from(w.cast_signed()) * i32::from(*x));
                sum = x.scale.mul_add(products.sum::<i32>() as f32, sum);
            }
            *out = sum * scale;
        }
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

pub(super) fn add_weighted_rows(weights: &[f32], rows: &[f32], width: usize, out: &mut [f32]) {
    let count = rows.len() / width;
    for (i, out) in out.chunks_exact_mut(width).enumerate() {
        for (row, weight) in rows.chunks_exact(width).zip(&weights[i * count..]) {
            crate::math::add_scaled(out, row, *weight);
        }
    }
}

pub(super) fn delta_rule(rule: DeltaRule<'_>) {
    let DeltaRule { key_dim, value_dim, queries, keys, values, decay, beta, memory, out, .. } = rule;
    let read_scale = 1.0 / (key_dim as f32).sqrt();
    for (t, (decay, beta)) in decay.iter().zip(beta).enumerate() {
        let (q, k) = (&queries[t * key_dim..][..key_dim], &keys[t * key_dim..][..key_dim]);
        let mut error = vec![0.0; value_dim];
        for (row, k) in memory.chunks_exact(value_dim).zip(k) {
            crate::math::add_scaled(&mut error, row, *k);
        }
        for (error, value) in error.iter_mut().zip(&values[t * value_dim..]) {
            *error = beta * (value - decay * *error);
        }
        let out = &mut out[t * value_dim..][..value_dim];
        out.fill(0.0);
        for ((row, k), q) in memory.chunks_exact_mut(value_dim).zip(k).zip(q) {
            for ((s, error), out) in row.iter_mut().zip(&error).zip(out.iter_mut()) {
                *s = decay * *s + k * error;
                *out += q * *s;
            }
        }
        out.iter_mut().for_each(|out| *out *= read_scale);
    }
}

pub(super) fn peak(rounds: usize) -> f64 {
    let (w, x) = ([3i8; GROUP], [5i8; GROUP]);
    for _ in 0..rounds {
        let pairs = std::hint::black_box(&w).iter().zip(std::hint::black_box(&x));
        std::hint::black_box(pairs.map(|(w, x)| i32::from(*w) * i32::from(*x)).sum::<i32>());
    }
    (2 * GROUP) as f64
}
