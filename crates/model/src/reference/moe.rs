//! Mixture of experts.

use std::time::{Duration, Instant};

use super::linear::Projector;
use super::math::{add_scaled, sigmoid, silu};
use crate::error::Result;
use crate::executor::Part;
use crate::routing::{Routes, coreset, route, softmax_rows};
use crate::weights::{Ffn, MoeWeights};

/// What routing decided for one part in one layer.
pub(super) struct Routed {
    /// Experts that the block may use; `None` without a coreset.
    pub(super) coreset: Option<Vec<u32>>,
    /// Experts of every row.
    pub(super) routes: Routes,
    /// Time the choice took.
    pub(super) time: Duration,
}

/// Routes the rows of one part; a preview keeps to its block's coreset if the model has them on.
pub(super) fn choose(p: &Projector<'_>, w: &MoeWeights, y: &[f32], part: Part) -> Result<Routed> {
    let config = p.config;
    let mut probs = p.project(w.router, y)?;
    let start = Instant::now();
    softmax_rows(&mut probs, config.moe.experts);
    let top_p = config.block.as_ref().and_then(|b| b.coreset_top_p).filter(|_| part == Part::Preview);
    let coreset = top_p.map(|top_p| coreset(&probs, &config.moe, top_p));
    let routes = route(&probs, &config.moe, coreset.as_deref());
    Ok(Routed { coreset, routes, time: start.elapsed() })
}

/// The sigmoid-gated shared expert plus the weighted routed experts, ascending.
pub(super) fn experts(p: &Projector<'_>, w: &MoeWeights, y: &[f32], routes: &Routes) -> Result<Vec<f32>> {
    let hidden = w.router.cols;
    let mut out = ffn(p, &w.shared, y)?;
    let gates = p.project(w.shared_gate, y)?;
    for (row, gate) in out.chunks_exact_mut(hidden).zip(gates) {
        row.iter_mut().for_each(|v| *v *= sigmoid(gate));
    }
    for (expert, rows) in routes.by_expert() {
        let gathered: Vec<f32> =
            rows.iter().flat_map(|&(r, _)| &y[r * hidden..(r + 1) * hidden]).copied().collect();
        let result = ffn(p, &w.experts[expert as usize], &gathered)?;
        for ((r, weight), result) in rows.into_iter().zip(result.chunks_exact(hidden)) {
            add_scaled(&mut out[r * hidden..(r + 1) * hidden], result, weight);
        }
    }
    Ok(out)
}

/// `down( silu(gate x) ⊙ (up x) )`.
fn ffn(p: &Projector<'_>, w: &Ffn, x: &[f32]) -> Result<Vec<f32>> {
    let mut inner = p.project(w.gate, x)?;
    for (g, u) in inner.iter_mut().zip(p.project(w.up, x)?) {
        *g = silu(*g) * u;
    }
    p.project(w.down, &inner)
}
