//! `shamrock bench`: times of previews, commits and causal decoding on any model, beside the least time
//! that the machine could take.

mod floor;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;
use shamrock_cpu::{Machine, anonymous_memory, processor_time};
use shamrock_model::config::LayerKind;
use shamrock_model::{
    Config, Controls, Executor, LayerState, ModelFile, PassStats, Score, SeqId, SequenceState, Shaping, Step,
};

use super::advise;
use crate::engine::{self, EngineArgs};
use crate::locate::ModelArgs;
use crate::output::{bytes, println};
use floor::{Cost, Floor};

/// Arguments of `bench`.
#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Rows of the previews
    #[arg(long, value_delimiter = ',', value_name = "N,N", default_value = "1,8,32", value_parser = clap::value_parser!(u32).range(1..))]
    rows: Vec<u32>,
    /// Lengths of the commits
    #[arg(long, value_delimiter = ',', value_name = "N,N", default_value = "32,256", value_parser = clap::value_parser!(u32).range(1..))]
    commit: Vec<u32>,
    /// Committed rows before each measurement
    #[arg(long, value_delimiter = ',', value_name = "N,N", default_value = "0")]
    context: Vec<u32>,
    /// Sequences that decode, or preview a block each, in one pass
    #[arg(long, value_delimiter = ',', value_name = "N,N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    sequences: Vec<u32>,
    /// Timed runs of each; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Untimed runs before them
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: u32,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
    /// Say which mode pays on this machine, and what speed to expect
    #[arg(long, conflicts_with = "json")]
    advise: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// One thing to measure.
#[derive(Clone, Copy)]
struct Work {
    name: &'static str,
    /// Of each sequence.
    rows: usize,
    context: usize,
    sequences: usize,
}

/// Its result.
struct Measured {
    work: Work,
    median: Duration,
    /// Processor time of all threads, mean of the runs.
    processor: Option<Duration>,
    /// Of the median run.
    stats: PassStats,
    cost: Cost,
    /// Where the machine's peaks are known.
    floor: Option<Floor>,
}

/// Runs the command.
pub fn run(args: BenchArgs) -> Result<()> {
    let path = args.model.path()?;
    let clock = Instant::now();
    let model = engine::open(&path)?;
    let mut executor = args.engine.executor(model.clone())?;
    let first_pass = first_pass(&mut *executor, clock)?;
    if args.advise {
        let context = args.context.first().map_or(0, |&n| n as usize);
        return advise::run(&path, &mut *executor, context, args.repeat);
    }
    let works = works(&args, executor.config().block.is_some());
    let (longest, limit) = (works.iter().map(|w| w.context + w.rows).max(), executor.limits().max_context);
    ensure!(
        longest <= Some(limit),
        "--context and the rows after it come to {}, but the context holds {limit} positions",
        longest.unwrap_or_default()
    );
    let machine = match executor.backend() {
        "cpu" => Some(Machine::measure(args.engine.threads())?),
        _ => None,
    };
    if !args.json {
        println(&format!("{} on {}", path.display(), executor.backend()))?;
        if let Some(m) = machine {
            println(&format!(
                "{}, {} threads: reads {:.1} GB/s; {:.0} GOPS on 8-bit weights, {:.0} on 4-bit ones",
                m.isa,
                m.threads,
                m.read / 1e9,
                m.bytes / 1e9,
                m.nibbles / 1e9
            ))?;
        }
        println(&format!("first token {:.2} s after opening the file", first_pass.as_secs_f64()))?;
        println(Measured::HEADING)?;
    }
    for works in works.chunk_by(|a, b| a.context == b.context) {
        let prefix = prefix(executor.config(), works[0].context);
        let most = works.iter().map(|work| work.sequences).max().unwrap_or_default();
        let seqs = (0..most).map(|_| open(&mut *executor, &prefix)).collect::<Result<Vec<_>>>()?;
        drop(prefix);
        for work in works {
            let seqs = &seqs[..work.sequences];
            let measured = measure(&mut *executor, &model, machine.as_ref(), seqs, *work, &args)?;
            println(&if args.json { measured.json(machine.as_ref(), first_pass) } else { measured.row() })?;
        }
        seqs.iter().for_each(|&seq| executor.close(seq));
    }
    if let Some(anonymous) = anonymous_memory().filter(|_| !args.json) {
        println(&format!("memory beside the mapped file: {}", bytes(anonymous)))?;
    }
    Ok(())
}

/// Time since `clock` once a token is there: what it takes to start.
fn first_pass(executor: &mut dyn Executor, clock: Instant) -> Result<Duration> {
    let seq = executor.open()?;
    decode(executor, &[seq], &[0])?;
    let time = clock.elapsed();
    executor.close(seq);
    Ok(time)
}

