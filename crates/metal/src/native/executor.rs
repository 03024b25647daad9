//! The seam.

use std::collections::HashSet;
use std::time::Instant;

use objc2::rc::autoreleasepool;
use shamrock_model::executor::StepOutput;
use shamrock_model::sequences::Sequences;
use shamrock_model::{
    Config, Error, Executor, Limits, ModelFile, Pass as PassOutput, PassStats, Result, SeqId, SequenceState,
    SnapshotId, Step,
};

use super::attention::splits;
use super::device::Device;
use super::device_routing::DeviceRouting;
use super::experts::RoutingStats;
use super::geometry::{check, dense_matrices};
use super::head::Scoring;
use super::kernel::Kernel;
use super::parameters::Parameters;
use super::pass::Pass;
use super::plan::Plan;
use super::prefetch::Prefetch;
use super::state::{DeviceState, States};
use super::views::Views;
use super::workspace::{HEAD_ROWS, Room, Workspace};
use crate::{BACKEND, MetalOptions, Routing};

/// Rows of a pass, at most: a block of 256 and as many committed rows. `gdn_block` counts on it.
const MAX_ROWS: usize = 512;
/// Sequences open at once.
const MAX_SEQUENCES: usize = 256;

/// The Metal executor, see the [crate documentation](crate).
pub struct MetalExecutor {
    config: Config,
    sequences: States,
    engine: Engine,
}

/// Everything but the sequences.
struct Engine {
    // Dropped in this order: the device last.
    prefetch: Option<Prefetch>,
    device_routing: Option<DeviceRouting>,
    views: Views,
    space: Workspace,
    parameters: Parameters,
    model: ModelFile,
    options: MetalOptions,
    /// Bytes that every pass reads, and those of the head.
    dense_bytes: u64,
    head_bytes: u64,
    device: Device,
}

impl MetalExecutor {
    /// Opens the system's device, compiles the kernels and views the dense weights.
    ///
    /// # Errors
    /// [`Error::Device`] when there is no device, the system is too old, the model's shape is beyond the
    /// kernels, or a tensor is larger than the device's buffers.
    pub fn new(model: ModelFile, options: &MetalOptions) -> Result<Self> {
        autoreleasepool(|_| {
            let encodings = check(&model)?;
            let mut kernels =
                Kernel::needed(&encodings, model.config.gdn.key_dim, options.kv, options.precision);
            let on_device = options.routing == Routing::Device;
            if on_device {
                let of_experts: HashSet<_> =
                    DeviceRouting::encodings(&model)?.into_iter().flatten().collect();
                kernels.extend(Kernel::routing(&Vec::from_iter(of_experts), options.precision));
            }
            let mut device = Device::open(&kernels, options.precision)?;
            let expert_bytes = usize::try_from(options.expert_views).unwrap_or(usize::MAX);
            let mut views = Views::new(&device, &model, expert_bytes)?;
            let device_routing = on_device
                .then(|| DeviceRouting::new(&mut device, &mut views, &model, expert_bytes))
                .transpose()?;
            let prefetch = options.prefetch && !on_device;
            let limits = Limits {
                max_context: options.max_context.unwrap_or(model.config.max_context),
                max_rows: MAX_ROWS,
                chunk_rows: 256,
                max_sequences: MAX_SEQUENCES,
            };
            let weights = &model.weights;
            let bytes = |m| weights.tensor(m).bytes.len() as u64;
            let config = model.config.clone();
            let engine = Engine {
                prefetch: prefetch.then(|| Prefetch::new(&model)).transpose()?,
                device_routing,
                views,
                space: Workspace::new(&device, &model.config, Room::default())?,
                parameters: Parameters::new(&device, weights)?,
                options: *options,
                dense_bytes: weights.layers.iter().flat_map(dense_matrices).map(bytes).sum(),
                head_bytes: bytes(weights.head),
                model,
                device,
            };
            Ok(MetalExecutor { config, sequences: Sequences::new(limits), engine })
        })
    }

    /// Bytes of routed experts that are viewed now.
    pub fn expert_bytes(&self) -> usize {
        self.engine.views.expert_bytes()
    }

    /// How often a sequence's state was given to the device as a whole since the sequence was opened: by an import or
    /// from a snapshot, and so after every failed commit before the next one. Passes and rewinds work on what is there.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`], [`Error::LostSequence`]: a lost state has no epoch.
    pub fn epoch(&self, seq: SeqId) -> Result<u64> {
        Ok(self.sequences.get(seq)?.state.epoch())
    }

    /// Bytes that the device can keep wired at a time, as the system recommends.
    pub fn working_set(&self) -> u64 {
        self.engine.device.working_set()
    }
}

impl Engine {
    fn config(&self) -> &Config {
        &self.model.config
    }

    /// Hands a result on; after a failure of the device what comes next gets a new queue.
    fn recover<T>(&mut self, result: Result<T>) -> Result<T> {
        if matches!(result, Err(Error::Device { .. })) {
            self.device.renew_queue();
        }
        result
    }

