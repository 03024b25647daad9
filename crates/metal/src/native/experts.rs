//! The mixture of experts: chosen on the host, computed in panels of rows by expert.

use std::ops::Range;
use std::time::{Duration, Instant};

use shamrock_model::routing::{coreset, route, softmax_rows};
use shamrock_model::{Part, Result};

use super::abi;
use super::device::{At, Buffer, Grid};
use super::kernel::{Kernel, Rows};
use super::lru::Found;
use super::pass::Pass;
use super::views::{Expert, View};
use super::workspace::Workspace;

/// What routing decided for a layer.
pub(crate) enum Routed {
    /// The host knows: each expert, ascending, with its stretch of the pairs.
    Host(Vec<(u32, Range<usize>)>),
    /// The device has it in its tables.
    Device,
}

/// One of an expert's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Gate,
    Up,
    Down,
}

impl Which {
    pub(crate) const ALL: [Which; 3] = [Which::Gate, Which::Up, Which::Down];

    pub(crate) fn of(self, expert: &Expert) -> &View {
        match self {
            Which::Gate => &expert.gate,
            Which::Up => &expert.up,
            Which::Down => &expert.down,
        }
    }

    /// What it multiplies, the index of each pair's row in that, and where the products go, by pair.
    pub(crate) fn operands(self, space: &Workspace) -> (&Buffer, &Buffer, &Buffer) {
        match self {
            Which::Gate => (&space.normed, &space.pair_rows, &space.gate),
            Which::Up => (&space.normed, &space.pair_rows, &space.up),
            Which::Down => (&space.gate, &space.identity, &space.routed),
        }
    }
}

/// What routing cost over a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RoutingStats {
    pub(crate) time: Duration,
    pub(crate) distinct: u64,
    pub(crate) found: Found,
    /// Time for views of experts that were missing.
    pub(crate) fill: Duration,
    /// Bytes of the experts' weights.
    pub(crate) bytes: u64,
}

