//! Denoising, block by block.
//!
//! A block starts as masks. Each preview scores the unresolved rows and fixes those that the
//! [`Rule`](crate::Rule) picks, or else the single most confident one. Penalty counts do not change
//! inside a block. A resolved block is emitted in order; unless that ends the answer, its commit
//! shares a pass with the next block's first preview.
//!
//! An answer that is held to a grammar fixes rows in any order too: see [`path`].
//!
//! Where the context has less room than a block, the last block is as short as the room.

mod path;

use shamrock_model::{Part, PassStats, Scored};

use crate::answer::{Answer, Rows};
use crate::choice::Choice;
use crate::error::Result;
use crate::event::{Alternative, Sink, Work};
use crate::outcome::Finish;
use crate::rule::Candidate;
use crate::savings::Saving;

/// The block being resolved.
pub(crate) struct Denoise {
    ids: Vec<u32>,
    confidence: Vec<f32>,
    /// Of each row's latest choice.
    alternatives: Vec<Vec<Alternative>>,
    /// Under a grammar: a text that the block can become, with what is fixed in its place.
    path: Vec<u32>,
    /// Unresolved rows, ascending.
    pending: Vec<usize>,
    /// Rows fixed since the latest pass was reported.
    given: Vec<usize>,
    /// Leading rows that may be emitted.
    want: usize,
    /// Rows in doubt have been masked again.
    reviewed: bool,
    /// Number of the block, and of the pass over it.
    block: usize,
    step: usize,
}

impl Denoise {
    /// The first block of an answer that has its prompt in the backlog.
    ///
    /// # Errors
    /// [`Error::Grammar`](crate::Error::Grammar).
    pub(crate) fn new(answer: &mut Answer) -> Result<Denoise> {
        Denoise::block(answer, 0)
    }

    fn block(answer: &mut Answer, block: usize) -> Result<Denoise> {
        let rows = answer.settings.block_size.min(answer.room());
        let mut block = Denoise {
            ids: vec![answer.settings.mask; rows],
            confidence: vec![0.0; rows],
            alternatives: vec![Vec::new(); rows],
            path: Vec::new(),
            pending: (0..rows).collect(),
            given: Vec::new(),
            want: rows.min(answer.remaining()),
            reviewed: false,
            block,
            step: 0,
        };
        // A row is left for the pass that every block takes.
        block.fill(answer, 1)?;
        Ok(block)
    }

    /// Plans the next commit and, once nothing is left to commit, a preview with it.
    pub(crate) fn plan(&self, answer: &mut Answer) {
        let committed = answer.plan_commit();
        let commit = answer.plan.commit.ids.len();
        let apart = commit > 0 && !answer.settings.savings.has(Saving::Fuse);
        if !committed || apart || commit + self.ids.len() > answer.limits.max_rows {
            return;
        }
        let fixed = (0..self.ids.len()).filter(|row| !self.pending.contains(row)).map(|row| self.ids[row]);
        answer.plan.preview = Rows {
            ids: self.ids.clone(),
            scored: if answer.settings.savings.has(Saving::Head) {
                self.pending.clone()
            } else {
                (0..self.ids.len()).collect()
            },
            probes: Vec::new(),
            first_position: answer.next_position(),
            think_open: answer.think_open(fixed),
            logits: answer.settings.chooses_here(),
        };
    }

    /// Fixes rows; emits the block when it is resolved.
    pub(crate) fn absorb(
        &mut self,
        answer: &mut Answer,
        mut scored: Scored,
        cost: &PassStats,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let open = if answer.guide.is_some() {
            self.walk(answer, &scored)?
        } else {
            self.choose(answer, &mut scored)?
        };
        self.fix(&open, answer, cost, sink)?;
        if answer.finish.is_some() || self.review(answer) || !self.settled(answer) {
            return Ok(());
        }
        answer.stats.blocks += 1;
        for row in 0..self.want {
            if !answer.emit(self.ids[row], self.confidence[row], &self.alternatives[row], sink)? {
                return Ok(());
            }
        }
        if answer.room() == self.ids.len() {
            answer.finish = Some(Finish::Context);
            return Ok(());
        }
        answer.backlog.clone_from(&self.ids);
        *self = Denoise::block(answer, self.block + 1)?;
        Ok(())
    }

