//! `POST /v1/responses`, without state: nothing is stored, nothing can be referred to.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shamrock_text::{Message, Piece};
use utoipa::ToSchema;

use crate::api::answer::{Ended, Update, What, ask};
use crate::api::body::{read_json, refuse_rest};
use crate::api::chat::NOTED;
use crate::api::conversation::{message, render_options, text_of};
use crate::api::error::{ApiError, Dialect, Result};
use crate::api::params::{Extension, Params};
use crate::api::stream::{Encode, stream};
use crate::api::usage::Usage;
use crate::api::{App, reply, unix_time};
use crate::random::id;

/// Body of a response. Fields that are not listed are refused, unless they ask for nothing.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponsesRequest {
    /// Name of the served model, or nothing.
    model: Option<String>,
    /// A text, or an array of messages and of reasoning as this API returns it.
    input: Value,
    /// System message.
    instructions: Option<String>,
    max_output_tokens: Option<usize>,
    stream: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    reasoning: Option<Reasoning>,
    /// Options of block diffusion.
    shamrock: Option<Extension>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// How much to reason.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Reasoning {
    /// `none`, `minimal`, `low`, `medium` or `high`; all but `none` ask for reasoning.
    effort: Option<String>,
}

/// One item of the input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    #[serde(default)]
    content: Value,
    // What this API returned and a client sends back.
    #[serde(rename = "id")]
    _id: Option<String>,
    #[serde(rename = "status")]
    _status: Option<String>,
    #[serde(rename = "summary")]
    _summary: Option<Value>,
    #[serde(rename = "encrypted_content")]
    _encrypted_content: Option<Value>,
    #[serde(rename = "phase")]
    _phase: Option<Value>,
}

/// Answers an input.
#[utoipa::path(
    post,
    path = "/v1/responses",
    request_body = ResponsesRequest,
    responses((status = 200, description = "A response object, or the events of one"))
)]
pub(crate) async fn responses(State(app): State<Arc<App>>, request: Request) -> Response {
    reply(Dialect::OpenAi, answer(app, request).await)
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response> {
    let request: ResponsesRequest = read_json(request, app.options.max_body).await?;
    app.check_model(request.model.as_deref())?;
    request.check_rest()?;
    let messages = request.messages()?;
    let effort = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone());
    let render = render_options(effort.as_deref(), None).map_err(|e| {
        if e.param.is_some() { ApiError { param: Some("reasoning.effort".into()), ..e } } else { e }
    })?;
    let params = Params {
        max_tokens: request.max_output_tokens,
        temperature: request.temperature,
        top_p: request.top_p,
        extension: request.shamrock,
        ..Params::default()
    };
    let plan = params.resolve(&app, "stop")?;
    let prompt = app.prompt(move |prompter| prompter.chat(&messages, &render)).await?;
    let object = json!({
        "id": id("resp_"),
        "object": "response",
        "created_at": unix_time(),
        "status": "in_progress",
        "error": null,
        "incomplete_details": null,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": {},
        "model": app.options.name,
        "output": [],
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "reasoning": { "effort": effort, "summary": null },
        "store": false,
        "temperature": plan.temperature(),
        "text": { "format": { "type": "text" } },
        "tool_choice": "auto",
        "tools": [],
        "top_p": plan.top_p(),
        "truncation": "disabled",
        "usage": null,
    });
    let events = Events {
        object,
        usage: Usage::new(plan.mode(), 1),
        output: Vec::new(),
        open: None,
        sequence: 0,
        ended: None,
    };
    let answers = ask(&app, vec![prompt], plan, false)?;
    if request.stream.unwrap_or(false) {
        return Ok(stream(answers, events));
    }
    let answer = answers.collect().await?.pop().ok_or_else(ApiError::stopped)?;
    let ended = answer.ended.ok_or_else(ApiError::stopped)?;
    let mut events = events;
    for (kind, text) in [(Kind::Reasoning, answer.reasoning), (Kind::Message, answer.content)] {
        if !text.is_empty() || kind == Kind::Message {
            events.output.push(kind.item(&id(kind.prefix()), &text, "completed"));
        }
    }
    let mut object = events.finished(&ended);
    if !answer.passes.is_empty() {
        object["shamrock"] = json!({ "events": answer.passes });
    }
    Ok(Json(object).into_response())
}

