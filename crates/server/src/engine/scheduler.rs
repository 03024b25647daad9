//! Many answers in the making on one executor: continuous batching, pass by pass.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use shamrock_generate::{Error, Finish, Generation, Mode, Options, Pace, Session, SessionOptions};
use shamrock_model::executor::StepOutput;
use shamrock_model::{Executor, PassStats, Step};

use crate::engine::batch::{Demand, select};
use crate::engine::prefix::PrefixCache;
use crate::engine::queue::{Queue, Queued, Work};
use crate::engine::{EngineOptions, Listener, Request};
use crate::metrics::Metrics;

/// Most rows of a pass that only prepares: who comes meanwhile waits for it.
const PREPARED_ROWS: usize = 64;

pub(super) struct Scheduler {
    executor: Box<dyn Executor>,
    queue: Arc<Queue>,
    options: EngineOptions,
    metrics: Metrics,
    prefixes: PrefixCache,
    /// What auto mode has learned, for all answers.
    pace: Pace,
    /// In the order in which they were last served.
    active: VecDeque<Active>,
}

/// An answer in the making.
struct Active {
    listener: Box<dyn Listener>,
    session: Session,
    generation: Generation,
    prompt: Vec<u32>,
    begun: Instant,
    since: Instant,
    /// A token was emitted.
    speaking: bool,
}

impl Active {
    fn past_prompt(&self) -> bool {
        self.session.committed().len() >= self.prompt.len()
    }
}

/// What a pass gave one answer.
type Absorbed = Result<(StepOutput, PassStats), Error>;

impl Scheduler {
    pub(super) fn new(
        executor: Box<dyn Executor>,
        queue: Arc<Queue>,
        options: EngineOptions,
        metrics: Metrics,
    ) -> Scheduler {
        let prefixes = PrefixCache::new(executor.config(), options.prefix_bytes);
        let (pace, active) = (Pace::default(), VecDeque::new());
        Scheduler { executor, queue, options, metrics, prefixes, pace, active }
    }

    /// Serves until the queue is stopped.
    pub(super) fn run(mut self) {
        // However this ends, nobody may go on waiting for it.
        let _stop = StopOnDrop(self.queue.clone());
        let saved = self.options.saved.take();
        if let Some(saved) = &saved {
            saved.load(&mut *self.executor, &mut self.prefixes);
        }
        while self.admit() {
            self.dismiss();
            if !self.active.is_empty() {
                self.pass();
            }
            self.gauge();
        }
        for mut active in self.active.drain(..) {
            active.session.close(&mut *self.executor);
        }
        if let Some(saved) = &saved {
            saved.save(&mut *self.executor, &self.prefixes);
        }
        self.prefixes.clear(&mut *self.executor);
    }

    /// Begins what there is room for, or prepares for what may come; false once stopped.
    fn admit(&mut self) -> bool {
        let room = self.options.parallel.saturating_sub(self.active.len());
        let (active, caching) = (&self.active, self.prefixes.is_on());
        // A second answer to a prompt that is being committed gets it for nothing if it waits.
        let ready = |request: &Request| {
            !caching || !active.iter().any(|a| !a.past_prompt() && a.prompt == request.prompt)
        };
        match self.queue.take(active.len(), room, ready) {
            None => return false,
            Some(Work::Requests(taken)) => taken.into_iter().for_each(|queued| self.begin(queued)),
            Some(Work::Prepare(ids)) => {
                if let Err(error) = self.prepare(&ids) {
                    tracing::warn!(%error, "preparing for the next turn");
                }
            }
        }
        true
    }

    /// Commits what a later prompt will begin with and keeps the state, as far as nobody asks for anything.
    fn prepare(&mut self, ids: &[u32]) -> Result<(), Error> {
        if self.prefixes.has(ids) || ids.len() >= self.executor.limits().max_context {
            return Ok(());
        }
        let mode = Mode::default_for(self.executor.config());
        let mut session = Session::with_options(SessionOptions { checkpoints: 0 });
        self.adopt(&mut session, ids, mode);
        let held = session.committed().len();
        let rows = self.chunk_rows().min(PREPARED_ROWS);
        let options = Options { max_tokens: 0, chunk_rows: Some(rows), ..Options::new(mode) };
        let mut commit = || -> Result<(), Error> {
            let executor = &mut *self.executor;
            let mut generation = session.start(executor, ids, &options)?;
            while self.queue.is_idle()
                && let Some(step) = generation.step()
            {
                let (output, cost) = timed(executor, &[step], &self.metrics)?.pop().unwrap_or_default();
                generation
                    .absorb(&mut session, executor, output, &cost, &mut |_| ControlFlow::Continue(()))?;
            }
            Ok(())
        };
        let committed = commit();
        self.metrics.prepared.increment(session.committed().len().saturating_sub(held) as u64);
        if committed.is_ok() {
            self.keep(&session, held);
        }
        session.close(&mut *self.executor);
        committed
    }

