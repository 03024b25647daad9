//! The seam.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaGraph, sys};
use shamrock_model::executor::{Scored, StepOutput};
use shamrock_model::sequences::Sequences;
use shamrock_model::{
    Config, Error, Executor, Limits, ModelFile, Part, Pass, PassStats, PlannedPart, Result, Score, SeqId,
    SequenceState, SnapshotId, Step,
};

use crate::abi::{self, Ptr};
use crate::cache::{ExpertCache, Found};
use crate::device::{Device, Pinned, driver};
use crate::geometry::Geometry;
use crate::inputs::{Inputs, Plan, Shape, pick};
use crate::pass::{Launcher, Profile, TENSOR_QUERIES};
use crate::sequence::{DeviceState, DeviceUndo};
use crate::upload::{DeviceWeights, measure};
use crate::workspace::{RESULT_HEADER, Room, Workspace};
use crate::{BACKEND, CudaOptions};

/// Rows of a pass, at most.
const MAX_ROWS: usize = 4096;
/// Rows of a prompt's chunk: more are hardly faster and hold up others for longer.
const CHUNK_ROWS: usize = 2048;
/// Sequences open at once.
const MAX_SEQUENCES: usize = 256;
/// Shapes remembered, of several hundred kilobytes each where recorded; all are forgotten when there are more.
/// Drafting comes with some hundreds of shapes.
const MAX_GRAPHS: usize = 1024;
/// Passes of a shape that are launched kernel by kernel before one is recorded, which takes as long as a few
/// of them.
const RECORD_AFTER: u32 = 2;
/// Bytes of the tables to begin with.
const TABLE_BYTES: usize = 256 << 10;
/// Attention splits, at most; a power of two.
const MAX_ATTENTION_SPLITS: usize = 64;
/// Memory left to states and passes when nobody says how much experts may take, at most.
const HEADROOM: usize = 1 << 30;
/// Keys that a split takes at least.
const SPLIT_KEYS: usize = 64;

type States = Sequences<DeviceState, Option<DeviceUndo>>;

/// The CUDA executor, see the [crate documentation](crate).
pub struct CudaExecutor {
    config: Config,
    sequences: States,
    placement: Placement,
    engine: Engine,
}

/// Everything but the sequences.
struct Engine {
    // Dropped in this order: graphs before what they use.
    graphs: HashMap<Shape, Recording>,
    space: Workspace,
    inputs: Inputs,
    /// Where results arrive.
    results: Pinned,
    weights: DeviceWeights,
    /// Where the routed experts are not all resident.
    cache: Option<ExpertCache>,
    geometry: Geometry,
    device: Device,
    profile: bool,
    /// Bytes that every pass reads but for its experts.
    dense_bytes: u64,
    head_bytes: u64,
    expert_bytes: u64,
}

/// A shape's kernels.
enum Recording {
    /// Seen so many times; a shape that keeps coming back is worth recording.
    Seen(u32),
    /// Ready to be replayed.
    Graph(CudaGraph),
}

// SAFETY: a CUDA graph may be used by one thread at a time, which `&mut self` sees to; every call
// binds the context to the calling thread first.
unsafe impl Send for Engine {}

/// How a model was placed on a device.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// Bytes of weights on the device, room for cached experts included.
    pub bytes: u64,
    /// Routed experts there is room for, and how many the model has, over all layers. All of them are
    /// resident when these are the same.
    pub experts: (usize, usize),
    /// Time it took.
    pub time: Duration,
}

impl CudaExecutor {
    /// Opens a device, compiles the kernels for the model and uploads its weights.
    ///
    /// # Errors
    /// [`shamrock_model::Error::Device`] when there is no usable device or the model's shape is beyond the
    /// kernels, [`shamrock_model::Error::DeviceMemory`] when memory runs out.
    pub fn new(model: ModelFile, options: &CudaOptions) -> Result<Self> {
        CudaExecutor::with_progress(model, options, &mut |_, _| {})
    }

