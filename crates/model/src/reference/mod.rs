//! The reference executor: plain f32 over the file's weights, one part of one step at a time.
//!
//! It is the definition that every backend is tested against, so it is written to be read. A row's
//! result does not depend on the rows that happen to share its pass, nor on the number of threads:
//! committing in pieces equals committing at once to the last bit, and so does a batch against its
//! members one by one.

mod attention;
mod gdn;
mod linear;
mod math;
mod moe;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use linear::Projector;
use math::norm_1p;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::executor::{
    Executor, Limits, Part, Pass, PassStats, Score, Scored, SeqId, SnapshotId, Step, StepOutput,
};
use crate::file::ModelFile;
use crate::pick::Pick;
use crate::plan::PlannedPart;
use crate::routing::Routes;
use crate::state::{LayerState, SequenceState};
use crate::weights::MixerWeights;

/// Options of [`ReferenceExecutor`].
#[derive(Clone, Copy, Debug)]
pub struct ReferenceOptions {
    /// Positions a sequence may reach; `None` takes the model's own limit.
    pub max_context: Option<usize>,
    /// Worker threads; `None` takes one per core.
    pub threads: Option<usize>,
}

impl ReferenceOptions {
    /// The model's context and every core.
    pub const DEFAULT: ReferenceOptions = ReferenceOptions { max_context: None, threads: None };
}

/// Where in a pass an [`Event`] happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Index of the step.
    pub step: usize,
    /// Which half of it.
    pub part: Part,
}

