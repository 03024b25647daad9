//! Generation flags, and an answer as it is shown: tokens to text, stop strings, reasoning apart.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use shamrock_generate::{Accept, Event, Finish, Mode, Options, Outcome, Rule, Saving, Savings, Session};
use shamrock_model::{Config, Executor};
use shamrock_text::{AnswerStream, Piece, Tokenizer};

use crate::values::{at_least_one, one_of};

/// Options that not every mode has a use for, named as in [`Options`] and as clap names their flags.
const OF_SOME_MODES: [&str; 6] = ["threshold", "rule", "block_size", "draft_width", "ahead", "accept"];

/// Flags of every command that generates, and which of them stood on the command line.
#[derive(Clone, Debug)]
pub struct GenerationArgs {
    flags: Flags,
    /// Of [`OF_SOME_MODES`]: a mode must have a use for what somebody just asked for, while settings in a
    /// file wait for the mode that they are for.
    given: Vec<&'static str>,
}

impl FromArgMatches for GenerationArgs {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let on_the_line = |option: &&str| matches.value_source(option) == Some(ValueSource::CommandLine);
        let given = OF_SOME_MODES.into_iter().filter(on_the_line).collect();
        Ok(GenerationArgs { flags: Flags::from_arg_matches(matches)?, given })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = GenerationArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for GenerationArgs {
    fn augment_args(command: Command) -> Command {
        Flags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::augment_args_for_update(command)
    }
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Generation")]
struct Flags {
    /// How an answer is made [default: denoise; causal for a plain trunk]
    #[arg(long, value_name = "MODE", value_parser = one_of::<Mode>(Mode::ALL.map(Mode::as_str)))]
    mode: Option<Mode>,
    /// Most tokens of an answer [default: until it ends]
    #[arg(short = 'n', long, value_name = "N", value_parser = at_least_one::<usize>)]
    max_tokens: Option<usize>,
    /// In mode denoise: confidence above which a row of a block is fixed [default: the model's]
    #[arg(long, value_name = "P", conflicts_with = "rule")]
    threshold: Option<f32>,
    /// In mode denoise: which rows of a block a pass fixes: threshold:P, margin:P, entropy:NATS, budget:ERRORS,
    /// positions:P,P,.., left:P,DECAY or remask:P,DOUBT [default: the model's threshold]
    #[arg(long, value_name = "NAME:X")]
    rule: Option<Rule>,
    /// In mode denoise: rows of a block [default: the model's]
    #[arg(long, value_name = "N")]
    block_size: Option<usize>,
    /// In modes draft and auto: rows of a draft, its pending token included [default: 16]
    #[arg(long, value_name = "N")]
    draft_width: Option<usize>,
    /// In mode draft: preview the next draft already while this one is verified
    #[arg(long)]
    ahead: bool,
    /// In modes draft and auto: when a draft is kept, exact (the text of causal decoding) or, in draft
    /// only, typical
    #[arg(long, value_name = "RULE", default_value = "exact", value_parser = one_of::<Accept>(Accept::NAMES))]
    accept: Accept,
    /// Always the most probable token; overrides --temp
    #[arg(long)]
    greedy: bool,
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temp: f32,
    /// Sample among this many most probable tokens; 0 is all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,
    /// Sample among the most probable tokens of this total probability
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,
    /// Sample among tokens of at least this share of the best one's probability
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f32,
    /// Seed of sampling
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Subtracted from logits of tokens already in the answer [default: the model's]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,
    /// Subtracted per occurrence in the answer [default: the model's]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,
    /// Divides logits of tokens already in the answer [default: the model's]
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f32>,
    /// End the answer before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Do not end at end-of-text tokens
    #[arg(long)]
    ignore_eos: bool,
    /// Do work that cannot change the answer, to measure what leaving it out saves
    #[arg(long, value_name = "SAVING", value_delimiter = ',', value_parser = one_of::<Saving>(Saving::ALL.map(Saving::as_str)))]
    without: Vec<Saving>,
    /// Write every pass and token as JSON lines
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

impl GenerationArgs {
    /// The options these flags ask for, checked against a model.
    pub fn options(&self, config: &Config) -> Result<Options> {
        let flags = &self.flags;
        let mode = flags.mode.unwrap_or(Mode::default_for(config));
        mode.check_given(self.given.iter().copied())?;
        ensure!(
            flags.accept == Accept::Exact || !self.given.contains(&"ahead"),
            "--ahead goes with drafts that are kept exactly, not with --accept typical"
        );
        let mut options = Options::new(mode);
        options.max_tokens = flags.max_tokens.unwrap_or(options.max_tokens);
        options.rule = flags.rule.clone().or(flags.threshold.map(Rule::threshold));
        options.block_size = flags.block_size;
        options.draft_width = flags.draft_width;
        options.ahead = flags.ahead;
        // What a file says of drafts waits for mode draft.
        if mode == Mode::Draft || self.given.contains(&"accept") {
            options.accept = flags.accept;
        }
        options.sampling.temperature = if flags.greedy { 0.0 } else { flags.temp };
        options.sampling.top_k = flags.top_k;
        options.sampling.top_p = flags.top_p;
        options.sampling.min_p = flags.min_p;
        options.sampling.seed = flags.seed;
        let mut controls = config.controls.clone();
        for (flag, field) in [
            (flags.presence_penalty, &mut controls.presence_penalty),
            (flags.frequency_penalty, &mut controls.frequency_penalty),
            (flags.repetition_penalty, &mut controls.repetition_penalty),
        ] {
            *field = flag.unwrap_or(*field);
        }
        options.controls = Some(controls);
        options.ignore_eos = flags.ignore_eos;
        options.savings = flags.without.iter().fold(Savings::ALL, |set, &saving| set.without(saving));
        options.check(config)?;
        Ok(options)
    }

    /// Stop strings.
    pub fn stops(&self) -> &[String] {
        &self.flags.stop
    }

    /// The trace file, created; never over the mapped model.
    pub fn trace(&self, model: &Path) -> Result<Option<Trace>> {
        self.flags
            .trace
            .as_ref()
            .map(|path| {
                if let (Ok(trace), Ok(model)) = (path.canonicalize(), model.canonicalize()) {
                    ensure!(trace != model, "--trace {}: that is the model file", path.display());
                }
                let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
                Ok(Trace { path: path.clone(), file: BufWriter::new(file) })
            })
            .transpose()
    }
}

/// A file of events, one JSON object a line.
pub struct Trace {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Trace {
    fn write(&mut self, event: &Event<'_>) -> Result<()> {
        serde_json::to_writer(&mut self.file, event)
            .map_err(anyhow::Error::from)
            .and_then(|()| Ok(self.file.write_all(b"\n")?))
            .with_context(|| format!("writing {}", self.path.display()))
    }

    /// Brings everything to the disk.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush().with_context(|| format!("writing {}", self.path.display()))
    }
}

/// A finished answer.
pub struct Answer {
    /// Ids, timings and how it ended.
    pub outcome: Outcome,
    /// Text outside reasoning.
    pub content: String,
    /// Text of the reasoning.
    pub reasoning: String,
    /// A stop string ended it.
    pub stop_string: bool,
}

/// Who sees an answer being made. A function of pieces is one.
pub trait Audience {
    /// A piece of text is final.
    fn piece(&mut self, piece: &Piece) -> Result<()>;

    /// Something happened; `Break` ends the answer there.
    fn event(&mut self, _event: &Event<'_>) -> Result<ControlFlow<()>> {
        Ok(ControlFlow::Continue(()))
    }
}

impl<F: FnMut(&Piece) -> Result<()>> Audience for F {
    fn piece(&mut self, piece: &Piece) -> Result<()> {
        self(piece)
    }
}

/// What an answer is made with.
pub struct Generator<'a> {
    /// Where passes run.
    pub executor: &'a mut dyn Executor,
    /// Ids to text.
    pub tokenizer: &'a Tokenizer,
    /// The conversation.
    pub session: &'a mut Session,
    /// Set from outside to end the answer after the pass in hand.
    pub interrupt: &'a AtomicBool,
    /// Where events go.
    pub trace: Option<&'a mut Trace>,
}

impl Generator<'_> {
    /// Answers a prompt before an audience. `in_reasoning` says that the prompt has opened the
    /// reasoning.
    pub fn answer(
        &mut self,
        prompt: &[u32],
        options: &Options,
        stops: &[String],
        in_reasoning: bool,
        audience: &mut dyn Audience,
    ) -> Result<Answer> {
        let mut stream = AnswerStream::new(self.tokenizer.clone(), stops, in_reasoning);
        let (mut content, mut reasoning) = (String::new(), String::new());
        let mut stop_string = false;
        let mut failure = None;
        let mut take = |pieces: Vec<Piece>, audience: &mut dyn Audience| -> Result<()> {
            for piece in &pieces {
                match piece {
                    Piece::Content(text) => content.push_str(text),
                    Piece::Reasoning(text) => reasoning.push_str(text),
                    _ => {}
                }
                audience.piece(piece)?;
            }
            Ok(())
        };
        let (trace, interrupt) = (&mut self.trace, self.interrupt);
        let mut on_event = |event: Event<'_>| -> Result<ControlFlow<()>> {
            if let Some(trace) = trace {
                trace.write(&event)?;
            }
            let seen = audience.event(&event)?;
            if let Event::Token { id, .. } = event {
                let part = stream.push(id)?;
                stop_string |= part.stopped.is_some();
                take(part.pieces, audience)?;
            }
            let end = stop_string || seen.is_break() || interrupt.load(Ordering::Relaxed);
            Ok(if end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        let outcome = self.session.generate(self.executor, prompt, options, &mut |event| {
            on_event(event).unwrap_or_else(|error| {
                failure = Some(error);
                ControlFlow::Break(())
            })
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        take(stream.finish(), audience)?;
        if let Some(trace) = &mut self.trace {
            trace.flush()?;
        }
        Ok(Answer { outcome, content, reasoning, stop_string })
    }
}

impl Answer {
    /// How the answer ended, in one word.
    pub fn finish(&self) -> &'static str {
        match self.outcome.finish {
            _ if self.stop_string => "stop",
            Finish::Stop { .. } => "stop",
            Finish::Length => "length",
            Finish::Context => "context",
            Finish::Cancelled => "interrupted",
        }
    }

    /// How the answer ended, if not by itself.
    pub fn ending(&self) -> &'static str {
        match self.finish() {
            "length" => "ended at the token limit",
            "context" => "ended by a full context",
            "interrupted" => "interrupted",
            _ => "",
        }
    }

    /// `42 tokens, 9 passes, 4.7 tokens/pass, 38.2 tok/s, first block 0.21 s`.
    pub fn summary(&self) -> String {
        let stats = &self.outcome.stats;
        let tokens = self.outcome.tokens.len();
        let mut line = format!(
            "{}, {}, {:.1} tokens/pass, {:.1} tok/s",
            count(tokens, "token", "tokens"),
            count(stats.deciding, "pass", "passes"),
            ratio(tokens as f64, stats.deciding as f64),
            ratio(tokens as f64, stats.elapsed.as_secs_f64()),
        );
        if let Some(first) = stats.first_block {
            line += &format!(", first block {:.2} s", first.as_secs_f64());
        }
        if stats.cached_tokens > 0 {
            line += &format!(", {} of {} prompt tokens cached", stats.cached_tokens, stats.prompt_tokens);
        }
        match self.ending() {
            "" => line,
            ending => line + ", " + ending,
        }
    }
}

/// `1 pass`, `2 passes`.
fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// A quotient that is 0 where there is nothing to divide by.
pub fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
