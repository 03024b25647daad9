//! What the modes share: the answer so far, the rows yet to commit, and the next pass.

use std::ops::ControlFlow;
use std::time::Instant;

use shamrock_model::{Limits, Part, PassStats, Score, Scored, SeqId, Step};

use crate::choice::{Choice, Chooser};
use crate::constraint::Guide;
use crate::error::{Error, Result};
use crate::event::{Alternative, Event, PassEvent, Sink, Work};
use crate::history::History;
use crate::options::Settings;
use crate::outcome::{Finish, Stats};

/// The next pass.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) commit: Rows,
    pub(crate) rewindable: bool,
    pub(crate) preview: Rows,
}

/// One part of a pass.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) ids: Vec<u32>,
    /// Rows to score.
    pub(crate) scored: Vec<usize>,
    /// Per row of `scored` an id whose probability is wanted, or empty.
    pub(crate) probes: Vec<u32>,
    /// Response position of row 0.
    pub(crate) first_position: i32,
    /// The think-end ramp applies.
    pub(crate) think_open: bool,
    /// Rows are shaped and chosen here, from their logits.
    pub(crate) logits: bool,
}

impl Plan {
    pub(crate) fn part(&self, part: Part) -> &Rows {
        match part {
            Part::Commit => &self.commit,
            Part::Preview => &self.preview,
        }
    }

    /// Whether the pass can decide anything.
    pub(crate) fn decides(&self) -> bool {
        !self.commit.scored.is_empty() || !self.preview.scored.is_empty()
    }
}

/// State of an answer that does not depend on the mode.
pub(crate) struct Answer {
    pub(crate) seq: SeqId,
    pub(crate) settings: Settings,
    pub(crate) limits: Limits,
    pub(crate) history: History,
    /// Behind the tokens that are emitted.
    pub(crate) guide: Option<Guide>,
    /// Rows the sequence holds.
    pub(crate) length: usize,
    /// Ids known but not committed yet: the rest of the prompt, then a resolved block.
    pub(crate) backlog: Vec<u32>,
    /// Lengths at which the session keeps a checkpoint, ascending.
    pub(crate) checkpoints: Vec<usize>,
    pub(crate) plan: Plan,
    pub(crate) tokens: Vec<u32>,
    pub(crate) confidence: Vec<f32>,
    pub(crate) finish: Option<Finish>,
    pub(crate) stats: Stats,
    pub(crate) started: Instant,
}

