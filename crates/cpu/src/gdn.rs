//! Gated DeltaNet: projections over all rows of a pass, then each head by itself.
//!
//! A head needs of the convolution only its own channels, so that convolution, recurrence (or block
//! operator) and gated norm are one task per head: one parallel region between the projections.

use std::ops::Range;
use std::sync::Arc;

use shamrock_model::config::{Config, GdnConfig};
use shamrock_model::weights::{GdnBlockWeights, GdnWeights};
use shamrock_model::{Error, Result};

use crate::kernel::{DeltaRule, Isa, Loops};
use crate::linear::{Linear, Stripe};
use crate::math::{inverse_rms, l2_unit, sigmoid, silu, softmax, softplus};
use crate::pool::Pool;

/// The training block's size, a literal of the history slot's logit whatever the file's block size.
const TRAINING_BLOCK: f32 = 32.0;
/// Rows of a commit that a head works on at a time: their queries, keys and values stay in
/// second-level cache.
const ROWS: usize = 64;

/// A layer's small vectors in the order the loops want them.
pub(crate) struct Taps {
    /// Convolution taps, `[conv_kernel, channels]`.
    left: Vec<f32>,
    /// Taps on later rows, `[conv_kernel - 1, channels]`; empty in a plain trunk.
    right: Vec<f32>,
}

impl Taps {
    pub(crate) fn new(g: &GdnConfig, w: &GdnWeights) -> Self {
        let by_tap = |from: &[f32], taps: usize| -> Vec<f32> {
            (0..taps).flat_map(|j| from.iter().skip(j).step_by(taps.max(1))).copied().collect()
        };
        let right = w.block.as_ref().map_or(&[][..], |b| &b.conv_right);
        Taps { left: by_tap(&w.conv, g.conv_kernel), right: by_tap(right, g.ring_rows()) }
    }
}

/// What cuts a commit back to any of its rows: the state before it and the rows to replay.
pub(crate) struct Undo {
    ring: Vec<f32>,
    memory: Vec<f32>,
    rows: OwnedRows,
    taps: Arc<Taps>,
}

/// Projected rows of one part.
struct OwnedRows {
    qkv: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
}

/// The same, borrowed, with what they are run over.
#[derive(Clone, Copy)]
struct Rows<'a> {
    g: &'a GdnConfig,
    taps: &'a Taps,
    /// Raw rows before these, `[conv_kernel - 1, channels]`.
    ring: &'a [f32],
    /// Raw rows, `[n, channels]`.
    qkv: &'a [f32],
    /// `e^g`, `[n, value_heads]`.
    decay: &'a [f32],
    /// Write strength β, `[n, value_heads]`.
    beta: &'a [f32],
}

impl OwnedRows {
    fn over<'a>(&'a self, g: &'a GdnConfig, taps: &'a Taps, ring: &'a [f32]) -> Rows<'a> {
        Rows { g, taps, ring, qkv: &self.qkv, decay: &self.decay, beta: &self.beta }
    }
}

impl Undo {
    /// The state after the first `kept` rows of the commit: `(ring, memory)`.
    pub(crate) fn replay(&self, isa: Isa, pool: &Pool, g: &GdnConfig, kept: usize) -> (Vec<f32>, Vec<f32>) {
        let (mut ring, mut memory) = (self.ring.clone(), self.memory.clone());
        let rows = self.rows.over(g, &self.taps, &self.ring);
        pool.for_chunks(&mut memory, g.key_dim * g.value_dim, |head, memory| {
            rows.recur(isa, head, kept, memory, |_, _| {});
        });
        rows.shift(kept, &mut ring);
        (ring, memory)
    }
}

/// Projections of all rows of a pass.
pub(crate) struct Mixer<'a> {
    isa: Isa,
    pool: &'a Pool,
    config: &'a Config,
    w: &'a GdnWeights,
    taps: &'a Arc<Taps>,
    rows: OwnedRows,
    z: Vec<f32>,
    /// What each row reads, normed and gated, `[rows, value_heads, value_dim]`.
    read: Vec<f32>,
}

