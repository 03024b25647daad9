//! Gated DeltaNet: the causal recurrence and the block operator of previews.

use rayon::prelude::*;

use super::linear::Projector;
use super::math::{add_scaled, dot, inverse_rms, l2_unit, sigmoid, silu, softplus};
use crate::config::GdnConfig;
use crate::error::{Error, Result};
use crate::routing::softmax;
use crate::weights::GdnWeights;

/// The training block's size, a literal of the history slot's logit whatever the file's block size.
const TRAINING_BLOCK: f32 = 32.0;

/// Rows ready for the recurrence; `n` rows each.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// Unit queries, `[n, key_heads, key_dim]`.
    q: Vec<f32>,
    /// Unit keys, `[n, key_heads, key_dim]`.
    k: Vec<f32>,
    /// Values, `[n, value_heads, value_dim]`.
    v: Vec<f32>,
    /// `e^g`, `[n, value_heads]`.
    decay: Vec<f32>,
    /// Write strength β, `[n, value_heads]`; empty in a preview, which does not write.
    beta: Vec<f32>,
}

/// What cuts a commit back to any of its rows: the state before it and the rows to replay.
#[derive(Clone, Debug)]
pub(super) struct Undo {
    memory: Vec<f32>,
    /// `[conv_kernel - 1 + n, channels]`: the old ring, then the raw rows.
    tape: Vec<f32>,
    rows: Rows,
}

impl Undo {
    /// The state after the first `kept` rows of the commit: `(ring, memory)`.
    pub(super) fn replay(&self, g: &GdnConfig, kept: usize) -> (Vec<f32>, Vec<f32>) {
        let mut memory = self.memory.clone();
        recur(g, &self.rows, kept, &mut memory);
        let ring = self.tape[kept * g.channels()..][..g.ring_rows() * g.channels()].to_vec();
        (ring, memory)
    }
}

/// Runs `x` `[n, hidden]` through the recurrence and advances `ring` and `memory`.
pub(super) fn commit(
    p: &Projector<'_>,
    w: &GdnWeights,
    x: &[f32],
    ring: &mut [f32],
    memory: &mut [f32],
    keep_undo: bool,
) -> Result<(Vec<f32>, Option<Undo>)> {
    let g = &p.config.gdn;
    let raw = p.project(w.qkv, x)?;
    let tape = [&*ring, &raw].concat();
    let mut rows = split(g, &convolve(g, w, &tape, &[]));
    rows.decay = decay(p, w, g, x)?;
    rows.beta = p.project(w.b, x)?.into_iter().map(sigmoid).collect();

    let before = keep_undo.then(|| memory.to_vec());
    let n = raw.len() / g.channels();
    let read = recur(g, &rows, n, memory);
    ring.copy_from_slice(&tape[n * g.channels()..]);
    let out = finish(p, w, x, read)?;
    Ok((out, before.map(|memory| Undo { memory, tape, rows })))
}

/// Runs a block over `ring` and `memory`, which it only reads: every row mixes the block's value
/// rows by a softmax over key similarity, with one more slot for everything before the block.
pub(super) fn preview(
    p: &Projector<'_>,
    w: &GdnWeights,
    x: &[f32],
    ring: &[f32],
    memory: &[f32],
) -> Result<Vec<f32>> {
    let g = &p.config.gdn;
    let block = w.block.as_ref().ok_or(Error::NotBlockDiffusion)?;
    let raw = p.project(w.qkv, x)?;
    let rows = split(g, &convolve(g, w, &[ring, &raw].concat(), &block.conv_right));
    let decay = decay(p, w, g, x)?;

    let (dk, dv, b) = (g.key_dim, g.value_dim, raw.len() / g.channels());
    let read_scale = 1.0 / (dk as f32).sqrt();
    let mut mixed = vec![0.0; b * g.value_width()];
    mixed.par_chunks_mut(dv).enumerate().for_each(|(i, out)| {
        let (t, head) = (i / g.value_heads, i % g.value_heads);
        let query = rows.key_row(g, &rows.q, t, head);
        let mut p: Vec<f32> =
            (0..b).map(|s| block.logit_scale[head] * dot(query, rows.key_row(g, &rows.k, s, head))).collect();
        p.push(block.history_bias[head] + block.history_c[head] * (b as f32 / TRAINING_BLOCK).ln());
        softmax(&mut p);
        for (values, p) in rows.v.chunks_exact(g.value_width()).zip(&p) {
            add_scaled(out, &values[head * dv..][..dv], *p);
        }
        let past = p[b] * decay[t * g.value_heads + head] * read_scale;
        for (q, s_row) in query.iter().zip(memory[head * dk * dv..].chunks_exact(dv)) {
            add_scaled(out, s_row, past * q);
        }
    });
    finish(p, w, x, mixed)
}

impl Rows {
    /// The key-head slice that value head `head` uses in row `t` of `q` or `k`.
    fn key_row<'a>(&self, g: &GdnConfig, of: &'a [f32], t: usize, head: usize) -> &'a [f32] {
        let key_head = head / (g.value_heads / g.key_heads);
        &of[(t * g.key_heads + key_head) * g.key_dim..][..g.key_dim]
    }
}

