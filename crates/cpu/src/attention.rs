//! Gated full attention over all rows of a pass.

use rayon::prelude::*;
use shamrock_model::config::Config;
use shamrock_model::weights::AttentionWeights;
use shamrock_model::{Part, Result};

use crate::kernel::Isa;
use crate::linear::Linear;
use crate::math::{Rotations, add_scaled, dot, norm_1p_in_place, sigmoid, softmax};

/// Projections of all rows of a pass.
pub(crate) struct Mixer<'a> {
    isa: Isa,
    config: &'a Config,
    w: &'a AttentionWeights,
    /// Per row and head: `head_dim` normed and rotated queries, then `head_dim` gates.
    query_gate: Vec<f32>,
    /// Normed and rotated, `[rows, kv_heads, head_dim]`.
    k: Vec<f32>,
    v: Vec<f32>,
    /// `[rows, heads, head_dim]`.
    mixed: Vec<f32>,
}

impl<'a> Mixer<'a> {
    /// Projects `x` `[rows, hidden]`, whose positions `rotations` knows.
    pub(crate) fn new(
        linear: &Linear<'_>,
        config: &'a Config,
        w: &'a AttentionWeights,
        x: &[f32],
        rotations: &Rotations,
    ) -> Result<Self> {
        let (a, isa) = (&config.attention, linear.isa());
        let [mut query_gate, mut k, v] = linear.project_all([(w.q, x), (w.k, x), (w.v, x)])?;
        let norm = |rows: &mut [f32], width: usize, stride: usize, weight: &[f32]| {
            rows.par_chunks_mut(width).enumerate().with_min_len(4).for_each(|(row, heads)| {
                isa.run(|| {
                    for head in heads.chunks_exact_mut(stride) {
                        let head = &mut head[..a.head_dim];
                        norm_1p_in_place(head, weight, config.norm_eps);
                        rotations.apply(row, head);
                    }
                });
            });
        };
        norm(&mut query_gate, 2 * a.q_width(), 2 * a.head_dim, &w.q_norm);
        norm(&mut k, a.kv_width(), a.head_dim, &w.k_norm);
        let mixed = vec![0.0; query_gate.len() / 2];
        Ok(Mixer { isa, config, w, query_gate, k, v, mixed })
    }

    /// Mixes `rows` over the prefix `past_k`, `past_v` (`[past, kv_heads, head_dim]`); a commit
    /// appends its rows to them.
    ///
    /// Row r sees the prefix and rows `0..=r` (commit) or the whole block (preview).
    pub(crate) fn mix(
        &mut self,
        rows: std::ops::Range<usize>,
        part: Part,
        past_k: &mut Vec<f32>,
        past_v: &mut Vec<f32>,
    ) {
        let a = &self.config.attention;
        let (hd, kv_width, q_width, isa) = (a.head_dim, a.kv_width(), a.q_width(), self.isa);
        let own = rows.start * kv_width..rows.end * kv_width;
        let (own_k, own_v) = (&self.k[own.clone()], &self.v[own]);
        let scale = 1.0 / (hd as f32).sqrt();
        let queries = &self.query_gate[rows.start * 2 * q_width..rows.end * 2 * q_width];
        let mixed = &mut self.mixed[rows.start * q_width..rows.end * q_width];
        let past = past_k.len() / kv_width;
        let (prefix_k, prefix_v) = (&*past_k, &*past_v);
        mixed.par_chunks_mut(hd).enumerate().for_each_init(Vec::new, |scores, (i, out)| {
            let (row, head) = (i / a.heads, i % a.heads);
            let kv_at = (head / (a.heads / a.kv_heads)) * hd;
            let visible = match part {
                Part::Commit => row + 1,
                Part::Preview => rows.len(),
            };
            let (query, gate) = queries[i * 2 * hd..(i + 1) * 2 * hd].split_at(hd);
            isa.run(|| {
                scores.clear();
                let keys = prefix_k.chunks_exact(kv_width).chain(own_k.chunks_exact(kv_width));
                scores
                    .extend(keys.take(past + visible).map(|key| scale * dot(query, &key[kv_at..kv_at + hd])));
                softmax(scores);
                let values = prefix_v.chunks_exact(kv_width).chain(own_v.chunks_exact(kv_width));
                for (value, score) in values.zip(scores.iter()) {
                    add_scaled(out, &value[kv_at..kv_at + hd], *score);
                }
                for (o, g) in out.iter_mut().zip(gate) {
                    *o *= sigmoid(*g);
                }
            });
        });
        if part == Part::Commit {
            past_k.extend_from_slice(own_k);
            past_v.extend_from_slice(own_v);
        }
    }

    /// Output projection of all rows.
    pub(crate) fn finish(self, linear: &Linear<'_>) -> Result<Vec<f32>> {
        linear.project(self.w.o, &self.mixed)
    }
}