impl Pass<'_> {
    /// Chooses experts from the router's logits, writes the tables of the panels, and views what is missing.
    pub(super) fn route(&mut self, layer: usize) -> Result<Routed> {
        let start = Instant::now();
        let m = &self.config.moe;
        let mut probs = self.space.router.read::<f32>(0, self.plan.rows * m.experts).to_vec();
        softmax_rows(&mut probs, m.experts);
        let top_p = self.config.block.as_ref().and_then(|b| b.coreset_top_p);
        let mut pairs: Vec<(u32, usize, f32)> = Vec::with_capacity(self.plan.rows * m.top_k);
        for part in &self.plan.parts {
            let probs = &probs[part.rows.start * m.experts..][..part.ids.len() * m.experts];
            let top_p = top_p.filter(|_| part.part == Part::Preview);
            let coreset = top_p.map(|top_p| coreset(probs, m, top_p));
            let routes = route(probs, m, coreset.as_deref());
            for row in 0..routes.rows() {
                pairs.extend(routes.row(row).iter().map(|c| (c.expert, part.rows.start + row, c.weight)));
            }
        }
        pairs.sort_unstable_by_key(|&(expert, row, _)| (expert, row));
        self.write_tables(&pairs);
        let mut experts: Vec<(u32, Range<usize>)> = Vec::new();
        for group in pairs.chunk_by(|a, b| a.0 == b.0) {
            let from = experts.last().map_or(0, |(_, last)| last.end);
            experts.push((group[0].0, from..from + group.len()));
        }
        self.routing.time += start.elapsed();

        let wanted: Vec<u32> = experts.iter().map(|(expert, _)| *expert).collect();
        let start = Instant::now();
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.chosen(layer, &wanted, |expert| self.views.has(expert));
        }
        let found = self.views.acquire(self.device, layer, &wanted)?;
        self.routing.fill += start.elapsed();
        self.routing.found.hits += found.hits;
        self.routing.found.misses += found.misses;
        self.routing.found.bytes += found.bytes;
        self.routing.distinct += wanted.len() as u64;
        let ffns = &self.weights.layers[layer].moe.experts;
        let bytes = wanted.iter().flat_map(|&e| ffns[e as usize].matrices());
        self.routing.bytes += bytes.map(|m| self.weights.tensor(m).bytes.len() as u64).sum::<u64>();
        Ok(Routed::Host(experts))
    }

    /// Tables of the pairs `(expert, row, weight)`, which are sorted: so each row's come ascending too.
    fn write_tables(&mut self, pairs: &[(u32, usize, f32)]) {
        let (space, rows) = (&mut *self.space, self.plan.rows);
        let mut next = vec![0u32; rows + 1];
        pairs.iter().for_each(|&(_, row, _)| next[row + 1] += 1);
        for row in 0..rows {
            next[row + 1] += next[row];
        }
        space.starts.put(&next);
        let pair_rows = space.pair_rows.write::<u32>(0, pairs.len());
        let slots = space.slots.write::<u32>(0, pairs.len());
        let weights = space.weights.write::<f32>(0, pairs.len());
        for (slot, &(_, row, weight)) in pairs.iter().enumerate() {
            pair_rows[slot] = row as u32;
            let to = next[row] as usize;
            next[row] += 1;
            (slots[to], weights[to]) = (slot as u32, weight);
        }
    }

    /// Adds what a layer's experts make of the normed rows to the stream.
    pub(super) fn experts(&mut self, layer: usize, routed: &Routed) -> Result<()> {
        let (rows, hidden) = (self.plan.rows, self.config.hidden_size);
        let (width, shared_width) = (self.config.moe.expert_width, self.config.moe.shared_width);
        let shared = self.weights.layers[layer].moe.shared;
        let pairs = match routed {
            Routed::Host(experts) => experts.last().map_or(0, |(_, pairs)| pairs.end),
            Routed::Device => rows * self.config.moe.top_k, // at most: what is beyond is not read again
        };

        if let Routed::Host(experts) = routed {
            self.gather(experts)?;
        }
        self.work.stage("gate|up")?;
        self.panels(layer, routed, Which::Gate)?;
        self.panels(layer, routed, Which::Up)?;
        let space = &*self.space;
        for (matrix, to) in [(shared.gate, &space.shared_gated), (shared.up, &space.shared_up)] {
            self.work.gemm(self.views.dense(matrix)?, &space.normed, &space.identity, to, rows)?;
        }
        self.work.barrier();

        self.work.stage("activation")?;
        for (gate, up, count) in [
            (&space.gate, &space.up, pairs * width),
            (&space.shared_gated, &space.shared_up, rows * shared_width),
        ] {
            let arguments = abi::Elements { count: count as u32 };
            self.work.dispatch(Kernel::SiluUp, Grid::flat(count), &arguments, &[gate.into(), up.into()])?;
        }
        self.work.barrier();

        self.work.stage("down")?;
        self.panels(layer, routed, Which::Down)?;
        let space = &*self.space;
        let down = self.views.dense(shared.down)?;
        self.work.gemm(down, &space.shared_gated, &space.identity, &space.shared_out, rows)?;
        self.work.barrier();

        self.work.stage("combine")?;
        let buffers = [
            (&space.hidden).into(),
            (&space.shared_out).into(),
            (&space.shared_gate).into(),
            (&space.routed).into(),
            (&space.starts).into(),
            (&space.slots).into(),
            (&space.weights).into(),
        ];
        let grid = Grid::new((hidden.div_ceil(64), rows, 1), 64);
        self.work.dispatch(Kernel::Combine, grid, &abi::Combine { width: hidden as u32 }, &buffers)?;
        self.work.barrier();
        Ok(())
    }

    /// Lays the rows of wide panels side by side, where the products of gate and up read them once for every tile of
    /// outputs. What these experts return takes their place.
    fn gather(&mut self, experts: &[(u32, Range<usize>)]) -> Result<()> {
        let (space, width) = (&*self.space, self.config.hidden_size);
        let mut wide = experts.iter().map(|(_, pairs)| pairs).filter(|pairs| is_wide(pairs)).peekable();
        if wide.peek().is_none() {
            return Ok(());
        }
        self.work.stage("gather")?;
        let arguments = abi::Gather { width: width as u32 };
        for pairs in wide {
            let to = space.routed.at(pairs.start * width * 4);
            let buffers = [(&space.normed).into(), space.pair_rows.at(pairs.start * 4), to];
            let grid = Grid::new((width.div_ceil(64), pairs.len(), 1), 64);
            self.work.dispatch(Kernel::Gather, grid, &arguments, &buffers)?;
        }
        self.work.barrier();
        Ok(())
    }

    /// Products of every chosen expert's rows with one of its matrices.
    fn panels(&mut self, layer: usize, routed: &Routed, which: Which) -> Result<()> {
        let Routed::Host(experts) = routed else { return self.chosen_panels(layer, which) };
        let space = &*self.space;
        let (x, index, y) = which.operands(space);
        for (expert, pairs) in experts {
            let matrix = which.of(self.views.expert(layer, *expert)?);
            let (x, index): (At<'_>, At<'_>) = if which != Which::Down && is_wide(pairs) {
                (space.routed.at(pairs.start * matrix.cols * 4), (&space.identity).into())
            } else {
                (x.into(), index.at(pairs.start * 4))
            };
            self.work.gemm(matrix, x, index, y.at(pairs.start * matrix.rows * 4), pairs.len())?;
        }
        Ok(())
    }
}

/// Whether a panel's products are made in wide tiles. Others have few rows, for which gathering would only be one more
/// dispatch.
fn is_wide(pairs: &Range<usize>) -> bool {
    Rows::of(pairs.len()) == Rows::Many
}
