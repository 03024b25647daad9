//! The shapes of what stands in several kinds in a body, for the document only: bodies are read as JSON
//! first there, so that errors name the place.

#![expect(dead_code, reason = "read by the macro that describes them")]

use serde_json::Value;
use utoipa::ToSchema;

/// A text, or parts that are joined.
#[derive(ToSchema)]
#[serde(untagged)]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a content.
#[derive(ToSchema)]
pub(crate) struct Part {
    r#type: PartKind,
    text: String,
}

/// Texts are all that models read here.
#[derive(ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PartKind {
    Text,
    InputText,
    OutputText,
}

/// What a turn of the messages API says.
#[derive(ToSchema)]
#[serde(untagged)]
pub(crate) enum TurnContent {
    Text(String),
    Blocks(Vec<Block>),
}

/// A block of a turn.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Block {
    /// Text.
    Text { text: String },
    /// Reasoning, by the assistant.
    Thinking { thinking: String, signature: Option<String> },
    /// A call, by the assistant.
    ToolUse {
        id: String,
        name: String,
        #[schema(value_type = Object)]
        input: Value,
    },
    /// What came of a call, by the user.
    ToolResult {
        /// The `id` of a call before it.
        tool_use_id: String,
        content: Option<Content>,
        is_error: Option<bool>,
    },
}

/// The input of a response: a message of the user, or a conversation.
#[derive(ToSchema)]
#[serde(untagged)]
pub(crate) enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

/// A message, or another item with its type.
#[derive(ToSchema)]
#[serde(untagged)]
pub(crate) enum InputItem {
    Message(InputMessage),
    Other(OtherItem),
}

/// A message.
#[derive(ToSchema)]
pub(crate) struct InputMessage {
    /// `message`, or nothing.
    r#type: Option<String>,
    /// `system`, `developer`, `user` or `assistant`.
    role: String,
    content: Content,
}

/// What else there is in a conversation.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OtherItem {
    /// What the assistant thought before its next message.
    Reasoning { content: Vec<Thought> },
    /// A call that it made.
    FunctionCall {
        call_id: String,
        name: String,
        /// JSON.
        arguments: String,
    },
    /// What came of a call before it.
    FunctionCallOutput { call_id: String, output: Content },
}

/// Text of a reasoning.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Thought {
    /// Text.
    ReasoningText { text: String },
}
