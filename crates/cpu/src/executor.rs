//! Sequences and the seam.

use shamrock_model::config::Config;
use shamrock_model::{
    Error, Executor, Limits, ModelFile, Pass, Result, SeqId, SequenceState, SnapshotId, Step,
};

use crate::pass::Engine;
use crate::pool::Pool;
use crate::state::State;
use crate::{CpuOptions, cores, gdn};

const BACKEND: &str = "cpu";

/// The fast CPU executor, see the [crate documentation](crate).
pub struct CpuExecutor {
    engine: Engine,
    sequences: Sequences,
}

pub(crate) type Sequences = shamrock_model::Sequences<Vec<State>, Undo>;
/// What cuts a commit back, per layer; `None` for full attention, whose rows are simply cut.
pub(crate) type Undo = Vec<Option<gdn::Undo>>;

impl CpuExecutor {
    /// An executor over an opened model. Makes no pass over the weights.
    ///
    /// # Errors
    /// [`Error::Device`] when the threads cannot be started, or not be pinned.
    pub fn new(model: ModelFile, options: CpuOptions) -> Result<Self> {
        let threads = options.threads.unwrap_or_else(cores::default_threads);
        let pins = if options.pin { cores::physical_cores() } else { Vec::new() };
        let pool = Pool::new(threads, &pins).map_err(|e| Error::Device {
            backend: BACKEND,
            problem: format!(
                "cannot start {threads} threads{}: {e}",
                if options.pin { ", pinned" } else { "" }
            ),
        })?;
        let limits = Limits {
            max_context: options.max_context.unwrap_or(model.config.max_context),
            max_rows: 1024,
            chunk_rows: 256,
            max_sequences: 1024,
        };
        let engine = Engine::new(model, options, pool);
        Ok(CpuExecutor { engine, sequences: Sequences::new(limits) })
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
        self.sequences.limits()
    }

    fn open(&mut self) -> Result<SeqId> {
        self.sequences.open(|| Ok(State::empty(&self.engine.model.config, self.engine.kv)))
    }

    fn close(&mut self, seq: SeqId) {
        self.sequences.close(seq);
    }

    fn len(&self, seq: SeqId) -> Result<usize> {
        self.sequences.len(seq)
    }

    fn run(&mut self, steps: &[Step<'_>]) -> Result<Pass> {
        let engine = &self.engine;
        self.sequences.run(&engine.model.config, steps, |sequences| engine.run(sequences, steps))
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<()> {
        let Engine { isa, pool, .. } = &self.engine;
        let Config { gdn, attention, .. } = &self.engine.model.config;
        self.sequences.rewind(seq, len, |layers, undo, cut| {
            let kv_len = cut.len * attention.kv_width();
            let replay = |undo: &gdn::Undo| undo.replay(*isa, pool, gdn, cut.kept());
            for (layer, undo) in layers.iter_mut().zip(undo) {
                layer.cut_back(kv_len, undo.as_ref(), replay);
            }
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
        self.sequences.export(seq, |layers, _| Ok(layers.iter().map(State::export).collect()))
    }

    fn import(&mut self, seq: SeqId, state: &SequenceState) -> Result<()> {
        self.sequences.import(&self.engine.model.config, seq, state, |layers| {
            *layers = state.layers.iter().map(|layer| State::import(layer, self.engine.kv)).collect();
            Ok(())
        })
    }
}
