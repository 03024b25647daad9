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

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use linear::Projector;
use math::norm_1p;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::executor::{
    Executor, Limits, Part, Pass, PassStats, Score, Scored, SeqId, SnapshotId, Step, StepOutput, check_steps,
};
use crate::file::ModelFile;
use crate::routing::Routes;
use crate::shaping::Pick;
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
    limits: Limits,
    pool: rayon::ThreadPool,
    sequences: BTreeMap<SeqId, Sequence>,
    snapshots: BTreeMap<SnapshotId, SequenceState>,
    next_id: u64,
}

struct Sequence {
    state: SequenceState,
    lost: bool,
    /// Of the last commit, when that was rewindable.
    undo: Option<Undo>,
}

struct Undo {
    /// Length before the commit.
    from: usize,
    /// Per layer; `None` for full attention, whose rows are simply cut.
    layers: Vec<Option<gdn::Undo>>,
}

/// Rows on their way through the layers.
struct Rows<'a> {
    site: Site,
    seq: SeqId,
    ids: &'a [u32],
    score: &'a Score<'a>,
    /// Position of the first row.
    position: usize,
    /// Residual stream, `[ids.len(), hidden]`.
    hidden: Vec<f32>,
    keep_undo: bool,
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
            max_sequences: 1024,
        };
        Ok(ReferenceExecutor {
            model,
            limits,
            pool,
            sequences: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            next_id: 0,
        })
    }

    /// [`Executor::run`] that shows its intermediate results to `observe`.
    pub fn run_observed(
        &mut self,
        steps: &[Step<'_>],
        observe: &mut (dyn FnMut(Site, Event<'_>) + Send),
    ) -> Result<Pass> {
        check_steps(&self.model.config, self.limits, steps, |seq| Ok(self.sequence(seq)?.state.len))?;
        // A commit that does not reach its end leaves its sequence marked.
        for step in steps.iter().filter(|s| !s.commit.is_empty()) {
            let sequence = self.sequence_mut(step.seq)?;
            sequence.lost = true;
            sequence.undo = None;
        }
        let (model, sequences) = (&self.model, &mut self.sequences);
        let pass = self.pool.install(|| run(model, sequences, steps, observe))?;
        for step in steps.iter().filter(|s| !s.commit.is_empty()) {
            if let Some(sequence) = self.sequences.get_mut(&step.seq) {
                sequence.state.len += step.commit.len();
                sequence.lost = false;
            }
        }
        Ok(pass)
    }

    fn sequence(&self, seq: SeqId) -> Result<&Sequence> {
        match self.sequences.get(&seq) {
            None => Err(Error::UnknownSequence(seq)),
            Some(s) if s.lost => Err(Error::LostSequence(seq)),
            Some(s) => Ok(s),
        }
    }

    fn sequence_mut(&mut self, seq: SeqId) -> Result<&mut Sequence> {
        self.sequence(seq)?;
        self.sequences.get_mut(&seq).ok_or(Error::UnknownSequence(seq))
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// All layers over all parts. The caller has checked the steps.
fn run(
    model: &ModelFile,
    sequences: &mut BTreeMap<SeqId, Sequence>,
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
            let sequence = sequences.get_mut(&rows.seq).ok_or(Error::UnknownSequence(rows.seq))?;
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
        let scored = score(&p, weights.head, &normed, rows.score)?;
        let output = &mut outputs[rows.site.step];
        match rows.site.part {
            Part::Commit => output.commit = scored,
            Part::Preview => output.preview = scored,
        }
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

/// The non-empty parts in the order they run: a step's commit before its preview.
fn embed<'a>(
    p: &Projector<'_>,
    embedding: crate::weights::Matrix,
    sequences: &mut BTreeMap<SeqId, Sequence>,
    steps: &'a [Step<'a>],
) -> Result<Vec<Rows<'a>>> {
    let mut parts = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        let sequence = sequences.get_mut(&step.seq).ok_or(Error::UnknownSequence(step.seq))?;
        let from = sequence.state.len;
        if step.rewindable {
            sequence.undo = Some(Undo { from, layers: Vec::new() });
        }
        for (part, ids, score, position) in [
            (Part::Commit, step.commit, &step.commit_score, from),
            (Part::Preview, step.preview, &step.preview_score, from + step.commit.len()),
        ] {
            if !ids.is_empty() {
                let hidden = p.gather(embedding, ids)?;
                let site = Site { step: i, part };
                let keep_undo = step.rewindable && part == Part::Commit;
                parts.push(Rows { site, seq: step.seq, ids, score, position, hidden, keep_undo });
            }
        }
    }
    Ok(parts)
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
    let part = rows.site.part;
    let (out, undo) = match (w, &mut sequence.state.layers[layer]) {
        (MixerWeights::Full(w), LayerState::Kv { k, v }) => {
            (attention::attend(p, w, x, part, rows.position, k, v)?, None)
        }
        (MixerWeights::Linear(w), LayerState::Gdn { ring, memory }) => match part {
            Part::Commit => gdn::commit(p, w, x, ring, memory, rows.keep_undo)?,
            Part::Preview => (gdn::preview(p, w, x, ring, memory)?, None),
        },
        _ => return Err(Error::State(format!("layer {layer} is of another kind than its weights"))),
    };
    if let Some(all) = sequence.undo.as_mut().filter(|_| rows.keep_undo) {
        all.layers.push(undo);
    }
    debug_assert_eq!(out.len(), rows.ids.len() * p.config.hidden_size);
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
        self.limits
    }

    fn open(&mut self) -> Result<SeqId> {
        if self.sequences.len() >= self.limits.max_sequences {
            return Err(Error::Step(format!("{} sequences are open already", self.sequences.len())));
        }
        let id = SeqId(self.fresh_id());
        let state = SequenceState::empty(&self.model.config);
        self.sequences.insert(id, Sequence { state, lost: false, undo: None });
        Ok(id)
    }

    fn close(&mut self, seq: SeqId) {
        self.sequences.remove(&seq);
    }

    fn len(&self, seq: SeqId) -> Result<usize> {
        Ok(self.sequence(seq)?.state.len)
    }

    fn run(&mut self, steps: &[Step<'_>]) -> Result<Pass> {
        self.run_observed(steps, &mut |_, _| {})
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<()> {
        let (gdn, kv_width) = (self.model.config.gdn.clone(), self.model.config.attention.kv_width());
        let sequence = self.sequence_mut(seq)?;
        let to = sequence.state.len;
        if len == to {
            return Ok(());
        }
        let from = sequence.undo.as_ref().map_or(to, |u| u.from);
        let undo = match &sequence.undo {
            Some(undo) if (from..to).contains(&len) => undo,
            _ => return Err(Error::Rewind { asked: len, from, to }),
        };
        for (layer, undo) in sequence.state.layers.iter_mut().zip(&undo.layers) {
            match layer {
                LayerState::Kv { k, v } => {
                    k.truncate(len * kv_width);
                    v.truncate(len * kv_width);
                }
                LayerState::Gdn { ring, memory } => {
                    if let Some(undo) = undo {
                        (*ring, *memory) = undo.replay(&gdn, len - from);
                    }
                }
            }
        }
        sequence.state.len = len;
        Ok(())
    }

    fn snapshot(&mut self, seq: SeqId) -> Result<SnapshotId> {
        let state = self.sequence(seq)?.state.clone();
        let id = SnapshotId(self.fresh_id());
        self.snapshots.insert(id, state);
        Ok(id)
    }

    fn restore(&mut self, snapshot: SnapshotId, into: SeqId) -> Result<()> {
        let state = self.snapshots.get(&snapshot).ok_or(Error::UnknownSnapshot(snapshot))?.clone();
        self.import(into, &state)
    }

    fn release(&mut self, snapshot: SnapshotId) {
        self.snapshots.remove(&snapshot);
    }

    fn export(&self, seq: SeqId) -> Result<SequenceState> {
        Ok(self.sequence(seq)?.state.clone())
    }

    fn import(&mut self, seq: SeqId, state: &SequenceState) -> Result<()> {
        state.check(&self.model.config)?;
        if state.len > self.limits.max_context {
            return Err(Error::ContextLength { needed: state.len, limit: self.limits.max_context });
        }
        let sequence = self.sequences.get_mut(&seq).ok_or(Error::UnknownSequence(seq))?;
        *sequence = Sequence { state: state.clone(), lost: false, undo: None };
        Ok(())
    }
}