impl<'a> Mixer<'a> {
    /// Projects `x` `[rows, hidden]`.
    pub(crate) fn new(
        linear: &Linear<'a>,
        config: &'a Config,
        w: &'a GdnWeights,
        taps: &'a Arc<Taps>,
        x: &[f32],
    ) -> Result<Self> {
        let [qkv, z, mut decay, mut beta] = linear.project_all([(w.qkv, x), (w.z, x), (w.a, x), (w.b, x)])?;
        for row in decay.chunks_exact_mut(config.gdn.value_heads) {
            for ((value, a_log), dt) in row.iter_mut().zip(&w.a_log).zip(&w.dt_bias) {
                *value = (-a_log.exp() * softplus(*value + dt)).exp();
            }
        }
        beta.iter_mut().for_each(|b| *b = sigmoid(*b));
        let read = vec![0.0; z.len()];
        let rows = OwnedRows { qkv, decay, beta };
        Ok(Mixer { isa: linear.isa(), pool: linear.pool(), config, w, taps, rows, z, read })
    }

    /// Runs rows `rows` through the recurrence and advances `ring` and `memory`.
    pub(crate) fn commit(
        &mut self,
        rows: Range<usize>,
        ring: &mut [f32],
        memory: &mut [f32],
        keep_undo: bool,
    ) -> Option<Undo> {
        let (g, isa, pool) = (&self.config.gdn, self.isa, self.pool);
        let gate = Gate::new(self.config, self.w, &self.z, &rows);
        let part = part(g, self.taps, &self.rows, &rows, ring);
        let undo = keep_undo.then(|| Undo {
            ring: ring.to_vec(),
            memory: memory.to_vec(),
            rows: part.to_owned(),
            taps: self.taps.clone(),
        });
        let reads = &mut self.read[rows.start * g.value_width()..rows.end * g.value_width()];
        let stripes = Stripe::split(reads, g.value_width(), g.value_dim);
        let heads = stripes.into_iter().zip(memory.chunks_mut(g.key_dim * g.value_dim)).enumerate();
        pool.for_each(heads.collect(), |(head, (mut stripe, memory))| {
            part.recur(isa, head, rows.len(), memory, |first, read| {
                gate.put(isa, head, first, read, &mut stripe);
            });
        });
        let mut next = ring.to_vec();
        part.shift(rows.len(), &mut next);
        ring.copy_from_slice(&next);
        undo
    }

    /// Runs block `rows` over `ring` and `memory`: every row mixes the block's value rows by a
    /// softmax over key similarity, with one more slot for everything before the block.
    pub(crate) fn preview(&mut self, rows: Range<usize>, ring: &[f32], memory: &[f32]) -> Result<()> {
        let block = self.w.block.as_ref().ok_or(Error::NotBlockDiffusion)?;
        let (g, isa) = (&self.config.gdn, self.isa);
        let gate = Gate::new(self.config, self.w, &self.z, &rows);
        let part = part(g, self.taps, &self.rows, &rows, ring);
        let reads = &mut self.read[rows.start * g.value_width()..rows.end * g.value_width()];
        let stripes = Stripe::split(reads, g.value_width(), g.value_dim);
        let heads = stripes.into_iter().zip(memory.chunks(g.key_dim * g.value_dim)).enumerate();
        self.pool.for_each(heads.collect(), |(head, (mut stripe, memory))| {
            let read = part.mix_block(isa, block, head, memory);
            gate.put(isa, head, 0, &read, &mut stripe);
        });
        Ok(())
    }

    /// Output projection of all rows.
    pub(crate) fn finish(self, linear: &Linear<'_>) -> Result<Vec<f32>> {
        linear.project(self.w.out, &self.read)
    }
}

/// Rows `rows` of a pass.
fn part<'a>(
    g: &'a GdnConfig,
    taps: &'a Taps,
    all: &'a OwnedRows,
    rows: &Range<usize>,
    ring: &'a [f32],
) -> Rows<'a> {
    let of = |values: &'a [f32], width: usize| &values[rows.start * width..rows.end * width];
    Rows {
        g,
        taps,
        ring,
        qkv: of(&all.qkv, g.channels()),
        decay: of(&all.decay, g.value_heads),
        beta: of(&all.beta, g.value_heads),
    }
}

