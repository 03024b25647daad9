//! One pass: all rows of all steps through the layers together.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use shamrock_model::executor::StepOutput;
use shamrock_model::weights::MixerWeights;
use shamrock_model::{Error, ModelFile, Part, Pass, PassStats, PlannedPart, Result, Score, Step};

use crate::executor::Sequences;
use crate::gdn::Taps;
use crate::kernel::Isa;
use crate::linear::{Factors, Linear};
use crate::math::{Rotations, add_scaled, norm_1p};
use crate::pool::Pool;
use crate::residency::Residency;
use crate::state::State;
use crate::{CpuOptions, KvPrecision, Memory, Precision, attention, gdn, head, moe};

/// What a pass needs beside the sequences.
pub(crate) struct Engine {
    pub(crate) model: ModelFile,
    pub(crate) precision: Precision,
    pub(crate) kv: KvPrecision,
    pub(crate) isa: Isa,
    pub(crate) pool: Pool,
    /// Where experts have a budget.
    pub(crate) residency: Option<Mutex<Residency>>,
    pub(crate) factors: Factors,
    /// One per layer; `None` for full attention.
    pub(crate) taps: Vec<Option<Arc<Taps>>>,
}

/// Time per stage, in the order they first ran.
#[derive(Default)]
struct Clock {
    stages: Vec<(&'static str, Duration)>,
}

impl Clock {
    fn time<T>(&mut self, stage: &'static str, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        let time = start.elapsed();
        match self.stages.iter_mut().find(|(name, _)| *name == stage) {
            Some((_, total)) => *total += time,
            None => self.stages.push((stage, time)),
        }
        result
    }
}

impl Engine {
    pub(crate) fn new(model: ModelFile, options: CpuOptions, pool: Pool) -> Self {
        let layers = model.weights.layers.iter();
        let taps = layers.map(|layer| match &layer.mixer {
            MixerWeights::Linear(w) => Some(Arc::new(Taps::new(&model.config.gdn, w))),
            MixerWeights::Full(_) => None,
        });
        let taps = taps.collect();
        let CpuOptions { precision, kv, memory_budget, .. } = options;
        let residency = memory_budget
            .map(|budget| Mutex::new(Residency::new(Memory::of(&model, kv).experts_within(budget))));
        let factors = Factors::of(&model.weights);
        Engine { model, precision, kv, isa: Isa::detect(), pool, residency, factors, taps }
    }

