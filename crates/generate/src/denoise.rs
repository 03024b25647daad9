//! LowConfidence denoising.
//!
//! A block starts as masks. Each preview scores the unresolved rows and fixes those whose confidence
//! exceeds the threshold, or else the single most confident one. Penalty counts do not change
//! inside a block. A resolved block is emitted in order; unless that ends the answer, its commit
//! shares a pass with the next block's first preview.
//!
//! Where the context has less room than a block, the last block is as short as the room.

use shamrock_model::{PassStats, Scored};

use crate::answer::{Answer, Choice};
use crate::error::Result;
use crate::event::{Sink, Work};
use crate::options::Settle;
use crate::outcome::Finish;

/// The block being resolved.
pub(crate) struct Denoise {
    ids: Vec<u32>,
    confidence: Vec<f32>,
    /// Unresolved rows, ascending.
    pending: Vec<usize>,
    /// Leading rows that may be emitted.
    want: usize,
    /// Number of the block, and of the pass over it.
    block: usize,
    step: usize,
}

impl Denoise {
    /// The first block of an answer that has its prompt in the backlog.
    pub(crate) fn new(answer: &Answer) -> Denoise {
        Denoise::block(answer, 0)
    }

    fn block(answer: &Answer, block: usize) -> Denoise {
        let rows = answer.settings.block_size.min(answer.room());
        Denoise {
            ids: vec![answer.settings.mask; rows],
            confidence: vec![0.0; rows],
            pending: (0..rows).collect(),
            want: rows.min(answer.remaining()),
            block,
            step: 0,
        }
    }

    /// Plans the next commit and, once nothing is left to commit, a preview with it.
    pub(crate) fn plan(&self, answer: &mut Answer) {
        let committed = answer.plan_commit();
        if !committed || answer.plan.commit.len() + self.ids.len() > answer.limits.max_rows {
            return;
        }
        let fixed = (0..self.ids.len()).filter(|row| !self.pending.contains(row)).map(|row| self.ids[row]);
        let think_open = answer.think_open(fixed);
        answer.plan.preview = self.ids.clone();
        answer.plan.rows = self.pending.clone();
        answer.plan.first_position = answer.next_position();
        answer.plan.think_open = think_open;
        answer.plan.logits = !answer.settings.sampling.is_greedy();
    }

    /// Fixes rows; emits the block when it is resolved.
    pub(crate) fn absorb(
        &mut self,
        answer: &mut Answer,
        mut scored: Scored,
        cost: &PassStats,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let choices: Vec<Choice> = (0..self.pending.len())
            .map(|i| answer.choose(&mut scored, i, self.step as u32))
            .collect::<Result<_>>()?;
        self.fix(&choices, answer, cost, sink);
        if answer.finish.is_some() || !self.settled(answer) {
            return Ok(());
        }
        answer.stats.blocks += 1;
        for (&id, &confidence) in self.ids.iter().zip(&self.confidence).take(self.want) {
            if !answer.emit(id, confidence, sink) {
                return Ok(());
            }
        }
        if answer.room() == self.ids.len() {
            answer.finish = Some(Finish::Context);
            return Ok(());
        }
        answer.backlog.clone_from(&self.ids);
        *self = Denoise::block(answer, self.block + 1);
        Ok(())
    }

    /// Fixes every row above the threshold, or the first of the most confident ones.
    fn fix(&mut self, choices: &[Choice], answer: &mut Answer, cost: &PassStats, sink: &mut Sink<'_>) {
        let threshold = answer.settings.threshold;
        let mut fixed: Vec<usize> =
            (0..choices.len()).filter(|&i| choices[i].confidence > threshold).collect();
        let forced = fixed.is_empty();
        if forced {
            // `reduce` keeps the earlier of two equals, which `max_by` would not.
            let better =
                |a: usize, b: usize| if choices[b].confidence > choices[a].confidence { b } else { a };
            fixed.extend((0..choices.len()).reduce(better));
        }
        let rows: Vec<usize> = fixed.iter().map(|&i| self.pending[i]).collect();
        let tokens: Vec<u32> = fixed.iter().map(|&i| choices[i].token).collect();
        let confidence: Vec<f32> = fixed.iter().map(|&i| choices[i].confidence).collect();
        for ((&row, &token), &confidence) in rows.iter().zip(&tokens).zip(&confidence) {
            self.ids[row] = token;
            self.confidence[row] = confidence;
        }
        self.pending.retain(|row| !rows.contains(row));
        let (block, step) = (self.block, self.step);
        self.step += 1;
        let work = Work::Denoise {
            block,
            step,
            rows: &rows,
            tokens: &tokens,
            confidence: &confidence,
            forced,
            ids: &self.ids,
        };
        answer.report(work, cost, sink);
    }

    /// Whether no further pass over this block can change what is emitted.
    fn settled(&self, answer: &Answer) -> bool {
        let Some(&open) = self.pending.first() else {
            return true;
        };
        let stopped = || self.ids[..open.min(self.want)].iter().any(|&id| answer.settings.stops(id));
        // `want` falls short of the block only where the token limit does.
        let reached = self.want < self.ids.len() && open >= self.want;
        answer.settings.settle == Settle::Answer && (reached || stopped())
    }
}
