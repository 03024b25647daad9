//! Text for language models: token ids, chat templates, and the stream back.
//!
//! ```text
//! messages ── ChatTemplate ──► ids ── model ──► ids ── Detokenizer ──► text
//!                  ▲                                                   │
//!              Tokenizer                        StopStrings ◄──────────┘
//!                                    └──► ReasoningSplitter ──► ToolCallSplitter
//!                                              reasoning | content | tool calls
//! ```
//!
//! - [`Tokenizer`] wraps the Hugging Face tokenizers library and decides which added tokens are
//!   *control tokens*, which text of unknown origin must not produce.
//! - [`ChatTemplate`] renders the Jinja template that comes with a model, as the transformers
//!   library does, and bounds what a faulty one can cost. That is no sandbox.
//! - [`Detokenizer`], [`StopStrings`], [`ReasoningSplitter`] and [`ToolCallSplitter`] work on a stream as it comes; their
//!   results do not depend on how it is cut.

mod answer;
mod chat;
mod control;
mod detokenizer;
mod error;
mod jinja;
mod prompter;
mod reasoning;
mod scan;
mod stop;
mod tokenizer;
mod tools;

pub use answer::{AnswerPart, AnswerStream};
pub use chat::{ChatTemplate, Message, RenderOptions};
pub use detokenizer::Detokenizer;
pub use error::Error;
pub use prompter::{Prompt, Prompter};
pub use reasoning::{Piece, ReasoningSplitter, ReasoningTags};
pub use stop::{StopOutcome, StopStrings};
pub use tokenizer::{Spelling, Tokenizer};
pub use tools::{TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Tool, ToolCallSplitter, ToolFormat, Tools};
