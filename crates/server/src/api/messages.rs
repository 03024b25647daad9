//! `POST /v1/messages` and `/v1/messages/count_tokens`: the Anthropic API.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shamrock_generate::Finish;
use shamrock_text::{Message, Piece, RenderOptions};
use utoipa::ToSchema;

use crate::api::answer::{Ended, Update, What, ask};
use crate::api::body::{read_json, refuse_rest};
use crate::api::conversation::{check_results, check_thinking, message, only, part_text, string, text_of};
use crate::api::error::{ApiError, Dialect, Result};
use crate::api::format::TextFormat;
use crate::api::openapi::{bodies, replies};
use crate::api::params::{Extension, Names, Params};
use crate::api::sequel::{Conversation, Sequel};
use crate::api::stream::{Encode, stream};
use crate::api::tools::{MessageChoice, MessageTool, ToolUse, past_call};
use crate::api::usage::Usage;
use crate::api::{App, reply};
use crate::random::id;

const NAMES: Names = Names { max_tokens: "max_tokens", stop: "stop_sequences", top_logprobs: "top_logprobs" };

/// Body of a message. Fields that are not listed are refused, unless they ask for nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct MessagesRequest {
    /// Name of the served model.
    model: String,
    messages: Vec<MessageInput>,
    /// System message.
    #[serde(default)]
    #[schema(value_type = Option<bodies::Content>)]
    system: Value,
    /// Most tokens of the answer, reasoning included. Required, but by `count_tokens`.
    #[schema(minimum = 1)]
    max_tokens: Option<usize>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    #[schema(minimum = 0)]
    temperature: Option<f32>,
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f32>,
    top_k: Option<usize>,
    thinking: Option<Thinking>,
    /// Functions that the model may call.
    tools: Option<Vec<MessageTool>>,
    tool_choice: Option<MessageChoice>,
    /// What the text must be.
    output_config: Option<OutputConfig>,
    /// Options of block diffusion.
    shamrock: Option<Extension>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// The text's form.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct OutputConfig {
    format: Option<TextFormat>,
}

/// One turn.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct MessageInput {
    /// `user` or `assistant`.
    role: String,
    #[schema(value_type = bodies::TurnContent)]
    content: Value,
}

/// Whether to reason. The budget is a target of that API; what is certain is `max_tokens`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields, expecting = "an object")]
enum Thinking {
    Enabled {
        #[serde(rename = "budget_tokens")]
        _budget_tokens: Option<u32>,
    },
    Adaptive {},
    Disabled {},
}

/// Answers a conversation.
#[utoipa::path(
    post,
    path = "/v1/messages",
    request_body = MessagesRequest,
    responses((
        status = 200,
        description = "A message object, or the events of one",
        content((replies::MessageReply = "application/json"), (replies::MessageEvent = "text/event-stream"))
    ))
)]
pub(crate) async fn messages(State(app): State<Arc<App>>, request: Request) -> Response {
    reply(Dialect::Anthropic, answer(app, request).await)
}

/// Counts the tokens of a conversation.
#[utoipa::path(
    post,
    path = "/v1/messages/count_tokens",
    request_body = MessagesRequest,
    responses((status = 200, description = "The number of input tokens", body = replies::CountReply))
)]
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Response {
    reply(Dialect::Anthropic, count(app, request).await)
}

async fn count(app: Arc<App>, request: Request) -> Result<Response> {
    let mut request: MessagesRequest = read_json(request, &app.options).await?;
    request.asks_only_to_count()?;
    let tools = request.tools()?;
    let (messages, render) = request.conversation(&app, &tools)?;
    let prompt = Arc::new(Conversation { messages, render }).prompt(&app).await?;
    Ok(Json(json!({ "input_tokens": prompt.ids.len() })).into_response())
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response> {
    let mut request: MessagesRequest = read_json(request, &app.options).await?;
    let tools = request.tools()?;
    let (messages, render) = request.conversation(&app, &tools)?;
    request.max_tokens.ok_or_else(|| ApiError::missing("max_tokens"))?;
    let mut plan = request.params().resolve(&app, NAMES)?;
    let form = request.output_config.and_then(|config| config.format).and_then(TextFormat::source);
    tools.plan(&app, &mut plan, form, "output_config.format").await?;
    let conversation = Arc::new(Conversation { messages, render });
    let prompt = conversation.prompt(&app).await?;
    let events = Events {
        id: id("msg_"),
        model: app.options.name.clone(),
        prompt_tokens: prompt.ids.len(),
        usage: Usage::new(plan.mode(), 1),
        open: None,
        next: 0,
        ended: None,
    };
    let answers = ask(&app, vec![prompt], plan, false)?.with_sequel(Sequel::new(&app, &conversation));
    if request.stream.unwrap_or(false) {
        return Ok(stream(answers, events));
    }
    let answer = answers.collect().await?.pop().ok_or_else(ApiError::stopped)?;
    let ended = answer.ended.ok_or_else(ApiError::stopped)?;
    let mut content = Vec::new();
    if !answer.reasoning.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": answer.reasoning, "signature": "" }));
    }
    if !answer.content.is_empty() || content.is_empty() && answer.calls.is_empty() {
        content.push(json!({ "type": "text", "text": answer.content }));
    }
    for call in answer.calls {
        // A call that was cut has no input to show.
        let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        content.push(json!({ "type": "tool_use", "id": id("toolu_"), "name": call.name, "input": input }));
    }
    let mut object = events.message();
    let mut usage = events.usage;
    usage.add(0, &ended);
    object["content"] = content.into();
    object["stop_reason"] = stop_reason(&ended).into();
    object["stop_sequence"] = ended.stop.clone().into();
    object["usage"] = usage_of(&usage);
    if !answer.passes.is_empty() {
        object["shamrock"] = json!({ "events": answer.passes });
    }
    Ok(Json(object).into_response())
}

