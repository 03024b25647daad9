//! Sequences and the seam.

use std::collections::BTreeMap;

use shamrock_model::config::Config;
use shamrock_model::executor::check_steps;
use shamrock_model::{
    Error, Executor, LayerState, Limits, ModelFile, Pass, Result, SeqId, SequenceState, SnapshotId, Step,
};

use crate::pass::Engine;
use crate::{CpuOptions, gdn};

const BACKEND: &str = "cpu";

/// The fast CPU executor, see the [crate documentation](crate).
pub struct CpuExecutor {
    engine: Engine,
    limits: Limits,
    pool: rayon::ThreadPool,
    sequences: BTreeMap<SeqId, Sequence>,
    snapshots: BTreeMap<SnapshotId, SequenceState>,
    next_id: u64,
}

/// One sequence.
pub(crate) struct Sequence {
    pub(crate) state: SequenceState,
    lost: bool,
    /// Of the last commit, when that was rewindable.
    pub(crate) undo: Option<Undo>,
}

/// What cuts a commit back.
pub(crate) struct Undo {
    /// Length before the commit.
    pub(crate) from: usize,
    /// Per layer; `None` for full attention, whose rows are simply cut.
    pub(crate) layers: Vec<Option<gdn::Undo>>,
}

impl Sequence {
    fn new(state: SequenceState) -> Self {
        Sequence { state, lost: false, undo: None }
    }

    /// Notes what cuts the next layer back, if that is wanted.
    pub(crate) fn keep(&mut self, wanted: bool, undo: Option<gdn::Undo>) {
        if let Some(all) = self.undo.as_mut().filter(|_| wanted) {
            all.layers.push(undo);
        }
    }
}

impl CpuExecutor {
    /// An executor over an opened model. Makes no pass over the weights.
    ///
    /// # Errors
    /// [`Error::Device`] when the threads cannot be started.
    pub fn new(model: ModelFile, options: CpuOptions) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads.unwrap_or(0))
            .thread_name(|i| format!("shamrock-cpu-{i}"))
            .build()
            .map_err(|e| Error::Device { backend: BACKEND, problem: e.to_string() })?;
        let limits = Limits {
            max_context: options.max_context.unwrap_or(model.config.max_context),
            max_rows: 1024,
            max_sequences: 1024,
        };
        Ok(CpuExecutor {
            engine: Engine::new(model, options.precision),
            limits,
            pool,
            sequences: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            next_id: 0,
        })
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

impl Executor for CpuExecutor {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn config(&self) -> &Config {
        &self.engine.model.config
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn open(&mut self) -> Result<SeqId> {
        if self.sequences.len() >= self.limits.max_sequences {
            return Err(Error::Step(format!("{} sequences are open already", self.sequences.len())));
        }
        let id = SeqId(self.fresh_id());
        let state = SequenceState::empty(self.config());
        self.sequences.insert(id, Sequence::new(state));
        Ok(id)
    }

    fn close(&mut self, seq: SeqId) {
        self.sequences.remove(&seq);
    }

    fn len(&self, seq: SeqId) -> Result<usize> {
        Ok(self.sequence(seq)?.state.len)
    }

    fn run(&mut self, steps: &[Step<'_>]) -> Result<Pass> {
        check_steps(self.config(), self.limits, steps, |seq| Ok(self.sequence(seq)?.state.len))?;
        // A commit that does not reach its end leaves its sequence marked.
        for step in steps.iter().filter(|s| !s.commit.is_empty()) {
            let sequence = self.sequence_mut(step.seq)?;
            sequence.lost = true;
            sequence.undo = None;
        }
        let (engine, sequences) = (&self.engine, &mut self.sequences);
        let pass = self.pool.install(|| engine.run(sequences, steps))?;
        for step in steps.iter().filter(|s| !s.commit.is_empty()) {
            if let Some(sequence) = self.sequences.get_mut(&step.seq) {
                sequence.state.len += step.commit.len();
                sequence.lost = false;
            }
        }
        Ok(pass)
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<()> {
        self.sequence(seq)?;
        let (g, kv_width) = (&self.engine.model.config.gdn, self.engine.model.config.attention.kv_width());
        let sequence = self.sequences.get_mut(&seq).ok_or(Error::UnknownSequence(seq))?;
        let to = sequence.state.len;
        if len == to {
            return Ok(());
        }
        let from = sequence.undo.as_ref().map_or(to, |u| u.from);
        let undo = match &sequence.undo {
            Some(undo) if (from..to).contains(&len) => undo,
            _ => return Err(Error::Rewind { asked: len, from, to }),
        };
        let isa = self.engine.isa;
        self.pool.install(|| {
            for (layer, undo) in sequence.state.layers.iter_mut().zip(&undo.layers) {
                match layer {
                    LayerState::Kv { k, v } => {
                        k.truncate(len * kv_width);
                        v.truncate(len * kv_width);
                    }
                    LayerState::Gdn { ring, memory } => {
                        if let Some(undo) = undo {
                            (*ring, *memory) = undo.replay(isa, g, len - from);
                        }
                    }
                }
            }
        });
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
        let sequence = self.sequences.get_mut(&into).ok_or(Error::UnknownSequence(into))?;
        *sequence = Sequence::new(state);
        Ok(())
    }

    fn release(&mut self, snapshot: SnapshotId) {
        self.snapshots.remove(&snapshot);
    }

    fn export(&self, seq: SeqId) -> Result<SequenceState> {
        Ok(self.sequence(seq)?.state.clone())
    }

    fn import(&mut self, seq: SeqId, state: &SequenceState) -> Result<()> {
        state.check(self.config())?;
        if state.len > self.limits.max_context {
            return Err(Error::ContextLength { needed: state.len, limit: self.limits.max_context });
        }
        let sequence = self.sequences.get_mut(&seq).ok_or(Error::UnknownSequence(seq))?;
        *sequence = Sequence::new(state.clone());
        Ok(())
    }
}