    fn begin(&mut self, Queued { request, since }: Queued) {
        let Request { prompt, mut options, listener } = request;
        let chunk_rows = self.chunk_rows();
        // They move to the cache after every pass, and a pass makes one at most.
        let checkpoints = usize::from(self.prefixes.is_on());
        let mut session = Session::with_options(SessionOptions { checkpoints }).with_pace(self.pace.clone());
        self.adopt(&mut session, &prompt, options.mode);
        let executor = &mut *self.executor;
        options.chunk_rows = Some(options.chunk_rows.unwrap_or(usize::MAX).min(chunk_rows));
        let held = session.committed().len();
        options.checkpoints.extend(self.prefixes.branch(&prompt, held));
        if let Some(before) = held.checked_div(self.options.prefix_every) {
            let way = (before + 1..).map(|i| i * self.options.prefix_every);
            options.checkpoints.extend(way.take_while(|&at| at < prompt.len()));
        }
        match session.start(executor, &prompt, &options) {
            Ok(generation) => {
                let begun = Instant::now();
                // What the session really goes on from.
                let cached = session.committed().len();
                self.metrics.begun(prompt.len(), cached, begun - since);
                let active = Active { listener, session, generation, prompt, begun, since, speaking: false };
                self.active.push_back(active);
            }
            Err(error) => {
                session.close(executor);
                self.metrics.failed();
                listener.end(Err(error));
            }
        }
    }

    /// Has a session go on from the longest kept state that a prompt continues.
    fn adopt(&mut self, session: &mut Session, prompt: &[u32], mode: Mode) {
        let executor = &mut *self.executor;
        if let Some((snapshot, tokens)) = self.prefixes.find(prompt, mode)
            && let Err(error) = session.adopt(executor, snapshot, &prompt[..tokens])
        {
            tracing::warn!(%error, "a kept state of {tokens} tokens could not be restored");
            self.prefixes.remove(executor, snapshot);
        }
    }

    /// Drops answers that nobody wants any more.
    fn dismiss(&mut self) {
        for active in std::mem::take(&mut self.active) {
            if active.listener.gone() {
                self.end(active, Ok(()));
            } else {
                self.active.push_back(active);
            }
        }
    }

    /// Most rows of a prompt in one pass.
    fn chunk_rows(&self) -> usize {
        self.options.chunk_rows.unwrap_or(self.executor.limits().chunk_rows)
    }

    /// Runs one pass over as many answers as fit.
    fn pass(&mut self) {
        let steps: Vec<Step<'_>> = self.active.iter().filter_map(|a| a.generation.step()).collect();
        debug_assert_eq!(steps.len(), self.active.len(), "answers that have ended are not active");
        let demands: Vec<Demand> = steps.iter().map(Demand::of).collect();
        let chosen = select(&demands, self.executor.limits().max_rows, self.chunk_rows());
        let steps: Vec<Step<'_>> = chosen.iter().map(|&index| steps[index]).collect();
        let results = run(&mut *self.executor, &steps, &self.metrics);
        drop(steps);

        let mut results = chosen.into_iter().zip(results).peekable();
        let mut served = Vec::new();
        let mut waiting = VecDeque::new();
        for (index, active) in std::mem::take(&mut self.active).into_iter().enumerate() {
            match results.next_if(|(chosen, _)| *chosen == index) {
                Some((_, result)) => served.push((active, result)),
                None => waiting.push_back(active),
            }
        }
        self.active = waiting;
        for (active, result) in served {
            self.absorb(active, result);
        }
    }

