//! Messages of the Anthropic API.

use serde_json::Value;
use utoipa::ToSchema;

use super::{Figures, MessagesErrorBody, PassReply, Passes};

/// A message.
#[derive(ToSchema)]
pub(crate) struct MessageReply {
    id: String,
    /// `message`.
    r#type: String,
    /// `assistant`.
    role: String,
    model: String,
    content: Vec<ContentBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    stop_reason: String,
    #[schema(required)]
    stop_sequence: Option<String>,
    usage: MessageUsage,
    shamrock: Option<Passes>,
}

/// What a message took.
#[derive(ToSchema)]
pub(crate) struct MessageUsage {
    /// Without those from kept states.
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
    shamrock: Figures,
}

/// A block of a message.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentBlock {
    /// What the model thought.
    Thinking {
        thinking: String,
        /// Always empty.
        signature: String,
    },
    /// What it says.
    Text { text: String },
    /// A tool that it calls.
    ToolUse {
        id: String,
        name: String,
        /// Empty in a stream and where the answer was cut.
        #[schema(value_type = Object)]
        input: Value,
    },
}

/// An event of a stream.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum MessageEvent {
    /// The first event.
    MessageStart { message: MessageBegun },
    /// A block begins, empty.
    ContentBlockStart { index: u64, content_block: ContentBlock },
    /// More of it.
    ContentBlockDelta { index: u64, delta: BlockDelta },
    /// It is there.
    ContentBlockStop { index: u64 },
    /// A pass, where `shamrock.events` asked for them.
    Shamrock { shamrock: PassReply },
    /// How the message ended.
    MessageDelta { delta: MessageEnd, usage: MessageUsage },
    /// The last event of a message.
    MessageStop {},
    /// The last event of one that failed.
    Error { error: MessagesErrorBody },
}

/// A message before its first block.
#[derive(ToSchema)]
pub(crate) struct MessageBegun {
    id: String,
    /// `message`.
    r#type: String,
    /// `assistant`.
    role: String,
    model: String,
    /// Always empty.
    content: Vec<ContentBlock>,
    /// Always `null`, as the next.
    #[schema(required)]
    stop_reason: Option<String>,
    #[schema(required)]
    stop_sequence: Option<String>,
    usage: UsageBegun,
}

/// What is known of its usage.
#[derive(ToSchema)]
pub(crate) struct UsageBegun {
    /// With those from kept states, which are not known yet.
    input_tokens: u64,
    output_tokens: u64,
}

/// What is new in a block.
#[derive(ToSchema)]
#[serde(tag = "type")]
pub(crate) enum BlockDelta {
    /// Of what the model thought.
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    /// Of what it says.
    #[serde(rename = "text_delta")]
    Text { text: String },
    /// Of the input of a tool.
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// How a message ended.
#[derive(ToSchema)]
pub(crate) struct MessageEnd {
    /// `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
    stop_reason: String,
    #[schema(required)]
    stop_sequence: Option<String>,
}
