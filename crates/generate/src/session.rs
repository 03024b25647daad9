//! One conversation on one executor sequence, with reuse of what is committed already.

use std::collections::VecDeque;
use std::time::Instant;

use shamrock_model::{Executor, SeqId, SequenceState, SnapshotId};

use crate::answer::{Answer, Plan};
use crate::constraint::Guide;
use crate::error::{Error, Result};
use crate::event::Sink;
use crate::generation::Generation;
use crate::history::History;
use crate::options::{Mode, Options, Settings};
use crate::outcome::{Outcome, Stats};
use crate::pace::Pace;

/// Options of a [`Session`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// Checkpoints kept for later prompts; the least recently used is dropped. Each holds a copy of
    /// the sequence's state, so 0 is right where no second prompt will come.
    pub checkpoints: usize,
}

impl Default for SessionOptions {
    /// Two: what the next prompt shares for sure, and the whole prompt for a second answer to it.
    fn default() -> Self {
        SessionOptions { checkpoints: 2 }
    }
}

/// One conversation on one executor sequence.
///
/// A prompt that continues what is committed runs only its new rows. One that does not, because
/// the conversation was edited or its template rewrites earlier turns, goes on from the longest
/// checkpoint that it does continue: the session keeps one after each prompt and wherever
/// [`checkpoints`](Options::checkpoints) asks for one.
///
/// Whatever ends an answer, [`committed`](Session::committed) is what the executor holds.
///
/// A session must always be used with the same executor, and [closed](Session::close) there:
/// dropping it cannot free the sequence.
#[derive(Debug, Default)]
pub struct Session {
    options: SessionOptions,
    sequence: Option<SeqId>,
    committed: Vec<u32>,
    /// Least recently used first.
    checkpoints: VecDeque<Checkpoint>,
    pace: Pace,
}

#[derive(Debug)]
struct Checkpoint {
    ids: Vec<u32>,
    snapshot: SnapshotId,
}

impl Session {
    /// A session with nothing committed; it opens its sequence when it first needs one.
    pub fn new() -> Session {
        Session::default()
    }

    /// The same with options.
    pub fn with_options(options: SessionOptions) -> Session {
        Session { options, ..Session::default() }
    }

