//! `POST /v1/responses`, without state: nothing is stored, nothing can be referred to.

mod events;

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shamrock_text::Message;
use utoipa::ToSchema;

use crate::api::answer::ask;
use crate::api::body::{NOTED, misfit, read_json, refuse_rest};
use crate::api::conversation::{check_results, message, render_options, text_of};
use crate::api::error::{ApiError, Dialect, Result};
use crate::api::format::TextFormat;
use crate::api::openapi::{bodies, replies};
use crate::api::params::{Extension, Names, Params};
use crate::api::sequel::{Conversation, Sequel};
use crate::api::stream::stream;
use crate::api::tools::{ResponseTool, ToolChoice, ToolUse, past_call};
use crate::api::usage::Usage;
use crate::api::{App, decimal, reply, unix_time};
use crate::random::id;
use events::Events;

const NAMES: Names = Names { max_tokens: "max_output_tokens", stop: "stop", top_logprobs: "top_logprobs" };

/// Body of a response. Fields that are not listed are refused, unless they ask for nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct ResponsesRequest {
    /// Name of the served model, or nothing.
    model: Option<String>,
    #[schema(value_type = bodies::Input)]
    input: Value,
    /// System message.
    instructions: Option<String>,
    #[schema(minimum = 1)]
    max_output_tokens: Option<usize>,
    stream: Option<bool>,
    #[schema(minimum = 0)]
    temperature: Option<f32>,
    #[schema(minimum = 0, maximum = 1)]
    top_p: Option<f32>,
    reasoning: Option<Reasoning>,
    /// What the text must be.
    text: Option<Text>,
    /// Functions that the model may call.
    tools: Option<Vec<ResponseTool>>,
    /// `auto`, `none`, `required` or a function.
    tool_choice: Option<ToolChoice>,
    /// Allow several calls in one response.
    parallel_tool_calls: Option<bool>,
    /// So many of the likeliest tokens in each place of the text, 0 to 20.
    #[schema(maximum = 20)]
    top_logprobs: Option<usize>,
    /// `message.output_text.logprobs`, the probability of every token of the text; and
    /// `reasoning.encrypted_content`, which asks for nothing here.
    include: Option<Vec<String>>,
    /// Options of block diffusion.
    shamrock: Option<Extension>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// How much to reason.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Reasoning {
    /// `none`, `minimal`, `low`, `medium`, `high` or `xhigh`; all but `none` ask for reasoning.
    effort: Option<String>,
    /// Must be nothing: reasoning is shown as it is.
    summary: Option<String>,
}

/// The text's form.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Text {
    format: Option<TextFormat>,
    /// Must be `medium`.
    verbosity: Option<String>,
}

/// One item of the input.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    #[serde(default)]
    content: Value,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    #[serde(default)]
    output: Value,
    // What this API returned and a client sends back.
    #[serde(rename = "id")]
    _id: Option<String>,
    #[serde(rename = "status")]
    _status: Option<String>,
    #[serde(rename = "summary")]
    _summary: Option<Vec<Value>>,
    #[serde(rename = "encrypted_content")]
    _encrypted_content: Option<String>,
    #[serde(rename = "phase")]
    _phase: Option<String>,
}

impl Item {
    /// Refuses fields that belong to another kind of item.
    fn check(&self, path: &str) -> Result<()> {
        let call = self.kind.as_deref() == Some("function_call");
        let output = self.kind.as_deref() == Some("function_call_output");
        for (field, given, known) in [
            ("role", self.role.is_some(), !call && !output),
            ("content", !self.content.is_null(), !call && !output),
            ("call_id", self.call_id.is_some(), call || output),
            ("name", self.name.is_some(), call),
            ("arguments", self.arguments.is_some(), call),
            ("output", !self.output.is_null(), output),
        ] {
            if given && !known {
                return Err(ApiError::field(format!("{path}.{field}"), "is no part of such an item"));
            }
        }
        Ok(())
    }
}