    /// What each open row says for itself.
    fn choose(&mut self, answer: &mut Answer, scored: &mut Scored) -> Result<Vec<Candidate>> {
        let mut open = Vec::with_capacity(self.pending.len());
        for i in 0..answer.plan.preview.scored.len() {
            let row = answer.plan.preview.scored[i];
            if self.pending.contains(&row) {
                let choice = answer.choose(Part::Preview, scored, i, self.step as u32)?;
                open.push(candidate(row, &choice));
                self.alternatives[row] = choice.alternatives;
            }
        }
        Ok(open)
    }

    /// Fixes the rows that the rule picks, or the first of the most confident ones, and what follows from
    /// them.
    fn fix(
        &mut self,
        open: &[Candidate],
        answer: &mut Answer,
        cost: &PassStats,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let mut fixed = answer.settings.rule.unmask().fix(open, self.ids.len());
        fixed.sort_unstable();
        let forced = fixed.is_empty();
        if forced {
            // `reduce` keeps the earlier of two equals, which `max_by` would not.
            let better = |a: usize, b: usize| if open[b].confidence > open[a].confidence { b } else { a };
            fixed.extend((0..open.len()).reduce(better));
        }
        for candidate in fixed.iter().map(|&i| &open[i]) {
            self.ids[candidate.row] = candidate.token;
            self.confidence[candidate.row] = candidate.confidence;
            self.given.push(candidate.row);
        }
        self.pending.retain(|row| !self.given.contains(row));
        self.fill(answer, 0)?;
        let mut rows = std::mem::take(&mut self.given);
        rows.sort_unstable();
        let tokens: Vec<u32> = rows.iter().map(|&row| self.ids[row]).collect();
        let confidence: Vec<f32> = rows.iter().map(|&row| self.confidence[row]).collect();
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
        Ok(())
    }

    /// Masks the rows in doubt again when the block is resolved for the first time; true if the
    /// block must go on for them.
    fn review(&mut self, answer: &Answer) -> bool {
        let rule = answer.settings.rule.unmask();
        let doubted: Vec<usize> = (0..self.ids.len())
            .filter(|row| !self.pending.contains(row) && rule.doubts(self.confidence[*row]))
            .collect();
        // Rows that will not be emitted need no second look, but with one that will they get theirs,
        // so that what is emitted does not depend on whether the block was settled early.
        let matters = doubted.first().is_some_and(|&row| row < self.emitted(answer));
        if self.reviewed || !matters {
            return false;
        }
        if self.pending.is_empty() {
            self.reviewed = true;
            doubted.iter().for_each(|&row| self.ids[row] = answer.settings.mask);
            self.pending = doubted;
        }
        true
    }

    /// Leading rows that would be emitted if no further row were fixed differently.
    fn emitted(&self, answer: &Answer) -> usize {
        let stop = self.ids[..self.want].iter().position(|&id| answer.settings.stops(id));
        stop.map_or(self.want, |stop| stop + 1)
    }

    /// Whether no further pass over this block can change what is emitted.
    fn settled(&self, answer: &Answer) -> bool {
        let Some(&open) = self.pending.first() else {
            return true;
        };
        // `want` falls short of the block only where the token limit does.
        answer.settings.savings.has(Saving::Settle) && self.emitted(answer) <= open
    }
}

fn candidate(row: usize, choice: &Choice) -> Candidate {
    let pick = &choice.pick;
    Candidate {
        row,
        token: choice.token,
        confidence: choice.confidence,
        rival: if choice.token == pick.token { pick.runner_up } else { pick.probability },
        entropy: pick.entropy,
    }
}