    /// All layers over all parts. The caller has checked the steps.
    pub(crate) fn run(&self, sequences: &mut Sequences, steps: &[Step<'_>]) -> Result<Pass> {
        let start = Instant::now();
        let (config, weights) = (&self.model.config, &*self.model.weights);
        let linear = Linear::new(weights, &self.factors, self.precision, self.isa, &self.pool);
        let mut clock = Clock::default();
        let parts = sequences.plan(steps)?;
        let ids: Vec<u32> = parts.iter().flat_map(|p| p.ids).copied().collect();
        let positions: Vec<usize> = parts.iter().flat_map(|p| p.position..p.position + p.ids.len()).collect();
        let rotations = Rotations::new(&positions, config.attention.rotary_dim, config.attention.rope_theta);
        let mut hidden = clock.time("embed", || linear.gather(weights.embed, &ids))?;
        let (mut routing, mut distinct, mut hits, mut misses) = (Duration::ZERO, 0, 0, 0);
        for (i, w) in weights.layers.iter().enumerate() {
            let stage = if matches!(w.mixer, MixerWeights::Full(_)) { "attention" } else { "gdn" };
            clock.time(stage, || -> Result<()> {
                let x = norm_1p(self.isa, &self.pool, &hidden, &w.input_norm, config.norm_eps);
                let mixed = self.mix(&linear, i, &x, &parts, &rotations, sequences)?;
                add_scaled(&mut hidden, &mixed, 1.0);
                Ok(())
            })?;
            let y = norm_1p(self.isa, &self.pool, &hidden, &w.post_norm, config.norm_eps);
            let plan = clock.time("router", || moe::Plan::new(&linear, config, &w.moe, &y, &parts))?;
            routing += plan.time;
            distinct += plan.distinct() as u64;
            if let Some(Ok(mut residency)) = self.residency.as_ref().map(Mutex::lock) {
                let found = residency.touch(weights, i, plan.in_use());
                (hits, misses) = (hits + found.hits, misses + found.misses);
            }
            clock.time("moe", || moe::experts(&linear, &w.moe, &y, &plan, &mut hidden))?;
        }
        let outputs = clock.time("head", || self.score(&linear, &hidden, &parts, steps.len()))?;
        let stats = PassStats {
            device: start.elapsed(),
            routing,
            weight_bytes: linear.bytes_read(),
            distinct_experts: distinct,
            expert_hits: hits,
            expert_misses: misses,
            stages: clock.stages,
            ..PassStats::default()
        };
        Ok(Pass { outputs, stats })
    }

    /// One layer's mixer over all parts; commits advance the layer's state.
    fn mix<'s>(
        &'s self,
        linear: &Linear<'s>,
        layer: usize,
        x: &[f32],
        parts: &[PlannedPart<'_>],
        rotations: &Rotations,
        sequences: &mut Sequences,
    ) -> Result<Vec<f32>> {
        let config = &self.model.config;
        let wrong_kind = || Error::State(format!("layer {layer} is of another kind than its weights"));
        match (&self.model.weights.layers[layer].mixer, &self.taps[layer]) {
            (MixerWeights::Full(w), _) => {
                let mut mixer = attention::Mixer::new(linear, config, w, x, rotations)?;
                for part in parts {
                    let (layers, undo) = sequences.get_mut(part.seq)?.state_and_undo();
                    let State::Kv(cache) = &mut layers[layer] else {
                        return Err(wrong_kind());
                    };
                    mixer.mix(part.rows.clone(), part.part, cache);
                    if let Some(undo) = undo.filter(|_| part.rewindable) {
                        undo.push(None);
                    }
                }
                mixer.finish(linear)
            }
            (MixerWeights::Linear(w), Some(taps)) => {
                let mut mixer = gdn::Mixer::new(linear, config, w, taps, x)?;
                for part in parts {
                    let (layers, undo) = sequences.get_mut(part.seq)?.state_and_undo();
                    let State::Gdn { ring, memory } = &mut layers[layer] else {
                        return Err(wrong_kind());
                    };
                    match part.part {
                        Part::Commit => {
                            let kept = mixer.commit(part.rows.clone(), ring, memory, part.rewindable);
                            if let Some(undo) = undo.filter(|_| part.rewindable) {
                                undo.push(kept);
                            }
                        }
                        Part::Preview => mixer.preview(part.rows.clone(), ring, memory)?,
                    }
                }
                mixer.finish(linear)
            }
            (MixerWeights::Linear(_), None) => Err(wrong_kind()),
        }
    }

    /// Norm, head and picks for the rows that are wanted.
    fn score(
        &self,
        linear: &Linear<'_>,
        hidden: &[f32],
        parts: &[PlannedPart<'_>],
        steps: usize,
    ) -> Result<Vec<StepOutput>> {
        let (config, weights) = (&self.model.config, &*self.model.weights);
        let width = config.hidden_size;
        let wanted: Vec<f32> = parts
            .iter()
            .flat_map(|part| part.score.rows().iter().map(|r| part.rows.start + r))
            .flat_map(|row| &hidden[row * width..(row + 1) * width])
            .copied()
            .collect();
        let normed = norm_1p(self.isa, &self.pool, &wanted, &weights.norm, config.norm_eps);
        let scores: Vec<&Score<'_>> = parts.iter().map(|part| part.score).collect();
        let scored = head::score(linear, weights.head, &normed, &scores)?;
        let mut outputs = vec![StepOutput::default(); steps];
        for (part, scored) in parts.iter().zip(scored) {
            part.put(&mut outputs, scored);
        }
        Ok(outputs)
    }
}