    /// The same, with bytes placed so far and in all reported to `progress` during the upload.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_progress(
        model: ModelFile,
        options: &CudaOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self> {
        let geometry = Geometry::new(&model, options.precision, options.kv)?;
        let device = Device::open(&geometry, options)?;
        let start = Instant::now();
        let budget = expert_budget(&device, &geometry, &model, options.expert_memory)?;
        let total = measure(&geometry, &model, budget.is_none())? as u64;
        let weights = DeviceWeights::upload(&device, &geometry, &model, budget.is_none(), &mut |placed| {
            progress(placed as u64, total);
        })?;
        let cache = budget.map(|bytes| ExpertCache::new(&device, &geometry, &model, bytes)).transpose()?;
        let experts = model.config.moe.experts * model.weights.layers.len();
        let placement = Placement {
            bytes: (weights.bytes() + cache.as_ref().map_or(0, ExpertCache::bytes)) as u64,
            experts: (cache.as_ref().map_or(experts, ExpertCache::room), experts),
            time: start.elapsed(),
        };
        let room = Room { rows: 32, scored: 32, partial_rows: 32 };
        let space = Workspace::new(&device, &geometry, room)?;
        let inputs = Inputs::new(&device, TABLE_BYTES)?;
        let results = device.pinned(result_bytes(room.scored))?;
        let limits = Limits {
            max_context: options.max_context.unwrap_or(model.config.max_context),
            max_rows: MAX_ROWS,
            chunk_rows: CHUNK_ROWS,
            max_sequences: MAX_SEQUENCES,
        };
        let (dense_bytes, head_bytes, expert_bytes) = weight_bytes(&model);
        let engine = Engine {
            graphs: HashMap::new(),
            space,
            inputs,
            results,
            weights,
            cache,
            geometry,
            device,
            profile: options.profile,
            dense_bytes,
            head_bytes,
            expert_bytes,
        };
        Ok(CudaExecutor { config: model.config, sequences: Sequences::new(limits), placement, engine })
    }

    /// How the model was placed.
    pub fn placement(&self) -> Placement {
        self.placement
    }
}

/// Bytes for routed experts, or `None` where all weights are resident: when they fit beside some room
/// for states and passes, unless fewer were asked for.
fn expert_budget(
    device: &Device,
    geometry: &Geometry,
    model: &ModelFile,
    asked: Option<u64>,
) -> Result<Option<u64>> {
    let (all, trunk) = (measure(geometry, model, true)?, measure(geometry, model, false)?);
    if let Some(asked) = asked {
        return Ok((asked < (all - trunk) as u64).then_some(asked));
    }
    let (free, total) = device.memory()?;
    let free = free.saturating_sub(HEADROOM.min(total / 8));
    if all <= free {
        return Ok(None);
    }
    let least = ExpertCache::least(geometry, model)?;
    if trunk + least > free {
        return Err(Error::DeviceMemory { backend: BACKEND, bytes: Some(trunk + least - free) });
    }
    Ok(Some((free - trunk) as u64))
}

