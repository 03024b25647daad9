//! `POST /v1/completions`: a text to go on with. The caller composes the whole prompt, so control
//! tokens in it are recognised, and the answer's text is as the model writes it, reasoning tags
//! included.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shamrock_text::{Piece, Prompt, Prompter};
use utoipa::ToSchema;

use crate::api::answer::{Update, What, ask};
use crate::api::body::{read_json, refuse_rest};
use crate::api::chat::{NOTED, StreamOptions, data, with_choice};
use crate::api::error::{ApiError, Dialect, Result};
use crate::api::logprobs;
use crate::api::openapi::replies;
use crate::api::params::{Extension, Params, Stop};
use crate::api::stream::{Encode, stream};
use crate::api::usage::Usage;
use crate::api::{App, Head, reply};

/// Most prompts of one request.
const MAX_PROMPTS: usize = 16;
/// Tokens of an answer when the request does not say: what the OpenAI API has.
const MAX_TOKENS: usize = 16;

/// Body of a completion. Fields that are not listed are refused, unless they ask for nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct CompletionRequest {
    /// Name of the served model, or nothing.
    model: Option<String>,
    prompt: PromptInput,
    /// Reply as server-sent events.
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Most tokens of an answer; 16 if not given.
    #[schema(minimum = 1)]
    max_tokens: Option<usize>,
    #[schema(minimum = 0)]
    temperature: Option<f32>,
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f32>,
    top_k: Option<usize>,
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f32>,
    seed: Option<i64>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    stop: Option<Stop>,
    /// Answers to each prompt.
    #[schema(minimum = 1, maximum = 16)]
    n: Option<usize>,
    /// The probability of every token, with so many of the likeliest in its place, 0 to 20.
    #[schema(maximum = 20)]
    logprobs: Option<usize>,
    /// Added to the logits of token ids, -100 to 100.
    #[schema(value_type = Option<Object>)]
    logit_bias: Option<BTreeMap<String, f32>>,
    /// Options of block diffusion.
    shamrock: Option<Extension>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
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
        content((replies::CompletionReply = "application/json"), (String = "text/event-stream"))
    ))
)]
pub(crate) async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    reply(Dialect::OpenAi, answer(app, request).await)
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response> {
    let request: CompletionRequest = read_json(request, app.options.max_body).await?;
    app.check_model(request.model.as_deref())?;
    request.check()?;
    let streaming = request.stream.unwrap_or(false);
    let include_usage = StreamOptions::usage(request.stream_options, streaming)?;
    let params = Params {
        max_tokens: Some(request.max_tokens.unwrap_or(MAX_TOKENS)),
        temperature: request.temperature,
        top_p: request.top_p,
        top_k: request.top_k,
        min_p: request.min_p,
        seed: request.seed,
        presence_penalty: request.presence_penalty,
        frequency_penalty: request.frequency_penalty,
        repetition_penalty: request.repetition_penalty,
        stop: request.stop.map(Stop::into_vec).unwrap_or_default(),
        n: request.n,
        logprobs: request.logprobs.is_some(),
        top_logprobs: request.logprobs,
        logit_bias: request.logit_bias,
        extension: request.shamrock,
    };
    let plan = params.resolve(&app, "stop").map_err(|error| match error.param.as_deref() {
        Some("top_logprobs") => ApiError { param: Some("logprobs".into()), ..error },
        _ => error,
    })?;
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
        let lengths = Vec::new();
        return Ok(stream(answers, Chunks { head, logprobs, include_usage, usage, lengths }));
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
    let mut object = head.object("text_completion");
    object["choices"] = choices.into();
    object["usage"] = usage.openai();
    if !passes.is_empty() {
        object["shamrock"] = json!({ "events": passes });
    }
    Ok(Json(object).into_response())
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
struct Chunks {
    head: Head,
    /// Whether they are wanted, and whether with alternatives.
    logprobs: Option<bool>,
    include_usage: bool,
    usage: Usage,
    /// Characters of each answer so far.
    lengths: Vec<usize>,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        let mut object = self.head.object("text_completion");
        object["choices"] = choices;
        if self.include_usage {
            object["usage"] = Value::Null;
        }
        object
    }

    fn choice(&self, index: usize, text: &str, logprobs: Option<Value>, finish: Option<&str>) -> Event {
        let choice = json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish });
        data(&self.chunk(json!([choice])))
    }
}

impl Encode for Chunks {
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
            What::Pass(pass) => {
                let mut chunk = self.chunk(json!([]));
                chunk["shamrock"] = with_choice(choice, pass);
                data(&chunk)
            }
            What::End(ended) => {
                self.usage.add(choice, &ended);
                self.choice(choice, "", None, Some(ended.finish_reason()))
            }
        }]
    }

    fn end(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.include_usage {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = self.usage.openai();
            events.push(data(&chunk));
        }
        events.push(Event::default().data("[DONE]"));
        events
    }

    fn error(&mut self, error: ApiError) -> Vec<Event> {
        vec![data(&error.body(Dialect::OpenAi))]
    }
}