impl ResponsesRequest {
    fn check_rest(&self) -> Result<()> {
        refuse_rest(
            &self.rest,
            NOTED,
            &[
                ("background", json!(false)),
                ("include", json!([])),
                ("parallel_tool_calls", json!(true)),
                ("previous_response_id", Value::Null),
                ("service_tier", json!("auto")),
                ("store", json!(false)),
                ("text", json!({ "format": { "type": "text" } })),
                ("tool_choice", json!("none")),
                ("tools", json!([])),
                ("top_logprobs", json!(0)),
                ("truncation", json!("disabled")),
            ],
        )
    }

    fn messages(&self) -> Result<Vec<Message>> {
        let mut messages = Vec::new();
        if let Some(instructions) = &self.instructions {
            messages.push(Message::new("system", instructions.clone()));
        }
        match &self.input {
            Value::String(text) => messages.push(Message::new("user", text.clone())),
            Value::Array(items) => {
                let mut reasoning = None;
                for (i, item) in items.iter().enumerate() {
                    convert(item, &format!("input[{i}]"), &mut reasoning, &mut messages)?;
                }
            }
            _ => return Err(ApiError::field("input", "must be a string or an array of items")),
        }
        Ok(messages)
    }
}

/// Takes one item; reasoning belongs to the assistant's message that follows it.
fn convert(
    item: &Value,
    path: &str,
    reasoning: &mut Option<String>,
    messages: &mut Vec<Message>,
) -> Result<()> {
    let item: Item = serde_path_to_error::deserialize(item).map_err(|error| {
        let inner = error.path().to_string();
        let place = if inner == "." { path.to_owned() } else { format!("{path}.{inner}") };
        ApiError::field(place, error.into_inner().to_string())
    })?;
    match item.kind.as_deref() {
        None | Some("message") => {
            let role = item.role.ok_or_else(|| ApiError::field(format!("{path}.role"), "is required"))?;
            let mut converted = message(&role, text_of(&item.content, &format!("{path}.content"))?, path)?;
            if role == "assistant" {
                converted.reasoning_content = reasoning.take();
            }
            messages.push(converted);
        }
        Some("reasoning") => {
            let parts = item.content.as_array().map(Vec::as_slice).unwrap_or_default();
            let texts = parts.iter().filter_map(|part| part.get("text")?.as_str());
            *reasoning = Some(texts.collect::<String>()).filter(|text| !text.is_empty());
        }
        Some(other) => {
            return Err(ApiError::field(format!("{path}.type"), format!("{other:?} is not supported")));
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
        }
    }

    /// Name of the text in events.
    fn text(self) -> &'static str {
        match self {
            Kind::Reasoning => "reasoning_text",
            Kind::Message => "output_text",
        }
    }

    fn part(self, text: &str) -> Value {
        match self {
            Kind::Reasoning => json!({ "type": "reasoning_text", "text": text }),
            Kind::Message => {
                json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
            }
        }
    }

    fn item(self, id: &str, text: &str, status: &str) -> Value {
        let content = if status == "in_progress" { json!([]) } else { json!([self.part(text)]) };
        match self {
            Kind::Reasoning => json!({
                "type": "reasoning", "id": id, "status": status, "summary": [], "content": content,
            }),
            Kind::Message => json!({
                "type": "message", "id": id, "status": status, "role": "assistant", "content": content,
            }),
        }
    }
}

/// The events of one response.
struct Events {
    /// The response so far, but for its output.
    object: Value,
    usage: Usage,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Open>,
    sequence: usize,
    ended: Option<Ended>,
}

/// The item being written.
struct Open {
    kind: Kind,
    id: String,
    text: String,
}

impl Events {
    fn event(&mut self, name: &str, mut data: Value) -> Event {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        Event::default().event(name).data(data.to_string())
    }

