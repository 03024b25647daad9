//! `POST /v1/completions`: a text to go on with. The caller composes the whole prompt, so control
//! tokens in it are recognised, and the answer's text is as the model writes it, reasoning tags
//! included.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shamrock_text::{Piece, Prompt, Prompter};
use utoipa::ToSchema;

use crate::api::answer::{Update, What, ask};
use crate::api::body::{NOTED, read_json, refuse_rest};
use crate::api::chunks::{Chunks, StreamOptions, whole, with_choice};
use crate::api::error::{ApiError, Dialect, Result};
use crate::api::logprobs;
use crate::api::openapi::replies;
use crate::api::params::{Extension, Names, Params, Stop, with_common_fields};
use crate::api::stream::{Encode, stream};
use crate::api::usage::Usage;
use crate::api::{App, Head, reply};

/// Most prompts of one request.
const MAX_PROMPTS: usize = 16;
/// Tokens of an answer when the request does not say: what the OpenAI API has.
const MAX_TOKENS: usize = 16;

/// What a reply and a chunk are called.
const KIND: &str = "text_completion";
const NAMES: Names = Names { max_tokens: "max_tokens", stop: "stop", top_logprobs: "logprobs" };

with_common_fields! {
    /// Body of a completion. Fields that are not listed are refused, unless they ask for nothing.
    #[derive(Debug, Deserialize, ToSchema)]
    #[serde(expecting = "an object")]
    pub(crate) struct CompletionRequest {
        prompt: PromptInput,
        /// Most tokens of an answer; 16 if not given.
        #[schema(minimum = 1)]
        max_tokens: Option<usize>,
        /// The probability of every token, with so many of the likeliest in its place, 0 to 20.
        #[schema(maximum = 20)]
        logprobs: Option<usize>,
    }
}

/// A text, token ids, or several of either.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a string, a list of token ids, or a list of either")]
enum PromptInput {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    ManyIds(Vec<Vec<u32>>),
}

impl PromptInput {
    fn len(&self) -> usize {
        match self {
            PromptInput::Text(_) | PromptInput::Ids(_) => 1,
            PromptInput::Texts(texts) => texts.len(),
            PromptInput::ManyIds(many) => many.len(),
        }
    }

    fn encode(self, prompter: &Prompter) -> std::result::Result<Vec<Prompt>, shamrock_text::Error> {
        let ids = |ids| Prompt { ids, stable: None, in_reasoning: false };
        match self {
            PromptInput::Text(text) => Ok(vec![prompter.raw(&text)?]),
            PromptInput::Ids(prompt) => Ok(vec![ids(prompt)]),
            PromptInput::Texts(texts) => texts.iter().map(|text| prompter.raw(text)).collect(),
            PromptInput::ManyIds(many) => Ok(many.into_iter().map(ids).collect()),
        }
    }
}

/// Continues a text.
#[utoipa::path(
    post,
    path = "/v1/completions",
    request_body = CompletionRequest,
    responses((
        status = 200,
        description = "A text_completion object, or such objects as events",
        content((replies::CompletionReply = "application/json"), (replies::CompletionEvent = "text/event-stream"))
    ))
)]
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    reply(Dialect::OpenAi, answer(app, request).await)
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response> {
    let mut request: CompletionRequest = read_json(request, &app.options).await?;
    app.check_model(request.model.as_deref())?;
    request.check()?;
    let common = request.common();
    let streaming = request.stream.unwrap_or(false);
    let include_usage = StreamOptions::usage(request.stream_options, streaming)?;
    let params = Params {
        max_tokens: Some(request.max_tokens.unwrap_or(MAX_TOKENS)),
        logprobs: request.logprobs.is_some(),
        top_logprobs: request.logprobs,
        ..common
    };
    let plan = params.resolve(&app, NAMES)?;
    let vocab = app.engine.config().vocab_size;
    let input = request.prompt;
    let prompts = app.prompt(move |prompter| input.encode(prompter)).await.map_err(at_prompt)?;
    if let Some(id) = prompts.iter().flat_map(|p| &p.ids).find(|&&id| id as usize >= vocab) {
        return Err(ApiError::field("prompt", format!("{id} is outside the vocabulary of {vocab}")));
    }
    let head = Head::new(&app, "cmpl-");
    let logprobs = plan.logprobs.then_some(plan.top_logprobs > 0);
    let mut usage = Usage::new(plan.mode(), plan.n);
    let answers = ask(&app, prompts, plan, true).map_err(at_prompt)?;
    if streaming {
        let chunks = Chunks::new(head, KIND, include_usage, usage);
        return Ok(stream(answers, Texts { chunks, logprobs, lengths: Vec::new() }));
    }
    let mut choices = Vec::new();
    let mut passes = Vec::new();
    for (index, answer) in answers.collect().await?.into_iter().enumerate() {
        let ended = answer.ended.ok_or_else(ApiError::stopped)?;
        usage.add(index, &ended);
        choices.push(json!({
            "index": index,
            "text": answer.content,
            "logprobs": logprobs.map(|top| logprobs::completion(&answer.tokens, 0, top)),
            "finish_reason": ended.finish_reason(),
        }));
        passes.extend(answer.passes.into_iter().map(|pass| with_choice(index, pass)));
    }
    Ok(whole(&head, KIND, choices, &usage, passes))
}

impl CompletionRequest {
    fn check(&self) -> Result<()> {
        let neutral = [("best_of", json!(1)), ("echo", json!(false)), ("suffix", json!(""))];
        refuse_rest(&self.rest, NOTED, &neutral)?;
        let prompts = self.prompt.len();
        if !(1..=MAX_PROMPTS).contains(&prompts) {
            return Err(ApiError::field(
                "prompt",
                format!("{prompts} prompts are out of range 1..={MAX_PROMPTS}"),
            ));
        }
        Ok(())
    }
}

/// What elsewhere is wrong with messages is wrong with the prompt here.
fn at_prompt(error: ApiError) -> ApiError {
    match error.param.as_deref() {
        Some("messages") => ApiError { param: Some("prompt".into()), ..error },
        _ => error,
    }
}

/// `text_completion` events.
struct Texts {
    chunks: Chunks,
    /// Whether they are wanted, and whether with alternatives.
    logprobs: Option<bool>,
    /// Characters of each answer so far.
    lengths: Vec<usize>,
}

impl Texts {
    fn choice(&self, index: usize, text: &str, logprobs: Option<Value>, finish: Option<&str>) -> Event {
        let choice = json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish });
        self.chunks.choice(choice)
    }
}

impl Encode for Texts {
    fn begin(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn update(&mut self, Update { choice, what }: Update) -> Vec<Event> {
        vec![match what {
            What::Text { piece: Piece::Content(text), tokens } => {
                if self.lengths.len() <= choice {
                    self.lengths.resize(choice + 1, 0);
                }
                let length = self.lengths[choice];
                let logprobs = self.logprobs.map(|top| logprobs::completion(&tokens, length, top));
                self.lengths[choice] += text.chars().count();
                self.choice(choice, &text, logprobs, None)
            }
            What::Text { .. } => return Vec::new(),
            What::Pass(pass) => self.chunks.pass(choice, pass),
            What::End(ended) => {
                self.chunks.count(choice, &ended);
                self.choice(choice, "", None, Some(ended.finish_reason()))
            }
        }]
    }

    fn end(&mut self) -> Vec<Event> {
        self.chunks.end()
    }

    fn error(&mut self, error: ApiError) -> Vec<Event> {
        Chunks::error(&error)
    }
}