/// The gated norm of what heads read.
struct Gate<'a> {
    g: &'a GdnConfig,
    norm: &'a [f32],
    eps: f32,
    /// `[n, value_width]`.
    z: &'a [f32],
}

impl<'a> Gate<'a> {
    fn new(config: &'a Config, w: &'a GdnWeights, z: &'a [f32], rows: &Range<usize>) -> Self {
        let (g, width) = (&config.gdn, config.gdn.value_width());
        Gate { g, norm: &w.norm, eps: config.norm_eps, z: &z[rows.start * width..rows.end * width] }
    }

    /// Stores what rows from `first` on read, `[_, value_dim]`, in the head's columns.
    fn put(&self, isa: Isa, head: usize, first: usize, read: &[f32], stripe: &mut Stripe<'_>) {
        let (dv, width) = (self.g.value_dim, self.g.value_width());
        for (row, read) in (first..).zip(read.chunks_exact(dv)) {
            let (out, z) = (stripe.row(row), &self.z[row * width + head * dv..][..dv]);
            isa.run_long(GatedNorm { read, norm: self.norm, eps: self.eps, z, out });
        }
    }
}

/// `read / rms(read) ⊙ norm ⊙ silu(z)` of one head.
struct GatedNorm<'a> {
    read: &'a [f32],
    norm: &'a [f32],
    eps: f32,
    z: &'a [f32],
    out: &'a mut [f32],
}

impl Loops for GatedNorm<'_> {
    #[inline(always)]
    fn run(self) {
        let scale = inverse_rms(self.read, self.eps);
        for (((out, v), z), w) in self.out.iter_mut().zip(self.read).zip(self.z).zip(self.norm) {
            *out = v * (scale * w) * silu(*z);
        }
    }
}

/// Queries, keys and values of some rows of one head, after the convolution; queries and keys of unit
/// length.
struct HeadRows {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Rows<'_> {
    fn to_owned(self) -> OwnedRows {
        OwnedRows { qkv: self.qkv.to_vec(), decay: self.decay.to_vec(), beta: self.beta.to_vec() }
    }

    /// The head's rows `rows`; with `right`, taps reach later rows as far as the part goes.
    fn head(&self, isa: Isa, head: usize, rows: Range<usize>, right: bool) -> HeadRows {
        let (g, n) = (self.g, rows.len());
        let mut out = HeadRows {
            q: vec![0.0; n * g.key_dim],
            k: vec![0.0; n * g.key_dim],
            v: vec![0.0; n * g.value_dim],
        };
        let key_at = head / (g.value_heads / g.key_heads) * g.key_dim;
        let value_at = 2 * g.key_width() + head * g.value_dim;
        for (out, at, width, unit) in [
            (&mut out.q, key_at, g.key_dim, true),
            (&mut out.k, g.key_width() + key_at, g.key_dim, true),
            (&mut out.v, value_at, g.value_dim, false),
        ] {
            isa.run_long(Convolution { rows: self, first: rows.start, at, width, right, unit, out });
        }
        out
    }

    /// The delta rule over the first `n` rows: advances the head's `memory` and gives `put` the number
    /// of a row with what it and the rows after it read.
    fn recur(&self, isa: Isa, head: usize, n: usize, memory: &mut [f32], mut put: impl FnMut(usize, &[f32])) {
        let g = self.g;
        let (mut strip, mut read) = (Vec::new(), Vec::new());
        for first in (0..n).step_by(ROWS) {
            let rows = first..n.min(first + ROWS);
            let HeadRows { q, k, v } = self.head(isa, head, rows.clone(), false);
            let of_head = |values: &[f32]| -> Vec<f32> {
                rows.clone().map(|t| values[t * g.value_heads + head]).collect()
            };
            read.resize(rows.len() * g.value_dim, 0.0);
            isa.delta_rule(DeltaRule {
                key_dim: g.key_dim,
                value_dim: g.value_dim,
                queries: &q,
                keys: &k,
                values: &v,
                decay: &of_head(self.decay),
                beta: &of_head(self.beta),
                memory,
                strip: &mut strip,
                out: &mut read,
            });
            put(first, &read);
        }
    }

