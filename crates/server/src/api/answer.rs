//! Between the engine's thread and a reply: tokens become text there, and replies are made here.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use shamrock_generate::{Alternative, Event, Finish, Outcome, Work};
use shamrock_text::{AnswerStream, Detokenizer, Piece, Prompt, StopStrings, Tokenizer, ToolCallSplitter};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::api::App;
use crate::api::error::{ApiError, Result};
use crate::api::logprobs::TokenProb;
use crate::api::params::Plan;
use crate::api::sequel::Sequel;
use crate::engine::{Listener, Request};

/// Something that happened to one of a request's answers.
pub(crate) struct Update {
    /// Which answer.
    pub(crate) choice: usize,
    pub(crate) what: What,
}

pub(crate) enum What {
    /// Text that is final, with its tokens if they were asked for.
    Text { piece: Piece, tokens: Vec<TokenProb> },
    /// A pass, as the extension's event stream shows it.
    Pass(Value),
    /// The answer has ended.
    End(Box<Ended>),
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) outcome: Outcome,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
    pub(crate) reasoning_tokens: usize,
    /// Calls of tools in it.
    pub(crate) calls: usize,
}

impl Ended {
    /// `stop`, `tool_calls` or `length`, as OpenAI says it.
    pub(crate) fn finish_reason(&self) -> &'static str {
        match self.outcome.finish {
            Finish::Length | Finish::Context if self.stop.is_none() => "length",
            // A stop string may have cut a call short.
            _ if self.calls > 0 && self.stop.is_none() => "tool_calls",
            _ => "stop",
        }
    }
}

/// How tokens become text.
enum Decoder {
    /// Reasoning apart.
    Chat(Box<AnswerStream>),
    /// As it comes.
    Raw { detokenizer: Detokenizer, stops: StopStrings },
}

impl Decoder {
    fn push(&mut self, id: u32) -> std::result::Result<(Vec<Piece>, Option<usize>), shamrock_text::Error> {
        match self {
            Decoder::Chat(stream) => stream.push(id).map(|part| (part.pieces, part.stopped)),
            Decoder::Raw { detokenizer, stops } => {
                let found = stops.push(&detokenizer.push(id)?);
                Ok((content(found.text), found.stopped))
            }
        }
    }

    fn finish(&mut self) -> Vec<Piece> {
        match self {
            Decoder::Chat(stream) => stream.finish(),
            Decoder::Raw { detokenizer, stops } => {
                let tail = stops.push(&detokenizer.finish()).text;
                content(tail + &stops.finish())
            }
        }
    }
}

fn content(text: String) -> Vec<Piece> {
    if text.is_empty() { Vec::new() } else { vec![Piece::Content(text)] }
}

/// Hears of one answer on the engine's thread.
struct Choice {
    index: usize,
    sender: UnboundedSender<Message>,
    tokenizer: Tokenizer,
    /// The model's mask token.
    mask: Option<u32>,
    decoder: Decoder,
    plan: Arc<Plan>,
    stopped: Option<usize>,
    /// Tokens that have not become text yet.
    pending: Vec<TokenProb>,
    pending_tokens: usize,
    reasoning_tokens: usize,
    calls: usize,
    failure: Option<shamrock_text::Error>,
    /// The request's time is over.
    late: Arc<AtomicBool>,
}

/// What crosses the threads.
type Message = Result<Update>;

