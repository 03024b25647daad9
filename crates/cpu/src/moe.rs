//! Mixture of experts over all rows of a pass.

use std::time::{Duration, Instant};

use rayon::prelude::*;
use shamrock_model::config::Config;
use shamrock_model::routing::{Routes, coreset, route, softmax_rows};
use shamrock_model::weights::{Matrix, MoeWeights};
use shamrock_model::{Part, Result};

use crate::kernel::Isa;
use crate::linear::Linear;
use crate::math::{add_scaled, sigmoid, silu};
use crate::pass::Rows;

/// Values that make a task of the elementwise operators.
const TASK: usize = 1 << 12;

/// Rows grouped by expert.
pub(crate) struct Plan {
    /// Ascending experts, each with the place of its first row in `rows`.
    experts: Vec<(u32, usize)>,
    /// Rows of the pass, expert after expert, ascending inside one.
    rows: Vec<usize>,
    /// Per row of the pass: places in `rows` and their weights, by ascending expert.
    places: Vec<Vec<(usize, f32)>>,
    /// Time the choice took.
    pub(crate) time: Duration,
}

impl Plan {
    /// Experts in use.
    pub(crate) fn distinct(&self) -> usize {
        self.experts.len()
    }

    /// Chooses experts for each part; a preview keeps to its block's coreset if the model has them.
    pub(crate) fn new(
        linear: &Linear<'_>,
        config: &Config,
        w: &MoeWeights,
        y: &[f32],
        parts: &[Rows<'_>],
    ) -> Result<Plan> {
        let mut probs = linear.project(w.router, y)?;
        let start = Instant::now();
        let experts = config.moe.experts;
        softmax_rows(&mut probs, experts);
        let routes: Vec<Routes> = parts
            .par_iter()
            .map(|part| {
                let probs = &probs[part.rows.start * experts..part.rows.end * experts];
                let top_p = config.block.as_ref().and_then(|b| b.coreset_top_p);
                let coreset =
                    top_p.filter(|_| part.part == Part::Preview).map(|p| coreset(probs, &config.moe, p));
                route(probs, &config.moe, coreset.as_deref())
            })
            .collect();
        let mut choices: Vec<(u32, usize, f32)> = Vec::new();
        for (part, routes) in parts.iter().zip(&routes) {
            for r in 0..routes.rows() {
                choices.extend(routes.row(r).iter().map(|c| (c.expert, part.rows.start + r, c.weight)));
            }
        }
        choices.sort_unstable_by_key(|&(expert, row, _)| (expert, row));
        let mut plan = Plan {
            experts: Vec::new(),
            rows: choices.iter().map(|c| c.1).collect(),
            places: vec![Vec::new(); probs.len() / experts],
            time: Duration::ZERO,
        };
        for (place, &(expert, row, weight)) in choices.iter().enumerate() {
            if plan.experts.last().is_none_or(|last| last.0 != expert) {
                plan.experts.push((expert, place));
            }
            plan.places[row].push((place, weight));
        }
        plan.time = start.elapsed();
        Ok(plan)
    }

    /// The places of each expert, in order.
    fn spans(&self) -> impl Iterator<Item = (u32, std::ops::Range<usize>)> + '_ {
        let ends = self.experts.iter().skip(1).map(|e| e.1).chain([self.rows.len()]);
        self.experts.iter().zip(ends).map(|(&(expert, start), end)| (expert, start..end))
    }
}

/// The sigmoid-gated shared expert plus the weighted routed experts in ascending order, added to
/// `hidden`.
pub(crate) fn experts(
    linear: &Linear<'_>,
    w: &MoeWeights,
    y: &[f32],
    plan: &Plan,
    hidden: &mut [f32],
) -> Result<()> {
    let width = w.router.cols;
    // The routed rows, expert after expert; each expert is a product over its own stretch.
    let mut gathered = vec![0.0; plan.rows.len() * width];
    gathered.par_chunks_mut(width).zip(&plan.rows).with_min_len(8).for_each(|(to, &row)| {
        to.copy_from_slice(&y[row * width..(row + 1) * width]);
    });
    let mut products: Vec<(Matrix, &[f32])> = vec![(w.shared_gate, y), (w.shared.gate, y), (w.shared.up, y)];
    for (expert, span) in plan.spans() {
        let ffn = &w.experts[expert as usize];
        let x = &gathered[span.start * width..span.end * width];
        products.extend([(ffn.gate, x), (ffn.up, x)]);
    }
    let mut results = linear.project_list(&products)?.into_iter();
    let gates = results.next().unwrap_or_default();
    let mut inner = Vec::with_capacity(plan.distinct() + 1);
    while let (Some(mut gate), Some(up)) = (results.next(), results.next()) {
        gate_with(linear.isa(), &mut gate, &up);
        inner.push(gate);
    }
    let down = std::iter::once(w.shared.down).chain(plan.spans().map(|(e, _)| w.experts[e as usize].down));
    let products: Vec<(Matrix, &[f32])> = down.zip(inner.iter().map(Vec::as_slice)).collect();
    let mut results = linear.project_list(&products)?.into_iter();
    let shared = results.next().unwrap_or_default();
    let routed: Vec<Vec<f32>> = results.collect();
    let by_place: Vec<&[f32]> = routed.iter().flat_map(|r| r.chunks_exact(width)).collect();

    let isa = linear.isa();
    hidden.par_chunks_mut(width).enumerate().for_each(|(row, hidden)| {
        isa.run(|| {
            let mut out = shared[row * width..(row + 1) * width].to_vec();
            let gate = sigmoid(gates[row]);
            out.iter_mut().for_each(|v| *v *= gate);
            for &(place, weight) in &plan.places[row] {
                add_scaled(&mut out, by_place[place], weight);
            }
            add_scaled(hidden, &out, 1.0);
        });
    });
    Ok(())
}

/// `silu(gate) ⊙ up` into `gate`.
fn gate_with(isa: Isa, gate: &mut [f32], up: &[f32]) {
    gate.par_chunks_mut(TASK).zip(up.par_chunks(TASK)).for_each(|(gate, up)| {
        isa.run(|| {
            for (g, u) in gate.iter_mut().zip(up) {
                *g = silu(*g) * u;
            }
        });
    });
}