impl Engine {
    /// Gives every step's sequence room, and what its commit needs to be cut back.
    fn prepare(&self, states: &mut States, steps: &[Step<'_>]) -> Result<()> {
        for step in steps {
            let sequence = states.get_mut(step.seq)?;
            let len = sequence.len();
            let rows = len + step.commit.len() + step.preview.len();
            sequence.state.reserve(&self.device, &self.geometry, len, rows)?;
            let (state, undo) = sequence.state_and_undo();
            if let Some(undo) = undo.filter(|_| step.rewindable && !step.commit.is_empty()) {
                *undo = Some(state.undo(&self.device, &self.geometry, step.commit.len())?);
            }
        }
        Ok(())
    }

    fn run(&mut self, states: &mut States, steps: &[Step<'_>]) -> Result<Pass> {
        let start = Instant::now();
        let mut plan = Plan::new(states.plan(steps)?);
        if plan.shape.rows == 0 {
            return Ok(Pass {
                outputs: vec![StepOutput::default(); steps.len()],
                stats: PassStats::default(),
            });
        }
        self.prepare(states, steps)?;
        plan.shape.attention_splits = self.attention_splits(states, &plan)?;
        self.make_room(&plan.shape)?;
        let parts = plan.parts.iter().map(|p| part(states, p)).collect::<Result<Vec<_>>>()?;
        if let Err(bytes) = self.inputs.send(&self.device, &self.geometry.config, &plan, &parts)? {
            self.graphs.clear();
            self.inputs = Inputs::new(&self.device, bytes.next_power_of_two())?;
            if self.inputs.send(&self.device, &self.geometry.config, &plan, &parts)?.is_err() {
                unreachable!("the tables were made large enough");
            }
        }

        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let before = self.device.stream.record_event(flags).map_err(driver)?;
        let mut profile = self.profile.then(Profile::default);
        let cold = self.play(plan.shape, &mut profile)?;
        let after = self.device.stream.record_event(flags).map_err(driver)?;
        let (scores, distinct) = self.collect(&plan)?;

        let ms = before.elapsed_ms(&after).map_err(driver)?;
        let device = Duration::from_secs_f64(f64::from(ms).max(0.0) / 1e3);
        let mut outputs = vec![StepOutput::default(); steps.len()];
        for (part, scored) in plan.parts.iter().zip(scores) {
            part.put(&mut outputs, scored);
        }
        let head = if plan.shape.scored > 0 { self.head_bytes } else { 0 };
        let Found { hits, misses, bytes } =
            self.cache.as_mut().map(ExpertCache::take_found).unwrap_or_default();
        let stats = PassStats {
            device,
            host: start.elapsed().saturating_sub(device),
            weight_bytes: self.dense_bytes + head + u64::from(distinct) * self.expert_bytes,
            distinct_experts: distinct.into(),
            expert_hits: hits,
            expert_misses: misses,
            fill_bytes: bytes,
            cold,
            stages: profile.as_ref().map(Profile::stages).transpose()?.unwrap_or_default(),
            ..PassStats::default()
        };
        Ok(Pass { outputs, stats })
    }

    /// Runs the kernels of a shape: launched one by one the first times, then recorded, and replayed
    /// from then on. Whether that is still to come is returned.
    fn play(&mut self, shape: Shape, profile: &mut Option<Profile>) -> Result<bool> {
        let launcher = Launcher {
            device: &self.device,
            geometry: &self.geometry,
            weights: &self.weights,
            space: &self.space,
            tables: self.inputs.tables(&shape),
            shape,
        };
        if profile.is_some() || self.cache.is_some() {
            return launcher.run(profile, &mut self.cache).map(|()| false);
        }
        match self.graphs.get_mut(&shape) {
            Some(Recording::Graph(graph)) => return graph.launch().map_err(driver).map(|()| false),
            Some(Recording::Seen(times)) if *times >= RECORD_AFTER => {
                let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                self.device.stream.begin_capture(mode).map_err(driver)?;
                let launched = launcher.run(profile, &mut None);
                // Capture must end whatever happened in between.
                let graph = self.device.stream.end_capture(sys::CUgraphInstantiate_flags(0));
                launched?;
                if let Some(graph) = graph.map_err(driver)? {
                    graph.launch().map_err(driver)?;
                    self.graphs.insert(shape, Recording::Graph(graph));
                    return Ok(true);
                }
            }
            Some(Recording::Seen(times)) => *times += 1,
            None => {
                if self.graphs.len() >= MAX_GRAPHS {
                    self.graphs.clear();
                }
                self.graphs.insert(shape, Recording::Seen(1));
            }
        }
        launcher.run(profile, &mut None).map(|()| true)
    }

    /// Waits for a pass and fetches its scores, part by part, and the distinct experts.
    fn collect(&mut self, plan: &Plan<'_>) -> Result<(Vec<Scored>, u32)> {
        let vocab = self.geometry.config.vocab_size;
        let bytes = result_bytes(if plan.shape.picks { plan.shape.scored } else { 0 });
        if self.results.len() < bytes {
            self.results = self.device.pinned(bytes.next_power_of_two())?;
        }
        let results = &mut self.results.bytes()?[..bytes];
        self.device.download(self.space.results, results)?;
        let distinct = bytemuck::pod_read_unaligned(&results[..4]);
        let records: &[abi::PickRecord] = bytemuck::cast_slice(&results[RESULT_HEADER..]);
        let scored = plan.parts.iter().map(|part| {
            Ok(match part.score {
                Score::None => Scored::None,
                Score::Logits { .. } => {
                    let mut values = vec![0f32; part.scored.len() * vocab];
                    let at = self.space.logits + (part.scored.start * vocab * 4) as Ptr;
                    self.device.download(at, &mut values)?;
                    Scored::Logits { values, vocab }
                }
                Score::Picks { .. } => Scored::Picks(records[part.scored.clone()].iter().map(pick).collect()),
            })
        });
        Ok((scored.collect::<Result<_>>()?, distinct))
    }

    /// Splits of the context in attention, so that few queries over a long prefix fill the device. A
    /// power of two, to keep shapes few.
    fn attention_splits(&self, states: &mut States, plan: &Plan<'_>) -> Result<usize> {
        let a = &self.geometry.config.attention;
        let (queries, resident) = if self.geometry.tensor_attention() { (TENSOR_QUERIES, 1) } else { (8, 2) };
        let (mut blocks, mut longest) = (0, 0);
        for part in &plan.parts {
            blocks += (part.ids.len() * (a.heads / a.kv_heads)).div_ceil(queries) * a.kv_heads;
            longest = longest.max(states.get_mut(part.seq)?.len() + 2 * part.ids.len());
        }
        let wanted =
            (resident * self.device.multiprocessors / blocks.max(1)).min(longest.div_ceil(SPLIT_KEYS));
        let splits = wanted.clamp(1, MAX_ATTENTION_SPLITS);
        Ok(1 << splits.ilog2())
    }

    fn make_room(&mut self, shape: &Shape) -> Result<()> {
        let needed = Room {
            rows: shape.rows,
            scored: shape.scored,
            partial_rows: shape.rows * shape.attention_splits,
        };
        if !self.space.room.holds(&needed) {
            let room = self.space.room.grown(&needed);
            self.graphs.clear();
            self.space = Workspace::new(&self.device, &self.geometry, room)?;
        }
        Ok(())
    }
}

/// Bytes that come back from a pass with so many picks.
fn result_bytes(picks: usize) -> usize {
    RESULT_HEADER + picks * size_of::<abi::PickRecord>()
}

/// A part's entry in the tables.
fn part(states: &mut States, planned: &PlannedPart<'_>) -> Result<abi::Part> {
    let sequence = states.get_mut(planned.seq)?;
    let (kv, kv_rows) = sequence.state.kv();
    let gdn = sequence.state.gdn();
    let undo = match sequence.state_and_undo().1 {
        Some(Some(undo)) if planned.rewindable => undo.rows(),
        _ => 0,
    };
    Ok(abi::Part {
        kind: match planned.part {
            Part::Commit => abi::COMMIT,
            Part::Preview => abi::PREVIEW,
        },
        row0: planned.rows.start as u32,
        rows: planned.ids.len() as u32,
        position: planned.position as u32,
        kv_rows: kv_rows as u32,
        pad: 0,
        kv,
        gdn,
        undo,
    })
}

/// Bytes of the file that a pass reads: dense weights, the head, one routed expert.
fn weight_bytes(model: &ModelFile) -> (u64, u64, u64) {
    use shamrock_model::weights::MixerWeights;
    let w = &model.weights;
    let bytes = |m| w.tensor(m).bytes.len() as u64;
    let ffn = |f: &shamrock_model::weights::Ffn| bytes(f.gate) + bytes(f.up) + bytes(f.down);
    let dense = w.layers.iter().map(|layer| {
        let mixer = match &layer.mixer {
            MixerWeights::Full(a) => bytes(a.q) + bytes(a.k) + bytes(a.v) + bytes(a.o),
            MixerWeights::Linear(g) => bytes(g.qkv) + bytes(g.z) + bytes(g.a) + bytes(g.b) + bytes(g.out),
        };
        mixer + bytes(layer.moe.router) + bytes(layer.moe.shared_gate) + ffn(&layer.moe.shared)
    });
    let expert = w.layers.first().and_then(|l| l.moe.experts.first()).map_or(0, ffn);
    (dense.sum(), bytes(w.head), expert)
}

impl Executor for CudaExecutor {
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
        let Engine { device, geometry, .. } = &self.engine;
        self.sequences.open(|| DeviceState::empty(device, geometry))
    }

    fn close(&mut self, seq: SeqId) {
        self.sequences.close(seq);
    }

    fn len(&self, seq: SeqId) -> Result<usize> {
        self.sequences.len(seq)
    }

    fn run(&mut self, steps: &[Step<'_>]) -> Result<Pass> {
        let engine = &mut self.engine;
        self.sequences.run(&self.config, steps, |states| engine.run(states, steps))
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<()> {
        let Engine { device, geometry, .. } = &self.engine;
        self.sequences.rewind(seq, len, |state, undo, cut| match undo {
            Some(undo) => state.rewind(device, geometry, undo, cut.kept()),
            None => Err(Error::Rewind { asked: cut.len, from: cut.from, to: cut.from }),
        })
    }

    fn snapshot(&mut self, seq: SeqId) -> Result<SnapshotId> {
        let Engine { device, geometry, .. } = &self.engine;
        self.sequences.snapshot(seq, |state, len| state.duplicate(device, geometry, len))
    }

    fn restore(&mut self, snapshot: SnapshotId, into: SeqId) -> Result<()> {
        let Engine { device, geometry, .. } = &self.engine;
        self.sequences.restore(snapshot, into, |from, len, state| state.assign(device, geometry, from, len))
    }

    fn release(&mut self, snapshot: SnapshotId) {
        self.sequences.release(snapshot);
    }

    fn export(&self, seq: SeqId) -> Result<SequenceState> {
        let Engine { device, geometry, .. } = &self.engine;
        self.sequences.export(seq, |state, len| state.read(device, geometry, len))
    }

    fn import(&mut self, seq: SeqId, state: &SequenceState) -> Result<()> {
        let Engine { device, geometry, .. } = &self.engine;
        self.sequences.import(&self.config, seq, state, |own| own.fill(device, geometry, state))
    }
}
