//! What the modes share: the answer so far, the rows yet to commit, and the next pass.

use std::ops::ControlFlow;
use std::time::Instant;

use shamrock_model::{Limits, Part, PassStats, Pick, Score, Scored, SeqId, Shaping, Step};

use crate::error::{Error, Result};
use crate::event::{Event, PassEvent, Sink, Work};
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

/// What was chosen for a row.
pub(crate) struct Choice {
    pub(crate) token: u32,
    /// Probability of `token` in the shaped row at temperature 1.
    pub(crate) confidence: f32,
    /// The row's greedy pick; `token` differs from its token when sampling.
    pub(crate) pick: Pick,
}

/// State of an answer that does not depend on the mode.
pub(crate) struct Answer {
    pub(crate) seq: SeqId,
    pub(crate) settings: Settings,
    pub(crate) limits: Limits,
    pub(crate) history: History,
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
            let shaping = self.shaping(part, &self.history);
            Score::Picks { rows: &rows.scored, shaping, probes: &rows.probes }
        }
    }

    /// Shaping of a part of the planned pass, with the penalties of `history`.
    fn shaping<'a>(&'a self, part: Part, history: &'a History) -> Shaping<'a> {
        let rows = self.plan.part(part);
        Shaping {
            controls: &self.settings.controls,
            forbidden: &self.settings.forbidden,
            counts: if self.settings.penalises() { history.counts() } else { &[] },
            first_position: rows.first_position,
            think_open: rows.think_open,
        }
    }

    /// The choice for the `i`th scored row of a part, with the answer's own penalty counts.
    ///
    /// `draw` tells apart the draws at one response position: the pass over the block.
    pub(crate) fn choose(&self, part: Part, scored: &mut Scored, i: usize, draw: u32) -> Result<Choice> {
        self.choose_after(&self.history, part, scored, i, draw)
    }

    /// The same with the penalty counts of another history; needs the plan to ask for logits if
    /// that makes a difference.
    pub(crate) fn choose_after(
        &self,
        history: &History,
        part: Part,
        scored: &mut Scored,
        i: usize,
        draw: u32,
    ) -> Result<Choice> {
        let planned = self.plan.part(part);
        let rows = &planned.scored;
        let position = planned.first_position.saturating_add_unsigned(rows[i] as u32).max(0) as u32;
        let sampling = &self.settings.sampling;
        let found = match scored {
            Scored::None => 0,
            Scored::Picks(picks) => picks.len(),
            Scored::Logits { values, vocab } => values.len() / (*vocab).max(1),
        };
        if found != rows.len() {
            return Err(Error::MissingScores { expected: rows.len(), found });
        }
        let (pick, drawn) = match scored {
            Scored::Logits { values, vocab } => {
                let row = &mut values[i * *vocab..(i + 1) * *vocab];
                self.shaping(part, history).apply(rows[i], row);
                let pick = Pick::from_logits(row, planned.probes.get(i).copied());
                let sampled = !sampling.is_greedy() && usable(&pick);
                (pick, sampled.then(|| sampling.draw(row, &pick, position, draw)))
            }
            _ => (scored.picks()[i], None),
        };
        if !usable(&pick) {
            return Err(Error::NothingToChoose { position });
        }
        let (token, confidence) = drawn.unwrap_or((pick.token, pick.probability));
        Ok(Choice { token, confidence, pick })
    }

    /// Whether the think-end id is in neither the response nor the fixed rows of a block.
    pub(crate) fn think_open(&self, mut fixed: impl Iterator<Item = u32>) -> bool {
        let id = self.settings.controls.think_end_id;
        id.is_some_and(|id| !self.history.contains(id) && !fixed.any(|other| other == id))
    }

    /// Takes the next rows of the backlog into an empty plan; true when that empties the backlog.
    pub(crate) fn plan_commit(&mut self) -> bool {
        let boundary = self.checkpoints.iter().find(|&&at| at > self.length).map(|at| at - self.length);
        let most = self.settings.chunk_rows.min(self.limits.max_rows).min(boundary.unwrap_or(usize::MAX));
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
    pub(crate) fn emit(&mut self, id: u32, confidence: f32, sink: &mut Sink<'_>) -> bool {
        let index = self.tokens.len();
        self.tokens.push(id);
        self.confidence.push(confidence);
        self.history.add(id);
        self.stats.first_block.get_or_insert_with(|| self.started.elapsed());
        let flow = sink(Event::Token { id, confidence, index });
        self.finish = if self.settings.stops(id) {
            Some(Finish::Stop { id })
        } else if flow == ControlFlow::Break(()) {
            Some(Finish::Cancelled)
        } else if self.remaining() == 0 {
            Some(Finish::Length)
        } else {
            None
        };
        self.finish.is_none()
    }
}

/// A pick of a row that has a best logit; rows of nothing but −∞, or with NaN or +∞ on top, do not.
fn usable(pick: &Pick) -> bool {
    pick.probability > 0.0 && pick.probability.is_finite()
}
