//! Mixture of experts over all rows of a pass.
//!
//! Rows are rounded once for all experts, which pick theirs from them. Two parallel regions: gate and
//! up projections of all experts, each task a few inner columns of one expert; then the down
//! projections, each task a few columns of the result over all experts, which it adds up by itself.

use std::ops::Range;
use std::time::{Duration, Instant};

use shamrock_model::config::Config;
use shamrock_model::routing::{Routes, coreset, route, softmax_rows};
use shamrock_model::weights::{Ffn, MoeWeights};
use shamrock_model::{Part, PlannedPart, Result};

use crate::kernel::BAND;
use crate::linear::{Linear, Product, ROW_BLOCK, Scratch, Source, Stripe};
use crate::math::{sigmoid, silu};

/// Inner columns of a task.
const INNER: usize = 4 * BAND;
/// Columns of the result of a task: some bands of every expert, since the first of them comes as a surprise.
const COLUMNS: usize = 4 * BAND;

/// Rows grouped by expert.
pub(crate) struct Plan {
    /// Ascending experts, each with its stretch of `rows`.
    experts: Vec<(u32, Range<usize>)>,
    /// Rows of the pass, expert after expert, ascending inside one.
    rows: Vec<u32>,
    /// Weight of the expert's output for each of them.
    weights: Vec<f32>,
    /// Time the choice took.
    pub(crate) time: Duration,
}

impl Plan {
    /// Experts in use.
    pub(crate) fn distinct(&self) -> usize {
        self.experts.len()
    }

    /// The experts in use, ascending.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = u32> + '_ {
        self.experts.iter().map(|expert| expert.0)
    }

    /// Chooses experts for each part; a preview keeps to its block's coreset if the model has them.
    pub(crate) fn new(
        linear: &Linear<'_>,
        config: &Config,
        w: &MoeWeights,
        y: &[f32],
        parts: &[PlannedPart<'_>],
    ) -> Result<Plan> {
        let mut probs = linear.project(w.router, y)?;
        let start = Instant::now();
        let experts = config.moe.experts;
        softmax_rows(&mut probs, experts);
        let top_p = config.block.as_ref().and_then(|b| b.coreset_top_p);
        let mut routes: Vec<Routes> = vec![Routes::default(); parts.len()];
        linear.pool().for_chunks(&mut routes, 1, |i, routes| {
            let part = &parts[i];
            let probs = &probs[part.rows.start * experts..part.rows.end * experts];
            let coreset =
                top_p.filter(|_| part.part == Part::Preview).map(|p| coreset(probs, &config.moe, p));
            routes[0] = route(probs, &config.moe, coreset.as_deref());
        });
        let mut choices: Vec<(u32, u32, f32)> = Vec::new();
        for (part, routes) in parts.iter().zip(&routes) {
            for r in 0..routes.rows() {
                let row = (part.rows.start + r) as u32;
                choices.extend(routes.row(r).iter().map(|c| (c.expert, row, c.weight)));
            }
        }
        choices.sort_unstable_by_key(|&(expert, row, _)| (expert, row));
        let mut experts = Vec::new();
        for group in choices.chunk_by(|a, b| a.0 == b.0) {
            let start = experts.last().map_or(0, |(_, before): &(u32, Range<usize>)| before.end);
            experts.push((group[0].0, start..start + group.len()));
        }
        Ok(Plan {
            experts,
            rows: choices.iter().map(|c| c.1).collect(),
            weights: choices.iter().map(|c| c.2).collect(),
            time: start.elapsed(),
        })
    }
}

/// One feed-forward with the rows it runs over.
struct Branch<'a> {
    ffn: Ffn,
    /// Rows of the pass; `None` for all, in the shared expert.
    rows: Option<&'a [u32]>,
    /// Weight of the output for each of the rows.
    weights: &'a [f32],
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
    let mut gates = linear.project(w.shared_gate, y)?;
    gates.iter_mut().for_each(|gate| *gate = sigmoid(*gate));
    let mut branches = vec![Branch { ffn: w.shared, rows: None, weights: &gates }];
    branches.extend(plan.experts.iter().map(|(expert, span)| Branch {
        ffn: w.experts[*expert as usize],
        rows: Some(&plan.rows[span.clone()]),
        weights: &plan.weights[span.clone()],
    }));
    let inner = inner(linear, y, &branches)?;

    let products: Vec<Product<'_>> =
        branches.iter().zip(&inner).map(|(b, inner)| (b.ffn.down, inner.as_slice()).into()).collect();
    let down = linear.prepare(&products)?;
    linear.tasks(Stripe::split(hidden, width, COLUMNS), |scratch, mut stripe| {
        let mut sums = vec![0.0; y.len() / width * stripe.columns()];
        down[0].prefetch(stripe.first());
        for (i, (branch, source)) in branches.iter().zip(&down).enumerate() {
            let next = down.get(i + 1).map_or(&[][..], |next| next.weights(stripe.first()));
            let columns = stripe.first()..stripe.first() + stripe.columns();
            add_branch(linear, scratch, branch, source, columns, next, &mut sums)?;
        }
        for (row, sums) in sums.chunks_exact(stripe.columns()).enumerate() {
            for (hidden, sum) in stripe.row(row).iter_mut().zip(sums) {
                *hidden += sum;
            }
        }
        Ok(())
    })
}

