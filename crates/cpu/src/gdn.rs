//! Gated DeltaNet: projections over all rows of a pass, state work per sequence.

use rayon::prelude::*;
use shamrock_model::config::{Config, GdnConfig};
use shamrock_model::weights::{GdnBlockWeights, GdnWeights};
use shamrock_model::{Error, Result};

use crate::kernel::{Isa, Loops};
use crate::linear::Linear;
use crate::math::{add_scaled, dot, inverse_rms, l2_unit, sigmoid, silu, softmax, softplus};

/// The training block's size, a literal of the history slot's logit whatever the file's block size.
const TRAINING_BLOCK: f32 = 32.0;
/// Columns of the associative memory that are worked on together: with 128 keys they fill half of
/// a first-level cache, and all rows of a part go by while they are there.
const STRIP: usize = 32;

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

/// Rows of one part ready for the recurrence.
#[derive(Clone, Debug)]
struct Rows {
    /// Unit queries, unit keys and values side by side, `[n, channels]`.
    qkv: Vec<f32>,
    /// `e^g`, `[n, value_heads]`.
    decay: Vec<f32>,
    /// Write strength β, `[n, value_heads]`.
    beta: Vec<f32>,
}

/// What cuts a commit back to any of its rows: the state before it and the rows to replay.
pub(crate) struct Undo {
    memory: Vec<f32>,
    /// `[conv_kernel - 1 + n, channels]`: the old ring, then the raw rows.
    tape: Vec<f32>,
    rows: Rows,
}

impl Undo {
    /// The state after the first `kept` rows of the commit: `(ring, memory)`.
    pub(crate) fn replay(&self, isa: Isa, g: &GdnConfig, kept: usize) -> (Vec<f32>, Vec<f32>) {
        let mut memory = self.memory.clone();
        recur(isa, g, &self.rows, kept, &mut memory);
        let ring = self.tape[kept * g.channels()..][..g.ring_rows() * g.channels()].to_vec();
        (ring, memory)
    }
}

/// Projections of all rows of a pass.
pub(crate) struct Mixer<'a> {
    isa: Isa,
    config: &'a Config,
    w: &'a GdnWeights,
    taps: &'a Taps,
    qkv: Vec<f32>,
    z: Vec<f32>,
    decay: Vec<f32>,
    beta: Vec<f32>,
    /// What each row reads from the memory, `[rows, value_heads, value_dim]`.
    read: Vec<f32>,
}

impl<'a> Mixer<'a> {
    /// Projects `x` `[rows, hidden]`.
    pub(crate) fn new(
        linear: &Linear<'_>,
        config: &'a Config,
        w: &'a GdnWeights,
        taps: &'a Taps,
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
        Ok(Mixer { isa: linear.isa(), config, w, taps, qkv, z, decay, beta, read })
    }

    /// Runs rows `rows` through the recurrence and advances `ring` and `memory`.
    pub(crate) fn commit(
        &mut self,
        rows: std::ops::Range<usize>,
        ring: &mut [f32],
        memory: &mut [f32],
        keep_undo: bool,
    ) -> Option<Undo> {
        let g = &self.config.gdn;
        let (n, tape) = (rows.len(), self.tape(&rows, ring));
        let ready = self.ready(&rows, &tape, &[]);
        let before = keep_undo.then(|| memory.to_vec());
        let by_head = recur(self.isa, g, &ready, n, memory);
        self.put(&rows, &by_head);
        ring.copy_from_slice(&tape[n * g.channels()..]);
        before.map(|memory| Undo { memory, tape, rows: ready })
    }

    /// Runs block `rows` over `ring` and `memory`: every row mixes the block's value rows by a
    /// softmax over key similarity, with one more slot for everything before the block.
    pub(crate) fn preview(
        &mut self,
        rows: std::ops::Range<usize>,
        ring: &[f32],
        memory: &[f32],
    ) -> Result<()> {
        let block = self.w.block.as_ref().ok_or(Error::NotBlockDiffusion)?;
        let ready = self.ready(&rows, &self.tape(&rows, ring), &self.taps.right);
        let by_head = mix_block(self.isa, &self.config.gdn, block, &ready, rows.len(), memory);
        self.put(&rows, &by_head);
        Ok(())
    }

    /// Gated norm and output projection of all rows.
    pub(crate) fn finish(mut self, linear: &Linear<'_>) -> Result<Vec<f32>> {
        let (width, dv, eps) =
            (self.config.gdn.value_width(), self.config.gdn.value_dim, self.config.norm_eps);
        let (isa, norm) = (self.isa, &self.w.norm);
        self.read.par_chunks_mut(width).zip(self.z.par_chunks(width)).for_each(|(o, z)| {
            isa.run(|| {
                for (o, z) in o.chunks_exact_mut(dv).zip(z.chunks_exact(dv)) {
                    let scale = inverse_rms(o, eps);
                    for ((o, z), w) in o.iter_mut().zip(z).zip(norm) {
                        *o *= scale * w * silu(*z);
                    }
                }
            });
        });
        linear.project(self.w.out, &self.read)
    }