/// `silu` of the depthwise convolution of every row of `tape` past the ring, `[n, channels]`.
///
/// `right` (`[channels, conv_kernel - 1]`, or empty) adds taps on the rows after the current one,
/// as far as the block goes.
fn convolve(g: &GdnConfig, w: &GdnWeights, tape: &[f32], right: &[f32]) -> Vec<f32> {
    let (channels, taps, back) = (g.channels(), g.conv_kernel, g.ring_rows());
    let n = tape.len() / channels - back;
    let mut out = vec![0.0; n * channels];
    for (t, row) in out.chunks_exact_mut(channels).enumerate() {
        for (c, value) in row.iter_mut().enumerate() {
            let mut sum: f32 = (0..taps).map(|j| w.conv[c * taps + j] * tape[(t + j) * channels + c]).sum();
            if !right.is_empty() {
                for d in 1..=back.min(n - 1 - t) {
                    sum += right[c * back + d - 1] * tape[(t + back + d) * channels + c];
                }
            }
            *value = silu(sum);
        }
    }
    out
}

/// Cuts convolved rows into unit queries, unit keys and values.
fn split(g: &GdnConfig, mixed: &[f32]) -> Rows {
    let kw = g.key_width();
    let part = |from: usize, width: usize| -> Vec<f32> {
        mixed.chunks_exact(g.channels()).flat_map(|row| &row[from..from + width]).copied().collect()
    };
    let unit = |mut rows: Vec<f32>| {
        rows.chunks_exact_mut(g.key_dim).for_each(l2_unit);
        rows
    };
    Rows {
        q: unit(part(0, kw)),
        k: unit(part(kw, kw)),
        v: part(2 * kw, g.value_width()),
        decay: Vec::new(),
        beta: Vec::new(),
    }
}

/// `e^g` with `g = −exp(A_log) · softplus(a(x) + dt_bias)`, `[n, value_heads]`.
fn decay(p: &Projector<'_>, w: &GdnWeights, g: &GdnConfig, x: &[f32]) -> Result<Vec<f32>> {
    let mut out = p.project(w.a, x)?;
    for row in out.chunks_exact_mut(g.value_heads) {
        for ((value, a_log), dt) in row.iter_mut().zip(&w.a_log).zip(&w.dt_bias) {
            *value = (-a_log.exp() * softplus(*value + dt)).exp();
        }
    }
    Ok(out)
}

/// The delta rule over the first `n` rows: advances `memory` and returns what each row reads,
/// `[n, value_heads, value_dim]`.
fn recur(g: &GdnConfig, rows: &Rows, n: usize, memory: &mut [f32]) -> Vec<f32> {
    let (dk, dv) = (g.key_dim, g.value_dim);
    let read_scale = 1.0 / (dk as f32).sqrt();
    let mut by_head = vec![0.0; n * g.value_width()]; // [value_heads, n, value_dim]
    if n == 0 {
        return by_head;
    }
    memory.par_chunks_mut(dk * dv).zip(by_head.par_chunks_mut(n * dv)).enumerate().for_each(
        |(head, (memory, out))| {
            let mut error = vec![0.0; dv];
            for (t, out) in out.chunks_exact_mut(dv).enumerate() {
                let (q, k) = (rows.key_row(g, &rows.q, t, head), rows.key_row(g, &rows.k, t, head));
                let v = &rows.v[t * g.value_width() + head * dv..][..dv];
                let at = t * g.value_heads + head;
                memory.iter_mut().for_each(|s| *s *= rows.decay[at]);
                error.fill(0.0);
                for (k, s_row) in k.iter().zip(memory.chunks_exact(dv)) {
                    add_scaled(&mut error, s_row, *k);
                }
                for (e, v) in error.iter_mut().zip(v) {
                    *e = rows.beta[at] * (v - *e);
                }
                for ((k, q), s_row) in k.iter().zip(q).zip(memory.chunks_exact_mut(dv)) {
                    add_scaled(s_row, &error, *k);
                    add_scaled(out, s_row, q * read_scale);
                }
            }
        },
    );
    let mut out = vec![0.0; by_head.len()];
    for (i, row) in out.chunks_exact_mut(dv).enumerate() {
        let (t, head) = (i / g.value_heads, i % g.value_heads);
        row.copy_from_slice(&by_head[(head * n + t) * dv..][..dv]);
    }
    out
}

/// Gated norm and output projection of `o` `[n, value_heads, value_dim]`.
fn finish(p: &Projector<'_>, w: &GdnWeights, x: &[f32], mut o: Vec<f32>) -> Result<Vec<f32>> {
    let z = p.project(w.z, x)?;
    let dv = p.config.gdn.value_dim;
    for (o, z) in o.chunks_exact_mut(dv).zip(z.chunks_exact(dv)) {
        let scale = inverse_rms(o, p.config.norm_eps);
        for ((o, z), w) in o.iter_mut().zip(z).zip(&w.norm) {
            *o *= scale * w * silu(*z);
        }
    }
    p.project(w.out, &o)
}
