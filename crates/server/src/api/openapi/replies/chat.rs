//! Chat completions.

use utoipa::ToSchema;

use super::{ErrorReply, PassReply, Passes, TokenReply, UsageReply};

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
pub(crate) struct ChatChoice {
    index: u64,
    message: ChatAnswer,
    #[schema(required)]
    logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    finish_reason: String,
}

/// What the assistant says.
#[derive(ToSchema)]
pub(crate) struct ChatAnswer {
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
pub(crate) struct CallReply {
    id: String,
    /// `function`.
    r#type: String,
    function: CalledFunction,
}

/// What is called.
#[derive(ToSchema)]
pub(crate) struct CalledFunction {
    name: String,
    /// JSON, unless the answer was cut.
    arguments: String,
}

/// Probabilities of a content.
#[derive(ToSchema)]
pub(crate) struct ChatLogprobs {
    content: Vec<TokenReply>,
    /// Always `null`.
    #[schema(required)]
    refusal: Option<String>,
}

/// An event of a stream; its last one is the word `[DONE]`, or an error.
#[derive(ToSchema)]
#[serde(untagged)]
pub(crate) enum ChatEvent {
    Chunk(ChatChunk),
    Error(ErrorReply),
}

/// More of the answers.
#[derive(ToSchema)]
pub(crate) struct ChatChunk {
    id: String,
    /// `chat.completion.chunk`.
    object: String,
    /// Seconds since 1970.
    created: u64,
    model: String,
    system_fingerprint: String,
    /// One, or none in a chunk with a pass or the usage.
    choices: Vec<ChunkChoice>,
    /// In the last chunk, if it was asked for; before that `null`.
    usage: Option<UsageReply>,
    shamrock: Option<PassReply>,
}

/// More of one answer.
#[derive(ToSchema)]
pub(crate) struct ChunkChoice {
    index: u64,
    delta: Delta,
    #[schema(required)]
    logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls` in the answer's last chunk.
    #[schema(required)]
    finish_reason: Option<String>,
}

/// What is new.
#[derive(ToSchema)]
pub(crate) struct Delta {
    /// `assistant`, in the first chunk.
    role: Option<String>,
    content: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<CallDelta>>,
}

/// A new call, or more of its arguments.
#[derive(ToSchema)]
pub(crate) struct CallDelta {
    /// Which call of the answer.
    index: u64,
    /// When it is new, as are the next and the name.
    id: Option<String>,
    /// `function`.
    r#type: Option<String>,
    function: FunctionDelta,
}

/// The call.
#[derive(ToSchema)]
pub(crate) struct FunctionDelta {
    name: Option<String>,
    arguments: String,
}