    /// The ring, then the raw rows.
    fn tape(&self, rows: &std::ops::Range<usize>, ring: &[f32]) -> Vec<f32> {
        let channels = self.config.gdn.channels();
        [ring, &self.qkv[rows.start * channels..rows.end * channels]].concat()
    }

    fn ready(&self, rows: &std::ops::Range<usize>, tape: &[f32], right: &[f32]) -> Rows {
        let heads = rows.start * self.config.gdn.value_heads..rows.end * self.config.gdn.value_heads;
        Rows {
            qkv: convolve(self.isa, &self.config.gdn, &self.taps.left, right, tape),
            decay: self.decay[heads.clone()].to_vec(),
            beta: self.beta[heads].to_vec(),
        }
    }

    /// Stores `by_head` `[value_heads, n, value_dim]` as what `rows` read.
    fn put(&mut self, rows: &std::ops::Range<usize>, by_head: &[f32]) {
        let g = &self.config.gdn;
        let (dv, n) = (g.value_dim, rows.len());
        let read = &mut self.read[rows.start * g.value_width()..rows.end * g.value_width()];
        read.par_chunks_mut(g.value_width()).with_min_len(4).enumerate().for_each(|(t, row)| {
            for (head, out) in row.chunks_exact_mut(dv).enumerate() {
                out.copy_from_slice(&by_head[(head * n + t) * dv..][..dv]);
            }
        });
    }
}

impl Rows {
    /// Query, key and value of value head `head` in row `t`.
    #[inline(always)]
    fn head<'a>(&'a self, g: &GdnConfig, t: usize, head: usize) -> (&'a [f32], &'a [f32], &'a [f32]) {
        let key_at = head / (g.value_heads / g.key_heads) * g.key_dim;
        let row = &self.qkv[t * g.channels()..(t + 1) * g.channels()];
        let kw = g.key_width();
        (
            &row[key_at..][..g.key_dim],
            &row[kw + key_at..][..g.key_dim],
            &row[2 * kw + head * g.value_dim..][..g.value_dim],
        )
    }
}

/// `silu` of the depthwise convolution of every row of `tape` past the ring, `[n, channels]`, with
/// queries and keys scaled to unit length.
///
/// `right` (`[conv_kernel - 1, channels]`, or empty) adds taps on the rows after the current one, as
/// far as the block goes.
fn convolve(isa: Isa, g: &GdnConfig, left: &[f32], right: &[f32], tape: &[f32]) -> Vec<f32> {
    let (channels, back) = (g.channels(), g.ring_rows());
    let n = tape.len() / channels - back;
    let mut out = vec![0.0; n * channels];
    out.par_chunks_mut(channels).enumerate().for_each(|(t, row)| {
        isa.run(|| {
            let mut tap = |weights: &[f32], values: &[f32]| {
                for ((o, w), v) in row.iter_mut().zip(weights).zip(values) {
                    *o += w * v;
                }
            };
            for (weights, values) in
                left.chunks_exact(channels).zip(tape[t * channels..].chunks_exact(channels))
            {
                tap(weights, values);
            }
            let later = tape[(t + back + 1) * channels..].chunks_exact(channels);
            for (weights, values) in right.chunks_exact(channels).zip(later) {
                tap(weights, values);
            }
            row.iter_mut().for_each(|v| *v = silu(*v));
            row[..2 * g.key_width()].chunks_exact_mut(g.key_dim).for_each(l2_unit);
        });
    });
    out
}

/// The delta rule over the first `n` rows: advances `memory` and returns what each row reads,
/// `[value_heads, n, value_dim]`.
fn recur(isa: Isa, g: &GdnConfig, rows: &Rows, n: usize, memory: &mut [f32]) -> Vec<f32> {
    let mut by_head = vec![0.0; n * g.value_width()];
    if n == 0 {
        return by_head;
    }
    let (heads, reads) =
        (memory.par_chunks_mut(g.key_dim * g.value_dim), by_head.par_chunks_mut(n * g.value_dim));
    heads.zip(reads).enumerate().for_each_init(Vec::new, |strip, (head, (memory, out))| {
        isa.run_long(HeadRecurrence { g, rows, head, n, memory, strip, out });
    });
    by_head
}

