//! Passes over blocks, which no other API shows.

use std::collections::BTreeMap;

use utoipa::ToSchema;

/// Passes, where `shamrock.events` asked for them.
#[derive(ToSchema)]
pub(crate) struct Passes {
    events: Vec<PassReply>,
}

/// A pass as its answer saw it. Which fields there are depends on `work`.
#[derive(ToSchema)]
pub(crate) struct PassReply {
    event: PassWord,
    /// The answer's number, in chat and text completions.
    choice: Option<u64>,
    /// Number of the pass in its answer, from 0.
    pass: u64,
    /// Rows that it committed.
    committed: u64,
    /// Rows that the sequence holds after it.
    length: u64,
    work: WorkReply,
    cost: CostReply,
    /// Texts of its tokens, or of its drafts.
    text: Vec<String>,
    /// `denoise`: number of the block, from 0.
    block: Option<u64>,
    /// `denoise`: number of the pass over the block, from 0.
    step: Option<u64>,
    /// `denoise`: rows that it fixed.
    rows: Option<Vec<u64>>,
    /// `denoise`: what they were fixed to.
    tokens: Option<Vec<u32>>,
    /// How sure it was: of every row, draft or token ahead; in `decode` of the token.
    confidence: Option<Confidence>,
    /// `denoise`: no row exceeded the threshold, and the likeliest was fixed.
    forced: Option<bool>,
    /// `denoise`: the block after the pass.
    ids: Option<Vec<u32>>,
    /// `denoise`: rows of the block; `verify`: rows from the pending token on.
    width: Option<u64>,
    /// `denoise`: rows that are open after the pass.
    open: Option<Vec<u64>>,
    /// `propose`, `verify`: the drafts.
    drafts: Option<Vec<u32>>,
    /// `verify`: leading drafts that hold.
    accepted: Option<u64>,
    /// `verify`: the token after those.
    bonus: Option<u32>,
    /// `verify`: its text.
    bonus_text: Option<String>,
    /// `verify`: what a preview proposes from there on, had all drafts held.
    ahead: Option<Vec<u32>>,
    /// `decode`: the token.
    token: Option<u32>,
}

/// The only kind of event here.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum PassWord {
    Pass,
}

/// What a pass was for.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(crate) enum WorkReply {
    Commit,
    Denoise,
    Propose,
    Verify,
    Decode,
}

/// Probabilities.
#[derive(ToSchema)]
#[serde(untagged)]
pub(crate) enum Confidence {
    Many(Vec<f64>),
    One(f64),
}

/// What a pass cost; it is shared with other answers. Times are in microseconds.
#[derive(ToSchema)]
pub(crate) struct CostReply {
    device_us: u64,
    host_us: u64,
    routing_us: u64,
    fill_us: u64,
    waits: u64,
    waiting_us: u64,
    weight_bytes: u64,
    distinct_experts: u64,
    expert_hits: u64,
    expert_misses: u64,
    fill_bytes: u64,
    /// With `--profile`.
    stages_us: Option<BTreeMap<String, u64>>,
}
