//! The bounded queue between those who ask and the engine's thread, with the thread's sign of life.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::engine::{EngineOptions, Health, Refusal, Request, Status};
use crate::metrics::Metrics;

/// Beginnings of later prompts that are remembered; they are worth least when there is much to do.
const FORESEEN: usize = 8;

/// What there is to do.
pub(super) enum Work {
    /// Requests to begin; perhaps none, where answers are in the making.
    Requests(Vec<Queued>),
    /// Nothing but to commit what a later prompt will begin with.
    Prepare(Vec<u32>),
}

/// A request with the time it came.
pub(super) struct Queued {
    pub(super) request: Request,
    pub(super) since: Instant,
}

pub(super) struct Queue {
    inner: Mutex<Inner>,
    /// Something for the engine's thread to look at.
    wake: Condvar,
    parallel: usize,
    /// Requests in the queue and answers in the making.
    capacity: usize,
    stall_after: Duration,
    metrics: Metrics,
}

struct Inner {
    waiting: VecDeque<Queued>,
    /// What later prompts will begin with, oldest first.
    foreseen: VecDeque<Vec<u32>>,
    /// Answers in the making.
    active: usize,
    phase: Phase,
    /// When the thread last gave a sign of life; none while it waits for work.
    beat: Option<Instant>,
    /// Moving average of the time an answer takes once it is begun.
    answer_time: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    Draining,
    Stopped,
}

impl Queue {
    pub(super) fn new(options: &EngineOptions, metrics: Metrics) -> Queue {
        let inner = Inner {
            waiting: VecDeque::new(),
            foreseen: VecDeque::new(),
            active: 0,
            phase: Phase::Open,
            beat: None,
            answer_time: Duration::from_secs(1),
        };
        Queue {
            inner: Mutex::new(inner),
            wake: Condvar::new(),
            parallel: options.parallel,
            capacity: options.capacity(),
            stall_after: options.stall_after,
            metrics,
        }
    }

    pub(super) fn push(&self, requests: Vec<Queued>) -> Result<(), Refusal> {
        let mut inner = self.lock();
        match inner.phase {
            Phase::Open => {}
            Phase::Draining => return Err(Refusal::Draining),
            Phase::Stopped => return Err(Refusal::Stopped),
        }
        if inner.load() + requests.len() > self.capacity {
            // Those that nobody waits for any more hold no place, even while the engine is busy.
            inner.dismiss(&self.metrics);
        }
        if inner.load() + requests.len() > self.capacity {
            let rounds = inner.load().div_ceil(self.parallel) as u32;
            let retry_after = inner.answer_time * rounds;
            return Err(Refusal::Full {
                waiting: inner.waiting.len(),
                retry_after: retry_after.clamp(Duration::from_secs(1), Duration::from_secs(60)),
            });
        }
        // What has come need not be foreseen any more.
        inner.foreseen.retain(|ids| !requests.iter().any(|new| new.request.prompt.starts_with(ids)));
        inner.waiting.extend(requests);
        self.metrics.queued.set(inner.waiting.len() as f64);
        self.wake.notify_one();
        Ok(())
    }

    /// Remembers what a later prompt will begin with.
    pub(super) fn foresee(&self, ids: Vec<u32>) {
        let mut inner = self.lock();
        if inner.phase != Phase::Open {
            return;
        }
        if inner.foreseen.len() == FORESEEN {
            inner.foreseen.pop_front();
        }
        inner.foreseen.push_back(ids);
        self.wake.notify_one();
    }

    /// Whether there is still nothing to do but prepare; also a sign of life.
    pub(super) fn is_idle(&self) -> bool {
        let mut inner = self.lock();
        inner.beat = Some(Instant::now());
        inner.phase == Phase::Open && inner.waiting.is_empty()
    }

    /// Takes up to `room` requests that `ready` lets pass, in order, and drops those that nobody
    /// waits for. Waits for something if the caller has nothing else to do. `None` once stopped.
    pub(super) fn take(&self, active: usize, room: usize, ready: impl Fn(&Request) -> bool) -> Option<Work> {
        let mut inner = self.lock();
        inner.active = active;
        loop {
            if inner.phase == Phase::Stopped {
                return None;
            }
            inner.dismiss(&self.metrics);
            let mut taken = Vec::new();
            let mut at = 0;
            while taken.len() < room && at < inner.waiting.len() {
                if ready(&inner.waiting[at].request) {
                    taken.extend(inner.waiting.remove(at));
                } else {
                    at += 1;
                }
            }
            self.metrics.queued.set(inner.waiting.len() as f64);
            if active > 0 || !taken.is_empty() {
                inner.active += taken.len();
                inner.beat = Some(Instant::now());
                return Some(Work::Requests(taken));
            }
            if inner.phase == Phase::Open
                && let Some(ids) = inner.foreseen.pop_back()
            {
                inner.beat = Some(Instant::now());
                return Some(Work::Prepare(ids));
            }
            inner.beat = None;
            inner = self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// An answer has ended that took so long.
    pub(super) fn answered(&self, time: Duration) {
        let mut inner = self.lock();
        inner.answer_time = (inner.answer_time * 7 + time) / 8;
    }

    pub(super) fn health(&self) -> Health {
        let inner = self.lock();
        let heartbeat_age = inner.beat.map(|beat| beat.elapsed());
        let stalled = heartbeat_age.is_some_and(|age| age > self.stall_after);
        let status = match inner.phase {
            Phase::Stopped => Status::Stopped,
            _ if stalled => Status::Stalled,
            Phase::Draining => Status::Draining,
            Phase::Open => Status::Ok,
        };
        Health { status, active: inner.active, queued: inner.waiting.len(), heartbeat_age }
    }

    pub(super) fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Also what the thread does on its way out, whatever sends it there.
    pub(super) fn stop(&self) {
        self.advance(Phase::Stopped);
        // Listeners may do anything when dropped: not under the lock.
        let dropped = std::mem::take(&mut self.lock().waiting);
        drop(dropped);
    }

    fn advance(&self, phase: Phase) {
        let mut inner = self.lock();
        inner.phase = inner.phase.max(phase);
        self.wake.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic under the lock leaves counts behind that are off by one at worst.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn load(&self) -> usize {
        self.waiting.len() + self.active
    }

    /// Drops requests that nobody waits for any more.
    fn dismiss(&mut self, metrics: &Metrics) {
        self.waiting.retain(|queued| {
            let listener = &queued.request.listener;
            let gone = listener.gone();
            if gone {
                metrics.abandoned(listener.late());
            }
            !gone
        });
    }
}