    /// The same with what [`Mode::Auto`] has learned on this executor elsewhere.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Session {
        Session { pace, ..self }
    }

    /// Ids the executor holds for this session.
    pub fn committed(&self) -> &[u32] {
        &self.committed
    }

    /// Tokens of a prompt that are committed already, if [`start`](Session::start) came now.
    pub fn cached(&self, executor: &dyn Executor, prompt: &[u32], mode: Mode) -> usize {
        let limit = reusable(prompt, mode);
        let live = if self.in_step(executor) { self.committed.as_slice() } else { &[] };
        let held = self.checkpoints.iter().map(|c| c.ids.as_slice()).chain([live]);
        held.filter(|ids| limit.starts_with(ids)).map(<[u32]>::len).max().unwrap_or(0)
    }

    /// Answers a prompt, telling `sink` of every pass and token.
    ///
    /// # Errors
    /// Options that do not fit the model, a prompt that is empty, foreign or too long, a failure of
    /// the executor. The session stays usable; see [`Error`].
    pub fn generate(
        &mut self,
        executor: &mut dyn Executor,
        prompt: &[u32],
        options: &Options,
        sink: &mut Sink<'_>,
    ) -> Result<Outcome> {
        let mut generation = self.start(executor, prompt, options)?;
        let result = self.drive(executor, &mut generation, sink);
        if result.is_err() {
            self.recover(executor);
        }
        result.map(|()| generation.into_outcome())
    }

    fn drive(
        &mut self,
        executor: &mut dyn Executor,
        generation: &mut Generation,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        while let Some(step) = generation.step() {
            let mut pass = executor.run(&[step])?;
            let output = pass.outputs.pop().unwrap_or_default();
            generation.absorb(self, executor, output, &pass.stats, sink)?;
        }
        Ok(())
    }

    /// Prepares an answer without running a pass of it.
    ///
    /// # Errors
    /// As [`generate`](Session::generate), short of passes.
    pub fn start(
        &mut self,
        executor: &mut dyn Executor,
        prompt: &[u32],
        options: &Options,
    ) -> Result<Generation> {
        let started = Instant::now();
        let (settings, limits) = (Settings::resolve(options, executor.config())?, executor.limits());
        check_prompt(prompt, executor.config().vocab_size, limits.max_context)?;
        let seq = self.reuse(executor, prompt, settings.mode)?;
        let cached = self.committed.len();
        let mut checkpoints = Vec::new();
        if self.options.checkpoints > 0 {
            checkpoints.extend(options.checkpoints.iter().filter(|at| (1..prompt.len()).contains(at)));
            checkpoints.push(prompt.len());
            checkpoints.sort_unstable();
        }
        let guide = options.constraint.as_ref().map(|c| Guide::new(c, &settings)).transpose()?;
        let answer = Answer {
            seq,
            settings,
            limits,
            history: History::default(),
            guide,
            length: cached,
            backlog: prompt[cached..].to_vec(),
            checkpoints,
            plan: Plan::default(),
            tokens: Vec::new(),
            confidence: Vec::new(),
            finish: None,
            stats: Stats { prompt_tokens: prompt.len(), cached_tokens: cached, ..Stats::default() },
            started,
        };
        Generation::new(answer, self.pace.clone())
    }

    /// Makes the sequence hold as much of the prompt as is known, and nothing else.
    fn reuse(&mut self, executor: &mut dyn Executor, prompt: &[u32], mode: Mode) -> Result<SeqId> {
        loop {
            let cached = self.cached(executor, prompt, mode);
            let held = self.sequence.filter(|_| self.in_step(executor));
            if let Some(seq) = held
                && self.committed == prompt[..cached]
            {
                return Ok(seq);
            }
            let found = self.checkpoints.iter().position(|c| c.ids[..] == prompt[..cached]);
            let Some(found) = found else {
                // Nothing fits: only an empty sequence is left to start from.
                self.drop_sequence(executor);
                let seq = executor.open()?;
                self.sequence = Some(seq);
                return Ok(seq);
            };
            let seq = match self.sequence.filter(|&seq| is_open(executor, seq)) {
                Some(seq) => seq,
                None => executor.open()?,
            };
            self.sequence = Some(seq);
            let Some(checkpoint) = self.checkpoints.remove(found) else {
                continue;
            };
            match executor.restore(checkpoint.snapshot, seq) {
                Ok(()) => {
                    self.committed.clone_from(&checkpoint.ids);
                    self.checkpoints.push_back(checkpoint);
                    return Ok(seq);
                }
                Err(error) => {
                    tracing::warn!(%error, "checkpoint of {cached} tokens could not be restored");
                    executor.release(checkpoint.snapshot);
                    self.recover(executor);
                }
            }
        }
    }

    /// Forgets a sequence that a failed pass has lost, so that [`committed`](Session::committed) is
    /// again what the executor holds. [`generate`](Session::generate) does this itself.
    pub fn recover(&mut self, executor: &mut dyn Executor) {
        if !self.in_step(executor) {
            self.drop_sequence(executor);
        }
    }

    /// Starts over from a snapshot that the caller keeps: `ids` are what it holds.
    ///
    /// # Errors
    /// The executor's; the session then has nothing committed.
    pub fn adopt(&mut self, executor: &mut dyn Executor, snapshot: SnapshotId, ids: &[u32]) -> Result<()> {
        self.drop_sequence(executor);
        let seq = executor.open()?;
        self.sequence = Some(seq);
        if let Err(error) = executor.restore(snapshot, seq) {
            self.drop_sequence(executor);
            return Err(error.into());
        }
        self.committed.extend_from_slice(ids);
        Ok(())
    }

    /// How many states [`save`](Session::save) hands out.
    pub fn states(&self) -> usize {
        self.checkpoints.len() + usize::from(!self.committed.is_empty())
    }

    /// Hands out every state the session holds with its ids, in the plain host form: checkpoints, least
    /// recently used first, then what is committed.
    ///
    /// # Errors
    /// The executor's, and those of `each`.
    pub fn save<E: From<shamrock_model::Error>>(
        &self,
        executor: &mut dyn Executor,
        mut each: impl FnMut(&[u32], &SequenceState) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for checkpoint in &self.checkpoints {
            each(&checkpoint.ids, &executor.export_snapshot(checkpoint.snapshot)?)?;
        }
        match self.sequence.filter(|_| !self.committed.is_empty()) {
            Some(seq) => each(&self.committed, &executor.export(seq)?),
            None => Ok(()),
        }
    }

    /// Takes back a state that [`save`](Session::save) has handed out, in the same order: the one before
    /// becomes a checkpoint. On an executor that computes as the first one did, answers are those of the
    /// session that was saved.
    ///
    /// # Errors
    /// A state that is not this model's or does not fit the context; the session then has nothing
    /// committed.
    pub fn resume(&mut self, executor: &mut dyn Executor, ids: &[u32], state: &SequenceState) -> Result<()> {
        let vocab = executor.config().vocab_size;
        let foreign = ids.iter().any(|&id| id as usize >= vocab);
        if state.len != ids.len() || foreign {
            let problem = "its ids are not those of this model".to_owned();
            return Err(shamrock_model::Error::State(problem).into());
        }
        if !self.committed.is_empty() {
            self.checkpoint(executor);
        }
        self.drop_sequence(executor);
        let seq = executor.open()?;
        self.sequence = Some(seq);
        if let Err(error) = executor.import(seq, state) {
            self.drop_sequence(executor);
            return Err(error.into());
        }
        self.committed.extend_from_slice(ids);
        Ok(())
    }

    /// Hands the checkpoints over to the caller, who has to
    /// [release](Executor::release) the snapshots: `(ids, snapshot)`, least recently used first.
    pub fn take_checkpoints(&mut self) -> impl Iterator<Item = (Vec<u32>, SnapshotId)> {
        std::mem::take(&mut self.checkpoints).into_iter().map(|c| (c.ids, c.snapshot))
    }

    /// Frees everything the session holds on the executor. It can be used again, from nothing.
    pub fn close(&mut self, executor: &mut dyn Executor) {
        self.drop_sequence(executor);
        for checkpoint in self.checkpoints.drain(..) {
            executor.release(checkpoint.snapshot);
        }
    }

    /// The executor sequence, once there is one.
    pub fn sequence(&self) -> Option<SeqId> {
        self.sequence
    }

    pub(crate) fn committed_more(&mut self, ids: &[u32]) {
        self.committed.extend_from_slice(ids);
    }

    /// Cuts the sequence back to `length` rows of the last commit.
    pub(crate) fn rewind(&mut self, executor: &mut dyn Executor, length: usize) -> Result<()> {
        if let Some(seq) = self.sequence.filter(|_| length < self.committed.len()) {
            executor.rewind(seq, length)?;
            self.committed.truncate(length);
        }
        Ok(())
    }

    /// Keeps a checkpoint of what is committed. It only saves time, so a refusal (for want of
    /// memory, say) is no error.
    pub(crate) fn checkpoint(&mut self, executor: &mut dyn Executor) {
        let Some(seq) = self.sequence.filter(|_| self.options.checkpoints > 0) else {
            return;
        };
        if let Some(known) = self.checkpoints.iter().position(|c| c.ids == self.committed) {
            let known = self.checkpoints.remove(known);
            self.checkpoints.extend(known);
            return;
        }
        // Freed first: there may be no room for one more than the session keeps.
        while self.checkpoints.len() >= self.options.checkpoints
            && let Some(oldest) = self.checkpoints.pop_front()
        {
            executor.release(oldest.snapshot);
        }
        match executor.snapshot(seq) {
            Ok(snapshot) => {
                self.checkpoints.push_back(Checkpoint { ids: self.committed.clone(), snapshot });
            }
            Err(error) => tracing::warn!(%error, "no checkpoint at {} tokens", self.committed.len()),
        }
    }

    /// Whether the executor holds what this session believes.
    fn in_step(&self, executor: &dyn Executor) -> bool {
        match self.sequence {
            Some(seq) => executor.len(seq).is_ok_and(|length| length == self.committed.len()),
            None => self.committed.is_empty(),
        }
    }

    fn drop_sequence(&mut self, executor: &mut dyn Executor) {
        if let Some(seq) = self.sequence.take() {
            executor.close(seq);
        }
        self.committed.clear();
    }
}

/// The part of a prompt that a committed state can hold already: causal modes want the prompt's last
/// row scored.
pub fn reusable(prompt: &[u32], mode: Mode) -> &[u32] {
    match mode {
        Mode::Denoise => prompt,
        Mode::Draft | Mode::Causal | Mode::Auto => &prompt[..prompt.len().saturating_sub(1)],
    }
}

/// Whether a restore can give a sequence a state: it is open, if perhaps lost.
fn is_open(executor: &dyn Executor, seq: SeqId) -> bool {
    !matches!(executor.len(seq), Err(shamrock_model::Error::UnknownSequence(_)))
}

fn check_prompt(prompt: &[u32], vocab: usize, limit: usize) -> Result<()> {
    if prompt.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    if let Some(index) = prompt.iter().position(|&id| id as usize >= vocab) {
        return Err(Error::PromptToken { index, id: prompt[index], vocab });
    }
    if prompt.len() >= limit {
        return Err(Error::PromptTooLong { tokens: prompt.len(), limit });
    }
    Ok(())
}
