//! `shamrock eval`: held-out tasks with checkable answers, run on any model in any mode.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Deserialize;
use serde_json::json;
use shamrock_generate::{Session, SessionOptions};
use shamrock_text::{Message, Piece, Prompter, RenderOptions};

use crate::engine::{self, EngineArgs};
use crate::generation::{GenerationArgs, Generator, ratio};
use crate::locate::ModelArgs;
use crate::output::{count_bar, println};

/// Longest answer when `--max-tokens` does not say: no task needs half of it.
const MAX_TOKENS: usize = 512;

/// Arguments of `eval`.
#[derive(Args)]
pub struct EvalArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tasks, one JSON object a line [default: MODEL with .eval.jsonl in place of its extension]
    #[arg(long, value_name = "FILE")]
    tasks: Option<PathBuf>,
    /// Run only this many tasks, spread evenly over the file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Show every wrong answer
    #[arg(long)]
    show_wrong: bool,
    /// End with one JSON object instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    generation: GenerationArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// One task of a file.
#[derive(Deserialize)]
struct Task {
    id: String,
    skill: String,
    messages: Vec<Message>,
    answer: String,
    #[serde(rename = "match", default)]
    rule: Rule,
    /// Ask for reasoning.
    #[serde(default)]
    thinking: bool,
    /// Words a story must contain.
    #[serde(default)]
    words: Vec<String>,
}

/// How an answer is judged.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rule {
    /// The very text.
    #[default]
    Exact,
    /// Sentences that contain all the words, whatever the case.
    Story,
}

impl Task {
    fn render(&self) -> RenderOptions {
        RenderOptions { enable_thinking: Some(self.thinking), ..RenderOptions::default() }
    }

    fn accepts(&self, answer: &str) -> bool {
        let answer = answer.trim();
        match self.rule {
            Rule::Exact => answer == self.answer.trim(),
            Rule::Story => {
                let text = answer.to_lowercase();
                text.ends_with('.') && self.words.iter().all(|word| text.contains(&word.to_lowercase()))
            }
        }
    }
}

/// Counts over some tasks.
#[derive(Clone, Copy, Default)]
struct Tally {
    tasks: usize,
    right: usize,
    tokens: usize,
    /// Passes that decided tokens.
    passes: usize,
    blocks: usize,
    previews: usize,
    /// Passes of every kind, rows through the layers, rows through the head.
    work: [usize; 3],
    weight_bytes: u64,
    seconds: f64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.tasks += other.tasks;
        self.right += other.right;
        self.tokens += other.tokens;
        self.passes += other.passes;
        self.blocks += other.blocks;
        self.previews += other.previews;
        self.work.iter_mut().zip(other.work).for_each(|(total, more)| *total += more);
        self.weight_bytes += other.weight_bytes;
        self.seconds += other.seconds;
    }

    fn accuracy(&self) -> f64 {
        ratio(self.right as f64, self.tasks as f64)
    }

    fn tokens_per_pass(&self) -> f64 {
        ratio(self.tokens as f64, self.passes as f64)
    }

    fn passes_per_block(&self) -> f64 {
        ratio(self.previews as f64, self.blocks as f64)
    }

    fn tok_per_s(&self) -> f64 {
        ratio(self.tokens as f64, self.seconds)
    }
}

/// Runs the command.
pub fn run(args: EvalArgs) -> Result<()> {
    let path = args.model.path()?;
    let tasks =
        spread(read_tasks(&args.tasks.unwrap_or_else(|| path.with_extension("eval.jsonl")))?, args.limit);
    let model = engine::open(&path)?;
    let text = engine::text_side(&path, &model)?;
    let mut options = args.generation.options(&model.config)?;
    options.max_tokens = options.max_tokens.min(MAX_TOKENS);
    let mut executor = args.engine.executor(model)?;
    let mut session = Session::with_options(SessionOptions { checkpoints: 0 });
    let mut trace = args.generation.trace(&path)?;
    let interrupt = AtomicBool::new(false);

    let mut skills: BTreeMap<&str, Tally> = BTreeMap::new();
    let bar = count_bar(tasks.len() as u64, "evaluating");
    for task in &tasks {
        let prompt = text.chat(&task.messages, &task.render())?;
        let mut generator = Generator {
            executor: &mut *executor,
            tokenizer: text.tokenizer(),
            session: &mut session,
            interrupt: &interrupt,
            trace: trace.as_mut(),
        };
        let answer = generator
            .answer(&prompt.ids, &options, args.generation.stops(), prompt.in_reasoning, &mut |_: &Piece| {
                Ok(())
            })
            .with_context(|| format!("task {}", task.id))?;
        session.close(&mut *executor);
        let right = task.accepts(&answer.content);
        if args.show_wrong && !right {
            bar.suspend(|| {
                println(&format!("{}: {:?}, expected {:?}", task.id, answer.content, task.answer))
            })?;
        }
        let stats = &answer.outcome.stats;
        skills.entry(&task.skill).or_default().add(&Tally {
            tasks: 1,
            right: right.into(),
            tokens: answer.outcome.tokens.len(),
            passes: stats.deciding,
            blocks: stats.blocks,
            previews: stats.previews,
            work: [stats.passes, stats.rows, stats.scored],
            weight_bytes: stats.total.weight_bytes,
            seconds: stats.elapsed.as_secs_f64(),
        });
        bar.inc(1);
    }
    bar.finish_and_clear();
    report(&skills, args.json)
}

