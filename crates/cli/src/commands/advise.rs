//! `shamrock bench --advise`: which mode pays on this machine, from pass times measured here and
//! from how many passes a few answers take. The model: `docs/when-diffusion-pays.md`.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use shamrock_generate::{Mode, Options, Rule, Session, SessionOptions, Stats};
use shamrock_model::{Controls, Executor, Score, SeqId, Step};
use shamrock_text::Prompter;

use super::bench::{picks, token_ids};
use super::eval;
use crate::engine;
use crate::generation::ratio;
use crate::output::{noteln, println};

/// Answers that are made to count their passes, and the most tokens of one.
const ANSWERS: u32 = 8;
const LONGEST: usize = 128;

/// Seconds of the passes that generation consists of.
struct Costs {
    block: usize,
    width: usize,
    /// One causal row.
    decode: f64,
    /// A block previewed; all rows scored, which only the first passes over a block do.
    preview: f64,
    /// A block committed and the next one previewed.
    turn: f64,
    /// A draft of `width` rows proposed beside a causal row.
    propose: f64,
    /// `width − 1` rows verified.
    verify: f64,
}

/// Measures and advises. `context` rows are committed first.
pub(super) fn run(path: &Path, executor: &mut dyn Executor, context: usize, repeat: u32) -> Result<()> {
    let costs = Costs::measure(executor, context, repeat)?;
    costs.print()?;
    let model = engine::open(path)?;
    let tasks = path.with_extension("eval.jsonl");
    match engine::text_side(path, &model) {
        Ok(text) if tasks.is_file() => costs.print_modes(executor, &text, &tasks),
        _ => {
            noteln(&format!(
                "no {} to take prompts from: how many tokens a pass the model decides is up to you",
                tasks.display()
            ));
            Ok(())
        }
    }
}

