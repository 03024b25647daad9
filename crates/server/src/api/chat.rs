//! `POST /v1/chat/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::response::sse::Event;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use shamrock_text::{Message, Piece};
use utoipa::ToSchema;

use crate::api::answer::{Call, Update, What, ask};
use crate::api::body::{NOTED, read_json, refuse_rest};
use crate::api::chunks::{Chunks, StreamOptions, whole, with_choice};
use crate::api::conversation::{check_results, message, render_options, text_of};
use crate::api::error::{ApiError, Dialect, Result};
use crate::api::format::ResponseFormat;
use crate::api::logprobs;
use crate::api::openapi::{bodies, replies};
use crate::api::params::{Extension, Names, Params, Stop, with_common_fields};
use crate::api::sequel::{Conversation, Sequel};
use crate::api::stream::{Encode, stream};
use crate::api::tools::{ChatTool, ToolChoice, ToolUse, past_call};
use crate::api::usage::Usage;
use crate::api::{App, Head, reply};
use crate::random::id;

with_common_fields! {
    /// Body of a chat completion. Fields that are not listed are refused, unless they are `null` or ask
    /// for nothing (`user`, `metadata`, `store: false`, ...).
    #[derive(Debug, Deserialize, ToSchema)]
    #[serde(expecting = "an object")]
    pub(crate) struct ChatRequest {
        /// The conversation.
        messages: Vec<ChatMessage>,
        /// Most tokens of an answer.
        #[schema(minimum = 1)]
        max_completion_tokens: Option<usize>,
        /// The same under its older name.
        #[schema(minimum = 1)]
        max_tokens: Option<usize>,
        /// Give the probability of every token of the content.
        logprobs: Option<bool>,
        /// With `logprobs`: tell so many of the likeliest tokens in each place, 0 to 20.
        #[schema(maximum = 20)]
        top_logprobs: Option<usize>,
        /// What the answer must be.
        response_format: Option<ResponseFormat>,
        /// Functions that the model may call.
        tools: Option<Vec<ChatTool>>,
        /// `auto`, `none`, `required` or a function.
        tool_choice: Option<ToolChoice>,
        /// Allow several calls in one answer.
        parallel_tool_calls: Option<bool>,
        /// `none`, `minimal`, `low`, `medium`, `high` or `xhigh`; all but `none` ask for reasoning.
        reasoning_effort: Option<String>,
        /// Variables of the chat template, `enable_thinking` among them.
        #[schema(value_type = Option<Object>)]
        chat_template_kwargs: Option<Map<String, Value>>,
    }
}

/// One message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub(crate) struct ChatMessage {
    /// `system`, `developer`, `user`, `assistant` or `tool`.
    role: String,
    #[serde(default)]
    #[schema(value_type = Option<bodies::Content>)]
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

/// Answers a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    request_body = ChatRequest,
    responses((
        status = 200,
        description = "A chat.completion object, or chat.completion.chunk events",
        content((replies::ChatReply = "application/json"), (replies::ChatEvent = "text/event-stream"))
    ))
)]
pub(crate) async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    reply(Dialect::OpenAi, answer(app, request).await)
}

async fn answer(app: Arc<App>, request: Request) -> Result<Response> {
    let mut request: ChatRequest = read_json(request, &app.options).await?;
    app.check_model(request.model.as_deref())?;
    request.check_rest()?;
    let common = request.common();
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
    let older = request.max_completion_tokens.is_none() && request.max_tokens.is_some();
    let names = Names {
        max_tokens: if older { "max_tokens" } else { "max_completion_tokens" },
        stop: "stop",
        top_logprobs: "top_logprobs",
    };
    let params = Params {
        max_tokens,
        logprobs: request.logprobs.unwrap_or(false),
        top_logprobs: request.top_logprobs,
        ..common
    };
    let mut plan = params.resolve(&app, names)?;
    if plan.top_logprobs > 0 && !plan.logprobs {
        return Err(ApiError::field("top_logprobs", "needs `logprobs`"));
    }
    let form = request.response_format.and_then(ResponseFormat::source);
    tools.plan(&app, &mut plan, form, "response_format").await?;
    let conversation = Arc::new(Conversation { messages, render });
    let prompt = conversation.prompt(&app).await?;
    let head = Head::new(&app, "chatcmpl-");
    let (logprobs, usage) = (plan.logprobs, Usage::new(plan.mode(), plan.n));
    let choices = plan.n;
    let answers = ask(&app, vec![prompt], plan, false)?.with_sequel(Sequel::new(&app, &conversation));
    if streaming {
        let chunks = Chunks::new(head, "chat.completion.chunk", include_usage, usage);
        return Ok(stream(answers, Deltas { chunks, logprobs, calls: vec![0; choices] }));
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
    Ok(whole(&head, "chat.completion", choices, &usage, passes))
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
                ("prediction", Value::Null),
                ("service_tier", json!("auto")),
                ("store", json!(false)),
                ("verbosity", json!("medium")),
                ("web_search_options", Value::Null),
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
        for (field, given, owner) in [
            ("tool_calls", given.tool_calls.is_some(), "assistant"),
            ("reasoning_content", given.reasoning_content.is_some(), "assistant"),
            ("tool_call_id", given.tool_call_id.is_some(), "tool"),
        ] {
            if given && converted.role != owner {
                let problem = format!("belongs to messages of the role {owner}");
                return Err(ApiError::field(format!("{path}.{field}"), problem));
            }
        }
        converted.reasoning_content = given.reasoning_content.clone();
        converted.name = given.name.clone();
        if let Some(calls) = &given.tool_calls {
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
    let messages: Vec<Message> = messages.iter().enumerate().map(convert).collect::<Result<_>>()?;
    check_results(&messages, "messages")?;
    Ok(messages)
}

fn tool_call(call: &Call) -> Value {
    json!({
        "id": id("call_"),
        "type": "function",
        "function": { "name": call.name, "arguments": call.arguments },
    })
}

/// `chat.completion.chunk` events.
struct Deltas {
    chunks: Chunks,
    logprobs: bool,
    /// Calls of each answer so far.
    calls: Vec<usize>,
}

impl Deltas {
    fn delta(&self, index: usize, delta: Value, logprobs: Option<Value>, finish: Option<&str>) -> Event {
        let choice = json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        self.chunks.choice(choice)
    }
}

impl Encode for Deltas {
    fn begin(&mut self) -> Vec<Event> {
        let opening = json!({ "role": "assistant", "content": "" });
        (0..self.calls.len()).map(|index| self.delta(index, opening.clone(), None, None)).collect()
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
            What::Pass(pass) => self.chunks.pass(choice, pass),
            What::End(ended) => {
                self.chunks.count(choice, &ended);
                self.delta(choice, json!({}), None, Some(ended.finish_reason()))
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
