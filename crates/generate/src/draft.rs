//! Self-speculation as the specification has it: one preview of the pending token and masks
//! proposes, one causal pass verifies.
//!
//! The state ends behind the last accepted draft; the token after it, which the verifying row
//! itself chose, is emitted but committed only by the next round. With typical acceptance the text
//! depends on the drafts, so the rounds are just these; exact drafting has a cheaper form,
//! [`Lookahead`](crate::lookahead::Lookahead).

use shamrock_model::executor::StepOutput;
use shamrock_model::{Executor, Part, PassStats, Scored};

use crate::answer::{Answer, Choice, Plan, Rows};
use crate::error::Result;
use crate::event::{Sink, Work};
use crate::options::Accept;
use crate::outcome::Finish;
use crate::session::Session;

/// Where in a round the answer is.
pub(crate) enum Draft {
    /// The prompt is being committed; its last row gives the first pending token.
    Prompt,
    /// The preview of these rows (the pending token, then masks) is due.
    Propose(Vec<u32>),
    /// The causal pass over these rows (the pending token, then drafts) is due.
    Verify(Vec<u32>),
}

impl Draft {
    /// Plans the next pass of the round.
    pub(crate) fn plan(&self, answer: &mut Answer) {
        answer.plan = Plan::default();
        match self {
            Draft::Prompt => {
                if answer.plan_commit() {
                    answer.score_from_last_row(&[]);
                }
            }
            // The response holds the pending token of row 0 already, so row r fills position n + r.
            Draft::Propose(rows) => {
                answer.plan.preview = Rows {
                    ids: rows.clone(),
                    scored: (1..rows.len()).collect(),
                    first_position: answer.next_position() - 1,
                    think_open: answer.think_open(std::iter::empty()),
                    ..Rows::default()
                };
            }
            Draft::Verify(rows) => {
                answer.plan.commit.ids = rows[..1].to_vec();
                answer.score_from_last_row(&rows[1..]);
                if answer.settings.accept != Accept::Exact {
                    // The last row verifies nothing; its probe only fills the list.
                    answer.plan.commit.probes = rows[1..].iter().chain(&rows[..1]).copied().collect();
                    answer.plan.commit.logits = answer.settings.chooses_here();
                }
            }
        }
    }

    /// Takes the result of the planned pass.
    pub(crate) fn absorb(
        &mut self,
        answer: &mut Answer,
        session: &mut Session,
        executor: &mut dyn Executor,
        output: StepOutput,
        cost: &PassStats,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let StepOutput { mut commit, mut preview } = output;
        match self {
            Draft::Prompt => {
                let choice = answer.choose(Part::Commit, &mut commit, 0, 0)?;
                let work = Work::Decode { token: choice.token, confidence: choice.confidence };
                answer.report(work, cost, sink);
                if answer.finish.is_none() && answer.emit(choice.token, choice.confidence, sink) {
                    *self = next_round(answer, choice.token);
                }
            }
            Draft::Propose(rows) => {
                let mut confidence = Vec::with_capacity(rows.len() - 1);
                for (i, row) in rows[1..].iter_mut().enumerate() {
                    let choice = answer.choose(Part::Preview, &mut preview, i, 0)?;
                    *row = choice.token;
                    confidence.push(choice.confidence);
                }
                answer.report(Work::Propose { drafts: &rows[1..], confidence: &confidence }, cost, sink);
                *self = Draft::Verify(std::mem::take(rows));
            }
            Draft::Verify(rows) => {
                let rows = std::mem::take(rows);
                let drafts = &rows[1..];
                let (accepted, bonus) = verify(answer, drafts, commit)?;
                let work = Work::Verify {
                    width: rows.len(),
                    drafts,
                    accepted: accepted.len(),
                    bonus: bonus.token,
                    ahead: &[],
                    confidence: &[],
                };
                answer.report(work, cost, sink);
                emit_round(answer, session, executor, drafts, &accepted, &bonus, sink)?;
                if answer.finish.is_none() {
                    *self = next_round(answer, bonus.token);
                }
            }
        }
        Ok(())
    }
}

/// Starts a round unless the context is full. The width is halved until it fits what is left of
/// the answer and of the context.
fn next_round(answer: &mut Answer, pending: u32) -> Draft {
    if answer.room() == 0 {
        answer.finish = Some(Finish::Context);
    }
    answer.stats.blocks += 1;
    let most = answer.remaining().min(answer.room()).min(answer.limits.max_rows);
    let mut width = answer.settings.draft_width;
    while width > most && width > 1 {
        width /= 2;
    }
    let mut rows = vec![answer.settings.mask; width];
    rows[0] = pending;
    if width > 1 { Draft::Propose(rows) } else { Draft::Verify(rows) }
}

/// Confidences of the leading drafts that hold, and the choice of the row behind them.
pub(crate) fn verify(answer: &Answer, drafts: &[u32], mut scored: Scored) -> Result<(Vec<f32>, Choice)> {
    let controls = &answer.settings.controls;
    let exact = answer.settings.accept == Accept::Exact;
    let mut history = answer.history.clone();
    let mut accepted = Vec::new();
    loop {
        let row = accepted.len();
        let choice = answer.choose_after(&history, Part::Commit, &mut scored, row, 0)?;
        let Some(&draft) = drafts.get(row) else {
            return Ok((accepted, choice));
        };
        let (holds, confidence) = match answer.settings.accept {
            Accept::Exact => (choice.token == draft, choice.confidence),
            Accept::Typical { ratio, delta } => {
                let p = choice.pick.probe;
                (p > 0.0 && p >= ratio.min(delta * (-choice.pick.entropy).exp()), p)
            }
        };
        // Rows behind a think-end token were shaped as if thinking were still open: let it be the
        // round's last token, as causal decoding would see it.
        let closes_thinking = answer.plan.commit.think_open
            && controls.think_end_ramp.strength != 0.0
            && controls.think_end_id == Some(draft);
        if !holds || exact && closes_thinking {
            return Ok((accepted, choice));
        }
        if exact {
            history.add(draft);
        }
        accepted.push(confidence);
    }
}

/// Emits the accepted drafts and the bonus, and rewinds to the rows of tokens that were emitted.
pub(crate) fn emit_round(
    answer: &mut Answer,
    session: &mut Session,
    executor: &mut dyn Executor,
    drafts: &[u32],
    accepted: &[f32],
    bonus: &Choice,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let mut kept = 0;
    if answer.finish.is_none() {
        let held = drafts.iter().zip(accepted);
        kept = held.take_while(|&(&draft, &confidence)| answer.emit(draft, confidence, sink)).count();
        if answer.finish.is_none() {
            answer.emit(bonus.token, bonus.confidence, sink);
        } else {
            // The draft that ended the answer was emitted too.
            kept += 1;
        }
    }
    session.rewind(executor, answer.length - drafts.len() + kept)?;
    answer.length = session.committed().len();
    Ok(())
}
