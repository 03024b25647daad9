//! `POST /v1/chat/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shamrock_text::{Message, Piece};
use utoipa::ToSchema;

use crate::api::answer::{Call, Update, What, ask};
use crate::api::body::{read_json, refuse_rest};
use crate::api::conversation::{message, render_options, text_of};
use crate::api::error::{ApiError, Dialect, Result};
use crate::api::format::ResponseFormat;
use crate::api::logprobs;
use crate::api::openapi::replies;
use crate::api::params::{Extension, Params, Stop};
use crate::api::stream::{Encode, stream};
use crate::api::tools::{ChatTool, ToolChoice, ToolUse, past_call};
use crate::api::usage::Usage;
use crate::api::{App, Head, reply};
use crate::random::id;

/// Body of a chat completion. Fields that are not listed are refused, unless they are `null` or ask
/// for nothing (`user`, `metadata`, `store: false`, ...).
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct ChatRequest {
    /// Name of the served model, or nothing.
    model: Option<String>,
    /// The conversation.
    messages: Vec<ChatMessage>,
    /// Reply as server-sent events.
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// Most tokens of an answer.
    #[schema(minimum = 1)]
    max_completion_tokens: Option<usize>,
    /// The same under its older name.
    #[schema(minimum = 1)]
    max_tokens: Option<usize>,
    #[schema(minimum = 0)]
    temperature: Option<f32>,
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f32>,
    /// Most candidates of a draw; 0 sets no limit.
    top_k: Option<usize>,
    /// Drop candidates less likely than this share of the likeliest.
    #[schema(minimum = 0, maximum = 1)]
    min_p: Option<f32>,
    seed: Option<i64>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    /// Divides positive and multiplies negative logits of tokens already in the answer.
    repetition_penalty: Option<f32>,
    stop: Option<Stop>,
    /// Answers to give.
    #[schema(minimum = 1, maximum = 16)]
    n: Option<usize>,
    /// Give the probability of every token of the content.
    logprobs: Option<bool>,
    /// With `logprobs`: tell so many of the likeliest tokens in each place, 0 to 20.
    #[schema(maximum = 20)]
    top_logprobs: Option<usize>,
    /// Added to the logits of token ids, -100 to 100.
    #[schema(value_type = Option<Object>)]
    logit_bias: Option<BTreeMap<String, f32>>,
    /// What the answer must be.
    response_format: Option<ResponseFormat>,
    /// Functions that the model may call.
    tools: Option<Vec<ChatTool>>,
    /// `auto`, `none`, `required` or a function.
    tool_choice: Option<ToolChoice>,
    /// Allow several calls in one answer.
    parallel_tool_calls: Option<bool>,
    /// `none`, `minimal`, `low`, `medium` or `high`; all but `none` ask for reasoning.
    reasoning_effort: Option<String>,
    /// Variables of the chat template, `enable_thinking` among them.
    #[schema(value_type = Option<Object>)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Options of block diffusion.
    shamrock: Option<Extension>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// One message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    role: String,
    /// A string, or an array of `{"type": "text", "text": ...}`.
    #[serde(default)]
    content: Value,
    /// Reasoning of an assistant's turn.
    reasoning_content: Option<String>,
    /// Who speaks; the template may use it.
    name: Option<String>,
    tool_calls: Option<Vec<PastCall>>,
    tool_call_id: Option<String>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// A call of an earlier turn.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct PastCall {
    id: String,
    /// `function`.
    #[serde(rename = "type")]
    kind: Option<String>,
    function: PastFunction,
    /// Place in a stream.
    #[serde(rename = "index")]
    _index: Option<usize>,
}

/// What was called.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct PastFunction {
    name: String,
    /// JSON.
    arguments: String,
}

/// What a stream has beside the answer.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct StreamOptions {
    /// End with a chunk that carries the usage.
    #[serde(default)]
    pub(crate) include_usage: bool,
    /// Padding against traffic analysis; must be off.
    #[serde(default)]
    include_obfuscation: bool,
}

impl StreamOptions {
    /// Whether the usage is wanted; checks that nothing else is.
    pub(crate) fn usage(options: Option<StreamOptions>, streaming: bool) -> Result<bool> {
        let StreamOptions { include_usage, include_obfuscation } = options.unwrap_or_default();
        if include_obfuscation {
            return Err(ApiError::field("stream_options.include_obfuscation", "is not supported"));
        }
        if include_usage && !streaming {
            return Err(ApiError::field("stream_options", "needs `stream`"));
        }
        Ok(include_usage)
    }
}

