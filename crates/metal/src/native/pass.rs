//! One pass: all layers over all rows.
//!
//! Where the host chooses experts there is one command buffer and one wait a layer: it holds the experts of the
//! layer before, the mixer, and the router. The host then chooses, and views those that are missing, while
//! nothing runs. Where the device chooses, a pass is one command buffer.

use shamrock_model::executor::StepOutput;
use shamrock_model::weights::{MixerWeights, Weights};
use shamrock_model::{Config, Result};

use super::abi;
use super::attention::turns;
use super::device::{At, Device, Grid, Work};
use super::device_routing::{DeviceRouting, write_blocks};
use super::experts::{Routed, RoutingStats};
use super::head::Scoring;
use super::kernel::Kernel;
use super::parameters::{MixerParameters, Parameters};
use super::plan::Plan;
use super::prefetch::Prefetch;
use super::state::States;
use super::views::Views;
use super::workspace::Workspace;
use crate::KvPrecision;

/// All that a pass works with.
pub(crate) struct Pass<'a> {
    pub(crate) device: &'a Device,
    pub(crate) config: &'a Config,
    pub(crate) weights: &'a Weights,
    pub(crate) parameters: &'a Parameters,
    pub(crate) views: &'a mut Views,
    pub(crate) space: &'a mut Workspace,
    pub(crate) states: &'a mut States,
    pub(crate) plan: &'a Plan<'a>,
    pub(crate) kv: KvPrecision,
    /// Where experts are chosen on the device.
    pub(crate) device_routing: Option<&'a DeviceRouting>,
    pub(crate) prefetch: Option<&'a mut Prefetch>,
    /// Splits of the context in attention.
    pub(crate) splits: usize,
    pub(crate) work: Work<'a>,
    pub(crate) routing: RoutingStats,
}

impl Pass<'_> {
    /// Runs the pass and returns one output per step.
    ///
    /// # Errors
    /// [`shamrock_model::Error::Device`] when the device fails; the states of commits are then undefined, and
    /// nothing else is.
    pub(crate) fn run(&mut self, scoring: &Scoring, steps: usize) -> Result<Vec<StepOutput>> {
        self.embed()?;
        for layer in 0..self.weights.layers.len() {
            self.mix(layer)?;
            let routed = if self.device_routing.is_some() {
                self.choose(layer)?;
                Routed::Device
            } else {
                self.work.wait()?;
                self.route(layer)?
            };
            self.experts(layer, &routed)?;
        }
        let outputs = self.score(scoring, steps)?;
        if self.device_routing.is_some() {
            self.count_chosen();
        }
        Ok(outputs)
    }

    /// Looks the rows' embeddings up, and the turns of their positions.
    fn embed(&mut self) -> Result<()> {
        let (hidden, table) = (self.config.hidden_size, self.weights.tensor(self.weights.embed));
        let ids = self.plan.parts.iter().flat_map(|part| part.ids);
        let rows = self.space.hidden.write::<f32>(0, self.plan.rows * hidden);
        for (row, &id) in rows.chunks_exact_mut(hidden).zip(ids) {
            table.decode_rows(id as usize..id as usize + 1, row)?;
        }
        let pairs = self.plan.rows * (self.config.attention.rotary_dim / 2);
        turns(self.config, self.plan, self.space.turns.write::<[f32; 2]>(0, pairs));
        if self.device_routing.is_some() {
            write_blocks(self.config, self.plan, self.space);
        }
        Ok(())
    }

    /// Mixer, norms and router of a layer.
    fn mix(&mut self, layer: usize) -> Result<()> {
        let (weights, parameters) = (&self.weights.layers[layer], &self.parameters.layers[layer]);
        self.work.stage("norm + router")?;
        self.norm(false, parameters.input_norm, None)?;
        match (&weights.mixer, parameters.mixer) {
            (MixerWeights::Full(w), MixerParameters::Full { q_norm, k_norm }) => {
                self.attention(layer, w, (q_norm, k_norm))?;
            }
            (MixerWeights::Linear(w), MixerParameters::Linear(p)) => self.gdn(layer, w, p)?,
            _ => unreachable!("parameters are the weights' own"),
        }
        self.work.barrier();
        self.work.stage("norm + router")?;
        self.norm(true, parameters.post_norm, None)?;
        let (space, rows) = (&*self.space, self.plan.rows);
        for (matrix, to) in
            [(weights.moe.router, &space.router), (weights.moe.shared_gate, &space.shared_gate)]
        {
            self.work.gemm(self.views.dense(matrix)?, &space.normed, &space.identity, to, rows)?;
        }
        self.work.barrier();
        Ok(())
    }

    /// Norms the stream, after adding what the mixer returned if `add` is set: all rows, or those to be
    /// scored, of which there are `scored`.
    pub(super) fn norm(&mut self, add: bool, weight: usize, scored: Option<usize>) -> Result<()> {
        let (space, width) = (&*self.space, self.config.hidden_size);
        let (index, out, rows): (At<'_>, At<'_>, usize) = match scored {
            None => ((&space.identity).into(), (&space.normed).into(), self.plan.rows),
            Some(scored) => ((&space.chosen).into(), (&space.head_input).into(), scored),
        };
        let arguments = abi::Norm { width: width as u32, eps: self.config.norm_eps, add: add.into() };
        let buffers =
            [(&space.hidden).into(), (&space.mixer_out).into(), self.parameters.at(weight), index, out];
        let threads = (width / 4).next_multiple_of(32).clamp(32, 256);
        self.work.dispatch(Kernel::Norm, Grid::new((rows, 1, 1), threads), &arguments, &buffers)?;
        self.work.barrier();
        Ok(())
    }
}