impl Costs {
    /// Medians, the kinds of pass taken in turns so that a busy machine is unfair to none.
    fn measure(executor: &mut dyn Executor, context: usize, repeat: u32) -> Result<Costs> {
        let block = executor.config().block()?;
        let (mask, block) = (block.mask_id, block.block_size);
        let width = block.clamp(3, 16);
        let seq = executor.open()?;
        let prefix = token_ids(executor, context);
        for chunk in prefix.chunks(executor.limits().max_rows.max(1)) {
            executor.run(&[Step::commit(seq, chunk, Score::None)])?;
        }
        let start = executor.snapshot(seq)?;
        let shapes = [(1, 0), (0, block), (block, block), (1, width - 1), (width - 1, 0)];
        let mut times = vec![Vec::new(); shapes.len()];
        for run in 0..=repeat {
            for (times, (commit, preview)) in times.iter_mut().zip(shapes) {
                let time = pass(executor, seq, commit, preview, mask)?;
                executor.restore(start, seq)?;
                // The first round only warms up.
                if run > 0 {
                    times.push(time.as_secs_f64());
                }
            }
        }
        executor.release(start);
        executor.close(seq);
        let median = |times: &mut Vec<f64>| {
            times.sort_unstable_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let [decode, preview, turn, propose, verify] = [0, 1, 2, 3, 4].map(|i| median(&mut times[i]));
        Ok(Costs { block, width, decode, preview, turn, propose, verify })
    }

    /// Seconds a block takes with some previews on average.
    fn block_time(&self, previews: f64) -> f64 {
        self.turn + (previews - 1.0) * self.preview
    }

    /// Tokens per preview at which denoising is as fast as decoding; `None` where one preview a
    /// block is too slow already.
    fn denoise_breaks_even(&self) -> Option<f64> {
        let previews = 1.0 + (self.block as f64 * self.decode - self.turn) / self.preview;
        (previews >= 1.0).then(|| self.block as f64 / previews)
    }

    /// Share of right guesses at which drafting is as fast as decoding.
    fn draft_breaks_even(&self) -> Option<f64> {
        let rate = |right: f64| {
            let kept: f64 = (0..self.width as i32 - 1).map(|i| right.powi(i)).sum();
            (1.0 + right * kept) / (self.propose + right * self.verify)
        };
        (0..=100).map(|percent| f64::from(percent) / 100.0).find(|&right| rate(right) >= 1.0 / self.decode)
    }

    fn print(&self) -> Result<()> {
        let Costs { block, width, .. } = *self;
        println("pass                                       median   causal steps")?;
        for (name, time) in [
            ("causal step".to_owned(), self.decode),
            (format!("preview of {block} rows"), self.preview),
            (format!("commit of {block} and preview of {block}"), self.turn),
            (format!("causal step and preview of {}", width - 1), self.propose),
            (format!("verification of {} rows", width - 1), self.verify),
        ] {
            println(&format!("{name:<38} {:>7.2} ms {:>14.2}", time * 1e3, time / self.decode))?;
        }
        println("")?;
        println(&match self.denoise_breaks_even() {
            Some(tokens) => format!("denoising beats decoding from {tokens:.1} tokens a preview on"),
            None => "denoising cannot beat decoding here, even at one preview a block".to_owned(),
        })?;
        println(&match self.draft_breaks_even() {
            Some(right) => {
                format!("drafting beats decoding where {:.0}% of guesses are right", 100.0 * right)
            }
            None => "drafting cannot beat decoding here, even if every guess is right".to_owned(),
        })?;
        for tokens in [2.0, 4.0, 8.0] {
            let speed = block as f64 / self.block_time((block as f64 / tokens).max(1.0));
            println(&format!(
                "at {tokens} tokens a preview: {speed:.1} tok/s denoising, {:.2} times decoding",
                speed * self.decode
            ))?;
        }
        Ok(())
    }

    /// Counts the passes of some answers in each mode and says what they come to.
    fn print_modes(&self, executor: &mut dyn Executor, text: &Prompter, tasks: &Path) -> Result<()> {
        let own = executor.config().block()?.threshold;
        let mut modes: Vec<(String, Options)> = [Mode::Causal, Mode::Draft]
            .map(|mode| (format!("--mode {mode}"), Options::new(mode)))
            .into_iter()
            .collect();
        let mut thresholds = vec![0.5, 0.7, 0.9, 0.99, own];
        thresholds.sort_by(f32::total_cmp);
        thresholds.dedup();
        for threshold in thresholds {
            let rule = Some(Rule::threshold(threshold));
            let name = format!("--mode denoise --threshold {threshold}");
            modes.push((name, Options { rule, ..Options::new(Mode::Denoise) }));
        }
        let prompts = eval::prompts(tasks, text, ANSWERS)?;
        println(&format!(
            "\n{} answers                          tokens/pass   expected tok/s",
            prompts.len()
        ))?;
        let mut best: Option<(f64, &str)> = None;
        for (name, options) in &modes {
            let (tokens, stats) = count(executor, &prompts, options)?;
            let speed = ratio(tokens as f64, self.expected(options.mode, &stats));
            let per_pass = ratio(tokens as f64, stats.deciding as f64);
            println(&format!("{name:<36} {per_pass:>11.2} {speed:>16.1}"))?;
            // Other thresholds than the model's own are a choice about accuracy.
            let candidate = options.rule.as_ref().is_none_or(|rule| *rule == Rule::threshold(own));
            if candidate && best.is_none_or(|(other, _)| speed > other) {
                best = Some((speed, name));
            }
        }
        if let Some((speed, name)) = best {
            println(&format!("\nadvice: {name}, about {speed:.0} tok/s"))?;
            println("--mode auto finds the faster of causal and draft by itself")?;
        }
        Ok(())
    }

    /// Seconds that the passes of some answers take.
    fn expected(&self, mode: Mode, stats: &Stats) -> f64 {
        let (previews, commits) = (stats.previews as f64, stats.commits as f64);
        match mode {
            Mode::Denoise => commits * self.turn + (previews - commits) * self.preview,
            Mode::Draft | Mode::Auto => previews * self.propose + (commits - previews) * self.verify,
            Mode::Causal => commits * self.decode,
        }
    }
}

/// Time of a pass over some commit rows, the last of them scored, and a block of masks, all scored.
fn pass(
    executor: &mut dyn Executor,
    seq: SeqId,
    commit: usize,
    preview: usize,
    mask: u32,
) -> Result<Duration> {
    let (ids, masks, controls) = (token_ids(executor, commit), vec![mask; preview], Controls::default());
    // A block's commit scores nothing; a causal step and a verification score what they decide.
    let scored: Vec<usize> = if commit == preview { Vec::new() } else { (0..commit).collect() };
    let (all, forbidden): (Vec<usize>, _) = ((0..preview).collect(), [mask]);
    let step = Step::commit(seq, &ids, picks(&scored, &controls, &forbidden));
    let step = step.then_preview(&masks, picks(&all, &controls, &forbidden));
    let step = if commit > 1 && preview == 0 { step.rewindable() } else { step };
    let clock = Instant::now();
    executor.run(&[step])?;
    Ok(clock.elapsed())
}

/// Tokens of some answers and what they took.
fn count(executor: &mut dyn Executor, prompts: &[Vec<u32>], options: &Options) -> Result<(usize, Stats)> {
    let options = Options { max_tokens: LONGEST, ..options.clone() };
    let (mut tokens, mut total) = (0, Stats::default());
    for prompt in prompts {
        let mut session = Session::with_options(SessionOptions { checkpoints: 0 });
        let outcome = session.generate(executor, prompt, &options, &mut |_| ControlFlow::Continue(()))?;
        session.close(executor);
        tokens += outcome.tokens.len();
        total.deciding += outcome.stats.deciding;
        total.previews += outcome.stats.previews;
        total.commits += outcome.stats.commits;
    }
    Ok((tokens, total))
}
