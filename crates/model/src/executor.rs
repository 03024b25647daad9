//! The seam between generation and a backend.
//!
//! Two verbs carry everything. A **preview** runs all rows of one block through all layers over a
//! sequence's committed state, which it only reads: full attention sees the prefix and every row of
//! the block, Gated DeltaNet uses the block operator, the MoE keeps to the block's coreset. A
//! **commit** runs rows causally and advances the state.
//!
//! One [`Step`] asks for either or both on one sequence: per layer the commit rows go first, then
//! the preview rows over that layer's new state, so that weights are read once for both. One pass
//! ([`Executor::run`]) takes a batch of steps on distinct sequences.
//!
//! Logits row `r` of a preview scores the token *at* block row `r`; row `r` of a commit scores the
//! token *after* row `r`.

use std::time::Duration;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::pick::Pick;
use crate::shaping::Shaping;
use crate::state::SequenceState;

/// A sequence of one executor; never reused after [`Executor::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// A device-side copy of a sequence's committed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SnapshotId(pub u64);

/// Which half of a step something belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// The causal rows.
    Commit,
    /// The block rows.
    Preview,
}

/// Which rows of a part run through the head, and what comes back for them.
#[derive(Clone, Copy, Debug, Default)]
pub enum Score<'a> {
    /// Nothing.
    #[default]
    None,
    /// The raw logits of these rows (indices into the part, any order).
    Logits {
        /// Rows to score.
        rows: &'a [usize],
    },
    /// The greedy pick of each of these rows after shaping; no logits leave the device.
    Picks {
        /// Rows to score.
        rows: &'a [usize],
        /// Penalties, forbidden ids and ramps.
        shaping: Shaping<'a>,
        /// One id per row of `rows` whose probability is wanted too (draft verification), or empty.
        probes: &'a [u32],
    },
}

impl<'a> Score<'a> {
    /// Rows to score.
    pub fn rows(&self) -> &'a [usize] {
        match self {
            Score::None => &[],
            Score::Logits { rows } | Score::Picks { rows, .. } => rows,
        }
    }
}

/// What one sequence does in one pass.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Ids to run causally; they advance the state. May be empty.
    pub commit: &'a [u32],
    /// What to return for the commit rows.
    pub commit_score: Score<'a>,
    /// Keep what [`Executor::rewind`] needs to cut this commit back to any of its rows.
    pub rewindable: bool,
    /// The block to preview over the state after `commit`. May be empty.
    pub preview: &'a [u32],
    /// What to return for the preview rows.
    pub preview_score: Score<'a>,
}

impl<'a> Step<'a> {
    /// A step that only previews.
    pub fn preview(seq: SeqId, ids: &'a [u32], score: Score<'a>) -> Self {
        Step { preview: ids, preview_score: score, ..Step::empty(seq) }
    }

    /// A step that only commits.
    pub fn commit(seq: SeqId, ids: &'a [u32], score: Score<'a>) -> Self {
        Step { commit: ids, commit_score: score, ..Step::empty(seq) }
    }

    /// A commit that can be cut back with [`Executor::rewind`].
    pub fn rewindable(self) -> Self {
        Step { rewindable: true, ..self }
    }

    /// Adds a preview over the state after this step's commit.
    pub fn then_preview(self, ids: &'a [u32], score: Score<'a>) -> Self {
        Step { preview: ids, preview_score: score, ..self }
    }

    fn empty(seq: SeqId) -> Self {
        Step {
            seq,
            commit: &[],
            commit_score: Score::None,
            rewindable: false,
            preview: &[],
            preview_score: Score::None,
        }
    }
}

/// Result of scoring one part of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Scored {
    /// Nothing was asked for.
    #[default]
    None,
    /// Logits, `[rows asked for, vocab]` row-major.
    Logits {
        /// The values.
        values: Vec<f32>,
        /// Columns.
        vocab: usize,
    },
    /// One pick per row asked for.
    Picks(Vec<Pick>),
}

