//! The shapes of replies, for the document only: replies are made as JSON where they arise. A test holds
//! real ones to these, to the last field.

#![expect(dead_code, reason = "read by the macro that describes them")]

use serde_json::Value;
use utoipa::ToSchema;

/// Why a request failed.
#[derive(ToSchema)]
pub(crate) struct ErrorReply {
    error: ErrorBody,
}

/// An error.
#[derive(ToSchema)]
struct ErrorBody {
    /// In a line.
    message: String,
    /// Its class, such as `invalid_request_error`.
    r#type: String,
    /// The field at fault, as a path: `messages[2].role`.
    #[schema(required)]
    param: Option<String>,
    /// A word that programs test for.
    #[schema(required)]
    code: Option<String>,
}

/// Why a request of the messages API failed.
#[derive(ToSchema)]
pub(crate) struct MessagesErrorReply {
    /// `error`.
    r#type: String,
    error: MessagesErrorBody,
}

/// An error of the messages API.
#[derive(ToSchema)]
struct MessagesErrorBody {
    /// Its class, such as `invalid_request_error`.
    r#type: String,
    /// In a line.
    message: String,
}

/// What block diffusion took; in the usage of every reply.
#[derive(ToSchema)]
struct Figures {
    /// `denoise`, `draft`, `causal` or `auto`.
    mode: String,
    /// Passes that the answers took part in.
    passes: u64,
    /// Of these, the ones that decided tokens.
    deciding_passes: u64,
    tokens_per_pass: f64,
    blocks: u64,
    /// From the first pass to the first token.
    #[schema(required)]
    first_block_ms: Option<f64>,
    /// From the first pass to the end.
    elapsed_ms: f64,
}

/// Passes, where `shamrock.events` asked for them.
#[derive(ToSchema)]
struct Passes {
    /// As traces have them, with the texts of their tokens.
    #[schema(value_type = Vec<Object>)]
    events: Vec<Value>,
}

/// What answers took.
#[derive(ToSchema)]
struct UsageReply {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: AnswerDetails,
    shamrock: Figures,
}

/// Of the prompt.
#[derive(ToSchema)]
struct PromptDetails {
    /// Taken from kept states.
    cached_tokens: u64,
}

/// Of the answers.
#[derive(ToSchema)]
struct AnswerDetails {
    reasoning_tokens: u64,
}

/// A token with its probability.
#[derive(ToSchema)]
struct TokenReply {
    token: String,
    /// −9999 for a probability of 0.
    logprob: f64,
    bytes: Vec<u8>,
    /// The likeliest tokens in its place.
    top_logprobs: Vec<AlternativeReply>,
}

