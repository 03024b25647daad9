//! The shapes of replies, for the document only: replies are made as JSON where they arise. A test holds
//! real ones to these, to the last field.

#![expect(dead_code, clippy::large_enum_variant, reason = "only read, by the macro that describes them")]

mod chat;
mod completions;
mod messages;
mod passes;
mod responses;

use utoipa::ToSchema;

pub(crate) use chat::{ChatEvent, ChatReply};
pub(crate) use completions::{CompletionEvent, CompletionReply};
pub(crate) use messages::{MessageEvent, MessageReply};
pub(crate) use passes::{PassReply, Passes};
pub(crate) use responses::{ResponseEvent, ResponseReply};

/// Why a request failed.
#[derive(ToSchema)]
pub(crate) struct ErrorReply {
    error: ErrorBody,
}

/// An error.
#[derive(ToSchema)]
pub(crate) struct ErrorBody {
    /// In a line.
    message: String,
    /// Its class, such as `invalid_request_error`.
    r#type: String,
    /// The field at fault, as a path: `messages[2].role`.
    #[schema(required)]
    param: Option<String>,
    /// A word that programs test for.
    code: String,
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
pub(crate) struct MessagesErrorBody {
    /// Its class, such as `invalid_request_error`.
    r#type: String,
    /// In a line.
    message: String,
}

/// What block diffusion took; in the usage of every reply.
#[derive(ToSchema)]
pub(crate) struct Figures {
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

/// What answers took.
#[derive(ToSchema)]
pub(crate) struct UsageReply {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: AnswerDetails,
    shamrock: Figures,
}

/// Of the prompt.
#[derive(ToSchema)]
pub(crate) struct PromptDetails {
    /// Taken from kept states.
    cached_tokens: u64,
}

/// Of the answers.
#[derive(ToSchema)]
pub(crate) struct AnswerDetails {
    reasoning_tokens: u64,
}

/// A token with its probability.
#[derive(ToSchema)]
pub(crate) struct TokenReply {
    token: String,
    /// −9999 for a probability of 0.
    logprob: f64,
    bytes: Vec<u8>,
    /// The likeliest tokens in its place.
    top_logprobs: Vec<AlternativeReply>,
}

/// A token that could have been.
#[derive(ToSchema)]
pub(crate) struct AlternativeReply {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
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
pub(crate) struct ModelFigures {
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
