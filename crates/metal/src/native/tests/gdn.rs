//! Gated DeltaNet, step by step.

use super::super::abi;
use super::super::device::{Device, Grid};
use super::super::kernel::{KEY_DIMS, Kernel};
use super::{U, close, in_all_orders, noise, sigmoid, silu};

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|x| f64::from(*x)).collect()
}

#[test]
fn convolution_and_ring() {
    let (channels, row0) = (70, 2);
    in_all_orders(|device| {
        // Fewer rows than the ring, as many, more; a convolution over the row alone.
        for (taps, rows, block) in [
            (4, 1, false),
            (4, 2, true),
            (4, 3, false),
            (3, 9, true),
            (4, 7, false),
            (1, 3, false),
            (1, 2, true),
        ] {
            let back = taps - 1;
            let (raw, ring) = (noise(1, (row0 + rows) * channels), noise(2, back * channels));
            let (left, right) = (noise(3, channels * taps), noise(4, channels * back));
            let [raw_b, ring_b, left_b, right_b] =
                [&raw, &ring, &left, &right].map(|values| device.filled(values).unwrap());
            let out = device.alloc(raw.len() * 4).unwrap();
            let arguments = abi::Conv {
                channels: channels as u32,
                taps: taps as u32,
                row0: row0 as u32,
                rows: rows as u32,
                block: block.into(),
            };
            let buffers = [&raw_b, &ring_b, &left_b, &right_b, &out].map(Into::into);
            let mut work = device.work(false);
            let grid = Grid::new((channels.div_ceil(64), rows, 1), 64);
            work.dispatch(Kernel::GdnConv, grid, &arguments, &buffers).unwrap();
            work.barrier();
            let arguments = abi::Ring {
                channels: channels as u32,
                back: back as u32,
                row0: row0 as u32,
                rows: rows as u32,
            };
            let buffers = [(&raw_b).into(), (&ring_b).into()];
            work.dispatch(Kernel::GdnRing, Grid::flat(channels), &arguments, &buffers).unwrap();
            work.wait().unwrap();

            let tape = wide(&[&ring, &raw[row0 * channels..]].concat());
            let mut want = Vec::new();
            for (t, c) in (0..rows).flat_map(|t| (0..channels).map(move |c| (t, c))) {
                let past = (0..taps).map(|j| f64::from(left[c * taps + j]) * tape[(t + j) * channels + c]);
                let future = (1..=back.min(rows - 1 - t))
                    .map(|d| f64::from(right[c * back + d - 1]) * tape[(t + back + d) * channels + c]);
                want.push(silu(past.sum::<f64>() + if block { future.sum() } else { 0.0 }));
            }
            let got = &out.read::<f32>(0, raw.len())[row0 * channels..];
            // Up to seven terms of size 1, then a product with a sigmoid.
            close("convolution", got, &want, 7.0 * 12.0 * U);
            close("ring", ring_b.read(0, back * channels), &tape[rows * channels..], 0.0);
        }
    });
}

