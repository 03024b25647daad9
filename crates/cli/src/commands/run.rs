//! `shamrock run`: one answer, or a chat.

mod chat;
mod form;

use std::io::{IsTerminal, Read, stdin};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::json;
use shamrock_generate::{Grammar, Options, Session, SessionOptions};
use shamrock_model::Executor;
use shamrock_text::{Message, Piece, Prompt, Prompter, RenderOptions};

use crate::engine::{self, EngineArgs};
use crate::generation::{Answer, Audience, GenerationArgs, Generator, Trace};
use crate::interrupt;
use crate::locate::ModelArgs;
use crate::output;
use crate::session_file::{self, SessionFile};
use crate::watch::Watch;

/// Whether to ask the model for reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Thinking {
    On,
    Off,
}

/// Arguments of `run`.
#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Answer this prompt and end; `-` or a piped standard input is read as the prompt
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// System message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The prompt is a plain text to continue, not a chat message
    #[arg(long, conflicts_with_all = ["system", "thinking"])]
    raw: bool,
    /// Ask for reasoning or for none [default: the chat template's choice]
    #[arg(long, value_name = "on|off")]
    thinking: Option<Thinking>,
    /// Print one JSON object when the answer is done (needs a prompt)
    #[arg(long)]
    json: bool,
    /// Watch every block being resolved, on the terminal; afterwards go through its passes
    #[arg(long)]
    watch: bool,
    /// Go on with the conversation in this file, which need not exist, and keep it there
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    session: Option<PathBuf>,
    #[command(flatten)]
    form: form::FormArgs,
    #[command(flatten)]
    generation: GenerationArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// An opened model with everything that answers need.
struct Runner {
    executor: Box<dyn Executor>,
    text: Prompter,
    session: Session,
    options: Options,
    /// What answers are held to.
    grammar: Option<Arc<dyn Grammar>>,
    stops: Vec<String>,
    interrupt: Arc<AtomicBool>,
    trace: Option<Trace>,
    render: RenderOptions,
    /// Draw the answer while it is being made.
    watch: bool,
    /// What the view is headed with.
    title: String,
    saved: Option<SessionFile>,
}

/// Runs the command.
pub fn run(args: RunArgs) -> Result<()> {
    if args.watch {
        Watch::check_terminal()?;
    }
    if let Some(path) = &args.session {
        session_file::check_place(path)?;
    }
    let path = args.model.path()?;
    let model = engine::open(&path)?;
    let text = engine::text_side(&path, &model)?;
    let options = args.generation.options(&model.config)?;
    let grammar = args.form.compile(&text, model.config.vocab_size)?;
    let fingerprint = model.fingerprint();
    let executor = args.engine.executor(model)?;
    let origin = args.engine.origin(fingerprint, &*executor);
    let mut runner = Runner {
        executor,
        text,
        session: Session::new(),
        title: format!("{} · {}", path.display(), options.mode),
        options,
        grammar,
        stops: args.generation.stops().to_vec(),
        interrupt: Arc::new(AtomicBool::new(false)),
        trace: args.generation.trace(&path)?,
        render: RenderOptions {
            enable_thinking: args.thinking.map(|t| t == Thinking::On),
            ..RenderOptions::default()
        },
        watch: args.watch,
        saved: args.session.map(|path| SessionFile::new(path, origin)),
    };
    let mut messages = runner.begin(args.system)?;
    match prompt_text(args.prompt)? {
        Some(prompt) => {
            if runner.saved.is_none() {
                // No second turn will come, so the prompt need not stop at a checkpoint.
                runner.session = Session::with_options(SessionOptions { checkpoints: 0 });
            }
            if runner.watch {
                runner.interrupt = interrupt::on_request_to_end()?;
            }
            let prompt = if args.raw {
                runner.text.raw(&prompt)?
            } else {
                messages.push(Message::new("user", prompt));
                runner.text.chat(&messages, &runner.render)?
            };
            let reply = runner.once(&prompt, args.json)?;
            messages.push(reply);
            runner.save(&messages)
        }
        None => {
            ensure!(!args.raw && !args.json, "--raw and --json need a prompt: give one with -p");
            chat::chat(&mut runner, messages, &path)
        }
    }
}

/// The prompt of a single answer: from the flag, or from a standard input that is not a terminal.
fn prompt_text(flag: Option<String>) -> Result<Option<String>> {
    match flag {
        Some(text) if text != "-" => Ok(Some(text)),
        None if stdin().is_terminal() => Ok(None),
        _ => {
            let mut text = String::new();
            stdin().read_to_string(&mut text).context("reading the prompt from standard input")?;
            Ok(Some(text))
        }
    }
}

