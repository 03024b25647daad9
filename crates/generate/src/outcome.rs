//! How an answer ended and what it took.

use std::time::Duration;

use serde::{Serialize, Serializer};
use shamrock_model::PassStats;

use crate::event;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "finish", rename_all = "snake_case")]
pub enum Finish {
    /// A stop id was emitted.
    Stop {
        /// Which.
        id: u32,
    },
    /// The token limit was reached.
    Length,
    /// The context is full.
    Context,
    /// The sink broke off.
    Cancelled,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The emitted ids, a stop id included.
    pub tokens: Vec<u32>,
    /// Per token its probability in the shaped row at temperature 1.
    pub confidence: Vec<f32>,
    /// Why it ended.
    #[serde(flatten)]
    pub finish: Finish,
    /// What it took.
    pub stats: Stats,
}

/// What an answer took.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, already committed by earlier answers.
    pub cached_tokens: usize,
    /// Passes of the executor.
    pub passes: usize,
    /// Passes that decided tokens: all but those that only committed prompt rows.
    pub deciding: usize,
    /// Passes that previewed a block.
    pub previews: usize,
    /// Passes that committed rows.
    pub commits: usize,
    /// Rows that ran through the layers, in commits and previews.
    pub rows: usize,
    /// Of these, rows that ran through the head.
    pub scored: usize,
    /// Blocks denoised or rounds drafted.
    pub blocks: usize,
    /// From the start until the first token was emitted.
    #[serde(rename = "first_block_us", serialize_with = "optional_micros")]
    pub first_block: Option<Duration>,
    /// From the start to the end.
    #[serde(rename = "elapsed_us", serialize_with = "micros")]
    pub elapsed: Duration,
    /// Sum over the passes.
    #[serde(serialize_with = "event::cost")]
    pub total: PassStats,
}

fn micros<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(event::micros(*time))
}

fn optional_micros<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(event::micros).serialize(serializer)
}
