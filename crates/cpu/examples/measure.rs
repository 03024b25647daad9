//! Times (CPU time of all threads, wall time) of previews, decoding and commits with their stages, on
//! the fast and the reference executor.
//!
//! ```text
//! cargo run --release -p shamrock-cpu --example measure -- MODEL [int8|f32|reference] [runs] [threads]
//! ```

use std::time::{Duration, Instant};

use shamrock_cpu::{CpuExecutor, CpuOptions, Precision, processor_time};
use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
use shamrock_model::{Executor, ModelFile, PassStats, Score, Step};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: measure MODEL [int8|f32|reference] [runs] [threads]")?;
    let backend = args.next().unwrap_or_else(|| "int8".into());
    let runs: usize = args.next().map_or(Ok(5), |r| r.parse())?.max(1);
    let threads: Option<usize> = args.next().map(|t| t.parse()).transpose()?;
    let options = CpuOptions { threads, ..CpuOptions::default() };
    let model = ModelFile::open(path)?;
    let mut executor: Box<dyn Executor> = match backend.as_str() {
        "reference" => Box::new(ReferenceExecutor::new(model, ReferenceOptions::DEFAULT)?),
        "f32" => Box::new(CpuExecutor::new(model, CpuOptions { precision: Precision::F32, ..options })?),
        _ => Box::new(CpuExecutor::new(model, options)?),
    };
    let e = &mut *executor;
    let vocab = e.config().vocab_size as u64;
    let ids = |n: u64| -> Vec<u32> {
        (0..n).map(|i| ((i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % vocab) as u32).collect()
    };
    let seq = e.open()?;
    e.run(&[Step::commit(seq, &ids(16), Score::None)])?;
    let start = e.snapshot(seq)?;
    let block: Vec<u32> = ids(32);
    let rows: Vec<usize> = (0..32).collect();
    let long = ids(256);
    for (name, step) in [
        ("preview 32", Step::preview(seq, &block, Score::Logits { rows: &rows })),
        ("decode", Step::commit(seq, &block[..1], Score::Logits { rows: &[0] })),
        ("commit 256", Step::commit(seq, &long, Score::Logits { rows: &[255] })),
    ] {
        let mut measured: Vec<(Duration, PassStats)> = Vec::new();
        let mut cpu = Duration::ZERO;
        for run in 0..=runs {
            let (clock, before) = (Instant::now(), processor_time().unwrap_or_default());
            let stats = e.run(&[step])?.stats;
            if run > 0 {
                measured.push((clock.elapsed(), stats));
                cpu += processor_time().unwrap_or_default() - before;
            }
            e.restore(start, seq)?;
        }
        measured.sort_by_key(|m| m.0);
        let (time, stats) = &measured[measured.len() / 2];
        let stages: Vec<String> = stats
            .stages
            .iter()
            .map(|(stage, time)| format!("{stage} {:.1}", time.as_secs_f64() * 1e3))
            .collect();
        println!(
            "{backend:<10} {name:<11} CPU {:9.2} ms  median {:9.2}  min {:9.2}  {:7.1} MB  {:5} experts | {}",
            cpu.as_secs_f64() * 1e3 / runs as f64,
            time.as_secs_f64() * 1e3,
            measured[0].0.as_secs_f64() * 1e3,
            stats.weight_bytes as f64 / 1e6,
            stats.distinct_experts,
            stages.join(", "),
        );
    }
    Ok(())
}
