//! `shamrock ppl`: perplexity of a text under causal decoding.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::json;
use shamrock_model::{Score, Step};

use crate::engine::{self, EngineArgs};
use crate::locate;
use crate::output::{count_bar, println};

/// Rows scored per pass: bounds the logits held at once.
const ROWS: usize = 64;

/// Arguments of `ppl`.
#[derive(Args)]
pub struct PplArgs {
    /// Model file, or a pulled model by its name: OWNER/REPO or OWNER/REPO:FILE
    model: PathBuf,
    /// Text file, UTF-8
    text: PathBuf,
    /// Tokens per window; every window starts from an empty state
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(2..))]
    window: u32,
    /// Score at most this many tokens
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the command.
pub fn run(args: PplArgs) -> Result<()> {
    let text =
        std::fs::read_to_string(&args.text).with_context(|| format!("reading {}", args.text.display()))?;
    let path = locate::find(&args.model)?;
    let model = engine::open(&path)?;
    let side = engine::text_side(&path, &model)?;
    let mut ids = side.tokenizer().encode(&text)?;
    ids.truncate(args.limit.unwrap_or(usize::MAX));
    ensure!(ids.len() >= 2, "{}: at least two tokens are needed", args.text.display());
    let mut executor = args.engine.executor(model)?;
    let window = (args.window as usize).min(executor.limits().max_context);

    let (start, bar) = (Instant::now(), count_bar(ids.len() as u64, "scoring"));
    // Negative log-likelihoods: their sum and sum of squares give mean and error bar.
    let (mut count, mut sum, mut squares) = (0u64, 0.0f64, 0.0f64);
    for window in ids.chunks(window).filter(|w| w.len() >= 2) {
        let seq = executor.open()?;
        for (i, chunk) in window.chunks(ROWS).enumerate() {
            let targets = &window[i * ROWS + 1..window.len().min(i * ROWS + chunk.len() + 1)];
            let rows: Vec<usize> = (0..targets.len()).collect();
            let pass = executor.run(&[Step::commit(seq, chunk, Score::Logits { rows: &rows })])?;
            for (row, &target) in targets.iter().enumerate() {
                let nll = negative_log_likelihood(pass.outputs[0].commit.logits(row), target);
                (count, sum, squares) = (count + 1, sum + nll, squares + nll * nll);
            }
            bar.inc(chunk.len() as u64);
        }
        executor.close(seq);
    }
    bar.finish_and_clear();

    let (mean, seconds) = (sum / count as f64, start.elapsed().as_secs_f64());
    let error = ((squares / count as f64 - mean * mean).max(0.0) / count as f64).sqrt();
    let (perplexity, speed) = (mean.exp(), count as f64 / seconds);
    println(&if args.json {
        json!({ "perplexity": perplexity, "nll": mean, "nll_error": error, "tokens": count, "window": window, "tok_per_s": speed }).to_string()
    } else {
        format!(
            "perplexity {perplexity:.4} ± {:.4} over {count} tokens in windows of {window} ({speed:.1} tok/s)",
            perplexity * error
        )
    })
}

/// `−ln softmax(logits)[target]`.
fn negative_log_likelihood(logits: &[f32], target: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    sum.ln() - f64::from(logits[target as usize] - max)
}

#[cfg(test)]
mod tests {
    #[test]
    fn likelihood_is_that_of_the_softmax() {
        let logits = [0.0f32, 1.0, -2.0];
        let z: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        assert!((super::negative_log_likelihood(&logits, 1) - (z.ln() - 1.0)).abs() < 1e-12);
    }
}