impl MessagesRequest {
    /// Refuses what is about an answer: there will be none.
    fn asks_only_to_count(&self) -> Result<()> {
        let about_an_answer = [
            ("max_tokens", self.max_tokens.is_some()),
            ("stop_sequences", self.stop_sequences.is_some()),
            ("stream", self.stream.is_some()),
            ("temperature", self.temperature.is_some()),
            ("top_p", self.top_p.is_some()),
            ("top_k", self.top_k.is_some()),
            ("shamrock", self.shamrock.is_some()),
        ];
        match about_an_answer.into_iter().find(|(_, given)| *given) {
            Some((name, _)) => {
                Err(ApiError::field(name, "is about an answer, and tokens are only counted here")
                    .code("unsupported_parameter"))
            }
            None => Ok(()),
        }
    }

    fn tools(&mut self) -> Result<ToolUse> {
        ToolUse::message(self.tools.take().unwrap_or_default(), self.tool_choice.take())
    }

    fn params(&mut self) -> Params {
        Params {
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            stop: self.stop_sequences.take().unwrap_or_default(),
            extension: self.shamrock.take(),
            ..Params::default()
        }
    }

    fn conversation(&self, app: &App, tools: &ToolUse) -> Result<(Vec<Message>, RenderOptions)> {
        app.check_model(Some(&self.model))?;
        let neutral = [
            ("container", Value::Null),
            ("mcp_servers", json!([])),
            ("service_tier", json!("auto")),
            ("service_tier", json!("standard_only")),
        ];
        // Prefixes are kept anyway, so there is nothing to do for `cache_control`.
        refuse_rest(&self.rest, &["metadata", "cache_control"], &neutral)?;
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "at least one message is needed"));
        }
        let mut messages = Vec::new();
        if !self.system.is_null() {
            messages.push(message("system", text_of(&self.system, "system")?, "system")?);
        }
        for (i, given) in self.messages.iter().enumerate() {
            given.convert(&format!("messages[{i}]"), &mut messages)?;
        }
        if self.messages.last().is_some_and(|last| last.role == "assistant") {
            let last = self.messages.len() - 1;
            let problem = "the last turn must be the user's: an answer cannot be begun for the model";
            return Err(ApiError::field(format!("messages[{last}].role"), problem).code("unsupported_value"));
        }
        check_results(&messages, "messages")?;
        let enable_thinking =
            self.thinking.as_ref().map(|thinking| !matches!(thinking, Thinking::Disabled {}));
        check_thinking(&app.prompter, enable_thinking, "thinking")?;
        Ok((messages, RenderOptions { enable_thinking, tools: tools.told(), ..RenderOptions::default() }))
    }
}

impl MessageInput {
    /// Adds the messages that the turn is for templates: results of tools stand before what the user
    /// says to them.
    fn convert(&self, path: &str, messages: &mut Vec<Message>) -> Result<()> {
        let by_assistant = match self.role.as_str() {
            "user" => false,
            "assistant" => true,
            role => {
                let problem = format!("{role:?} is none of user, assistant");
                return Err(ApiError::field(format!("{path}.role"), problem));
            }
        };
        let Value::Array(blocks) = &self.content else {
            messages.push(message(&self.role, text_of(&self.content, &format!("{path}.content"))?, path)?);
            return Ok(());
        };
        let (mut reasoning, mut said, mut calls) = (String::new(), String::new(), Vec::new());
        let mut results = 0;
        for (i, block) in blocks.iter().enumerate() {
            let path = format!("{path}.content[{i}]");
            match block.get("type").and_then(Value::as_str).unwrap_or_default() {
                "thinking" if by_assistant => {
                    only(block, &["type", "thinking"], &["signature"], &path)?;
                    reasoning.push_str(string(block, "thinking", &path)?);
                }
                "tool_use" if by_assistant => {
                    only(block, &["type", "id", "name", "input", "caller"], &["cache_control"], &path)?;
                    let input = block.get("input").cloned().unwrap_or_else(|| json!({}));
                    let (id, name) = (string(block, "id", &path)?, string(block, "name", &path)?);
                    calls.push(past_call(id, name, &input));
                }
                "tool_result" if !by_assistant => {
                    let known = ["type", "tool_use_id", "content", "is_error"];
                    only(block, &known, &["cache_control"], &path)?;
                    let content = block.get("content").cloned().unwrap_or_default();
                    let mut said = text_of(&content, &format!("{path}.content"))?;
                    match block.get("is_error") {
                        // Templates have no other place for it.
                        Some(Value::Bool(true)) => said.insert_str(0, "Error: "),
                        None | Some(Value::Null | Value::Bool(false)) => {}
                        Some(_) => {
                            let field = format!("{path}.is_error");
                            return Err(ApiError::wrong_type(field, "must be a boolean"));
                        }
                    }
                    let mut result = message("tool", said, &path)?;
                    result.tool_call_id = Some(string(block, "tool_use_id", &path)?.to_owned());
                    messages.push(result);
                    results += 1;
                }
                _ => said.push_str(part_text(block, &path)?),
            }
        }
        if said.is_empty() && results > 0 {
            return Ok(());
        }
        let mut converted = message(&self.role, said, path)?;
        converted.reasoning_content = Some(reasoning).filter(|text| !text.is_empty());
        converted.tool_calls = Some(Value::Array(calls)).filter(|calls| *calls != json!([]));
        messages.push(converted);
        Ok(())
    }
}