/// `silu(gate x) ⊙ (up x)` of each branch's rows, `[rows, ffn width]`.
fn inner(linear: &Linear<'_>, y: &[f32], branches: &[Branch<'_>]) -> Result<Vec<Vec<f32>>> {
    let products: Vec<Product<'_>> = branches
        .iter()
        .flat_map(|b| [b.ffn.gate, b.ffn.up].map(|matrix| Product { matrix, x: y, picked: b.rows }))
        .collect();
    let sources = linear.prepare(&products)?;
    let mut inner: Vec<Vec<f32>> =
        branches.iter().map(|b| vec![0.0; b.weights.len() * b.ffn.gate.rows]).collect();
    let mut tasks = Vec::new();
    for ((branch, inner), pair) in branches.iter().zip(&mut inner).zip(sources.as_chunks::<2>().0) {
        tasks.extend(Stripe::split(inner, branch.ffn.gate.rows, INNER).into_iter().map(|s| (pair, s)));
    }
    linear.tasks(tasks, |scratch, ([gate, up], mut stripe)| {
        gate.prefetch(stripe.first());
        let mut products = vec![[0.0; BAND]; 2 * gate.rows().min(ROW_BLOCK)];
        for first in (0..gate.rows()).step_by(ROW_BLOCK) {
            let rows = first..gate.rows().min(first + ROW_BLOCK);
            let (gates, ups) = products[..2 * rows.len()].split_at_mut(rows.len());
            for at in (0..stripe.columns()).step_by(BAND) {
                let columns = at..stripe.columns().min(at + BAND);
                let band = stripe.first() + at;
                let next = if columns.end < stripe.columns() { gate.weights(band + BAND) } else { &[] };
                gate.band(linear.isa(), band, rows.clone(), scratch, up.weights(band), gates)?;
                up.band(linear.isa(), band, rows.clone(), scratch, next, ups)?;
                for ((row, gate), up) in rows.clone().zip(gates.iter()).zip(ups.iter()) {
                    let mut values = [0.0; BAND];
                    linear.isa().run(|| {
                        for ((value, gate), up) in values.iter_mut().zip(gate).zip(up) {
                            *value = silu(*gate) * up;
                        }
                    });
                    stripe.row(row)[columns.clone()].copy_from_slice(&values[..columns.len()]);
                }
            }
        }
        Ok(())
    })?;
    Ok(inner)
}

/// Adds some columns of a branch's weighted output to `sums` `[rows of the pass, columns]`. `next` is read afterwards.
fn add_branch(
    linear: &Linear<'_>,
    scratch: &mut Scratch,
    branch: &Branch<'_>,
    down: &Source<'_>,
    columns: Range<usize>,
    next: &[u8],
    sums: &mut [f32],
) -> Result<()> {
    let mut products = [[0.0; BAND]; ROW_BLOCK];
    for start in (0..down.rows()).step_by(ROW_BLOCK) {
        let rows = start..down.rows().min(start + ROW_BLOCK);
        for band in columns.clone().step_by(BAND) {
            let products = &mut products[..rows.len()];
            let next = if band + BAND < columns.end { down.weights(band + BAND) } else { next };
            down.band(linear.isa(), band, rows.clone(), scratch, next, products)?;
            for (i, products) in rows.clone().zip(products) {
                let row = branch.rows.map_or(i, |rows| rows[i] as usize);
                let sums = &mut sums[row * columns.len()..(row + 1) * columns.len()][band - columns.start..];
                for (sum, product) in sums.iter_mut().zip(products) {
                    *sum += branch.weights[i] * *product;
                }
            }
        }
    }
    Ok(())
}
