//! Self-speculation as the specification has it: one preview of the pending token and masks
//! proposes, one causal pass verifies.
//!
//! The state ends behind the last accepted draft; the token after it, which the verifying row
//! itself chose, is emitted but committed only by the next round. With typical acceptance the text
//! depends on the drafts, so the rounds are just these; exact drafting has a cheaper form,
//! [`Lookahead`](crate::lookahead::Lookahead).

use shamrock_model::executor::StepOutput;
use shamrock_model::{Executor, Part, PassStats, Scored};

use crate::answer::{Answer, Plan, Rows};
use crate::choice::{Choice, Chooser};
use crate::constraint::Guide;
use crate::error::{Error, Result};
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
                    logits: answer.settings.edits(),
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
        let StepOutput { mut commit, preview } = output;
        match self {
            Draft::Prompt => {
                let choice = answer.choose(Part::Commit, &mut commit, 0, 0)?;
                let work = Work::Decode { token: choice.token, confidence: choice.confidence };
                answer.report(work, cost, sink);
                if answer.finish.is_none()
                    && answer.emit(choice.token, choice.confidence, &choice.alternatives, sink)?
                {
                    *self = next_round(answer, choice.token);
                }
            }
            Draft::Propose(rows) => {
                let places = rows.len() - 1;
                let guesses = along(answer, &[], preview, places)?;
                for (row, guess) in rows[1..].iter_mut().zip(&guesses) {
                    *row = guess.token;
                }
                let confidence: Vec<f32> = guesses.iter().map(|guess| guess.confidence).collect();
                if guesses.len() < places {
                    return Err(Error::NothingToChoose {
                        position: answer.next_position() as u32 + guesses.len() as u32,
                    });
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

/// The choices for preview rows that stand behind `drafts`, each led on by the ones before, up to
/// the first row in which nothing can be chosen; at most `most`.
pub(crate) fn along(
    answer: &mut Answer,
    drafts: &[u32],
    mut preview: Scored,
    most: usize,
) -> Result<Vec<Choice>> {
    if most == 0 {
        return Ok(Vec::new());
    }
    let (chooser, mut guide) = answer.parts(Part::Preview);
    let mut walked = 0;
    let mut lead = |guide: &mut Option<&mut Guide>, id| -> Result<bool> {
        let Some(guide) = guide else { return Ok(true) };
        let goes_on = guide.advance(id)?;
        walked += usize::from(goes_on);
        Ok(goes_on)
    };
    let mut goes_on = true;
    for &draft in drafts {
        goes_on = goes_on && lead(&mut guide, draft)?;
    }
    let mut choices = Vec::new();
    while goes_on && choices.len() < most {
        let choice = match chooser.choose(guide.as_deref_mut(), &mut preview, choices.len(), 0) {
            Ok(choice) => choice,
            Err(Error::NothingToChoose { .. }) => break,
            Err(error) => return Err(error),
        };
        goes_on = lead(&mut guide, choice.token)?;
        choices.push(choice);
    }
    if let Some(guide) = guide {
        guide.rewind(walked)?;
    }
    Ok(choices)
}

/// The leading drafts that hold, and the choice of the row behind them.
pub(crate) fn verify(
    answer: &mut Answer,
    drafts: &[u32],
    mut scored: Scored,
) -> Result<(Vec<Choice>, Choice)> {
    let think_open = answer.plan.commit.think_open;
    let mut history = answer.history.clone();
    let (Chooser { settings, rows, .. }, mut guide) = answer.parts(Part::Commit);
    let controls = &settings.controls;
    let exact = settings.accept == Accept::Exact;
    let mut accepted: Vec<Choice> = Vec::new();
    let bonus = loop {
        let row = accepted.len();
        let chooser = Chooser { settings, rows, history: &history };
        let choice = chooser.choose(guide.as_deref_mut(), &mut scored, row, 0)?;
        let Some(&draft) = drafts.get(row) else {
            break choice;
        };
        let (holds, confidence) = match settings.accept {
            Accept::Exact => (choice.token == draft, choice.confidence),
            Accept::Typical { ratio, delta } => {
                let p = choice.pick.probe;
                (p > 0.0 && p >= ratio.min(delta * (-choice.pick.entropy).exp()), p)
            }
        };
        // Rows behind a think-end token were shaped as if thinking were still open: let it be the
        // round's last token, as causal decoding would see it.
        let closes_thinking =
            think_open && controls.think_end_ramp.strength != 0.0 && controls.think_end_id == Some(draft);
        if !holds || exact && closes_thinking {
            break choice;
        }
        if let Some(guide) = &mut guide
            && !guide.advance(draft)?
        {
            break choice;
        }
        if exact {
            history.add(draft);
        }
        accepted.push(Choice { token: draft, confidence, ..choice });
    };
    if let Some(guide) = guide {
        guide.rewind(accepted.len())?;
    }
    Ok((accepted, bonus))
}

/// Emits the accepted drafts and the bonus, and rewinds to the rows of tokens that were emitted.
pub(crate) fn emit_round(
    answer: &mut Answer,
    session: &mut Session,
    executor: &mut dyn Executor,
    drafts: &[u32],
    accepted: &[Choice],
    bonus: &Choice,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let mut kept = 0;
    for choice in accepted.iter().chain([bonus]) {
        if answer.finish.is_some() {
            break;
        }
        answer.emit(choice.token, choice.confidence, &choice.alternatives, sink)?;
        kept += 1;
    }
    // The bonus has no row yet.
    let kept = kept.min(accepted.len());
    session.rewind(executor, answer.length - drafts.len() + kept)?;
    answer.length = session.committed().len();
    Ok(())
}