impl Choice {
    fn send(&self, what: What) -> ControlFlow<()> {
        match self.sender.send(Ok(Update { choice: self.index, what })) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn token(&mut self, id: u32, confidence: f32, alternatives: &[Alternative]) -> ControlFlow<()> {
        let (pieces, stopped) = match self.decoder.push(id) {
            Ok(part) => part,
            Err(error) => {
                self.failure = Some(error);
                return ControlFlow::Break(());
            }
        };
        self.pending_tokens += 1;
        if self.plan.logprobs && stopped.is_none() {
            self.pending.push(TokenProb::new(&self.tokenizer, id, confidence, alternatives));
        }
        self.stopped = stopped;
        self.text(pieces)?;
        if stopped.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Sends pieces; the tokens that became them go with the first.
    fn text(&mut self, pieces: Vec<Piece>) -> ControlFlow<()> {
        for piece in pieces {
            let tokens = std::mem::take(&mut self.pending);
            let count = std::mem::take(&mut self.pending_tokens);
            match piece {
                Piece::Reasoning(_) => self.reasoning_tokens += count,
                Piece::CallStart { .. } => self.calls += 1,
                _ => {}
            }
            self.send(What::Text { piece, tokens })?;
        }
        ControlFlow::Continue(())
    }

    fn pass(&self, event: &Event<'_>, work: &Work<'_>) -> ControlFlow<()> {
        let mut value = serde_json::to_value(event).unwrap_or_default();
        let ids: &[u32] = match work {
            Work::Denoise { tokens, .. } => tokens,
            Work::Propose { drafts, .. } | Work::Verify { drafts, .. } => drafts,
            Work::Decode { token, .. } => std::slice::from_ref(token),
            Work::Commit => &[],
        };
        let text = |&id: &u32| self.tokenizer.decode(&[id], false).unwrap_or_default();
        value["text"] = ids.iter().map(text).collect();
        match work {
            Work::Denoise { ids, .. } => {
                value["width"] = json!(ids.len());
                value["open"] = (0..ids.len()).filter(|&row| Some(ids[row]) == self.mask).collect();
            }
            Work::Verify { bonus, .. } => value["bonus_text"] = json!(text(bonus)),
            _ => {}
        }
        self.send(What::Pass(value))
    }
}

impl Listener for Choice {
    fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        match &event {
            Event::Token { id, confidence, alternatives, .. } => self.token(*id, *confidence, alternatives),
            Event::Pass(pass) if self.plan.events => self.pass(&event, &pass.work),
            Event::Pass(_) if self.gone() => ControlFlow::Break(()),
            Event::Pass(_) => ControlFlow::Continue(()),
        }
    }

    fn gone(&self) -> bool {
        self.sender.is_closed()
    }

    fn late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    fn end(mut self: Box<Self>, result: std::result::Result<Outcome, shamrock_generate::Error>) {
        let failure = self.failure.take().map(|error| {
            let message = format!("the answer could not be decoded: {error}");
            ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
        });
        let outcome = match (failure, result) {
            (Some(error), _) => Err(error),
            (None, result) => result.map_err(ApiError::from),
        };
        match outcome {
            Ok(outcome) => {
                let rest = self.decoder.finish();
                if self.text(rest).is_break() {
                    return;
                }
                let stop = self.stopped.map(|which| self.plan.stops[which].clone());
                let (reasoning_tokens, calls) = (self.reasoning_tokens, self.calls);
                // If nobody is there any more, there is nobody to tell.
                let ended = Ended { outcome, stop, reasoning_tokens, calls };
                let _ = self.send(What::End(Box::new(ended)));
            }
            Err(error) => {
                let _ = self.sender.send(Err(error));
            }
        }
    }
}

/// The answers to one request as they come. Dropping it cancels them.
pub(crate) struct Answers {
    receiver: UnboundedReceiver<Message>,
    ready: VecDeque<Message>,
    /// Answers that have not ended.
    open: usize,
    deadline: Instant,
    timeout: Duration,
    late: Arc<AtomicBool>,
    /// What comes after the answer, if it is the only one.
    sequel: Option<Sequel>,
}

/// Submits every prompt `plan.n` times: the answers to prompt `p` have the numbers `p * n ..`.
/// `raw` keeps reasoning in the text.
pub(crate) fn ask(app: &App, prompts: Vec<Prompt>, plan: Plan, raw: bool) -> Result<Answers> {
    let limit = app.engine.limits().max_context;
    let mask = app.engine.config().block.as_ref().map(|block| block.mask_id);
    let (sender, receiver) = unbounded_channel();
    let plan = Arc::new(plan);
    let late = Arc::new(AtomicBool::new(false));
    let (count, capacity) = (prompts.len() * plan.n, app.engine.capacity());
    if count > capacity {
        let problem = format!("{count} answers at once; this server has room for {capacity}");
        return Err(ApiError::field("n", problem).code("unsupported_value"));
    }
    let mut requests = Vec::new();
    for prompt in prompts {
        if prompt.ids.is_empty() {
            return Err(ApiError::from(shamrock_generate::Error::EmptyPrompt));
        }
        if prompt.ids.len() >= limit {
            return Err(ApiError::context_length(prompt.ids.len(), limit));
        }
        for choice in 0..plan.n {
            let tokenizer = app.prompter.tokenizer().clone();
            let decoder = if raw {
                Decoder::Raw {
                    detokenizer: Detokenizer::new(tokenizer.clone(), true),
                    stops: StopStrings::new(&plan.stops),
                }
            } else {
                let stream = AnswerStream::new(tokenizer.clone(), &plan.stops, prompt.in_reasoning);
                Decoder::Chat(Box::new(match &plan.calls {
                    Some((format, tools)) => stream.with_calls(ToolCallSplitter::new(*format, tools.clone())),
                    None => stream,
                }))
            };
            let listener = Box::new(Choice {
                index: requests.len(),
                sender: sender.clone(),
                tokenizer,
                mask,
                decoder,
                plan: plan.clone(),
                stopped: None,
                pending: Vec::new(),
                pending_tokens: 0,
                reasoning_tokens: 0,
                calls: 0,
                failure: None,
                late: late.clone(),
            });
            let mut options = plan.options(choice);
            let held = plan.grammar.as_ref();
            options.constraint =
                held.map(|(grammar, field)| app.constraint(grammar, field, &prompt)).transpose()?;
            options.checkpoints = prompt.stable.into_iter().collect();
            requests.push(Request { prompt: prompt.ids.clone(), options, listener });
        }
    }
    let open = requests.len();
    app.engine.submit(requests)?;
    let timeout = app.options.timeout;
    let deadline = Instant::now() + timeout;
    Ok(Answers { receiver, ready: VecDeque::new(), open, deadline, timeout, late, sequel: None })
}

impl Answers {
    /// The same, with what comes after the answer.
    pub(crate) fn with_sequel(self, sequel: Option<Sequel>) -> Answers {
        Answers { sequel: sequel.filter(|_| self.open == 1), ..self }
    }