/// Fields that are for others than the model.
pub(crate) const NOTED: &[&str] = &["user", "metadata", "safety_identifier", "prompt_cache_key"];

/// Answers a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    request_body = ChatRequest,
    responses((
        status = 200,
        description = "A chat.completion object, or chat.completion.chunk events",
        content((replies::ChatReply = "application/json"), (String = "text/event-stream"))
    ))
)]
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    reply(Dialect::OpenAi, answer(app, request).await)
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response> {
    let request: ChatRequest = read_json(request, app.options.max_body).await?;
    app.check_model(request.model.as_deref())?;
    request.check_rest()?;
    let messages = messages(&request.messages)?;
    let effort = request.reasoning_effort.as_deref();
    let mut render = render_options(&app.prompter, effort, request.chat_template_kwargs)?;
    let tools =
        ToolUse::chat(request.tools.unwrap_or_default(), request.tool_choice, request.parallel_tool_calls)?;
    render.tools = tools.told();
    let streaming = request.stream.unwrap_or(false);
    let include_usage = StreamOptions::usage(request.stream_options, streaming)?;
    let max_tokens = request.max_completion_tokens.or(request.max_tokens);
    if request.max_tokens.is_some_and(|older| Some(older) != max_tokens) {
        return Err(ApiError::field("max_tokens", "contradicts max_completion_tokens"));
    }
    let params = Params {
        max_tokens,
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
        logprobs: request.logprobs.unwrap_or(false),
        top_logprobs: request.top_logprobs,
        logit_bias: request.logit_bias,
        extension: request.shamrock,
    };
    let mut plan = params.resolve(&app, "stop")?;
    if plan.top_logprobs > 0 && !plan.logprobs {
        return Err(ApiError::field("top_logprobs", "needs `logprobs`"));
    }
    let form = request.response_format.and_then(ResponseFormat::source);
    tools.plan(&app, &mut plan, form, "response_format").await?;
    let prompt = app.prompt(move |prompter| prompter.chat(&messages, &render)).await?;
    let head = Head::new(&app, "chatcmpl-");
    let (logprobs, usage) = (plan.logprobs, Usage::new(plan.mode(), plan.n));
    let choices = plan.n;
    let answers = ask(&app, vec![prompt], plan, false)?;
    if streaming {
        let calls = vec![0; choices];
        let chunks = Chunks { head, choices, logprobs, include_usage, usage, calls };
        return Ok(stream(answers, chunks));
    }
    let mut usage = usage;
    let mut choices = Vec::new();
    let mut passes = Vec::new();
    for (index, answer) in answers.collect().await?.into_iter().enumerate() {
        let ended = answer.ended.ok_or_else(ApiError::stopped)?;
        usage.add(index, &ended);
        let mut message = json!({ "role": "assistant", "content": answer.content, "refusal": null });
        if !answer.reasoning.is_empty() {
            message["reasoning_content"] = answer.reasoning.into();
        }
        if !answer.calls.is_empty() {
            if answer.content.is_empty() {
                message["content"] = Value::Null;
            }
            message["tool_calls"] = answer.calls.iter().map(tool_call).collect();
        }
        choices.push(json!({
            "index": index,
            "message": message,
            "logprobs": logprobs.then(|| logprobs::chat(&answer.tokens)),
            "finish_reason": ended.finish_reason(),
        }));
        passes.extend(answer.passes.into_iter().map(|pass| with_choice(index, pass)));
    }
    let mut object = head.object("chat.completion");
    object["choices"] = choices.into();
    object["usage"] = usage.openai();
    if !passes.is_empty() {
        object["shamrock"] = json!({ "events": passes });
    }
    Ok(Json(object).into_response())
}

impl ChatRequest {
    fn check_rest(&self) -> Result<()> {
        refuse_rest(
            &self.rest,
            NOTED,
            &[
                ("audio", Value::Null),
                ("function_call", json!("none")),
                ("functions", json!([])),
                ("modalities", json!(["text"])),
                ("service_tier", json!("auto")),
                ("store", json!(false)),
                ("verbosity", json!("medium")),
            ],
        )
    }
}

