//! Preparation, attention over prefix and block, joining of splits.

use half::f16;
use shamrock_model::{Limits, ModelFile, Score, Sequences, Step};
use shamrock_testkit::fixture;

use super::super::abi;
use super::super::attention::splits;
use super::super::device::{Buffer, Device, Grid};
use super::super::kernel::Kernel;
use super::super::plan::Plan;
use super::{close, in_all_orders, noise, sigmoid};
use crate::KvPrecision;

struct Shape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    rotary: usize,
    /// Committed rows.
    past: usize,
    rows: usize,
    commit: bool,
    splits: usize,
}

/// Keys or values as a kernel finds them, and what they come to.
fn stored(device: &Device, kv: KvPrecision, values: &[f32]) -> (Buffer, Vec<f64>) {
    match kv {
        KvPrecision::Full => (device.filled(values).unwrap(), values.iter().map(|x| f64::from(*x)).collect()),
        KvPrecision::Half => {
            let halves: Vec<f16> = values.iter().map(|x| f16::from_f32(*x)).collect();
            let bits: Vec<u16> = halves.iter().map(|x| x.to_bits()).collect();
            (device.filled(&bits).unwrap(), halves.iter().map(|x| x.to_f64()).collect())
        }
    }
}

fn load(kv: KvPrecision, buffer: &Buffer, count: usize) -> Vec<f32> {
    match kv {
        KvPrecision::Full => buffer.read(0, count).to_vec(),
        KvPrecision::Half => {
            buffer.read::<u16>(0, count).iter().map(|&b| f16::from_bits(b).to_f32()).collect()
        }
    }
}

/// A normed head, turned at the pair `(cos, sin)` of each of its first dims.
fn prepared(x: &[f32], weight: &[f32], turns: &[[f32; 2]], eps: f32) -> Vec<f64> {
    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let rms = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + f64::from(eps)).sqrt();
    let mut out: Vec<f64> = x.iter().zip(weight).map(|(x, w)| x / rms * (1.0 + f64::from(*w))).collect();
    let half = turns.len();
    for (i, [cos, sin]) in turns.iter().enumerate() {
        let (a, b, cos, sin) = (out[i], out[i + half], f64::from(*cos), f64::from(*sin));
        (out[i], out[i + half]) = (a * cos - b * sin, b * cos + a * sin);
    }
    out
}

fn check(device: &Device, kv: KvPrecision, s: &Shape) {
    let eps = 1e-6f32;
    let (width, row0) = (s.kv_heads * s.head_dim, 1);
    let total = row0 + s.rows; // another part's row comes first
    let q = noise(1, total * s.heads * 2 * s.head_dim);
    let (k, v) = (noise(2, total * width), noise(3, total * width));
    let (q_norm, k_norm) = (noise(4, s.head_dim), noise(5, s.head_dim));
    let half = s.rotary / 2;
    let turns: Vec<[f32; 2]> =
        noise(6, total * half).iter().map(|angle| [angle.cos(), angle.sin()]).collect();
    let room = s.past + if s.commit { s.rows } else { 0 };
    let (mut old_k, mut old_v) = (noise(8, room * width), noise(9, room * width));
    old_k[s.past * width..].fill(f32::NAN);
    old_v[s.past * width..].fill(f32::NAN);
    let ((keys, old_k), (values, old_v)) = (stored(device, kv, &old_k), stored(device, kv, &old_v));
    let own = vec![f32::NAN; s.rows * width];
    let (own_k, own_v) = (stored(device, kv, &own).0, stored(device, kv, &own).0);
    let [q_b, k_b, v_b, qn_b, kn_b] = [&q, &k, &v, &q_norm, &k_norm].map(|x| device.filled(x).unwrap());
    let turns_b = device.filled(&turns).unwrap();
    let query = device.alloc(total * s.heads * s.head_dim * 4).unwrap();
    let partial = device.alloc(total * s.heads * s.splits * (s.head_dim + 2) * 4).unwrap();
    let out = device.alloc(total * s.heads * s.head_dim * 4).unwrap();
    let scale = 1.0 / (s.head_dim as f32).sqrt();

    let mut work = device.work(false);
    let (to_k, to_v, to) = if s.commit { (&keys, &values, s.past) } else { (&own_k, &own_v, 0) };
    let arguments = abi::Prepare {
        heads: s.heads as u32,
        kv_heads: s.kv_heads as u32,
        head_dim: s.head_dim as u32,
        rotary: s.rotary as u32,
        row0: row0 as u32,
        to: to as u32,
        eps,
        scale,
    };
    let buffers = [&q_b, &k_b, &v_b, &qn_b, &kn_b, &turns_b, &query, to_k, to_v].map(Into::into);
    let grid = Grid::new((s.heads + 2 * s.kv_heads, s.rows, 1), 32);
    work.dispatch(Kernel::AttentionPrepare(kv), grid, &arguments, &buffers).unwrap();
    work.barrier();
    let (stored_rows, own_rows) = if s.commit { (s.past + s.rows, 0) } else { (s.past, s.rows) };
    let arguments = abi::Attention {
        heads: s.heads as u32,
        kv_heads: s.kv_heads as u32,
        head_dim: s.head_dim as u32,
        row0: row0 as u32,
        rows: s.rows as u32,
        stored: stored_rows as u32,
        own: own_rows as u32,
        causal: s.commit.into(),
        splits: s.splits as u32,
        chunk: (s.past + s.rows).div_ceil(s.splits).next_multiple_of(64) as u32,
    };
    let buffers = [&query, &keys, &values, &own_k, &own_v, &partial].map(Into::into);
    let grid = Grid::new((s.heads, s.rows.div_ceil(4), s.splits), 64);
    work.dispatch(Kernel::Attention(kv), grid, &arguments, &buffers).unwrap();
    work.barrier();
    let arguments = abi::Join {
        heads: s.heads as u32,
        head_dim: s.head_dim as u32,
        splits: s.splits as u32,
        row0: row0 as u32,
    };
    let buffers = [&partial, &q_b, &out].map(Into::into);
    work.dispatch(Kernel::AttentionJoin, Grid::new((s.heads, s.rows, 1), 32), &arguments, &buffers).unwrap();
    work.wait().unwrap();

    // The new keys and values, as stored; a half is off by 2^-11 of up to 8.
    let rounding = if kv == KvPrecision::Half { 4e-3 } else { 1e-5 };
    let turn = |row: usize| &turns[row * half..][..half];
    let want: Vec<f64> = (row0..total)
        .flat_map(|row| (0..s.kv_heads).map(move |head| (row, head)))
        .flat_map(|(row, head)| {
            prepared(&k[row * width + head * s.head_dim..][..s.head_dim], &k_norm, turn(row), eps)
        })
        .collect();
    let got = load(kv, to_k, (to + s.rows) * width)[to * width..].to_vec();
    close("new keys", &got, &want, rounding);
    let new_v = load(kv, to_v, (to + s.rows) * width)[to * width..].to_vec();
    close(
        "new values",
        &new_v,
        &v[row0 * width..].iter().map(|x| f64::from(*x)).collect::<Vec<_>>(),
        rounding,
    );

    // Attention over what is stored.
    let all = |old: &[f64], new: &[f32]| -> Vec<f64> {
        old[..s.past * width].iter().copied().chain(new.iter().map(|x| f64::from(*x))).collect()
    };
    let (keys, values) = (all(&old_k, &got), all(&old_v, &new_v));
    let mut want = Vec::new();
    for (r, head) in (0..s.rows).flat_map(|r| (0..s.heads).map(move |head| (r, head))) {
        let at = ((row0 + r) * s.heads + head) * 2 * s.head_dim;
        let query = prepared(&q[at..][..s.head_dim], &q_norm, turn(row0 + r), eps);
        let seen = if s.commit { s.past + r + 1 } else { s.past + s.rows };
        let kv_at = head / (s.heads / s.kv_heads) * s.head_dim;
        let scores: Vec<f64> = (0..seen)
            .map(|n| {
                keys[n * width + kv_at..].iter().zip(&query).map(|(k, q)| k * q).sum::<f64>()
                    * f64::from(scale)
            })
            .collect();
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - best).exp()).collect();
        let mass: f64 = weights.iter().sum();
        want.extend((0..s.head_dim).map(|c| {
            let sum: f64 = weights.iter().enumerate().map(|(n, w)| w * values[n * width + kv_at + c]).sum();
            sum / mass * sigmoid(f64::from(q[at + s.head_dim + c]))
        }));
    }
    let got = &out.read::<f32>(0, total * s.heads * s.head_dim)[row0 * s.heads * s.head_dim..];
    // Scores up to ~30 from sums of `head_dim` products: 1e-5 off moves a weight by 1e-5.
    close("attention", got, &want, 2e-5);
}