#[test]
fn unit_norms_and_gates() {
    in_all_orders(|device| {
        let (rows, key_heads, key_dim, rest) = (3, 2, 48, 5);
        let channels = 2 * key_heads * key_dim + rest;
        let values = noise(1, rows * channels);
        let buffer = device.filled(&values).unwrap();
        let mut work = device.work(false);
        let arguments = abi::Unit { channels: channels as u32, key_dim: key_dim as u32 };
        let grid = Grid::new((2 * key_heads, rows, 1), 32);
        work.dispatch(Kernel::GdnUnit, grid, &arguments, &[(&buffer).into()]).unwrap();
        work.wait().unwrap();
        let mut want = wide(&values);
        for row in want.chunks_exact_mut(channels) {
            for head in row[..2 * key_heads * key_dim].chunks_exact_mut(key_dim) {
                let length = (head.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                head.iter_mut().for_each(|x| *x /= length);
            }
        }
        close("unit rows", buffer.read(0, values.len()), &want, 16.0 * U);

        let heads = 3;
        let [a, b] =
            [2, 3].map(|seed| noise(seed, rows * heads).iter().map(|x| 20.0 * x).collect::<Vec<f32>>());
        let (a_log, dt_bias) = (noise(4, heads), noise(5, heads));
        let [a_b, b_b, l_b, d_b] = [&a, &b, &a_log, &dt_bias].map(|values| device.filled(values).unwrap());
        let gates = device.alloc(rows * heads * 8).unwrap();
        let count = rows * heads;
        let arguments = abi::Gates { heads: heads as u32, count: count as u32 };
        let buffers = [&a_b, &b_b, &l_b, &d_b, &gates].map(Into::into);
        work.dispatch(Kernel::GdnGates, Grid::flat(count), &arguments, &buffers).unwrap();
        work.wait().unwrap();
        let want: Vec<f64> = (0..rows)
            .flat_map(|row| {
                let at = |values: &[f32], head: usize| f64::from(values[row * heads + head]);
                let decay = |head: usize| {
                    let x = f64::from(a[row * heads + head] + dt_bias[head]);
                    (-f64::from(a_log[head]).exp() * x.exp().ln_1p()).exp()
                };
                let decays: Vec<f64> = (0..heads).map(decay).collect();
                [decays, (0..heads).map(|head| sigmoid(at(&b, head))).collect()].concat()
            })
            .collect();
        // The exponent of a decay, up to 60, is off by some units; the decay then by that much of itself.
        close("gates", gates.read(0, 2 * count), &want, 64.0 * U);
    });
}

/// Rows ready for the recurrence: unit queries and keys.
fn ready(rows: usize, key_heads: usize, key_dim: usize, value_width: usize) -> Vec<f32> {
    let mut all = noise(11, rows * (2 * key_heads * key_dim + value_width));
    for row in all.chunks_exact_mut(2 * key_heads * key_dim + value_width) {
        for head in row[..2 * key_heads * key_dim].chunks_exact_mut(key_dim) {
            let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
            head.iter_mut().for_each(|x| *x /= length);
        }
    }
    all
}

#[test]
fn delta_rule() {
    let (key_heads, value_heads, row0, rows) = (2, 6, 1, 5);
    in_all_orders(|device| {
        for (key_dim, value_dim) in KEY_DIMS.into_iter().zip([33, 64, 40, 32]) {
            let (key_width, value_width) = (key_heads * key_dim, value_heads * value_dim);
            let channels = 2 * key_width + value_width;
            // Vectors of four are loaded from a row: rows are whole multiples of four.
            let channels = channels.next_multiple_of(4);
            let values = ready(row0 + rows, key_heads, key_dim, channels - 2 * key_width);
            let gates: Vec<f32> =
                noise(12, 2 * (row0 + rows) * value_heads).iter().map(|x| (x + 1.0) / 2.0).collect();
            let memory = noise(13, value_heads * key_dim * value_dim);
            let [rows_b, gates_b, memory_b] = [&values, &gates, &memory].map(|x| device.filled(x).unwrap());
            let read = device.alloc((row0 + rows) * value_width * 4).unwrap();
            let arguments = abi::Recur {
                channels: channels as u32,
                key_heads: key_heads as u32,
                value_heads: value_heads as u32,
                value_dim: value_dim as u32,
                row0: row0 as u32,
                rows: rows as u32,
            };
            let buffers = [&rows_b, &gates_b, &memory_b, &read].map(Into::into);
            let mut work = device.work(false);
            let grid = Grid::new((value_dim.div_ceil(32), value_heads, 1), 32);
            work.dispatch(Kernel::GdnRecur(key_dim), grid, &arguments, &buffers).unwrap();
            work.wait().unwrap();

            let (mut s, x) = (wide(&memory), wide(&values));
            let mut want = Vec::new();
            for t in row0..row0 + rows {
                for head in 0..value_heads {
                    let at = t * channels + head / (value_heads / key_heads) * key_dim;
                    let (q, k) = (&x[at..][..key_dim], &x[at + key_width..][..key_dim]);
                    let gate = |which: usize| f64::from(gates[(2 * t + which) * value_heads + head]);
                    let s = &mut s[head * key_dim * value_dim..][..key_dim * value_dim];
                    s.iter_mut().for_each(|s| *s *= gate(0));
                    for j in 0..value_dim {
                        let held: f64 = (0..key_dim).map(|i| k[i] * s[i * value_dim + j]).sum();
                        let value = x[t * channels + 2 * key_width + head * value_dim + j];
                        let error = gate(1) * (value - held);
                        (0..key_dim).for_each(|i| s[i * value_dim + j] += k[i] * error);
                        let out: f64 = (0..key_dim).map(|i| q[i] * s[i * value_dim + j]).sum();
                        want.push(out / (key_dim as f64).sqrt());
                    }
                }
            }
            // Sums of `key_dim` products of sizes up to 2, over five rows.
            let off = 5.0 * key_dim as f64 * U;
            close("memory", memory_b.read(0, memory.len()), &s, off);
            close(
                "read",
                &read.read::<f32>(0, (row0 + rows) * value_width)[row0 * value_width..],
                &want,
                off,
            );
        }
    });
}

fn block(device: &Device, rows: usize, key_dim: usize, value_dim: usize) {
    let (key_heads, value_heads, row0) = (1, 3, 2);
    let (key_width, value_width) = (key_heads * key_dim, value_heads * value_dim);
    let channels = 2 * key_width + value_width;
    let values = ready(row0 + rows, key_heads, key_dim, value_width);
    let gates: Vec<f32> =
        noise(12, 2 * (row0 + rows) * value_heads).iter().map(|x| (x + 1.0) / 2.0).collect();
    let memory = noise(13, value_heads * key_dim * value_dim);
    let scale: Vec<f32> = noise(14, value_heads).iter().map(|x| 8.0 * x).collect();
    let (bias, c) = (noise(15, value_heads), noise(16, value_heads));
    let share = (rows as f32 / 32.0).ln();
    let all = [&values, &gates, &memory, &scale, &bias, &c].map(|x| device.filled(x).unwrap());
    let read = device.alloc((row0 + rows) * value_width * 4).unwrap();
    let arguments = abi::Block {
        channels: channels as u32,
        key_heads: key_heads as u32,
        value_heads: value_heads as u32,
        key_dim: key_dim as u32,
        value_dim: value_dim as u32,
        row0: row0 as u32,
        rows: rows as u32,
        share,
    };
    let buffers = [&all[0], &all[1], &all[2], &all[3], &all[4], &all[5], &read].map(Into::into);
    let mut work = device.work(false);
    work.dispatch(Kernel::GdnBlock, Grid::new((value_heads, rows, 1), 64), &arguments, &buffers).unwrap();
    work.wait().unwrap();

    let x = wide(&values);
    let mut want = Vec::new();
    for (t, head) in (row0..row0 + rows).flat_map(|t| (0..value_heads).map(move |head| (t, head))) {
        let q = &x[t * channels..][..key_dim];
        let mut p: Vec<f64> = (row0..row0 + rows)
            .map(|s| {
                q.iter().zip(&x[s * channels + key_width..]).map(|(q, k)| q * k).sum::<f64>()
                    * f64::from(scale[head])
            })
            .collect();
        p.push(f64::from(bias[head]) + f64::from(c[head]) * f64::from(share));
        let best = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        p.iter_mut().for_each(|p| *p = (*p - best).exp());
        let mass: f64 = p.iter().sum();
        let past = p[rows] * f64::from(gates[2 * t * value_heads + head]) / (key_dim as f64).sqrt();
        want.extend((0..value_dim).map(|j| {
            let own: f64 = (0..rows)
                .map(|s| p[s] * x[(row0 + s) * channels + 2 * key_width + head * value_dim + j])
                .sum();
            let old: f64 =
                (0..key_dim).map(|i| q[i] * f64::from(memory[(head * key_dim + i) * value_dim + j])).sum();
            (own + past * old) / mass
        }));
    }
    let got = &read.read::<f32>(0, (row0 + rows) * value_width)[row0 * value_width..];
    // A logit of up to 8 is off by some units of its sum; sums of up to `rows` and `key_dim` terms.
    close("block", got, &want, 8.0 * (rows + key_dim) as f64 * U);
}

#[test]
fn block_operator() {
    in_all_orders(|device| {
        for (rows, key_dim, value_dim) in [(1, 32, 64), (8, 64, 33), (33, 32, 65), (70, 32, 32)] {
            block(device, rows, key_dim, value_dim);
        }
    });
}

#[test]
fn gated_norm() {
    let (rows, heads, eps) = (3, 2, 1e-6f32);
    in_all_orders(|device| {
        for value_dim in [32, 33, 128] {
            let count = rows * heads * value_dim;
            let (read, z, weight) = (noise(1, count), noise(2, count), noise(3, value_dim));
            let [read_b, z_b, weight_b] = [&read, &z, &weight].map(|x| device.filled(x).unwrap());
            let arguments = abi::Gate { value_dim: value_dim as u32, eps };
            let buffers = [&read_b, &z_b, &weight_b].map(Into::into);
            let mut work = device.work(false);
            work.dispatch(Kernel::GdnGate, Grid::new((heads, rows, 1), 32), &arguments, &buffers).unwrap();
            work.wait().unwrap();
            let mut want = Vec::new();
            for (x, z) in wide(&read).chunks_exact(value_dim).zip(wide(&z).chunks_exact(value_dim)) {
                let rms = (x.iter().map(|x| x * x).sum::<f64>() / value_dim as f64 + f64::from(eps)).sqrt();
                want.extend((0..value_dim).map(|i| x[i] / rms * f64::from(weight[i]) * silu(z[i])));
            }
            close("gated norm", read_b.read(0, count), &want, 4.0 * 24.0 * U);
        }
    });
}