    /// The next update; `None` after the end of the last answer.
    ///
    /// # Errors
    /// When an answer fails or the time is over. Nothing comes after an error.
    pub(crate) async fn next(&mut self) -> Option<Result<Update>> {
        if self.open == 0 {
            return None;
        }
        let message = match self.ready.pop_front() {
            Some(message) => message,
            // A stream that always has something ready would never time out below.
            None if Instant::now() > self.deadline => Err(self.give_up()),
            None => match tokio::time::timeout_at(self.deadline, self.receiver.recv()).await {
                Ok(Some(message)) => message,
                Ok(None) => Err(ApiError::stopped()),
                Err(_) => Err(self.give_up()),
            },
        };
        match &message {
            Ok(Update { what: What::End(_), .. }) => self.open -= 1,
            Ok(_) => {}
            Err(_) => self.open = 0,
        }
        let message = self.merge(message);
        match (&message, &mut self.sequel) {
            (Ok(Update { what: What::Text { piece, .. }, .. }), Some(sequel)) => sequel.hear(piece),
            (Ok(Update { what: What::End(ended), .. }), sequel) => {
                if let Some(sequel) = sequel.take() {
                    sequel.foresee(ended);
                }
            }
            _ => {}
        }
        Some(message)
    }

    /// Whoever drops these answers now does so because their time is over.
    fn give_up(&self) -> ApiError {
        self.late.store(true, Ordering::Relaxed);
        ApiError::timeout(self.timeout.as_secs())
    }

    /// Joins what has already come of the same kind of text: a block is one piece, not 32.
    fn merge(&mut self, message: Message) -> Message {
        let Ok(Update { choice, what: What::Text { mut piece, mut tokens } }) = message else {
            return message;
        };
        while let Ok(next) = self.receiver.try_recv() {
            match next {
                Ok(Update { choice: other, what: What::Text { piece: more, tokens: with } })
                    if other == choice && join(&mut piece, &more) =>
                {
                    tokens.extend(with);
                }
                other => {
                    self.ready.push_back(other);
                    break;
                }
            }
        }
        Ok(Update { choice, what: What::Text { piece, tokens } })
    }

    /// Waits for every answer to end.
    pub(crate) async fn collect(mut self) -> Result<Vec<Collected>> {
        let mut all: Vec<Collected> = (0..self.open).map(|_| Collected::default()).collect();
        while let Some(update) = self.next().await {
            let Update { choice, what } = update?;
            all[choice].take(what);
        }
        Ok(all)
    }
}

/// Appends text of the same kind.
fn join(piece: &mut Piece, more: &Piece) -> bool {
    match (piece, more) {
        (Piece::Content(text), Piece::Content(more))
        | (Piece::Reasoning(text), Piece::Reasoning(more))
        | (Piece::CallArguments(text), Piece::CallArguments(more)) => {
            text.push_str(more);
            true
        }
        _ => false,
    }
}

/// A call of a tool.
pub(crate) struct Call {
    pub(crate) name: String,
    /// JSON, unless the answer was cut.
    pub(crate) arguments: String,
}

/// A whole answer.
#[derive(Default)]
pub(crate) struct Collected {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<Call>,
    /// Of the content.
    pub(crate) tokens: Vec<TokenProb>,
    pub(crate) passes: Vec<Value>,
    pub(crate) ended: Option<Ended>,
}

impl Collected {
    fn take(&mut self, what: What) {
        match what {
            What::Text { piece: Piece::Content(text), tokens } => {
                self.content.push_str(&text);
                self.tokens.extend(tokens);
            }
            What::Text { piece: Piece::Reasoning(text), .. } => self.reasoning.push_str(&text),
            What::Text { piece: Piece::CallStart { name }, .. } => {
                self.calls.push(Call { name, arguments: String::new() });
            }
            What::Text { piece: Piece::CallArguments(text), .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
            What::Text { .. } => {}
            What::Pass(pass) => self.passes.push(pass),
            What::End(ended) => self.ended = Some(*ended),
        }
    }
}