    /// The block operator: what every row reads, `[n, value_dim]`.
    fn mix_block(&self, isa: Isa, block: &GdnBlockWeights, head: usize, memory: &[f32]) -> Vec<f32> {
        let g = self.g;
        let b = self.decay.len() / g.value_heads;
        let HeadRows { mut q, k, v } = self.head(isa, head, 0..b, true);
        let read_scale = 1.0 / (g.key_dim as f32).sqrt();
        let history_logit =
            block.history_bias[head] + block.history_c[head] * (b as f32 / TRAINING_BLOCK).ln();
        let mut weights = vec![0.0; b * b];
        isa.dots(&q, &k, g.key_dim, &mut weights);
        let mut logits = vec![0.0; b + 1];
        for (t, (weights, query)) in
            weights.chunks_exact_mut(b).zip(q.chunks_exact_mut(g.key_dim)).enumerate()
        {
            isa.run(|| {
                for (logit, similarity) in logits.iter_mut().zip(weights.iter()) {
                    *logit = block.logit_scale[head] * similarity;
                }
                logits[b] = history_logit;
                softmax(&mut logits);
                weights.copy_from_slice(&logits[..b]);
                let history = logits[b] * self.decay[t * g.value_heads + head] * read_scale;
                query.iter_mut().for_each(|q| *q *= history);
            });
        }
        let mut out = vec![0.0; b * g.value_dim];
        isa.add_weighted_rows(&weights, &v, g.value_dim, &mut out);
        isa.add_weighted_rows(&q, memory, g.value_dim, &mut out);
        out
    }

    /// The ring after the first `kept` rows.
    fn shift(&self, kept: usize, ring: &mut [f32]) {
        let channels = self.g.channels();
        for (i, row) in ring.chunks_exact_mut(channels).enumerate() {
            row.copy_from_slice(self.tape(kept + i));
        }
    }

    /// Row `i` of the ring followed by the rows.
    #[inline(always)]
    fn tape(&self, i: usize) -> &[f32] {
        let (channels, back) = (self.g.channels(), self.g.ring_rows());
        match i.checked_sub(back) {
            None => &self.ring[i * channels..][..channels],
            Some(i) => &self.qkv[i * channels..][..channels],
        }
    }
}

/// `silu` of the depthwise convolution of some channels, row after row.
struct Convolution<'a> {
    rows: &'a Rows<'a>,
    /// First row.
    first: usize,
    /// First channel.
    at: usize,
    /// Number of channels.
    width: usize,
    /// Taps on later rows too, as far as there are any.
    right: bool,
    /// Scale each row to unit length.
    unit: bool,
    /// `[_, width]`.
    out: &'a mut [f32],
}

impl Loops for Convolution<'_> {
    #[inline(always)]
    fn run(self) {
        let Convolution { rows, first, at, width, right, unit, out } = self;
        let (channels, back) = (rows.g.channels(), rows.g.ring_rows());
        let end = back + rows.qkv.len() / channels;
        for (t, out) in (first..).zip(out.chunks_exact_mut(width)) {
            for (j, taps) in rows.taps.left.chunks_exact(channels).enumerate() {
                add_products(out, &taps[at..at + width], &rows.tape(t + j)[at..at + width]);
            }
            if right {
                let later = t + back + 1..end;
                for (taps, i) in rows.taps.right.chunks_exact(channels).zip(later) {
                    add_products(out, &taps[at..at + width], &rows.tape(i)[at..at + width]);
                }
            }
            out.iter_mut().for_each(|v| *v = silu(*v));
            if unit {
                l2_unit(out);
            }
        }
    }
}

/// `out += a ⊙ b`.
#[inline(always)]
fn add_products(out: &mut [f32], a: &[f32], b: &[f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out += a * b;
    }
}