    /// An event about the open item's text.
    fn about_text(&mut self, id: &str, name: &str, mut data: Value) -> Event {
        data["item_id"] = id.into();
        data["output_index"] = self.output.len().into();
        data["content_index"] = 0.into();
        self.event(name, data)
    }

    fn text(&mut self, kind: Kind, more: &str) -> Vec<Event> {
        let mut events = Vec::new();
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            events.extend(self.close("completed"));
            events.extend(self.open(kind));
        }
        let Some(open) = &mut self.open else {
            return events;
        };
        open.text.push_str(more);
        let id = open.id.clone();
        let mut delta = json!({ "delta": more });
        if kind == Kind::Message {
            delta["logprobs"] = json!([]);
        }
        events.push(self.about_text(&id, &format!("response.{}.delta", kind.text()), delta));
        events
    }

    fn open(&mut self, kind: Kind) -> Vec<Event> {
        let id = id(kind.prefix());
        let item = kind.item(&id, "", "in_progress");
        let index = self.output.len();
        let added = self.event("response.output_item.added", json!({ "output_index": index, "item": item }));
        let part = self.about_text(&id, "response.content_part.added", json!({ "part": kind.part("") }));
        self.open = Some(Open { kind, id, text: String::new() });
        vec![added, part]
    }

    fn close(&mut self, status: &str) -> Vec<Event> {
        let Some(Open { kind, id, text }) = self.open.take() else {
            return Vec::new();
        };
        let mut whole = json!({ "text": text });
        if kind == Kind::Message {
            whole["logprobs"] = json!([]);
        }
        let done = self.about_text(&id, &format!("response.{}.done", kind.text()), whole);
        let part = self.about_text(&id, "response.content_part.done", json!({ "part": kind.part(&text) }));
        let item = kind.item(&id, &text, status);
        let index = self.output.len();
        let over = self.event("response.output_item.done", json!({ "output_index": index, "item": item }));
        self.output.push(item);
        vec![done, part, over]
    }

    /// The whole response.
    fn finished(&mut self, ended: &Ended) -> Value {
        self.usage.add(0, ended);
        let mut object = self.object.clone();
        let cut = ended.finish_reason() == "length";
        object["status"] = if cut { "incomplete" } else { "completed" }.into();
        if cut {
            object["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        object["output"] = self.output.clone().into();
        object["usage"] = json!({
            "input_tokens": self.usage.prompt,
            "input_tokens_details": { "cached_tokens": self.usage.cached },
            "output_tokens": self.usage.completion,
            "output_tokens_details": { "reasoning_tokens": self.usage.reasoning },
            "total_tokens": self.usage.prompt + self.usage.completion,
            "shamrock": self.usage.extension(),
        });
        object
    }
}

impl Encode for Events {
    fn begin(&mut self) -> Vec<Event> {
        let response = json!({ "response": self.object });
        vec![self.event("response.created", response.clone()), self.event("response.in_progress", response)]
    }

    fn update(&mut self, Update { what, .. }: Update) -> Vec<Event> {
        match what {
            What::Text { piece: Piece::Content(text), .. } => self.text(Kind::Message, &text),
            What::Text { piece: Piece::Reasoning(text), .. } => self.text(Kind::Reasoning, &text),
            What::Text { .. } => Vec::new(),
            What::Pass(pass) => vec![self.event("shamrock", json!({ "shamrock": pass }))],
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
        if self.output.is_empty() && self.open.is_none() {
            events.extend(self.open(Kind::Message));
        }
        let cut = ended.finish_reason() == "length";
        events.extend(self.close(if cut { "incomplete" } else { "completed" }));
        let response = json!({ "response": self.finished(&ended) });
        let name = if cut { "response.incomplete" } else { "response.completed" };
        events.push(self.event(name, response));
        events
    }

    fn error(&mut self, error: ApiError) -> Vec<Event> {
        let data = json!({ "code": error.code, "message": error.message, "param": error.param });
        vec![self.event("error", data)]
    }
}