/// One head's memory over the first `n` rows.
struct HeadRecurrence<'a> {
    g: &'a GdnConfig,
    rows: &'a Rows,
    head: usize,
    n: usize,
    /// `[key_dim, value_dim]`.
    memory: &'a mut [f32],
    /// Room for the columns in hand.
    strip: &'a mut Vec<[f32; STRIP]>,
    /// What each row reads, `[n, value_dim]`.
    out: &'a mut [f32],
}

impl Loops for HeadRecurrence<'_> {
    #[inline(always)]
    fn run(mut self) {
        for at in (0..self.g.value_dim).step_by(STRIP) {
            self.columns(at);
        }
    }
}

impl HeadRecurrence<'_> {
    /// The columns from `at` on, over all rows.
    #[inline(always)]
    fn columns(&mut self, at: usize) {
        let HeadRecurrence { g, rows, head, n, memory, strip, out } = self;
        let (head, n) = (*head, *n);
        let dv = g.value_dim;
        let width = STRIP.min(dv - at);
        let read_scale = 1.0 / (g.key_dim as f32).sqrt();
        load_strip(memory, dv, at, strip);
        for t in 0..n {
            let (q, k, v) = rows.head(g, t, head);
            let (decay, beta) = (rows.decay[t * g.value_heads + head], rows.beta[t * g.value_heads + head]);
            let mut error = [0.0; STRIP];
            for (s, k) in strip.iter_mut().zip(k) {
                for (e, s) in error.iter_mut().zip(s) {
                    *s *= decay;
                    *e += k * *s;
                }
            }
            let mut values = [0.0; STRIP];
            values[..width].copy_from_slice(&v[at..at + width]);
            for (e, v) in error.iter_mut().zip(values) {
                *e = beta * (v - *e);
            }
            let mut read = [0.0; STRIP];
            for ((s, k), q) in strip.iter_mut().zip(k).zip(q) {
                let q = q * read_scale;
                for ((r, s), e) in read.iter_mut().zip(s).zip(error) {
                    *s += k * e;
                    *r += q * *s;
                }
            }
            out[t * dv + at..][..width].copy_from_slice(&read[..width]);
        }
        for (row, s) in memory.chunks_exact_mut(dv).zip(strip.iter()) {
            row[at..at + width].copy_from_slice(&s[..width]);
        }
    }
}

/// Copies the columns from `at` on of a head's memory `[key_dim, dv]`; columns past the end are zero.
#[inline(always)]
fn load_strip(memory: &[f32], dv: usize, at: usize, strip: &mut Vec<[f32; STRIP]>) {
    let width = STRIP.min(dv - at);
    strip.clear();
    strip.extend(memory.chunks_exact(dv).map(|row| {
        let mut s = [0.0; STRIP];
        s[..width].copy_from_slice(&row[at..at + width]);
        s
    }));
}

/// The block operator over `b` rows, `[value_heads, b, value_dim]`.
fn mix_block(
    isa: Isa,
    g: &GdnConfig,
    block: &GdnBlockWeights,
    rows: &Rows,
    b: usize,
    memory: &[f32],
) -> Vec<f32> {
    let (dk, dv) = (g.key_dim, g.value_dim);
    let read_scale = 1.0 / (dk as f32).sqrt();
    let log_size = (b as f32 / TRAINING_BLOCK).ln();
    let mut by_head = vec![0.0; b * g.value_width()];
    let heads = by_head.par_chunks_mut(b * dv).zip(memory.par_chunks(dk * dv)).enumerate();
    heads.for_each_init(Vec::new, |strip, (head, (out, memory))| {
        isa.run(|| {
            let mut history = vec![0.0; b];
            let mut weights = vec![0.0; b + 1];
            for (t, out) in out.chunks_exact_mut(dv).enumerate() {
                let query = rows.head(g, t, head).0;
                for (s, weight) in weights[..b].iter_mut().enumerate() {
                    *weight = block.logit_scale[head] * dot(query, rows.head(g, s, head).1);
                }
                weights[b] = block.history_bias[head] + block.history_c[head] * log_size;
                softmax(&mut weights);
                for (s, weight) in weights[..b].iter().enumerate() {
                    add_scaled(out, rows.head(g, s, head).2, *weight);
                }
                history[t] = weights[b] * rows.decay[t * g.value_heads + head] * read_scale;
            }
            for at in (0..dv).step_by(STRIP) {
                let width = STRIP.min(dv - at);
                load_strip(memory, dv, at, strip);
                for (t, out) in out.chunks_exact_mut(dv).enumerate() {
                    let mut read = [0.0; STRIP];
                    for (s, q) in strip.iter().zip(rows.head(g, t, head).0) {
                        for (r, s) in read.iter_mut().zip(s) {
                            *r += q * s;
                        }
                    }
                    add_scaled(&mut out[at..at + width], &read[..width], history[t]);
                }
            }
        });
    });
    by_head
}