/// A sequence in the given state.
fn open(executor: &mut dyn Executor, state: &SequenceState) -> Result<SeqId> {
    let seq = executor.open()?;
    executor.import(seq, state)?;
    Ok(seq)
}

/// A committed state of `len` rows. Times do not depend on what it holds, so that a long one need not be
/// computed.
fn prefix(config: &Config, len: usize) -> SequenceState {
    let numbers = |count: usize| -> Vec<f32> {
        (0..count).map(|i| ((i as u32).wrapping_mul(0x9E37_79B9) >> 16) as f32 / 65536.0 - 0.5).collect()
    };
    let kv = len * config.attention.kv_width();
    let layer = |kind: &LayerKind| match kind {
        LayerKind::Full => LayerState::Kv { k: numbers(kv), v: numbers(kv) },
        LayerKind::Linear => LayerState::Gdn {
            ring: numbers(config.gdn.ring_rows() * config.gdn.channels()),
            memory: numbers(config.gdn.memory_len()),
        },
    };
    SequenceState { len, layers: config.layers.iter().map(layer).collect() }
}

/// All that is asked for, context by context.
fn works(args: &BenchArgs, previews: bool) -> Vec<Work> {
    let mut works = Vec::new();
    for context in args.context.iter().map(|&n| n as usize) {
        let mut add = |name, rows: &[u32], sequences: usize| {
            works.extend(rows.iter().map(|&n| Work { name, rows: n as usize, context, sequences }));
        };
        for sequences in args.sequences.iter().map(|&n| n as usize) {
            add("decode", &[1], sequences);
            if previews {
                add("preview", &args.rows, sequences);
            }
        }
        add("commit", &args.commit, 1);
    }
    works
}

/// Medians of a work's runs, each from the same committed state.
fn measure(
    executor: &mut dyn Executor,
    model: &ModelFile,
    machine: Option<&Machine>,
    seqs: &[SeqId],
    work: Work,
    args: &BenchArgs,
) -> Result<Measured> {
    let ids = token_ids(executor, work.rows * work.sequences);
    let starts = seqs.iter().map(|&seq| executor.snapshot(seq)).collect::<Result<Vec<_>, _>>()?;
    let mut runs = Vec::new();
    let mut processor = Some(Duration::ZERO);
    for run in 0..u64::from(args.warmup) + u64::from(args.repeat) {
        let (clock, before) = (Instant::now(), processor_time());
        let stats = match work.name {
            "preview" => preview(executor, seqs, work.rows)?,
            "decode" => decode(executor, seqs, &ids)?,
            _ => commit(executor, seqs[0], &ids)?,
        };
        if run >= u64::from(args.warmup) {
            runs.push((clock.elapsed(), stats));
            let spent = processor_time().zip(before).map(|(now, before)| now.saturating_sub(before));
            processor = processor.zip(spent).map(|(sum, spent)| sum + spent / args.repeat);
        }
        for (&start, &seq) in starts.iter().zip(seqs) {
            executor.restore(start, seq)?;
        }
    }
    starts.into_iter().for_each(|start| executor.release(start));
    runs.sort_by_key(|run| run.0);
    let (median, stats) = runs.swap_remove(runs.len() / 2);
    let (scored, passes) = match work.name {
        "preview" => (work.rows * work.sequences, 1),
        "decode" => (work.sequences, 1),
        _ => (1, work.rows.div_ceil(executor.limits().max_rows)),
    };
    let cost = Cost::new(model, work, scored, passes, &stats);
    let floor = machine.map(|machine| cost.floor(machine));
    Ok(Measured { work, median, processor, stats, cost, floor })
}

/// A block of masks in every sequence with all rows picked, as the first pass of denoising has it.
fn preview(executor: &mut dyn Executor, seqs: &[SeqId], rows: usize) -> Result<PassStats> {
    let mask = executor.config().block()?.mask_id;
    let (ids, all, controls) = (vec![mask; rows], (0..rows).collect::<Vec<_>>(), Controls::default());
    let forbidden = [mask];
    let step = |&seq| Step::preview(seq, &ids, picks(&all, &controls, &forbidden));
    Ok(executor.run(&seqs.iter().map(step).collect::<Vec<_>>())?.stats)
}

/// One token of every sequence.
fn decode(executor: &mut dyn Executor, seqs: &[SeqId], ids: &[u32]) -> Result<PassStats> {
    let controls = Controls::default();
    let step = |(&seq, id)| Step::commit(seq, std::slice::from_ref(id), picks(&[0], &controls, &[]));
    Ok(executor.run(&seqs.iter().zip(ids).map(step).collect::<Vec<_>>())?.stats)
}

