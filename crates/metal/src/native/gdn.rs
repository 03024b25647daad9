//! Gated DeltaNet over all parts of a pass: the recurrence of commits, the block operator of previews.

use shamrock_model::weights::GdnWeights;
use shamrock_model::{Part, PlannedPart, Result};

use super::abi;
use super::device::{At, Buffer, Grid};
use super::kernel::Kernel;
use super::parameters::GdnParameters;
use super::pass::Pass;
use super::state::{LayerBuffers, States, ring_bytes};

/// The training block's size, a literal of the history slot's logit whatever the file's block size.
const TRAINING_BLOCK: f32 = 32.0;

fn state<'a>(states: &'a mut States, part: &PlannedPart<'_>, layer: usize) -> Result<&'a Buffer> {
    match &states.get_mut(part.seq)?.state.layers[layer] {
        LayerBuffers::Gdn(state) => Ok(state),
        LayerBuffers::Kv { .. } => unreachable!("states have the model's layers"),
    }
}

impl Pass<'_> {
    /// Mixes the normed rows; commits advance ring and memory.
    pub(super) fn gdn(&mut self, layer: usize, w: &GdnWeights, p: GdnParameters) -> Result<()> {
        let (space, parameters, rows) = (&*self.space, self.parameters, self.plan.rows);
        let g = &self.config.gdn;
        self.work.stage("gdn mixers")?;
        for (matrix, to) in [(w.qkv, &space.raw), (w.z, &space.z), (w.a, &space.a), (w.b, &space.b)] {
            self.work.gemm(self.views.dense(matrix)?, &space.normed, &space.identity, to, rows)?;
        }
        self.work.barrier();
        let count = rows * g.value_heads;
        let arguments = abi::Gates { heads: g.value_heads as u32, count: count as u32 };
        let buffers = [
            (&space.a).into(),
            (&space.b).into(),
            parameters.at(p.a_log),
            parameters.at(p.dt_bias),
            (&space.gates).into(),
        ];
        self.work.dispatch(Kernel::GdnGates, Grid::flat(count), &arguments, &buffers)?;
        for kind in [Part::Commit, Part::Preview] {
            if self.plan.parts.iter().any(|part| part.part == kind) {
                self.convolve(layer, p, kind)?;
                match kind {
                    Part::Commit => self.recur(layer)?,
                    Part::Preview => self.block(layer, p)?,
                }
                // Previews read the states that commits leave.
                self.work.barrier();
            }
        }
        let space = &*self.space;
        let arguments = abi::Gate { value_dim: g.value_dim as u32, eps: self.config.norm_eps };
        let buffers = [(&space.mixed).into(), (&space.z).into(), parameters.at(p.norm)];
        self.work.dispatch(Kernel::GdnGate, Grid::new((g.value_heads, rows, 1), 32), &arguments, &buffers)?;
        self.work.barrier();
        self.work.gemm(self.views.dense(w.out)?, &space.mixed, &space.identity, &space.mixer_out, rows)
    }

    /// Convolution and unit norms of the rows of one kind, which lie together.
    fn convolve(&mut self, layer: usize, p: GdnParameters, kind: Part) -> Result<()> {
        let (space, parameters, g) = (&*self.space, self.parameters, &self.config.gdn);
        let mut lie = self.plan.rows..0;
        for part in self.plan.parts.iter().filter(|part| part.part == kind) {
            let arguments = abi::Conv {
                channels: g.channels() as u32,
                taps: g.conv_kernel as u32,
                row0: part.rows.start as u32,
                rows: part.ids.len() as u32,
                block: (kind == Part::Preview).into(),
            };
            let buffers = [
                (&space.raw).into(),
                state(self.states, part, layer)?.into(),
                parameters.at(p.conv),
                parameters.at(p.conv_right),
                (&space.ready).into(),
            ];
            let grid = Grid::new((g.channels().div_ceil(64), part.ids.len(), 1), 64);
            self.work.dispatch(Kernel::GdnConv, grid, &arguments, &buffers)?;
            lie = lie.start.min(part.rows.start)..lie.end.max(part.rows.end);
        }
        self.work.barrier();
        let arguments = abi::Unit { channels: g.channels() as u32, key_dim: g.key_dim as u32 };
        let ready = space.ready.at(lie.start * g.channels() * 4);
        let grid = Grid::new((2 * g.key_heads, lie.len(), 1), 32);
        self.work.dispatch(Kernel::GdnUnit, grid, &arguments, &[ready])?;
        self.work.barrier();
        Ok(())
    }

    /// Advances the states of all commits.
    fn recur(&mut self, layer: usize) -> Result<()> {
        let (plan, g) = (self.plan, &self.config.gdn);
        for part in plan.parts.iter().filter(|part| part.part == Part::Commit) {
            let space = &*self.space;
            let arguments = abi::Recur {
                channels: g.channels() as u32,
                key_heads: g.key_heads as u32,
                value_heads: g.value_heads as u32,
                value_dim: g.value_dim as u32,
                row0: part.rows.start as u32,
                rows: part.ids.len() as u32,
            };
            let state = state(self.states, part, layer)?;
            let memory = state.at(ring_bytes(self.config));
            let buffers = [(&space.ready).into(), (&space.gates).into(), memory, (&space.mixed).into()];
            let grid = Grid::new((g.value_dim.div_ceil(32), g.value_heads, 1), 32);
            self.work.dispatch(Kernel::GdnRecur(g.key_dim), grid, &arguments, &buffers)?;
            let arguments = abi::Ring {
                channels: g.channels() as u32,
                back: g.ring_rows() as u32,
                row0: part.rows.start as u32,
                rows: part.ids.len() as u32,
            };
            let buffers = [(&space.raw).into(), state.into()];
            self.work.dispatch(Kernel::GdnRing, Grid::flat(g.channels()), &arguments, &buffers)?;
            if part.rewindable {
                self.keep(layer, part)?;
            }
        }
        Ok(())
    }

    /// Keeps a commit's rows, so that it can be cut back.
    fn keep(&mut self, layer: usize, part: &PlannedPart<'_>) -> Result<()> {
        let (space, g) = (&*self.space, &self.config.gdn);
        let Some(Some(undo)) = self.states.get_mut(part.seq)?.state_and_undo().1 else { return Ok(()) };
        let Some(undo) = &undo.layers[layer] else { return Ok(()) };
        let (channels, gates) = (g.channels(), 2 * g.value_heads);
        let copies: [(&Buffer, &Buffer, usize); 3] = [
            (&space.raw, &undo.raw, channels),
            (&space.ready, &undo.ready, channels),
            (&space.gates, &undo.gates, gates),
        ];
        for (from, to, width) in copies {
            let words = part.ids.len() * width;
            let buffers: [At<'_>; 2] = [from.at(part.rows.start * width * 4), to.into()];
            let arguments = abi::Copy { words: words as u32 };
            self.work.dispatch(Kernel::CopyWords, Grid::flat(words), &arguments, &buffers)?;
        }
        Ok(())
    }

    /// The block operator over all previews.
    fn block(&mut self, layer: usize, p: GdnParameters) -> Result<()> {
        let (space, parameters, g) = (&*self.space, self.parameters, &self.config.gdn);
        for part in self.plan.parts.iter().filter(|part| part.part == Part::Preview) {
            let n = part.ids.len();
            let arguments = abi::Block {
                channels: g.channels() as u32,
                key_heads: g.key_heads as u32,
                value_heads: g.value_heads as u32,
                key_dim: g.key_dim as u32,
                value_dim: g.value_dim as u32,
                row0: part.rows.start as u32,
                rows: n as u32,
                share: (n as f32 / TRAINING_BLOCK).ln(),
            };
            let buffers = [
                (&space.ready).into(),
                (&space.gates).into(),
                state(self.states, part, layer)?.at(ring_bytes(self.config)),
                parameters.at(p.logit_scale),
                parameters.at(p.history_bias),
                parameters.at(p.history_c),
                (&space.mixed).into(),
            ];
            self.work.dispatch(
                Kernel::GdnBlock,
                Grid::new((g.value_heads, n, 1), 64),
                &arguments,
                &buffers,
            )?;
        }
        Ok(())
    }
}
