//! Ordinary decoding: one token a pass.

use shamrock_model::{Part, PassStats, Scored};

use crate::answer::Answer;
use crate::error::Result;
use crate::event::{Sink, Work};
use crate::outcome::Finish;

/// Plans to commit what is known, the last row of it scored.
pub(crate) fn plan(answer: &mut Answer) {
    if answer.plan_commit() {
        answer.score_from_last_row(&[]);
    }
}

/// Emits the token that the last committed row predicts.
pub(crate) fn absorb(
    answer: &mut Answer,
    mut scored: Scored,
    cost: &PassStats,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let choice = answer.choose(Part::Commit, &mut scored, 0, 0)?;
    answer.report(Work::Decode { token: choice.token, confidence: choice.confidence }, cost, sink);
    if answer.finish.is_none() && answer.emit(choice.token, choice.confidence, &choice.alternatives, sink)? {
        if answer.room() == 0 {
            answer.finish = Some(Finish::Context);
        }
        answer.backlog.push(choice.token);
    }
    Ok(())
}