impl Runner {
    /// What the conversation begins with: the messages that were saved, or a system message.
    fn begin(&mut self, system: Option<String>) -> Result<Vec<Message>> {
        let system = system.map(|text| Message::new("system", text));
        let messages = match &self.saved {
            Some(file) => file.load(&mut *self.executor, &mut self.session)?,
            None => Vec::new(),
        };
        if messages.is_empty() {
            return Ok(system.into_iter().collect());
        }
        let same = system.is_none() || system.as_ref() == messages.first();
        ensure!(same, "--system: the saved conversation goes on with the system message that it began with");
        Ok(messages)
    }

    fn save(&mut self, messages: &[Message]) -> Result<()> {
        match &self.saved {
            Some(file) => file.save(&mut *self.executor, &self.session, messages),
            None => Ok(()),
        }
    }

    /// One answer; reasoning and the closing line of figures go to standard error, so that
    /// standard output carries the answer alone.
    fn once(&mut self, prompt: &Prompt, as_json: bool) -> Result<Message> {
        if as_json {
            let answer = match self.watch {
                true => self.watched(prompt)?,
                false => self.answer(prompt, &mut |_: &Piece| Ok(()))?,
            };
            let stats = &answer.outcome.stats;
            let object = json!({
                "text": answer.content,
                "reasoning": answer.reasoning,
                "finish": answer.finish(),
                "tokens": answer.outcome.tokens,
                "mode": self.options.mode,
                "tokens_per_pass": crate::generation::ratio(answer.outcome.tokens.len() as f64, stats.deciding as f64),
                "tok_per_s": crate::generation::ratio(answer.outcome.tokens.len() as f64, stats.elapsed.as_secs_f64()),
                "stats": stats,
            });
            output::println(&object.to_string())?;
            return Ok(reply(answer));
        }
        let answer = self.show(prompt)?;
        output::noteln(&dim(&format!("[{}]", answer.summary())));
        Ok(reply(answer))
    }

    /// An answer on standard output, as it is made or, watched, afterwards.
    fn show(&mut self, prompt: &Prompt) -> Result<Answer> {
        let mut display = Display::default();
        let answer = if self.watch {
            let answer = self.watched(prompt)?;
            display.piece(&Piece::Reasoning(answer.reasoning.clone()))?;
            display.piece(&Piece::Content(answer.content.clone()))?;
            answer
        } else {
            self.answer(prompt, &mut display)?
        };
        display.end()?;
        Ok(answer)
    }

    fn watched(&mut self, prompt: &Prompt) -> Result<Answer> {
        let mask = self.executor.config().block.as_ref().map(|block| block.mask_id);
        let mut watch = Watch::open(self.text.tokenizer().clone(), self.title.clone(), mask)?;
        let answer = self.answer(prompt, &mut watch)?;
        watch.browse(&answer, &self.interrupt)?;
        Ok(answer)
    }

    fn answer(&mut self, prompt: &Prompt, audience: &mut dyn Audience) -> Result<Answer> {
        self.options.checkpoints = prompt.stable.into_iter().collect();
        if let Some(grammar) = &self.grammar {
            self.options.constraint = Some(form::constraint(grammar, prompt, &self.text)?);
        }
        let mut generator = Generator {
            executor: &mut *self.executor,
            tokenizer: self.text.tokenizer(),
            session: &mut self.session,
            interrupt: &self.interrupt,
            trace: self.trace.as_mut(),
        };
        generator.answer(&prompt.ids, &self.options, &self.stops, prompt.in_reasoning, audience)
    }
}

/// An answer as a message of the conversation.
fn reply(answer: Answer) -> Message {
    let mut reply = Message::new("assistant", answer.content);
    reply.reasoning_content = Some(answer.reasoning).filter(|r| !r.is_empty());
    reply
}

/// An answer as it comes: content to standard output, reasoning to standard error, each on lines of
/// its own.
#[derive(Default)]
struct Display {
    /// A line of reasoning is open.
    reasoning: bool,
}

impl Audience for Display {
    fn piece(&mut self, piece: &Piece) -> Result<()> {
        match piece {
            Piece::Content(text) => {
                self.end_reasoning();
                output::print(text)?;
            }
            Piece::Reasoning(text) => {
                self.reasoning |= !text.is_empty();
                output::note(&dim(text));
            }
            _ => {}
        }
        Ok(())
    }
}

impl Display {
    fn end(&mut self) -> Result<()> {
        self.end_reasoning();
        output::println("")
    }

    fn end_reasoning(&mut self) {
        if std::mem::take(&mut self.reasoning) {
            output::note("\n");
        }
    }
}

/// Dimmed on a terminal, plain elsewhere.
fn dim(text: &str) -> String {
    if std::io::stderr().is_terminal() { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
}