    fn absorb(&mut self, mut active: Active, result: Absorbed) {
        let Active { listener, session, generation, .. } = &mut active;
        let (mut tokens, mut decided) = (0, false);
        let absorbed = result.and_then(|(output, cost)| {
            generation.absorb(session, &mut *self.executor, output, &cost, &mut |event| {
                match event {
                    shamrock_generate::Event::Token { .. } => tokens += 1,
                    shamrock_generate::Event::Pass(pass) => {
                        decided |= !matches!(pass.work, shamrock_generate::Work::Commit);
                    }
                }
                listener.event(event)
            })
        });
        self.metrics.absorbed(tokens, decided);
        if tokens > 0 && !std::mem::replace(&mut active.speaking, true) {
            self.metrics.first_block.record(active.since.elapsed());
        }
        if absorbed.is_err() || active.generation.finish().is_some() {
            self.end(active, absorbed);
            return;
        }
        // At once rather than at the end: others may wait for just this prompt.
        for (ids, snapshot) in active.session.take_checkpoints() {
            self.prefixes.insert(&mut *self.executor, ids, snapshot);
        }
        self.active.push_back(active);
    }

    /// Frees what an answer held, keeps what later prompts may want of it, and tells its listener.
    fn end(&mut self, active: Active, result: Result<(), Error>) {
        let Active { listener, mut session, generation, prompt, begun, .. } = active;
        let executor = &mut *self.executor;
        if result.is_ok() {
            for (ids, snapshot) in session.take_checkpoints() {
                self.prefixes.insert(executor, ids, snapshot);
            }
            self.keep(&session, prompt.len());
        }
        session.close(&mut *self.executor);
        self.queue.answered(begun.elapsed());
        match result {
            Err(error) => {
                tracing::error!(%error, "an answer failed");
                self.metrics.failed();
                listener.end(Err(error));
            }
            Ok(()) => {
                let outcome = generation.into_outcome();
                if outcome.finish == Finish::Cancelled && listener.gone() {
                    self.metrics.abandoned(listener.late());
                } else {
                    self.metrics.finished(outcome.finish);
                    listener.end(Ok(outcome.clone()));
                }
                self.metrics.ended(&outcome);
            }
        }
    }

    /// Keeps the state of a session that holds more than `known` tokens: at the end of a turn, say, which the next
    /// prompt of the conversation continues.
    fn keep(&mut self, session: &Session, known: usize) {
        let Some(seq) = session.sequence().filter(|_| self.prefixes.is_on()) else {
            return;
        };
        if session.committed().len() > known
            && let Ok(snapshot) = self.executor.snapshot(seq)
        {
            self.prefixes.insert(&mut *self.executor, session.committed().to_vec(), snapshot);
        }
    }

    fn gauge(&self) {
        self.metrics.active.set(self.active.len() as f64);
        self.metrics.prefix_entries.set(self.prefixes.len() as f64);
        self.metrics.prefix_bytes.set(self.prefixes.bytes() as f64);
    }
}

/// One pass over the steps. If it fails, each step that the failure left runnable is tried by
/// itself, so that one bad step fails one answer.
fn run(executor: &mut dyn Executor, steps: &[Step<'_>], metrics: &Metrics) -> Vec<Absorbed> {
    let lengths: Vec<Option<usize>> = steps.iter().map(|step| executor.len(step.seq).ok()).collect();
    match timed(executor, steps, metrics) {
        Ok(results) => results.into_iter().map(Ok).collect(),
        Err(error) if steps.len() == 1 => vec![Err(error)],
        Err(error) => {
            tracing::warn!(%error, "a pass over {} answers failed; trying them one by one", steps.len());
            let alone = |(step, length): (&Step<'_>, Option<usize>)| -> Absorbed {
                let now = executor.len(step.seq)?;
                if Some(now) != length {
                    let problem = format!("the pass failed after committing rows: {error}");
                    return Err(shamrock_model::Error::Device { backend: executor.backend(), problem }.into());
                }
                let mut results = timed(executor, std::slice::from_ref(step), metrics)?;
                Ok(results.pop().unwrap_or_default())
            };
            steps.iter().zip(lengths).map(alone).collect()
        }
    }
}

/// A pass with its outputs, each with the cost of the whole pass.
fn timed(
    executor: &mut dyn Executor,
    steps: &[Step<'_>],
    metrics: &Metrics,
) -> Result<Vec<(StepOutput, PassStats)>, Error> {
    let start = Instant::now();
    let mut pass = executor.run(steps)?;
    let rows = steps.iter().map(|step| step.commit.len() + step.preview.len()).sum();
    metrics.pass(steps.len(), rows, start.elapsed(), &pass.stats);
    pass.outputs.resize_with(steps.len(), StepOutput::default);
    Ok(pass.outputs.into_iter().map(|output| (output, pass.stats.clone())).collect())
}

struct StopOnDrop(Arc<Queue>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