impl Answer {
    /// The planned pass.
    pub(crate) fn step(&self) -> Step<'_> {
        let plan = &self.plan;
        let step = Step::commit(self.seq, &plan.commit.ids, self.score(Part::Commit));
        let step = if plan.rewindable { step.rewindable() } else { step };
        step.then_preview(&plan.preview.ids, self.score(Part::Preview))
    }

    fn score(&self, part: Part) -> Score<'_> {
        let rows = self.plan.part(part);
        if rows.scored.is_empty() {
            Score::None
        } else if rows.logits {
            Score::Logits { rows: &rows.scored }
        } else {
            let shaping = self.chooser(part).shaping();
            Score::Picks { rows: &rows.scored, shaping, probes: &rows.probes }
        }
    }

    /// Chooses for a part of the planned pass, with the answer's own penalty counts.
    fn chooser(&self, part: Part) -> Chooser<'_> {
        Chooser { settings: &self.settings, rows: self.plan.part(part), history: &self.history }
    }

    /// The choice for the `i`th scored row of a part, which fills the place that the guide is at.
    ///
    /// `draw` tells apart the draws at one response position: the pass over the block.
    pub(crate) fn choose(&mut self, part: Part, scored: &mut Scored, i: usize, draw: u32) -> Result<Choice> {
        let (chooser, guide) = self.parts(part);
        chooser.choose(guide, scored, i, draw)
    }

    /// What choosing row by row along a path takes: the rows' chooser, and the guide to be led along.
    pub(crate) fn parts(&mut self, part: Part) -> (Chooser<'_>, Option<&mut Guide>) {
        let chooser =
            Chooser { settings: &self.settings, rows: self.plan.part(part), history: &self.history };
        (chooser, self.guide.as_mut())
    }

    /// Whether the think-end id is in neither the response nor the fixed rows of a block.
    pub(crate) fn think_open(&self, mut fixed: impl Iterator<Item = u32>) -> bool {
        let id = self.settings.controls.think_end_id;
        id.is_some_and(|id| !self.history.contains(id) && !fixed.any(|other| other == id))
    }

    /// Takes the next rows of the backlog into an empty plan; true when that empties the backlog.
    pub(crate) fn plan_commit(&mut self) -> bool {
        let boundary = self.checkpoints.iter().find(|&&at| at > self.length).map(|at| at - self.length);
        let most = self.settings.chunk_rows.unwrap_or(self.limits.chunk_rows);
        let most = most.min(self.limits.max_rows).min(boundary.unwrap_or(usize::MAX));
        let rows = most.min(self.backlog.len());
        let ids = self.backlog.drain(..rows).collect();
        self.plan = Plan { commit: Rows { ids, ..Rows::default() }, ..Plan::default() };
        self.backlog.is_empty()
    }

    /// Appends drafts to the planned commit, and scores them and the row before for the tokens that
    /// follow each.
    pub(crate) fn score_from_last_row(&mut self, drafts: &[u32]) {
        let think_open = self.think_open(std::iter::empty());
        let first = self.plan.commit.ids.len() - 1;
        let first_position = self.next_position() - first as i32;
        let logits = self.settings.chooses_here();
        let commit = &mut self.plan.commit;
        commit.ids.extend_from_slice(drafts);
        commit.scored = (first..commit.ids.len()).collect();
        commit.first_position = first_position;
        commit.think_open = think_open;
        // The penalties of a row behind a draft count that draft.
        commit.logits = logits || !drafts.is_empty() && self.settings.penalises();
        self.plan.rewindable = !drafts.is_empty();
    }

    /// Response position of the next token.
    pub(crate) fn next_position(&self) -> i32 {
        // Answers are shorter than the context, which is at most 2^30.
        self.tokens.len() as i32 + 1
    }

    /// Tokens that may still be emitted.
    pub(crate) fn remaining(&self) -> usize {
        self.settings.max_tokens - self.tokens.len()
    }

    /// Positions behind everything that is committed or waiting for it.
    pub(crate) fn room(&self) -> usize {
        self.limits.max_context.saturating_sub(self.length + self.backlog.len())
    }

    /// Tells the sink of the pass that just ended.
    pub(crate) fn report(&mut self, work: Work<'_>, cost: &PassStats, sink: &mut Sink<'_>) {
        let event = PassEvent {
            pass: self.stats.passes - 1,
            committed: self.plan.commit.ids.len(),
            length: self.length,
            work,
            cost,
        };
        if sink(Event::Pass(event)).is_break() {
            self.finish = Some(Finish::Cancelled);
        }
    }

    /// Adds a token to the answer; true while the answer goes on.
    ///
    /// # Errors
    /// [`Error::Grammar`] if the token is none that the answer's constraint allows here: whatever a
    /// mode does, nothing else leaves this crate.
    pub(crate) fn emit(
        &mut self,
        id: u32,
        confidence: f32,
        alternatives: &[Alternative],
        sink: &mut Sink<'_>,
    ) -> Result<bool> {
        let index = self.tokens.len();
        if let Some(guide) = &mut self.guide {
            if !guide.advance(id)? {
                let problem = format!("token {index} of the answer, id {id}, breaks it");
                return Err(Error::Grammar { problem });
            }
            guide.settle();
        }
        self.tokens.push(id);
        self.confidence.push(confidence);
        self.history.add(id);
        self.stats.first_block.get_or_insert_with(|| self.started.elapsed());
        let flow = sink(Event::Token { id, confidence, index, alternatives });
        self.finish = if self.settings.stops(id) {
            Some(Finish::Stop { id })
        } else if flow == ControlFlow::Break(()) {
            Some(Finish::Cancelled)
        } else if self.remaining() == 0 {
            Some(Finish::Length)
        } else {
            None
        };
        Ok(self.finish.is_none())
    }
}
