//! `shamrock bench`: times of previews, commits and causal decoding on any model.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;
use shamrock_model::{Controls, Executor, PassStats, Score, SeqId, Shaping, Step};

use super::advise;
use crate::engine::{self, EngineArgs};
use crate::output::{bytes, println};

/// Arguments of `bench`.
#[derive(Args)]
pub struct BenchArgs {
    /// Model file [default: models/clover-nano.cmf]
    model: Option<PathBuf>,
    /// Rows of the previews
    #[arg(long, value_delimiter = ',', value_name = "N,N", default_value = "1,8,32", value_parser = clap::value_parser!(u32).range(1..))]
    rows: Vec<u32>,
    /// Lengths of the commits
    #[arg(long, value_delimiter = ',', value_name = "N,N", default_value = "32,256", value_parser = clap::value_parser!(u32).range(1..))]
    commit: Vec<u32>,
    /// Committed rows before each measurement
    #[arg(long, value_delimiter = ',', value_name = "N,N", default_value = "0")]
    context: Vec<u32>,
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
    rows: usize,
    context: usize,
}

/// Its result.
struct Measured {
    work: Work,
    median: Duration,
    /// Of the last run.
    stats: PassStats,
}

/// Runs the command.
pub fn run(args: BenchArgs) -> Result<()> {
    let path = engine::path_or_default(args.model.clone())?;
    let mut executor = args.engine.executor(engine::open(&path)?)?;
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
    if !args.json {
        println(&format!("{} on {}\n{}", path.display(), executor.backend(), Measured::HEADING))?;
    }
    for works in works.chunk_by(|a, b| a.context == b.context) {
        let seq = executor.open()?;
        let prefix = token_ids(&*executor, works[0].context);
        commit(&mut *executor, seq, &prefix)?;
        for work in works {
            let measured = measure(&mut *executor, seq, *work, &args)?;
            println(&if args.json { measured.json() } else { measured.row() })?;
        }
        executor.close(seq);
    }
    Ok(())
}

/// All that is asked for, context by context.
fn works(args: &BenchArgs, previews: bool) -> Vec<Work> {
    let mut works = Vec::new();
    for context in args.context.iter().map(|&n| n as usize) {
        let mut add = |name, rows: &[u32]| {
            works.extend(rows.iter().map(|&n| Work { name, rows: n as usize, context }));
        };
        add("decode", &[1]);
        if previews {
            add("preview", &args.rows);
        }
        add("commit", &args.commit);
    }
    works
}

/// Medians of a work's runs, each from the same committed state.
fn measure(executor: &mut dyn Executor, seq: SeqId, work: Work, args: &BenchArgs) -> Result<Measured> {
    let ids = token_ids(executor, work.rows);
    let start = executor.snapshot(seq)?;
    let mut times = Vec::new();
    let mut stats = PassStats::default();
    for run in 0..u64::from(args.warmup) + u64::from(args.repeat) {
        let clock = Instant::now();
        stats = match work.name {
            "preview" => preview(executor, seq, work.rows)?,
            _ => commit(executor, seq, &ids)?,
        };
        if run >= u64::from(args.warmup) {
            times.push(clock.elapsed());
        }
        executor.restore(start, seq)?;
    }
    executor.release(start);
    times.sort_unstable();
    Ok(Measured { work, median: times[times.len() / 2], stats })
}

/// A block of masks with every row picked, as the first pass of denoising has it.
fn preview(executor: &mut dyn Executor, seq: SeqId, rows: usize) -> Result<PassStats> {
    let mask = executor.config().block()?.mask_id;
    let (ids, all, controls) = (vec![mask; rows], (0..rows).collect::<Vec<_>>(), Controls::default());
    Ok(executor.run(&[Step::preview(seq, &ids, picks(&all, &controls, &[mask]))])?.stats)
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
    const HEADING: &'static str =
        "work      rows  context      median     tok/s   weights read  GB/s  distinct experts";

    fn seconds(&self) -> f64 {
        self.median.as_secs_f64()
    }

    fn row(&self) -> String {
        let Work { name, rows, context } = self.work;
        format!(
            "{name:<9} {rows:>4} {context:>8} {:>8.2} ms {:>9.1} {:>14} {:>5.1} {:>17}",
            self.seconds() * 1e3,
            rows as f64 / self.seconds(),
            bytes(self.stats.weight_bytes),
            self.stats.weight_bytes as f64 / self.seconds() / 1e9,
            self.stats.distinct_experts,
        )
    }

    fn json(&self) -> String {
        let Work { name, rows, context } = self.work;
        json!({
            "work": name,
            "rows": rows,
            "context": context,
            "median_ms": self.seconds() * 1e3,
            "tok_per_s": rows as f64 / self.seconds(),
            "bytes": self.stats.weight_bytes,
            "distinct_experts": self.stats.distinct_experts,
        })
        .to_string()
    }
}