/// A token that could have been.
#[derive(ToSchema)]
struct AlternativeReply {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

/// An answered conversation.
#[derive(ToSchema)]
pub(crate) struct ChatReply {
    id: String,
    /// `chat.completion`.
    object: String,
    /// Seconds since 1970.
    created: u64,
    model: String,
    system_fingerprint: String,
    choices: Vec<ChatChoice>,
    usage: UsageReply,
    shamrock: Option<Passes>,
}

/// One answer.
#[derive(ToSchema)]
struct ChatChoice {
    index: u64,
    message: ChatAnswer,
    #[schema(required)]
    logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    finish_reason: String,
}

/// What the assistant says.
#[derive(ToSchema)]
struct ChatAnswer {
    /// `assistant`.
    role: String,
    #[schema(required)]
    content: Option<String>,
    /// Always `null`.
    #[schema(required)]
    refusal: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<CallReply>>,
}

/// A call of a tool.
#[derive(ToSchema)]
struct CallReply {
    id: String,
    /// `function`.
    r#type: String,
    function: CalledFunction,
}

/// What is called.
#[derive(ToSchema)]
struct CalledFunction {
    name: String,
    /// JSON, unless the answer was cut.
    arguments: String,
}

/// Probabilities of a content.
#[derive(ToSchema)]
struct ChatLogprobs {
    content: Vec<TokenReply>,
    /// Always `null`.
    #[schema(required)]
    refusal: Option<String>,
}

/// A continued text.
#[derive(ToSchema)]
pub(crate) struct CompletionReply {
    id: String,
    /// `text_completion`.
    object: String,
    /// Seconds since 1970.
    created: u64,
    model: String,
    system_fingerprint: String,
    choices: Vec<CompletionChoice>,
    usage: UsageReply,
    shamrock: Option<Passes>,
}

/// One continuation.
#[derive(ToSchema)]
struct CompletionChoice {
    index: u64,
    text: String,
    #[schema(required)]
    logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`.
    finish_reason: String,
}

/// Probabilities of a text, list by list.
#[derive(ToSchema)]
struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f64>,
    /// By token.
    #[schema(required, value_type = Option<Vec<Object>>)]
    top_logprobs: Option<Vec<Value>>,
    /// In characters.
    text_offset: Vec<u64>,
}

/// An answered input. It repeats what was asked.
#[derive(ToSchema)]
pub(crate) struct ResponseReply {
    id: String,
    /// `response`.
    object: String,
    /// Seconds since 1970.
    created_at: u64,
    /// `completed` or `incomplete`.
    status: String,
    /// Reasoning, messages and calls, each with a `type`.
    #[schema(value_type = Vec<Object>)]
    output: Vec<Value>,
    #[schema(required)]
    incomplete_details: Option<IncompleteDetails>,
    #[schema(required, value_type = Option<Object>)]
    error: Option<Value>,
    model: String,
    usage: ResponseUsage,
    #[schema(required)]
    instructions: Option<String>,
    #[schema(required)]
    max_output_tokens: Option<u64>,
    #[schema(value_type = Object)]
    metadata: Value,
    parallel_tool_calls: bool,
    #[schema(required)]
    previous_response_id: Option<String>,
    #[schema(value_type = Object)]
    reasoning: Value,
    store: bool,
    temperature: f64,
    top_p: f64,
    top_logprobs: u64,
    #[schema(value_type = Object)]
    text: Value,
    /// A word, or a function.
    tool_choice: Value,
    #[schema(value_type = Vec<Object>)]
    tools: Vec<Value>,
    /// `disabled`.
    truncation: String,
    shamrock: Option<Passes>,
}

/// Why a response was cut.
#[derive(ToSchema)]
struct IncompleteDetails {
    /// `max_output_tokens`.
    reason: String,
}

/// What a response took.
#[derive(ToSchema)]
struct ResponseUsage {
    input_tokens: u64,
    input_tokens_details: PromptDetails,
    output_tokens: u64,
    output_tokens_details: AnswerDetails,
    total_tokens: u64,
    shamrock: Figures,
}

/// A message.
#[derive(ToSchema)]
pub(crate) struct MessageReply {
    id: String,
    /// `message`.
    r#type: String,
    /// `assistant`.
    role: String,
    model: String,
    /// Blocks of `thinking`, `text` and `tool_use`.
    #[schema(value_type = Vec<Object>)]
    content: Vec<Value>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    stop_reason: String,
    #[schema(required)]
    stop_sequence: Option<String>,
    usage: MessageUsage,
    shamrock: Option<Passes>,
}

/// What a message took.
#[derive(ToSchema)]
struct MessageUsage {
    /// Without those from kept states.
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
    shamrock: Figures,
}

/// The length of a conversation.
#[derive(ToSchema)]
pub(crate) struct CountReply {
    input_tokens: u64,
}

/// The models, of which there is one.
#[derive(ToSchema)]
pub(crate) struct ModelsReply {
    /// `list`.
    object: String,
    data: Vec<ModelReply>,
}

/// A model.
#[derive(ToSchema)]
pub(crate) struct ModelReply {
    id: String,
    /// `model`.
    object: String,
    /// Seconds since 1970, when the server started.
    created: u64,
    owned_by: String,
    shamrock: ModelFigures,
}

/// What a model can do.
#[derive(ToSchema)]
struct ModelFigures {
    backend: String,
    /// In tokens, the answer included.
    max_context: u64,
    /// Where a request does not say.
    mode: String,
    /// `null` for a model without blocks.
    #[schema(required)]
    block_size: Option<u64>,
    #[schema(required)]
    threshold: Option<f64>,
}

/// How the server is.
#[derive(ToSchema)]
pub(crate) struct HealthReply {
    /// `ok`, `stalled`, `draining` or `stopped`.
    status: String,
    model: String,
    /// Answers in the making.
    active: u64,
    /// Requests waiting.
    queued: u64,
    /// Since the engine's last sign of life; `null` while it has nothing to do.
    #[schema(required)]
    heartbeat_age_ms: Option<u64>,
}
