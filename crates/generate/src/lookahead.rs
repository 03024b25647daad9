//! Exact drafting with one pass laid over the next.
//!
//! A pass commits the pending token and some drafts, scored, and may preview a block of masks behind
//! them. If all drafts hold and the preview's first row is the token that the last committed row
//! chose, the preview's other rows are the next drafts. So a preview never has a pass of its own, and
//! a pass never yields less than causal decoding does.
//!
//! How many drafts to verify and how wide to preview is the [`Policy`]'s choice. It changes the speed
//! alone: whatever is proposed, what is emitted is what the causal rows choose.

use shamrock_model::executor::StepOutput;
use shamrock_model::{Executor, PassStats};

use crate::answer::{Answer, Rows};
use crate::choice::Choice;
use crate::draft::{along, emit_round, verify};
use crate::error::Result;
use crate::event::{Sink, Work};
use crate::outcome::Finish;
use crate::pace::{Observation, Pace, Room, Shape, preview_rows};
use crate::session::Session;

/// A proposed token.
#[derive(Clone, Copy, Debug)]
struct Guess {
    token: u32,
    confidence: f32,
}

impl From<&Choice> for Guess {
    fn from(choice: &Choice) -> Guess {
        Guess { token: choice.token, confidence: choice.confidence }
    }
}

/// How passes are shaped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Policy {
    /// Verify every draft; preview when there is none, or always.
    Fixed {
        /// Preview in every pass.
        ahead: bool,
    },
    /// As the session's [`Pace`] advises.
    Learned,
}

/// Exact drafting.
pub(crate) struct Lookahead {
    policy: Policy,
    pace: Pace,
    /// Guesses for the tokens behind the pending one, which waits in the backlog.
    drafts: Vec<Guess>,
    /// Shape of the planned pass.
    shape: Shape,
}

impl Lookahead {
    pub(crate) fn new(policy: Policy, pace: Pace) -> Lookahead {
        Lookahead { policy, pace, drafts: Vec::new(), shape: Shape::default() }
    }

    /// Plans the next pass: a piece of the prompt, or its tail or the pending token with what the
    /// policy adds.
    pub(crate) fn plan(&mut self, answer: &mut Answer) {
        if !answer.plan_commit() {
            return;
        }
        let commit = answer.plan.commit.ids.len();
        let places = answer.room() - commit;
        // Tokens beyond the limit need no rows: a pass decides one more than it verifies drafts.
        let rows = places.min(answer.remaining() - 1).min(answer.limits.max_rows - commit);
        let room = Room { commit, rows };
        let width = answer.settings.draft_width;
        self.shape = match self.policy {
            Policy::Fixed { ahead } => {
                let verify = self.drafts.len().min(rows);
                let previews = ahead || verify == 0;
                Shape {
                    verify,
                    preview: if previews { room.preview(verify, preview_rows(width)) } else { 0 },
                }
            }
            Policy::Learned => {
                let confidence: Vec<f32> = self.drafts.iter().map(|guess| guess.confidence).collect();
                self.pace.choose(&confidence, room, width)
            }
        };
        let drafts: Vec<u32> = self.drafts[..self.shape.verify].iter().map(|guess| guess.token).collect();
        answer.score_from_last_row(&drafts);
        if self.shape.preview > 0 {
            let think_open = answer.plan.commit.think_open;
            answer.plan.preview = Rows {
                ids: vec![answer.settings.mask; self.shape.preview],
                scored: (0..self.shape.preview).collect(),
                probes: Vec::new(),
                first_position: answer.next_position() + self.shape.verify as i32,
                think_open,
                logits: answer.settings.chooses_here(),
            };
        }
    }

    /// Emits what holds, keeps what is proposed.
    pub(crate) fn absorb(
        &mut self,
        answer: &mut Answer,
        session: &mut Session,
        executor: &mut dyn Executor,
        output: StepOutput,
        cost: &PassStats,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let commit = answer.plan.commit.ids.len() - self.shape.verify;
        let drafts = &answer.plan.commit.ids[commit..].to_vec();
        let (accepted, bonus) = verify(answer, drafts, output.commit)?;
        let held = accepted.len() == drafts.len();
        let previewed = if held { answer.plan.preview.scored.len() } else { 0 };
        let ahead = along(answer, drafts, output.preview, previewed)?;
        let ahead: Vec<Guess> = ahead.iter().map(Guess::from).collect();
        answer.stats.blocks += usize::from(self.shape.preview > 0);
        if drafts.is_empty() && self.shape.preview == 0 {
            answer.report(Work::Decode { token: bonus.token, confidence: bonus.confidence }, cost, sink);
        } else {
            let work = Work::Verify {
                width: drafts.len() + 1,
                drafts,
                accepted: accepted.len(),
                bonus: bonus.token,
                ahead: &ahead.iter().map(|guess| guess.token).collect::<Vec<_>>(),
                confidence: &ahead.iter().map(|guess| guess.confidence).collect::<Vec<_>>(),
            };
            answer.report(work, cost, sink);
        }
        self.learn(commit, accepted.len(), bonus.token, held.then_some(&ahead), cost);
        emit_round(answer, session, executor, drafts, &accepted, &bonus, sink)?;
        if answer.finish.is_none() {
            if answer.room() == 0 {
                answer.finish = Some(Finish::Context);
            }
            answer.backlog.push(bonus.token);
        }
        let left_over = self.drafts.split_off(drafts.len());
        self.drafts.clear();
        // The fresher guesses first: they saw more.
        let goes_on = |guesses: &Vec<Guess>| guesses.first().is_some_and(|g| held && g.token == bonus.token);
        if let Some(mut guesses) = [ahead, left_over].into_iter().find(goes_on) {
            self.drafts = guesses.split_off(1);
        }
        Ok(())
    }

    /// Tells the pace what the pass cost and which guesses were right.
    fn learn(
        &self,
        commit: usize,
        accepted: usize,
        bonus: u32,
        ahead: Option<&Vec<Guess>>,
        cost: &PassStats,
    ) {
        let Policy::Learned = self.policy else { return };
        let held = self.drafts[..accepted].iter().map(|guess| (guess.confidence, true));
        // The guess in the place of the bonus, verified or not.
        let last = self.drafts.get(accepted).into_iter().chain(ahead.and_then(|ahead| ahead.first()));
        let last = last.map(|guess| (guess.confidence, guess.token == bonus));
        let preview = ahead.filter(|_| self.shape.preview > 0);
        let preview = preview.map(|ahead| ahead.iter().map(|guess| guess.confidence).collect());
        self.pace.learn(Observation {
            commit: commit + self.shape.verify,
            preview_rows: self.shape.preview,
            time: (cost.device + cost.host).as_secs_f64(),
            cold: cost.cold,
            guesses: held.chain(last).collect(),
            preview,
        });
    }
}