impl Scored {
    /// Row `i` (of those asked for) of the logits; empty when logits were not asked for.
    pub fn logits(&self, i: usize) -> &[f32] {
        match self {
            Scored::Logits { values, vocab } => &values[i * vocab..(i + 1) * vocab],
            _ => &[],
        }
    }

    /// The picks; empty when picks were not asked for.
    pub fn picks(&self) -> &[Pick] {
        match self {
            Scored::Picks(picks) => picks,
            _ => &[],
        }
    }
}

/// Scores of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// For the commit rows.
    pub commit: Scored,
    /// For the preview rows.
    pub preview: Scored,
}

/// What a pass cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PassStats {
    /// Time the device computed; on a CPU the whole pass.
    pub device: Duration,
    /// Time the host spent around the device.
    pub host: Duration,
    /// Part of `host` or `device` spent choosing experts.
    pub routing: Duration,
    /// Part of `host` spent getting experts' weights that the device did not hold.
    pub fill: Duration,
    /// Times the host waited for the device.
    pub waits: u64,
    /// How long it waited, the device's time included.
    pub waiting: Duration,
    /// Bytes of weights read.
    pub weight_bytes: u64,
    /// Distinct routed experts, summed over layers.
    pub distinct_experts: u64,
    /// Experts whose weights the device already held.
    pub expert_hits: u64,
    /// Experts whose weights had to be viewed or fetched.
    pub expert_misses: u64,
    /// Bytes that those misses added to what the device holds: newly viewed where memory is shared, sent
    /// to the device's cache where it is not.
    pub fill_bytes: u64,
    /// The executor had not prepared for passes of this shape yet, so that it took longer than later ones will.
    pub cold: bool,
    /// Times per stage when profiling is on, in the order they first ran.
    pub stages: Vec<(&'static str, Duration)>,
}

impl PassStats {
    /// Adds another pass's cost to this one.
    pub fn add(&mut self, other: &PassStats) {
        self.device += other.device;
        self.host += other.host;
        self.routing += other.routing;
        self.fill += other.fill;
        self.waits += other.waits;
        self.waiting += other.waiting;
        self.weight_bytes += other.weight_bytes;
        self.distinct_experts += other.distinct_experts;
        self.expert_hits += other.expert_hits;
        self.expert_misses += other.expert_misses;
        self.fill_bytes += other.fill_bytes;
        self.cold |= other.cold;
        for (stage, time) in &other.stages {
            match self.stages.iter_mut().find(|(name, _)| name == stage) {
                Some((_, total)) => *total += *time,
                None => self.stages.push((stage, *time)),
            }
        }
    }
}

/// Result of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// One entry per step, in order.
    pub outputs: Vec<StepOutput>,
    /// What it cost.
    pub stats: PassStats,
}

/// What an executor can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Positions a sequence may reach, block rows of a preview included.
    pub max_context: usize,
    /// Rows a pass may have, over all its steps; longer commits are split by the caller.
    pub max_rows: usize,
    /// Rows of a prompt that one pass should take where nobody says otherwise: enough to use the machine
    /// well, few enough that others need not wait long for their turn.
    pub chunk_rows: usize,
    /// Sequences open at once.
    pub max_sequences: usize,
}

/// A backend: several sequences with committed states, and the passes over them.
///
/// # Errors
/// Every method checks its arguments before it changes anything. A preview that fails leaves the
/// state as it was. A pass that fails half-way leaves the sequences it was committing to *lost*
/// ([`Error::LostSequence`]) until [`import`](Executor::import) or
/// [`restore`](Executor::restore) gives them a state again; other sequences are not affected.
pub trait Executor: Send {
    /// Short backend name: `reference`, `cpu`, `cuda`, `metal`.
    fn backend(&self) -> &'static str;

    /// The model's configuration.
    fn config(&self) -> &Config;

    /// What this executor can hold.
    fn limits(&self) -> Limits;

    /// Opens an empty sequence.
    fn open(&mut self) -> Result<SeqId>;