fn report(skills: &BTreeMap<&str, Tally>, as_json: bool) -> Result<()> {
    let mut total = Tally::default();
    skills.values().for_each(|tally| total.add(tally));
    if as_json {
        let by_skill: serde_json::Map<String, serde_json::Value> =
            skills.iter().map(|(skill, t)| (skill.to_string(), json!(t.accuracy()))).collect();
        let object = json!({
            "accuracy": total.accuracy(),
            "tokens_per_pass": total.tokens_per_pass(),
            "passes_per_block": total.passes_per_block(),
            "tok_per_s": total.tok_per_s(),
            "tasks": total.tasks,
            "tokens": total.tokens,
            "passes": total.work[0],
            "rows": total.work[1],
            "scored_rows": total.work[2],
            "weight_bytes": total.weight_bytes,
            "seconds": total.seconds,
            "skills": by_skill,
        });
        return println(&object.to_string());
    }
    println("skill                  tasks  right  tokens/pass  passes/block   tok/s")?;
    for (skill, tally) in skills.iter().map(|(s, t)| (*s, t)).chain([("all", &total)]) {
        println(&format!(
            "{skill:<22} {:>5} {:>5.1}% {:>12.2} {:>13.2} {:>7.1}",
            tally.tasks,
            100.0 * tally.accuracy(),
            tally.tokens_per_pass(),
            tally.passes_per_block(),
            tally.tok_per_s()
        ))?;
    }
    Ok(())
}

fn read_tasks(path: &Path) -> Result<Vec<Task>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading tasks from {}", path.display()))?;
    let tasks = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(i, line)| serde_json::from_str(line).with_context(|| format!("{}:{}", path.display(), i + 1)))
        .collect::<Result<Vec<Task>>>()?;
    ensure!(!tasks.is_empty(), "{}: no tasks", path.display());
    Ok(tasks)
}

/// Prompts of some tasks of a file.
pub(super) fn prompts(path: &Path, text: &Prompter, limit: u32) -> Result<Vec<Vec<u32>>> {
    let tasks = spread(read_tasks(path)?, Some(limit));
    tasks.iter().map(|task| Ok(text.chat(&task.messages, &task.render())?.ids)).collect()
}

/// Every n-th task, so that a short run still meets every skill.
fn spread(tasks: Vec<Task>, limit: Option<u32>) -> Vec<Task> {
    let (total, wanted) = (tasks.len(), limit.map_or(tasks.len(), |l| (l as usize).min(tasks.len())));
    tasks
        .into_iter()
        .enumerate()
        .filter(|(i, _)| (i + 1) * wanted / total > i * wanted / total)
        .map(|(_, t)| t)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(rule: &str) -> Task {
        let line = format!(
            r#"{{"id":"t","skill":"s","messages":[{{"role":"user","content":"q"}}],"answer":"A bee flew.","match":"{rule}","words":["bee"]}}"#
        );
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn answers_are_judged_by_their_rule() {
        assert!(task("exact").accepts(" A bee flew.\n"));
        assert!(!task("exact").accepts("A bee flew"));
        assert!(task("story").accepts("Bee or not, it slept."));
        assert!(!task("story").accepts("The bee slept"));
        assert!(!task("story").accepts("The ant slept."));
    }

    #[test]
    fn a_limit_spreads_over_the_file() {
        let ids = |limit| {
            let tasks = (0..10).map(|i| Task { id: i.to_string(), ..task("exact") }).collect();
            spread(tasks, limit).into_iter().map(|t| t.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(Some(2)), ["4", "9"]);
        assert_eq!(ids(Some(50)).len(), 10);
        assert_eq!(ids(None).len(), 10);
    }
}
