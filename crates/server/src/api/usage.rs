//! What answers took.

use std::time::Duration;

use serde_json::{Value, json};
use shamrock_generate::Mode;

use crate::api::answer::Ended;

/// Sums over the answers to one request.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    mode: Mode,
    /// Answers to each prompt; a prompt counts once.
    n: usize,
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) completion: usize,
    pub(crate) reasoning: usize,
    passes: usize,
    deciding: usize,
    blocks: usize,
    first_block: Option<Duration>,
    elapsed: Duration,
}

impl Usage {
    pub(crate) fn new(mode: Mode, n: usize) -> Usage {
        Usage {
            mode,
            n,
            prompt: 0,
            cached: 0,
            completion: 0,
            reasoning: 0,
            passes: 0,
            deciding: 0,
            blocks: 0,
            first_block: None,
            elapsed: Duration::ZERO,
        }
    }

    pub(crate) fn add(&mut self, choice: usize, ended: &Ended) {
        let stats = &ended.outcome.stats;
        if choice.is_multiple_of(self.n) {
            self.prompt += stats.prompt_tokens;
            self.cached += stats.cached_tokens;
        }
        self.completion += ended.outcome.tokens.len();
        self.reasoning += ended.reasoning_tokens;
        self.passes += stats.passes;
        self.deciding += stats.deciding;
        self.blocks += stats.blocks;
        self.first_block = self.first_block.into_iter().chain(stats.first_block).min();
        self.elapsed = self.elapsed.max(stats.elapsed);
    }

    /// The figures that no other API has.
    pub(crate) fn extension(&self) -> Value {
        let millis = |time: Duration| (time.as_secs_f64() * 1e5).round() / 100.0;
        let per_pass = self.completion as f64 / self.deciding.max(1) as f64;
        json!({
            "mode": self.mode,
            "passes": self.passes,
            "deciding_passes": self.deciding,
            "tokens_per_pass": (per_pass * 1000.0).round() / 1000.0,
            "blocks": self.blocks,
            "first_block_ms": self.first_block.map(millis),
            "elapsed_ms": millis(self.elapsed),
        })
    }

    /// As the OpenAI chat and completion APIs give it.
    pub(crate) fn openai(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
            "completion_tokens_details": { "reasoning_tokens": self.reasoning },
            "shamrock": self.extension(),
        })
    }
}
