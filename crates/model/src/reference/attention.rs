//! Gated full attention.

use rayon::prelude::*;

use super::linear::Projector;
use super::math::{add_scaled, dot, norm_1p, rope, sigmoid};
use crate::error::Result;
use crate::executor::Part;
use crate::routing::softmax;
use crate::weights::AttentionWeights;

/// Mixes `x` `[n, hidden]` at positions `past..past + n`; a commit appends its rows to `k` and `v`
/// (`[past, kv_heads, head_dim]`), a preview leaves them as they are.
///
/// Row r sees the prefix and rows `0..=r` (commit) or the whole block (preview).
pub(super) fn attend(
    p: &Projector<'_>,
    w: &AttentionWeights,
    x: &[f32],
    part: Part,
    past: usize,
    k: &mut Vec<f32>,
    v: &mut Vec<f32>,
) -> Result<Vec<f32>> {
    let config = p.config;
    let a = &config.attention;
    let (hd, kv_width, q_width) = (a.head_dim, a.kv_width(), a.q_width());
    let n = x.len() / config.hidden_size;

    let normed = |rows: &[f32], weight: &[f32], heads: usize| {
        let mut rows = norm_1p(rows, weight, config.norm_eps);
        for (i, head) in rows.chunks_exact_mut(hd).enumerate() {
            rope(head, past + i / heads, a.rotary_dim, a.rope_theta);
        }
        rows
    };
    // Per head: head_dim query values, then head_dim gate values.
    let query_gate = p.project(w.q, x)?;
    let halves = |which: usize| -> Vec<f32> {
        query_gate.chunks_exact(hd).skip(which).step_by(2).flatten().copied().collect()
    };
    let q = normed(&halves(0), &w.q_norm, a.heads);
    let gate = halves(1);
    let new_k = normed(&p.project(w.k, x)?, &w.k_norm, a.kv_heads);
    let new_v = p.project(w.v, x)?;
    k.extend(new_k);
    v.extend(new_v);

    let mut mixed = vec![0.0; n * q_width];
    let scale = 1.0 / (hd as f32).sqrt();
    mixed.par_chunks_mut(hd).enumerate().for_each(|(i, out)| {
        let (row, head) = (i / a.heads, i % a.heads);
        let kv_at = (head / (a.heads / a.kv_heads)) * hd;
        let visible = match part {
            Part::Commit => past + row + 1,
            Part::Preview => past + n,
        };
        let query = &q[i * hd..(i + 1) * hd];
        let mut scores: Vec<f32> = k
            .chunks_exact(kv_width)
            .take(visible)
            .map(|key| scale * dot(query, &key[kv_at..kv_at + hd]))
            .collect();
        softmax(&mut scores);
        for (value, score) in v.chunks_exact(kv_width).zip(&scores) {
            add_scaled(out, &value[kv_at..kv_at + hd], *score);
        }
        for (o, g) in out.iter_mut().zip(&gate[i * hd..(i + 1) * hd]) {
            *o *= sigmoid(*g);
        }
    });
    if part == Part::Preview {
        k.truncate(past * kv_width);
        v.truncate(past * kv_width);
    }
    p.project(w.o, &mixed)
}