    /// Closes a sequence and frees its state; unknown ids are ignored.
    fn close(&mut self, seq: SeqId);

    /// Committed length of a sequence.
    fn len(&self, seq: SeqId) -> Result<usize>;

    /// One pass over a batch of steps on distinct sequences.
    fn run(&mut self, steps: &[Step<'_>]) -> Result<Pass>;

    /// Cuts a sequence back to `len` committed rows. What can be reached is the current length and
    /// any row of the last pass's commit if that was [`rewindable`](Step::rewindable).
    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<()>;

    /// Keeps a copy of a sequence's committed state.
    fn snapshot(&mut self, seq: SeqId) -> Result<SnapshotId>;

    /// Makes a sequence's state that of a snapshot (of any sequence of this executor).
    fn restore(&mut self, snapshot: SnapshotId, into: SeqId) -> Result<()>;

    /// Frees a snapshot; unknown ids are ignored.
    fn release(&mut self, snapshot: SnapshotId);

    /// Copies a sequence's committed state to the plain host form.
    fn export(&self, seq: SeqId) -> Result<SequenceState>;

    /// Replaces a sequence's committed state; a lost sequence becomes usable again.
    fn import(&mut self, seq: SeqId, state: &SequenceState) -> Result<()>;

    /// Copies a snapshot to the plain host form, through a sequence that is open only meanwhile.
    fn export_snapshot(&mut self, snapshot: SnapshotId) -> Result<SequenceState> {
        let seq = self.open()?;
        let state = self.restore(snapshot, seq).and_then(|()| self.export(seq));
        self.close(seq);
        state
    }

    /// Keeps a state in the plain host form as a snapshot, through a sequence that is open only meanwhile.
    fn import_snapshot(&mut self, state: &SequenceState) -> Result<SnapshotId> {
        let seq = self.open()?;
        let snapshot = self.import(seq, state).and_then(|()| self.snapshot(seq));
        self.close(seq);
        snapshot
    }
}

/// Checks a batch of steps against a model and an executor's limits, before anything runs.
///
/// `len` gives a sequence's committed length, or its error (unknown, lost).
///
/// # Errors
/// The first thing that is wrong: an id outside the vocabulary, a context overrun, a preview
/// without a block-diffusion record, a scored row that is not there, a sequence named twice.
pub fn check_steps(
    config: &Config,
    limits: Limits,
    steps: &[Step<'_>],
    len: impl Fn(SeqId) -> Result<usize>,
) -> Result<()> {
    let total: usize = steps.iter().map(|s| s.commit.len() + s.preview.len()).sum();
    if total > limits.max_rows {
        return Err(Error::Step(format!("{total} rows in one pass, the limit is {}", limits.max_rows)));
    }
    for (i, step) in steps.iter().enumerate() {
        if steps[..i].iter().any(|other| other.seq == step.seq) {
            return Err(Error::Step(format!("sequence {:?} appears twice in one pass", step.seq)));
        }
        if !step.preview.is_empty() {
            config.block()?;
        }
        let needed = len(step.seq)? + step.commit.len() + step.preview.len();
        if needed > limits.max_context {
            return Err(Error::ContextLength { needed, limit: limits.max_context });
        }
        for (ids, score) in [(step.commit, &step.commit_score), (step.preview, &step.preview_score)] {
            if let Some(row) = ids.iter().position(|&id| id as usize >= config.vocab_size) {
                return Err(Error::TokenId { id: ids[row], row, vocab: config.vocab_size });
            }
            if let Some(row) = score.rows().iter().find(|&&row| row >= ids.len()) {
                return Err(Error::Step(format!("row {row} is to be scored, but there are {}", ids.len())));
            }
            if let Score::Picks { rows, probes, .. } = score
                && !probes.is_empty()
                && probes.len() != rows.len()
            {
                return Err(Error::Step(format!("{} probes for {} rows", probes.len(), rows.len())));
            }
        }
    }
    Ok(())
}