fn messages(messages: &[ChatMessage]) -> Result<Vec<Message>> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "at least one message is needed"));
    }
    let convert = |(i, given): (usize, &ChatMessage)| {
        let path = format!("messages[{i}]");
        refuse_rest(&given.rest, &["refusal", "annotations"], &[]).map_err(|e| ApiError {
            param: e.param.as_ref().map(|field| format!("{path}.{field}")),
            message: format!("{path}.{}", e.message),
            ..e
        })?;
        let mut converted =
            message(&given.role, text_of(&given.content, &format!("{path}.content"))?, &path)?;
        if given.content.is_null() && given.tool_calls.is_some() {
            converted.content = Value::Null;
        }
        converted.reasoning_content = given.reasoning_content.clone();
        converted.name = given.name.clone();
        if let Some(calls) = &given.tool_calls {
            if given.role != "assistant" {
                return Err(ApiError::field(format!("{path}.tool_calls"), "are the assistant's to make"));
            }
            if let Some(at) =
                calls.iter().position(|call| call.kind.as_deref().is_some_and(|k| k != "function"))
            {
                return Err(ApiError::field(format!("{path}.tool_calls[{at}].type"), "must be `function`"));
            }
            let call = |call: &PastCall| {
                past_call(&call.id, &call.function.name, &call.function.arguments.as_str().into())
            };
            converted.tool_calls = Some(calls.iter().map(call).collect()).filter(|_| !calls.is_empty());
        }
        converted.tool_call_id = given.tool_call_id.clone();
        Ok(converted)
    };
    messages.iter().enumerate().map(convert).collect()
}

fn tool_call(call: &Call) -> Value {
    json!({
        "id": id("call_"),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

pub(crate) fn with_choice(index: usize, mut pass: Value) -> Value {
    pass["choice"] = index.into();
    pass
}

/// `chat.completion.chunk` events.
struct Chunks {
    head: Head,
    choices: usize,
    logprobs: bool,
    include_usage: bool,
    usage: Usage,
    /// Calls of each answer so far.
    calls: Vec<usize>,
}

impl Chunks {
    fn chunk(&self, choices: Value) -> Value {
        let mut object = self.head.object("chat.completion.chunk");
        object["choices"] = choices;
        if self.include_usage {
            object["usage"] = Value::Null;
        }
        object
    }

    fn delta(&self, index: usize, delta: Value, logprobs: Option<Value>, finish: Option<&str>) -> Event {
        let choice = json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        data(&self.chunk(json!([choice])))
    }
}

/// An event with JSON data and no name.
pub(crate) fn data(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

impl Encode for Chunks {
    fn begin(&mut self) -> Vec<Event> {
        let opening = json!({ "role": "assistant", "content": "" });
        (0..self.choices).map(|index| self.delta(index, opening.clone(), None, None)).collect()
    }

    fn update(&mut self, Update { choice, what }: Update) -> Vec<Event> {
        vec![match what {
            What::Text { piece: Piece::Content(text), tokens } => {
                let logprobs = self.logprobs.then(|| logprobs::chat(&tokens));
                self.delta(choice, json!({ "content": text }), logprobs, None)
            }
            What::Text { piece: Piece::Reasoning(text), .. } => {
                self.delta(choice, json!({ "reasoning_content": text }), None, None)
            }
            What::Text { piece: Piece::CallStart { name }, .. } => {
                let index = self.calls[choice];
                self.calls[choice] += 1;
                let function = json!({ "name": name, "arguments": "" });
                let call =
                    json!({ "index": index, "id": id("call_"), "type": "function", "function": function });
                self.delta(choice, json!({ "tool_calls": [call] }), None, None)
            }
            What::Text { piece: Piece::CallArguments(text), .. } => {
                let index = self.calls[choice].saturating_sub(1);
                let call = json!({ "index": index, "function": { "arguments": text } });
                self.delta(choice, json!({ "tool_calls": [call] }), None, None)
            }
            What::Text { .. } => return Vec::new(),
            What::Pass(pass) => {
                let mut chunk = self.chunk(json!([]));
                chunk["shamrock"] = with_choice(choice, pass);
                data(&chunk)
            }
            What::End(ended) => {
                self.usage.add(choice, &ended);
                self.delta(choice, json!({}), None, Some(ended.finish_reason()))
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
