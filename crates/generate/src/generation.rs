//! An answer in the making, one pass at a time.

use shamrock_model::executor::StepOutput;
use shamrock_model::{Executor, PassStats, Step};

use crate::answer::{Answer, Plan};
use crate::denoise::Denoise;
use crate::draft::Draft;
use crate::error::Result;
use crate::event::{Sink, Work};
use crate::lookahead::{Lookahead, Policy};
use crate::options::{Accept, Mode};
use crate::outcome::{Finish, Outcome};
use crate::pace::Pace;
use crate::savings::Saving;
use crate::session::Session;
use crate::{causal, outcome};

/// An answer in the making: what its next pass is, and what becomes of the result.
///
/// Comes from [`Session::start`] and belongs to that session, which must not start another while
/// this one runs. It can be dropped between any two passes: that cancels the answer and leaves the
/// session as the executor has it. After an error, drop it and call [`Session::recover`].
pub struct Generation {
    answer: Answer,
    mode: ModeState,
}

enum ModeState {
    Denoise(Denoise),
    Draft(Draft),
    Lookahead(Lookahead),
    Causal,
}

impl Generation {
    pub(crate) fn new(mut answer: Answer, pace: Pace) -> Result<Generation> {
        let settings = &answer.settings;
        let mode = match settings.mode {
            Mode::Denoise => ModeState::Denoise(Denoise::new(&mut answer)?),
            Mode::Draft if settings.accept == Accept::Exact && settings.savings.has(Saving::Fuse) => {
                ModeState::Lookahead(Lookahead::new(Policy::Fixed { ahead: settings.ahead }, pace))
            }
            Mode::Draft => ModeState::Draft(Draft::Prompt),
            Mode::Auto => ModeState::Lookahead(Lookahead::new(Policy::Learned, pace)),
            Mode::Causal => ModeState::Causal,
        };
        let mut generation = Generation { answer, mode };
        generation.plan();
        Ok(generation)
    }

    /// The next pass; `None` once the answer has ended.
    pub fn step(&self) -> Option<Step<'_>> {
        self.answer.finish.is_none().then(|| self.answer.step())
    }

    /// Why the answer ended; `None` while it goes on.
    pub fn finish(&self) -> Option<Finish> {
        self.answer.finish
    }

    /// Takes the result of the pass that [`step`](Generation::step) asked for, and that pass's cost.
    ///
    /// # Errors
    /// [`Error::NothingToChoose`](crate::Error::NothingToChoose),
    /// [`Error::MissingScores`](crate::Error::MissingScores), or the executor's when it rewinds.
    pub fn absorb(
        &mut self,
        session: &mut Session,
        executor: &mut dyn Executor,
        output: StepOutput,
        cost: &PassStats,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let answer = &mut self.answer;
        debug_assert_eq!(session.sequence(), Some(answer.seq), "a generation runs on its own session");
        account(&mut answer.stats, &answer.plan, cost);
        let committed = &answer.plan.commit.ids;
        session.committed_more(committed);
        answer.length += committed.len();
        if !committed.is_empty() && answer.checkpoints.contains(&answer.length) {
            session.checkpoint(executor);
        }
        if answer.plan.decides() {
            answer.stats.deciding += 1;
            match &mut self.mode {
                ModeState::Denoise(block) => block.absorb(answer, output.preview, cost, sink)?,
                ModeState::Draft(round) => round.absorb(answer, session, executor, output, cost, sink)?,
                ModeState::Lookahead(round) => round.absorb(answer, session, executor, output, cost, sink)?,
                ModeState::Causal => causal::absorb(answer, output.commit, cost, sink)?,
            }
        } else {
            answer.report(Work::Commit, cost, sink);
        }
        self.plan();
        Ok(())
    }

    /// Plans the next pass, unless the answer has ended.
    fn plan(&mut self) {
        let answer = &mut self.answer;
        if answer.settings.max_tokens == 0 && answer.finish.is_none() {
            answer.plan_commit();
            if answer.plan.commit.ids.is_empty() {
                answer.finish = Some(Finish::Length);
            }
        }
        if answer.finish.is_some() {
            answer.stats.elapsed = answer.started.elapsed();
        } else if answer.settings.max_tokens > 0 {
            match &mut self.mode {
                ModeState::Denoise(block) => block.plan(answer),
                ModeState::Draft(round) => round.plan(answer),
                ModeState::Lookahead(round) => round.plan(answer),
                ModeState::Causal => causal::plan(answer),
            }
        }
    }

    /// The answer so far; [`Finish::Cancelled`] when it has not ended by itself.
    pub fn into_outcome(self) -> Outcome {
        let Answer { tokens, confidence, finish, mut stats, started, .. } = self.answer;
        if finish.is_none() {
            stats.elapsed = started.elapsed();
        }
        Outcome { tokens, confidence, finish: finish.unwrap_or(Finish::Cancelled), stats }
    }
}

fn account(stats: &mut outcome::Stats, plan: &Plan, cost: &PassStats) {
    let (commit, preview) = (&plan.commit, &plan.preview);
    stats.passes += 1;
    stats.previews += usize::from(!preview.ids.is_empty());
    stats.commits += usize::from(!commit.ids.is_empty());
    stats.rows += commit.ids.len() + preview.ids.len();
    stats.scored += commit.scored.len() + preview.scored.len();
    stats.total.add(cost);
}
