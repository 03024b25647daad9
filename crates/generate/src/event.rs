//! What a listener learns while an answer is made. Every event serialises to one JSON line.

use std::ops::ControlFlow;
use std::time::Duration;

use serde::ser::{SerializeMap, Serializer};
use serde::{Serialize, ser};
use shamrock_model::PassStats;

/// Something that happened. All slices are valid during the call only.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// A pass ended.
    Pass(PassEvent<'a>),
    /// A token was emitted: it belongs to the answer. Follows the pass that decided it.
    Token {
        /// The id; a stop id too.
        id: u32,
        /// Its probability in the shaped row at temperature 1.
        confidence: f32,
        /// Index in the answer.
        index: usize,
        /// The likeliest tokens of its row, if [asked for](crate::Options::alternatives): those of
        /// the pass that decided it.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        alternatives: &'a [Alternative],
    },
}

/// A token that a row could have been.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Alternative {
    /// The id.
    pub id: u32,
    /// Its probability in the shaped row at temperature 1.
    pub probability: f32,
}

/// One pass of the executor, as this answer saw it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PassEvent<'a> {
    /// Number of the pass in this answer, from 0.
    pub pass: usize,
    /// Rows it committed: of the prompt, of a resolved block, or for verification.
    pub committed: usize,
    /// Rows the sequence holds after it (before a draft's rewind).
    pub length: usize,
    /// What it was for.
    #[serde(flatten)]
    pub work: Work<'a>,
    /// What it cost; shared with the other answers of a batch.
    #[serde(serialize_with = "cost")]
    pub cost: &'a PassStats,
}

/// What a pass was for.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "work", rename_all = "snake_case")]
pub enum Work<'a> {
    /// Only to commit: a chunk of the prompt, or a block too wide to share a pass with the next.
    Commit,
    /// A preview of a block, after which some of its rows are fixed.
    Denoise {
        /// Number of the block in this answer, from 0.
        block: usize,
        /// Number of the pass over this block, from 0.
        step: usize,
        /// Rows fixed by this pass, ascending.
        rows: &'a [usize],
        /// What they were fixed to.
        tokens: &'a [u32],
        /// How sure.
        confidence: &'a [f32],
        /// No row exceeded the threshold; the most confident one was fixed.
        forced: bool,
        /// The block after the pass; unresolved rows hold the mask token.
        ids: &'a [u32],
    },
    /// A preview of the pending token and masks, which proposes drafts.
    Propose {
        /// The proposals.
        drafts: &'a [u32],
        /// How sure.
        confidence: &'a [f32],
    },
    /// A causal pass over the pending token and the drafts, and perhaps a preview of what follows
    /// them.
    Verify {
        /// Rows of the causal part from the pending token on.
        width: usize,
        /// The drafts.
        drafts: &'a [u32],
        /// Leading drafts that hold.
        accepted: usize,
        /// The token after the accepted ones.
        bonus: u32,
        /// What the preview proposes from the place of `bonus` on, had all drafts held; new drafts
        /// if its first is `bonus`.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        ahead: &'a [u32],
        /// How sure of those.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        confidence: &'a [f32],
    },
    /// A causal pass whose last row is the next token.
    Decode {
        /// The token.
        token: u32,
        /// How sure.
        confidence: f32,
    },
}

/// Receives the events of an answer; `Break` ends it there. After a token that is the end of the
/// answer: the rest of its block is neither emitted nor committed.
pub type Sink<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// A pass's cost with times in microseconds.
pub(crate) fn cost<S: Serializer>(stats: &PassStats, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("device_us", &micros(stats.device))?;
    map.serialize_entry("host_us", &micros(stats.host))?;
    map.serialize_entry("routing_us", &micros(stats.routing))?;
    map.serialize_entry("fill_us", &micros(stats.fill))?;
    map.serialize_entry("waits", &stats.waits)?;
    map.serialize_entry("waiting_us", &micros(stats.waiting))?;
    map.serialize_entry("weight_bytes", &stats.weight_bytes)?;
    map.serialize_entry("distinct_experts", &stats.distinct_experts)?;
    map.serialize_entry("expert_hits", &stats.expert_hits)?;
    map.serialize_entry("expert_misses", &stats.expert_misses)?;
    map.serialize_entry("fill_bytes", &stats.fill_bytes)?;
    if !stats.stages.is_empty() {
        map.serialize_entry("stages_us", &Stages(&stats.stages))?;
    }
    map.end()
}

struct Stages<'a>(&'a [(&'static str, Duration)]);

impl ser::Serialize for Stages<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(stage, time)| (stage, micros(*time))))
    }
}

/// Whole microseconds.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