/// Answers an input.
#[utoipa::path(
    post,
    path = "/v1/responses",
    request_body = ResponsesRequest,
    responses((
        status = 200,
        description = "A response object, or the events of one",
        content((replies::ResponseReply = "application/json"), (replies::ResponseEvent = "text/event-stream"))
    ))
)]
pub(crate) async fn responses(State(app): State<Arc<App>>, request: Request) -> Response {
    reply(Dialect::OpenAi, answer(app, request).await)
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response> {
    let request: ResponsesRequest = read_json(request, &app.options).await?;
    app.check_model(request.model.as_deref())?;
    request.check_rest()?;
    let messages = request.messages()?;
    if request.reasoning.as_ref().is_some_and(|reasoning| reasoning.summary.is_some()) {
        return Err(ApiError::field("reasoning.summary", "is not supported").code("unsupported_value"));
    }
    let effort = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.clone());
    let mut render = render_options(&app.prompter, effort.as_deref(), None).map_err(|e| ApiError {
        param: Some("reasoning.effort".into()),
        message: e.message.replacen("reasoning_effort", "reasoning.effort", 1),
        ..e
    })?;
    let tools = ToolUse::response(
        request.tools.unwrap_or_default(),
        request.tool_choice,
        request.parallel_tool_calls,
    )?;
    render.tools = tools.told();
    let format = match request.text {
        Some(Text { verbosity: Some(verbosity), .. }) if verbosity != "medium" => {
            return Err(ApiError::field("text.verbosity", "is not supported").code("unsupported_value"));
        }
        text => text.and_then(|text| text.format),
    };
    let shown = json!({ "format": format_shown(format.as_ref()) });
    let logprobs = include(request.include)? || request.top_logprobs.is_some_and(|top| top > 0);
    let params = Params {
        logprobs,
        top_logprobs: request.top_logprobs,
        max_tokens: request.max_output_tokens,
        temperature: request.temperature,
        top_p: request.top_p,
        extension: request.shamrock,
        ..Params::default()
    };
    let mut plan = params.resolve(&app, NAMES)?;
    let (choice, told) = (tools.choice(), tools.told().unwrap_or_else(|| json!([])));
    tools.plan(&app, &mut plan, format.and_then(TextFormat::source), "text.format").await?;
    let conversation = Arc::new(Conversation { messages, render });
    let prompt = conversation.prompt(&app).await?;
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
        "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
        "previous_response_id": null,
        "reasoning": { "effort": effort, "summary": null },
        "store": false,
        "temperature": decimal(plan.temperature()),
        "text": shown,
        "tool_choice": choice,
        "tools": tools_shown(&told),
        "top_logprobs": plan.top_logprobs,
        "top_p": decimal(plan.top_p()),
        "truncation": "disabled",
        "usage": null,
    });
    let events = Events::new(object, Usage::new(plan.mode(), 1), logprobs);
    let answers = ask(&app, vec![prompt], plan, false)?.with_sequel(Sequel::new(&app, &conversation));
    if request.stream.unwrap_or(false) {
        return Ok(stream(answers, events));
    }
    let mut answer = answers.collect().await?.pop().ok_or_else(ApiError::stopped)?;
    let ended = answer.ended.take().ok_or_else(ApiError::stopped)?;
    let passes = std::mem::take(&mut answer.passes);
    let mut object = events.collected(answer, &ended);
    if !passes.is_empty() {
        object["shamrock"] = json!({ "events": passes });
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
                ("conversation", Value::Null),
                ("max_tool_calls", Value::Null),
                ("previous_response_id", Value::Null),
                ("prompt", Value::Null),
                ("service_tier", json!("auto")),
                ("store", json!(false)),
                ("stream_options", json!({})),
                ("stream_options", json!({ "include_obfuscation": false })),
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
            _ => return Err(ApiError::wrong_type("input", "must be a string or an array of items")),
        }
        if messages.is_empty() {
            return Err(ApiError::field("input", "at least one message is needed"));
        }
        check_results(&messages, "input")?;
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
    let item: Item = serde_path_to_error::deserialize(item).map_err(|error| misfit(path, error))?;
    item.check(path)?;
    match item.kind.as_deref() {
        None | Some("message") => {
            let role = item.role.ok_or_else(|| ApiError::missing(format!("{path}.role")))?;
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
        Some("function_call") => {
            let required = |field: Option<String>, name: &str| {
                field.ok_or_else(|| ApiError::missing(format!("{path}.{name}")))
            };
            let call = past_call(
                &required(item.call_id, "call_id")?,
                &required(item.name, "name")?,
                &required(item.arguments, "arguments")?.into(),
            );
            // Calls belong to the message before them, if the assistant's turn has one.
            match messages.last_mut().filter(|last| last.role == "assistant" && reasoning.is_none()) {
                Some(Message { tool_calls: Some(Value::Array(calls)), .. }) => calls.push(call),
                Some(message) => message.tool_calls = Some(json!([call])),
                None => messages.push(Message {
                    tool_calls: Some(json!([call])),
                    reasoning_content: reasoning.take(),
                    ..Message::new("assistant", Value::Null)
                }),
            }
        }
        Some("function_call_output") => {
            let output = text_of(&item.output, &format!("{path}.output"))?;
            let mut converted = message("tool", output, path)?;
            converted.tool_call_id = item.call_id;
            messages.push(converted);
        }
        Some(other) => {
            let problem = format!("{other:?} is not supported");
            return Err(ApiError::field(format!("{path}.type"), problem).code("unsupported_value"));
        }
    }
    Ok(())
}

/// Whether the probabilities of the text's tokens are wanted.
fn include(asked: Option<Vec<String>>) -> Result<bool> {
    let asked = asked.unwrap_or_default();
    let known = |name: &str| matches!(name, "message.output_text.logprobs" | "reasoning.encrypted_content");
    match asked.iter().position(|name| !known(name)) {
        Some(at) => {
            Err(ApiError::field(format!("include[{at}]"), "is not supported").code("unsupported_value"))
        }
        None => Ok(asked.iter().any(|name| name == "message.output_text.logprobs")),
    }
}

fn format_shown(format: Option<&TextFormat>) -> Value {
    match format {
        None | Some(TextFormat::Text {}) => json!({ "type": "text" }),
        Some(TextFormat::JsonObject {}) => json!({ "type": "json_object" }),
        Some(TextFormat::JsonSchema { name, schema, description, .. }) => json!({
            "type": "json_schema", "name": name, "schema": schema, "description": description, "strict": true,
        }),
    }
}

/// Tools as this API has them: the function lies one level higher than in templates.
fn tools_shown(told: &Value) -> Value {
    let lift = |tool: &Value| {
        let mut tool = tool["function"].clone();
        tool["type"] = "function".into();
        tool["strict"] = tool.get("strict").cloned().unwrap_or_else(|| false.into());
        tool
    };
    told.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(lift).collect()
}