/// A commit in as few passes as the executor allows, its last row picked.
fn commit(executor: &mut dyn Executor, seq: SeqId, ids: &[u32]) -> Result<PassStats> {
    let (mut stats, controls) = (PassStats::default(), Controls::default());
    let chunks = ids.len().div_ceil(executor.limits().max_rows.max(1));
    for (i, chunk) in ids.chunks(executor.limits().max_rows).enumerate() {
        let last = [chunk.len() - 1];
        let score = if i + 1 == chunks { picks(&last, &controls, &[]) } else { Score::None };
        stats.add(&executor.run(&[Step::commit(seq, chunk, score)])?.stats);
    }
    Ok(stats)
}

pub(super) fn picks<'a>(rows: &'a [usize], controls: &'a Controls, forbidden: &'a [u32]) -> Score<'a> {
    let shaping = Shaping { controls, forbidden, counts: &[], first_position: 1, think_open: false };
    Score::Picks { rows, shaping, probes: &[] }
}

/// Ids spread over the vocabulary, so that routing spreads too.
pub(super) fn token_ids(executor: &dyn Executor, count: usize) -> Vec<u32> {
    let vocab = executor.config().vocab_size as u64;
    (0..count as u64)
        .map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % vocab)
        .map(|id| id as u32)
        .collect()
}

impl Measured {
    const HEADING: &'static str = "work      seqs  rows  context      median       floor  times     tok/s   \
                                   weights   GB/s   GOPS  experts  stages";

    fn seconds(&self) -> f64 {
        self.median.as_secs_f64()
    }

    /// Of all sequences together.
    fn tokens_per_second(&self) -> f64 {
        (self.work.rows * self.work.sequences) as f64 / self.seconds()
    }

    /// Stages with their parts of the whole, the longest first.
    fn shares(&self) -> String {
        let mut stages = self.stats.stages.clone();
        stages.sort_by_key(|stage| std::cmp::Reverse(stage.1));
        let share = |time: Duration| 100.0 * time.as_secs_f64() / self.seconds();
        let shares = stages.iter().map(|(stage, time)| (stage, share(*time)));
        shares
            .filter(|(_, share)| *share >= 0.5)
            .map(|(stage, share)| format!("{stage} {share:.0}%"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    fn row(&self) -> String {
        let Work { name, rows, context, sequences } = self.work;
        let (floor, times) = match self.floor {
            Some(floor) => {
                (format!("{:.2} ms", floor.ms), format!("{:.2}x", self.seconds() * 1e3 / floor.ms))
            }
            None => ("-".into(), "-".into()),
        };
        format!(
            "{name:<9} {sequences:>4} {rows:>5} {context:>8} {:>8.2} ms {floor:>11} {times:>6} {:>9.1} {:>9} {:>6.1} {:>6.0} {:>8}  {}",
            self.seconds() * 1e3,
            self.tokens_per_second(),
            bytes(self.stats.weight_bytes),
            self.cost.bytes() / self.seconds() / 1e9,
            self.cost.ops() / self.seconds() / 1e9,
            self.stats.distinct_experts,
            self.shares(),
        )
    }

    fn json(&self, machine: Option<&Machine>, first_pass: Duration) -> String {
        let Work { name, rows, context, sequences } = self.work;
        let stages: serde_json::Map<_, _> =
            self.stats.stages.iter().map(|(s, t)| ((*s).to_owned(), json!(t.as_secs_f64() * 1e3))).collect();
        json!({
            "work": name,
            "sequences": sequences,
            "rows": rows,
            "context": context,
            "median_ms": self.seconds() * 1e3,
            "processor_ms": self.processor.map(|time| time.as_secs_f64() * 1e3),
            "floor_ms": self.floor.map(|floor| floor.ms),
            "bound": self.floor.map(|floor| floor.bound),
            "tok_per_s": self.tokens_per_second(),
            "bytes": self.stats.weight_bytes,
            "bytes_with_state": self.cost.bytes(),
            "ops": self.cost.ops(),
            "gb_per_s": self.cost.bytes() / self.seconds() / 1e9,
            "gops": self.cost.ops() / self.seconds() / 1e9,
            "distinct_experts": self.stats.distinct_experts,
            "expert_hits": self.stats.expert_hits,
            "expert_misses": self.stats.expert_misses,
            "fill_bytes": self.stats.fill_bytes,
            "fill_ms": self.stats.fill.as_secs_f64() * 1e3,
            "device_ms": self.stats.device.as_secs_f64() * 1e3,
            "routing_ms": self.stats.routing.as_secs_f64() * 1e3,
            "waits": self.stats.waits,
            "waiting_ms": self.stats.waiting.as_secs_f64() * 1e3,
            "stages_ms": stages,
            "first_pass_ms": first_pass.as_secs_f64() * 1e3,
            "anonymous_bytes": anonymous_memory(),
            "peak": machine.map(|m| json!({
                "isa": m.isa,
                "threads": m.threads,
                "read_gb_per_s": m.read / 1e9,
                "gops_8_bit": m.bytes / 1e9,
                "gops_4_bit": m.nibbles / 1e9,
            })),
        })
        .to_string()
    }
}