fn stop_reason(ended: &Ended) -> &'static str {
    match ended.outcome.finish {
        _ if ended.stop.is_some() => "stop_sequence",
        Finish::Length | Finish::Context => "max_tokens",
        _ if ended.calls > 0 => "tool_use",
        Finish::Stop { .. } | Finish::Cancelled => "end_turn",
    }
}

/// That API counts what came from a cache apart.
fn usage_of(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "shamrock": usage.extension(),
    })
}

/// The events of one message.
struct Events {
    id: String,
    model: String,
    prompt_tokens: usize,
    usage: Usage,
    /// Kind of the content block that is open, and its index.
    open: Option<(&'static str, usize)>,
    /// Index of the next block.
    next: usize,
    ended: Option<Ended>,
}

impl Events {
    fn message(&self) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": { "input_tokens": self.prompt_tokens, "output_tokens": 0 },
        })
    }

    /// The opening of a block of a kind, unless it is open.
    fn open(&mut self, kind: &'static str, block: Value) -> Vec<Event> {
        if self.open.is_some_and(|(open, _)| open == kind) {
            return Vec::new();
        }
        let mut events = self.close();
        let index = self.next;
        self.open = Some((kind, index));
        self.next += 1;
        events.push(event("content_block_start", json!({ "index": index, "content_block": block })));
        events
    }

    fn close(&mut self) -> Vec<Event> {
        let open = self.open.take();
        open.map(|(_, index)| event("content_block_stop", json!({ "index": index }))).into_iter().collect()
    }

    fn delta(&self, delta: Value) -> Event {
        let index = self.open.map(|(_, index)| index);
        event("content_block_delta", json!({ "index": index, "delta": delta }))
    }
}

/// A named event, whose data repeats the name as its type.
fn event(name: &str, mut data: Value) -> Event {
    data["type"] = name.into();
    Event::default().event(name).data(data.to_string())
}

impl Encode for Events {
    fn begin(&mut self) -> Vec<Event> {
        vec![event("message_start", json!({ "message": self.message() }))]
    }

    fn update(&mut self, Update { what, .. }: Update) -> Vec<Event> {
        match what {
            What::Text { piece: Piece::Content(text), .. } => {
                let mut events = self.open("text", json!({ "type": "text", "text": "" }));
                events.push(self.delta(json!({ "type": "text_delta", "text": text })));
                events
            }
            What::Text { piece: Piece::Reasoning(text), .. } => {
                let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                let mut events = self.open("thinking", block);
                events.push(self.delta(json!({ "type": "thinking_delta", "thinking": text })));
                events
            }
            What::Text { piece: Piece::CallStart { name }, .. } => {
                let mut events = self.close();
                let block = json!({ "type": "tool_use", "id": id("toolu_"), "name": name, "input": {} });
                events.extend(self.open("tool_use", block));
                events
            }
            What::Text { piece: Piece::CallArguments(text), .. } => {
                vec![self.delta(json!({ "type": "input_json_delta", "partial_json": text }))]
            }
            What::Text { .. } => Vec::new(),
            What::Pass(pass) => vec![event("shamrock", json!({ "shamrock": pass }))],
            What::End(ended) => {
                self.ended = Some(*ended);
                Vec::new()
            }
        }
    }

    fn end(&mut self) -> Vec<Event> {
        let Some(ended) = self.ended.take() else {
            return self.error(ApiError::stopped());
        };
        let mut events = Vec::new();
        if self.next == 0 {
            events.extend(self.open("text", json!({ "type": "text", "text": "" })));
        }
        events.extend(self.close());
        self.usage.add(0, &ended);
        let delta = json!({ "stop_reason": stop_reason(&ended), "stop_sequence": ended.stop });
        events.push(event("message_delta", json!({ "delta": delta, "usage": usage_of(&self.usage) })));
        events.push(event("message_stop", json!({})));
        events
    }

    fn error(&mut self, error: ApiError) -> Vec<Event> {
        vec![Event::default().event("error").data(error.body(Dialect::Anthropic).to_string())]
    }
}