/// Something an observer may look at; rows are `[rows of the part, hidden]`.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Residual stream after the embedding.
    Embedded(&'a [f32]),
    /// Residual stream after a layer's mixer was added.
    Mixed(usize, &'a [f32]),
    /// A layer's coreset (ascending, `None` when off) and its rows' experts.
    Routed(usize, Option<&'a [u32]>, &'a Routes),
    /// Residual stream after a layer.
    Layer(usize, &'a [f32]),
    /// Rows after the final norm, before the head.
    Normed(&'a [f32]),
}

/// See the [module documentation](self).
pub struct ReferenceExecutor {
    model: ModelFile,
    pool: rayon::ThreadPool,
    sequences: Sequences,
}

type Sequences = crate::Sequences<Vec<LayerState>, Undo>;
type Sequence = crate::Sequence<Vec<LayerState>, Undo>;
/// What cuts a commit back, per layer; `None` for full attention, whose rows are simply cut.
type Undo = Vec<Option<gdn::Undo>>;

/// A part on its way through the layers.
struct Rows<'a> {
    plan: PlannedPart<'a>,
    site: Site,
    /// Residual stream, `[rows, hidden]`.
    hidden: Vec<f32>,
}

impl ReferenceExecutor {
    /// An executor over an opened model.
    ///
    /// # Errors
    /// [`Error::Device`] when the threads cannot be started.
    pub fn new(model: ModelFile, options: ReferenceOptions) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads.unwrap_or(0))
            .build()
            .map_err(|e| Error::Device { backend: "reference", problem: e.to_string() })?;
        let limits = Limits {
            max_context: options.max_context.unwrap_or(model.config.max_context),
            max_rows: 4096,
            chunk_rows: 128,
            max_sequences: 1024,
        };
        Ok(ReferenceExecutor { model, pool, sequences: Sequences::new(limits) })
    }

    /// [`Executor::run`] that shows its intermediate results to `observe`.
    pub fn run_observed(
        &mut self,
        steps: &[Step<'_>],
        observe: &mut (dyn FnMut(Site, Event<'_>) + Send),
    ) -> Result<Pass> {
        let (model, pool) = (&self.model, &self.pool);
        self.sequences
            .run(&model.config, steps, |sequences| pool.install(|| run(model, sequences, steps, observe)))
    }
}

/// All layers over all parts. The caller has checked the steps.
fn run(
    model: &ModelFile,
    sequences: &mut Sequences,
    steps: &[Step<'_>],
    observe: &mut (dyn FnMut(Site, Event<'_>) + Send),
) -> Result<Pass> {
    let start = Instant::now();
    let (config, weights) = (&model.config, &*model.weights);
    let p = Projector::new(config, weights);
    let mut parts = embed(&p, weights.embed, sequences, steps)?;
    for rows in &parts {
        observe(rows.site, Event::Embedded(&rows.hidden));
    }
    let mut routing = Duration::ZERO;
    let mut distinct = 0u64;
    for (i, w) in weights.layers.iter().enumerate() {
        let mut used = BTreeSet::new();
        for rows in &mut parts {
            let x = norm_1p(&rows.hidden, &w.input_norm, config.norm_eps);
            let sequence = sequences.get_mut(rows.plan.seq)?;
            let mixed = mix(&p, &w.mixer, &x, rows, sequence, i)?;
            add(&mut rows.hidden, &mixed);
            observe(rows.site, Event::Mixed(i, &rows.hidden));

            let y = norm_1p(&rows.hidden, &w.post_norm, config.norm_eps);
            let routed = moe::choose(&p, &w.moe, &y, rows.site.part)?;
            routing += routed.time;
            used.extend((0..routed.routes.rows()).flat_map(|r| routed.routes.row(r)).map(|c| c.expert));
            observe(rows.site, Event::Routed(i, routed.coreset.as_deref(), &routed.routes));
            add(&mut rows.hidden, &moe::experts(&p, &w.moe, &y, &routed.routes)?);
            observe(rows.site, Event::Layer(i, &rows.hidden));
        }
        distinct += used.len() as u64;
    }
    let mut outputs = vec![StepOutput::default(); steps.len()];
    for rows in &parts {
        let normed = norm_1p(&rows.hidden, &weights.norm, config.norm_eps);
        observe(rows.site, Event::Normed(&normed));
        rows.plan.put(&mut outputs, score(&p, weights.head, &normed, rows.plan.score)?);
    }
    let stats = PassStats {
        device: start.elapsed(),
        routing,
        weight_bytes: p.bytes_read(),
        distinct_experts: distinct,
        ..PassStats::default()
    };
    Ok(Pass { outputs, stats })
}

/// The parts in the order they run.
fn embed<'a>(
    p: &Projector<'_>,
    embedding: crate::weights::Matrix,
    sequences: &mut Sequences,
    steps: &'a [Step<'a>],
) -> Result<Vec<Rows<'a>>> {
    let embedded = |plan: PlannedPart<'a>| {
        let (site, hidden) = (Site { step: plan.step, part: plan.part }, p.gather(embedding, plan.ids)?);
        Ok(Rows { plan, site, hidden })
    };
    sequences.plan(steps)?.into_iter().map(embedded).collect()
}

/// One layer's mixer over one part; a commit advances the layer's state.
fn mix(
    p: &Projector<'_>,
    w: &MixerWeights,
    x: &[f32],
    rows: &Rows<'_>,
    sequence: &mut Sequence,
    layer: usize,
) -> Result<Vec<f32>> {
    let PlannedPart { part, position, rewindable, ids, .. } = rows.plan;
    let (layers, kept) = sequence.state_and_undo();
    let (out, undo) = match (w, &mut layers[layer]) {
        (MixerWeights::Full(w), LayerState::Kv { k, v }) => {
            (attention::attend(p, w, x, part, position, k, v)?, None)
        }
        (MixerWeights::Linear(w), LayerState::Gdn { ring, memory }) => match part {
            Part::Commit => gdn::commit(p, w, x, ring, memory, rewindable)?,
            Part::Preview => (gdn::preview(p, w, x, ring, memory)?, None),
        },
        _ => return Err(Error::State(format!("layer {layer} is of another kind than its weights"))),
    };
    if let Some(kept) = kept.filter(|_| rewindable) {
        kept.push(undo);
    }
    debug_assert_eq!(out.len(), ids.len() * p.config.hidden_size);
    Ok(out)
}

/// Head and picks for the rows that are wanted.
fn score(
    p: &Projector<'_>,
    head: crate::weights::Matrix,
    normed: &[f32],
    score: &Score<'_>,
) -> Result<Scored> {
    let (hidden, vocab) = (p.config.hidden_size, p.config.vocab_size);
    let wanted: Vec<f32> =
        score.rows().iter().flat_map(|&r| &normed[r * hidden..(r + 1) * hidden]).copied().collect();
    let mut logits = p.project(head, &wanted)?;
    Ok(match score {
        Score::None => Scored::None,
        Score::Logits { .. } => Scored::Logits { values: logits, vocab },
        Score::Picks { rows, shaping, probes } => Scored::Picks(
            rows.iter()
                .zip(logits.chunks_exact_mut(vocab))
                .enumerate()
                .map(|(i, (&row, logits))| {
                    shaping.apply(row, logits);
                    Pick::from_logits(logits, probes.get(i).copied())
                })
                .collect(),
        ),
    })
}

fn add(out: &mut [f32], x: &[f32]) {
    math::add_scaled(out, x, 1.0);
}

impl Executor for ReferenceExecutor {
    fn backend(&self) -> &'static str {
        "reference"
    }

    fn config(&self) -> &Config {
        &self.model.config
    }

    fn limits(&self) -> Limits {
        self.sequences.limits()
    }

    fn open(&mut self) -> Result<SeqId> {
        self.sequences.open(|| Ok(LayerState::empty(&self.model.config)))
    }

    fn close(&mut self, seq: SeqId) {
        self.sequences.close(seq);
    }

    fn len(&self, seq: SeqId) -> Result<usize> {
        self.sequences.len(seq)
    }

    fn run(&mut self, steps: &[Step<'_>]) -> Result<Pass> {
        self.run_observed(steps, &mut |_, _| {})
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<()> {
        let Config { gdn, attention, .. } = &self.model.config;
        self.sequences.rewind(seq, len, |layers, undo, cut| {
            let kv_len = cut.len * attention.kv_width();
            LayerState::cut_back(layers, kv_len, undo, |undo| undo.replay(gdn, cut.kept()));
            Ok(())
        })
    }

    fn snapshot(&mut self, seq: SeqId) -> Result<SnapshotId> {
        self.sequences.snapshot(seq, |layers, _| Ok(layers.clone()))
    }

    fn restore(&mut self, snapshot: SnapshotId, into: SeqId) -> Result<()> {
        self.sequences.restore(snapshot, into, |from, _, to| {
            to.clone_from(from);
            Ok(())
        })
    }

    fn release(&mut self, snapshot: SnapshotId) {
        self.sequences.release(snapshot);
    }

    fn export(&self, seq: SeqId) -> Result<SequenceState> {
        self.sequences.export(seq, |layers, _| Ok(layers.clone()))
    }

    fn import(&mut self, seq: SeqId, state: &SequenceState) -> Result<()> {
        self.sequences.import(&self.model.config, seq, state, |layers| {
            layers.clone_from(&state.layers);
            Ok(())
        })
    }
}
