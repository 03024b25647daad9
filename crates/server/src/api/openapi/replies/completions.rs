//! Text completions.

use std::collections::BTreeMap;

use utoipa::ToSchema;

use super::{ErrorReply, PassReply, Passes, UsageReply};

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
pub(crate) struct CompletionChoice {
    index: u64,
    text: String,
    #[schema(required)]
    logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`.
    finish_reason: String,
}

/// Probabilities of a text, list by list.
#[derive(ToSchema)]
pub(crate) struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f64>,
    /// By token.
    #[schema(required)]
    top_logprobs: Option<Vec<BTreeMap<String, f64>>>,
    /// In characters.
    text_offset: Vec<u64>,
}

/// An event of a stream; its last one is the word `[DONE]`, or an error.
#[derive(ToSchema)]
#[serde(untagged)]
pub(crate) enum CompletionEvent {
    Chunk(CompletionChunk),
    Error(ErrorReply),
}

/// More of the texts.
#[derive(ToSchema)]
pub(crate) struct CompletionChunk {
    id: String,
    /// `text_completion`.
    object: String,
    /// Seconds since 1970.
    created: u64,
    model: String,
    system_fingerprint: String,
    /// One, or none in a chunk with a pass or the usage.
    choices: Vec<TextDelta>,
    /// In the last chunk, if it was asked for; before that `null`.
    usage: Option<UsageReply>,
    shamrock: Option<PassReply>,
}

/// More of one text.
#[derive(ToSchema)]
pub(crate) struct TextDelta {
    index: u64,
    text: String,
    #[schema(required)]
    logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length` in the text's last chunk.
    #[schema(required)]
    finish_reason: Option<String>,
}