#[test]
fn commits_see_the_prefix_and_their_own_past() {
    in_all_orders(|device| {
        for kv in [KvPrecision::Half, KvPrecision::Full] {
            let shape = Shape {
                heads: 6,
                kv_heads: 2,
                head_dim: 64,
                rotary: 16,
                past: 0,
                rows: 7,
                commit: true,
                splits: 1,
            };
            check(device, kv, &shape);
            check(device, kv, &Shape { past: 131, rows: 1, splits: 3, ..shape });
            check(
                device,
                kv,
                &Shape { heads: 3, kv_heads: 3, head_dim: 32, rotary: 32, past: 60, rows: 70, ..shape },
            );
        }
    });
}

#[test]
fn previews_see_the_prefix_and_the_whole_block() {
    in_all_orders(|device| {
        for kv in [KvPrecision::Half, KvPrecision::Full] {
            let shape = Shape {
                heads: 2,
                kv_heads: 1,
                head_dim: 256,
                rotary: 64,
                past: 0,
                rows: 5,
                commit: false,
                splits: 1,
            };
            check(device, kv, &shape);
            check(device, kv, &Shape { head_dim: 96, rotary: 0, past: 61, rows: 9, splits: 2, ..shape });
            // More splits than there are keys for: some see nothing.
            check(device, kv, &Shape { head_dim: 32, rotary: 2, past: 64, rows: 4, splits: 8, ..shape });
        }
    });
}

/// Few rows over a long context are split, one split for every 256 keys, and a short context or many rows are not: the
/// executor's test of long sequences counts on it.
#[test]
fn long_contexts_are_split_for_few_rows() {
    let config = ModelFile::open(fixture("small/model.q4tp.cmf")).unwrap().config;
    let limits = Limits { max_context: 1024, max_rows: 1024, chunk_rows: 256, max_sequences: 1 };
    let mut sequences: Sequences<(), ()> = Sequences::new(limits);
    let seq = sequences.open(|| Ok(())).unwrap();
    let of = |sequences: &Sequences<(), ()>, rows: usize| {
        let ids = vec![1; rows];
        let steps = [Step::commit(seq, &ids, Score::None)];
        splits(&config, &Plan { parts: sequences.plan(&steps).unwrap(), rows })
    };
    assert_eq!((of(&sequences, 1), of(&sequences, 200)), (1, 1));
    sequences.run(&config, &[Step::commit(seq, &[1; 560], Score::None)], |_| Ok(())).unwrap();
    assert_eq!((of(&sequences, 1), of(&sequences, 8), of(&sequences, 300)), (3, 3, 1));
}
