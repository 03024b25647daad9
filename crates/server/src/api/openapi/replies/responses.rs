//! Responses.

use serde_json::Value;
use utoipa::ToSchema;

use super::{AnswerDetails, Figures, PassReply, Passes, PromptDetails, TokenReply};
use crate::api::format::TextFormat;
use crate::api::tools::{ResponseTool, ToolChoice};

/// An answered input. It repeats what was asked.
#[derive(ToSchema)]
pub(crate) struct ResponseReply {
    id: String,
    /// `response`.
    object: String,
    /// Seconds since 1970.
    created_at: u64,
    /// `completed` or `incomplete`; in the first events `in_progress`.
    status: String,
    output: Vec<OutputItem>,
    #[schema(required)]
    incomplete_details: Option<IncompleteDetails>,
    /// Always `null`: errors are replies or events of their own.
    #[schema(required)]
    error: Option<String>,
    model: String,
    /// `null` while it is in progress.
    #[schema(required)]
    usage: Option<ResponseUsage>,
    #[schema(required)]
    instructions: Option<String>,
    #[schema(required)]
    max_output_tokens: Option<u64>,
    #[schema(value_type = Object)]
    metadata: Value,
    parallel_tool_calls: bool,
    #[schema(required)]
    previous_response_id: Option<String>,
    reasoning: ReasoningShown,
    store: bool,
    temperature: f64,
    top_p: f64,
    top_logprobs: u64,
    text: TextShown,
    tool_choice: ToolChoice,
    tools: Vec<ResponseTool>,
    /// `disabled`.
    truncation: String,
    shamrock: Option<Passes>,
}

/// Why a response was cut.
#[derive(ToSchema)]
pub(crate) struct IncompleteDetails {
    /// `max_output_tokens`.
    reason: String,
}

/// What a response took.
#[derive(ToSchema)]
pub(crate) struct ResponseUsage {
    input_tokens: u64,
    input_tokens_details: PromptDetails,
    output_tokens: u64,
    output_tokens_details: AnswerDetails,
    total_tokens: u64,
    shamrock: Figures,
}

/// What was asked of the reasoning.
#[derive(ToSchema)]
pub(crate) struct ReasoningShown {
    #[schema(required)]
    effort: Option<String>,
    /// Always `null`.
    #[schema(required)]
    summary: Option<String>,
}

/// What was asked of the text.
#[derive(ToSchema)]
pub(crate) struct TextShown {
    format: TextFormat,
}

/// An item of a response.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    /// What the model thought.
    Reasoning {
        id: String,
        status: ItemStatus,
        /// Always empty.
        summary: Vec<String>,
        content: Vec<ReasoningPart>,
    },
    /// What it says.
    Message {
        id: String,
        status: ItemStatus,
        /// `assistant`.
        role: String,
        content: Vec<TextPart>,
    },
    /// A function that it calls.
    FunctionCall {
        id: String,
        status: ItemStatus,
        call_id: String,
        name: String,
        /// JSON, unless the answer was cut.
        arguments: String,
    },
}

/// How far an item is.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum ItemStatus {
    InProgress,
    Completed,
    Incomplete,
}

/// Text of a reasoning.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ReasoningPart {
    /// Text.
    ReasoningText { text: String },
}

/// Text of a message.
#[derive(ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum TextPart {
    /// Text.
    OutputText {
        text: String,
        /// Always empty.
        annotations: Vec<String>,
        /// Empty unless they were asked for.
        logprobs: Vec<TokenReply>,
    },
}

/// Either of the two.
#[derive(ToSchema)]
#[serde(untagged)]
pub(crate) enum OutputPart {
    Reasoning(ReasoningPart),
    Text(TextPart),
}

/// An event of a stream.
#[derive(ToSchema)]
#[serde(tag = "type")]
pub(crate) enum ResponseEvent {
    /// The first event.
    #[serde(rename = "response.created")]
    Created { sequence_number: u64, response: ResponseReply },
    /// The second.
    #[serde(rename = "response.in_progress")]
    InProgress { sequence_number: u64, response: ResponseReply },
    /// An item begins.
    #[serde(rename = "response.output_item.added")]
    ItemAdded { sequence_number: u64, output_index: u64, item: OutputItem },
    /// It is there.
    #[serde(rename = "response.output_item.done")]
    ItemDone { sequence_number: u64, output_index: u64, item: OutputItem },
    /// Its part begins.
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        sequence_number: u64,
        item_id: String,
        output_index: u64,
        content_index: u64,
        part: OutputPart,
    },
    /// The part is there.
    #[serde(rename = "response.content_part.done")]
    PartDone {
        sequence_number: u64,
        item_id: String,
        output_index: u64,
        content_index: u64,
        part: OutputPart,
    },
    /// More of a message.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        sequence_number: u64,
        item_id: String,
        output_index: u64,
        content_index: u64,
        delta: String,
        logprobs: Vec<TokenReply>,
    },
    /// All of it.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        sequence_number: u64,
        item_id: String,
        output_index: u64,
        content_index: u64,
        text: String,
        logprobs: Vec<TokenReply>,
    },
    /// More of a reasoning.
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        sequence_number: u64,
        item_id: String,
        output_index: u64,
        content_index: u64,
        delta: String,
    },
    /// All of it.
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        sequence_number: u64,
        item_id: String,
        output_index: u64,
        content_index: u64,
        text: String,
    },
    /// More of a call's arguments.
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta { sequence_number: u64, item_id: String, output_index: u64, delta: String },
    /// All of them.
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        sequence_number: u64,
        item_id: String,
        output_index: u64,
        name: String,
        arguments: String,
    },
    /// A pass, where `shamrock.events` asked for them.
    #[serde(rename = "shamrock")]
    Pass { sequence_number: u64, shamrock: PassReply },
    /// The last event of a whole response.
    #[serde(rename = "response.completed")]
    Completed { sequence_number: u64, response: ResponseReply },
    /// The last event of one that was cut.
    #[serde(rename = "response.incomplete")]
    Incomplete { sequence_number: u64, response: ResponseReply },
    /// The last event of one that failed.
    #[serde(rename = "error")]
    Error {
        sequence_number: u64,
        code: String,
        message: String,
        #[schema(required)]
        param: Option<String>,
    },
}