    /// Gives every step's sequence room, and what its commit needs to be cut back.
    fn prepare(&self, states: &mut States, steps: &[Step<'_>]) -> Result<()> {
        for step in steps {
            let sequence = states.get_mut(step.seq)?;
            let len = sequence.len();
            sequence.state.reserve(&self.device, self.config(), len, len + step.commit.len())?;
            let (state, undo) = sequence.state_and_undo();
            if let Some(undo) = undo.filter(|_| step.rewindable && !step.commit.is_empty()) {
                *undo = Some(state.undo(&self.device, self.config(), step.commit.len())?);
            }
        }
        Ok(())
    }

    fn run(&mut self, states: &mut States, steps: &[Step<'_>]) -> Result<PassOutput> {
        let start = Instant::now();
        let plan = Plan::new(steps, states)?;
        if plan.rows == 0 {
            let outputs = vec![StepOutput::default(); steps.len()];
            return Ok(PassOutput { outputs, stats: PassStats::default() });
        }
        self.prepare(states, steps)?;
        let scoring = Scoring::new(self.config(), &plan);
        let splits = splits(self.config(), &plan);
        let needed = Room {
            rows: plan.rows,
            partial_rows: plan.rows * splits,
            scored: scoring.len().min(HEAD_ROWS),
            parts: plan.parts.len(),
            words: scoring.words.len(),
        };
        self.space.reserve(&self.device, &self.model.config, needed)?;
        let mut pass = Pass {
            device: &self.device,
            config: &self.model.config,
            weights: &self.model.weights,
            parameters: &self.parameters,
            views: &mut self.views,
            space: &mut self.space,
            states,
            plan: &plan,
            kv: self.options.kv,
            device_routing: self.device_routing.as_ref(),
            prefetch: self.prefetch.as_mut(),
            splits,
            work: self.device.work(self.options.profile),
            routing: RoutingStats::default(),
        };
        let outputs = pass.run(&scoring, steps.len())?;
        let (times, routing) = (std::mem::take(&mut pass.work.times), pass.routing);
        let head = if scoring.len() > 0 { self.head_bytes } else { 0 };
        let stats = PassStats {
            device: times.device,
            host: start.elapsed().saturating_sub(times.device),
            routing: routing.time,
            fill: routing.fill,
            waits: times.waits,
            waiting: times.waiting,
            weight_bytes: self.dense_bytes + head + routing.bytes,
            distinct_experts: routing.distinct,
            expert_hits: routing.found.hits,
            expert_misses: routing.found.misses,
            fill_bytes: routing.found.bytes,
            cold: false,
            stages: times.stages,
        };
        Ok(PassOutput { outputs, stats })
    }
}

impl Executor for MetalExecutor {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn limits(&self) -> Limits {
        self.sequences.limits()
    }

    fn open(&mut self) -> Result<SeqId> {
        let Engine { device, model, options, .. } = &self.engine;
        self.sequences.open(|| DeviceState::empty(device, &model.config, options.kv))
    }

    fn close(&mut self, seq: SeqId) {
        self.sequences.close(seq);
    }

    fn len(&self, seq: SeqId) -> Result<usize> {
        self.sequences.len(seq)
    }

    fn run(&mut self, steps: &[Step<'_>]) -> Result<PassOutput> {
        let (config, engine) = (&self.config, &mut self.engine);
        autoreleasepool(|_| {
            let result = self.sequences.run(config, steps, |states| engine.run(states, steps));
            engine.recover(result)
        })
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<()> {
        let (sequences, engine) = (&mut self.sequences, &mut self.engine);
        autoreleasepool(|_| {
            let result = sequences.rewind(seq, len, |state, undo, cut| match undo {
                Some(undo) => state.rewind(&engine.device, engine.config(), undo, cut.kept()),
                None => Err(Error::Rewind { asked: cut.len, from: cut.from, to: cut.from }),
            });
            engine.recover(result)
        })
    }

    fn snapshot(&mut self, seq: SeqId) -> Result<SnapshotId> {
        let Engine { device, model, .. } = &self.engine;
        self.sequences.snapshot(seq, |state, len| state.duplicate(device, &model.config, len))
    }

    fn restore(&mut self, snapshot: SnapshotId, into: SeqId) -> Result<()> {
        let Engine { device, model, .. } = &self.engine;
        self.sequences
            .restore(snapshot, into, |from, len, state| state.assign(device, &model.config, from, len))
    }

    fn release(&mut self, snapshot: SnapshotId) {
        self.sequences.release(snapshot);
    }

    fn export(&self, seq: SeqId) -> Result<SequenceState> {
        self.sequences.export(seq, |state, len| Ok(state.read(&self.config, len)))
    }

    fn import(&mut self, seq: SeqId, state: &SequenceState) -> Result<()> {
        let device = &self.engine.device;
        self.sequences.import(&self.config, seq, state, |own| own.fill(device, &self.config, state))
    }
}
