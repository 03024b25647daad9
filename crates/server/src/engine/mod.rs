//! The engine: one thread that owns the executor, and the bounded queue in front of it.
//!
//! ```text
//! submit ──► queue ──► Scheduler ── one pass over many answers ──► Executor
//!                          │  ▲
//!     Listener ◄── events ─┘  └── PrefixCache (snapshots)
//! ```
//!
//! The engine knows neither text nor HTTP: whoever submits a [`Request`] brings a [`Listener`] for
//! its events.

mod batch;
mod prefix;
mod queue;
mod saved;
mod scheduler;

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use shamrock_generate::{Event, Options, Outcome};
use shamrock_model::{Config, Executor, Limits};

use crate::metrics::Metrics;
use queue::{Queue, Queued};
pub use saved::SavedStates;
use scheduler::Scheduler;

/// How the engine shares the executor.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Answers in the making at once, at least 1; the executor's limit holds too.
    pub parallel: usize,
    /// Requests that may wait beyond those.
    pub queue: usize,
    /// Most rows of a prompt that run in one pass, at least 1; while other answers are past their
    /// prompts, also the most of all prompts together. Fewer make answers flow more evenly and
    /// cancellation sooner, more make prompts cheaper; `None` leaves it to the executor.
    pub chunk_rows: Option<usize>,
    /// Bytes of snapshots kept for prompts that share a beginning; 0 keeps none.
    pub prefix_bytes: u64,
    /// Tokens of a prompt after which another snapshot is kept on its way; 0 keeps one at its end only.
    pub prefix_every: usize,
    /// Commit what [`Engine::prepare`] is told while there is nothing else to do.
    pub prepare: bool,
    /// A pass that lasts longer counts as stuck.
    pub stall_after: Duration,
    /// Where the snapshots are kept while the server is down; none forgets them.
    pub saved: Option<SavedStates>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            parallel: 8,
            queue: 64,
            chunk_rows: None,
            prefix_bytes: 1 << 30,
            prefix_every: 512,
            prepare: true,
            stall_after: Duration::from_secs(120),
            saved: None,
        }
    }
}

impl EngineOptions {
    /// Answers in the making and requests waiting, at most.
    fn capacity(&self) -> usize {
        self.parallel.saturating_add(self.queue)
    }
}

/// One answer to make.
pub struct Request {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// What is asked of the answer.
    pub options: Options,
    /// Who hears of it.
    pub listener: Box<dyn Listener>,
}

/// Hears of one answer, on the engine's thread: it must not block.
///
/// A listener that is dropped without [`end`](Listener::end) belonged to an answer that will never
/// end: the engine has stopped.
pub trait Listener: Send {
    /// Something happened; `Break` ends the answer there.
    fn event(&mut self, event: Event<'_>) -> ControlFlow<()>;

    /// Nobody wants the answer any more. Asked before every pass, and while waiting in the queue.
    fn gone(&self) -> bool;

    /// Why it is [gone](Listener::gone): its time was over, rather than that somebody left.
    fn late(&self) -> bool {
        false
    }

    /// The answer has ended; not called for one that nobody wanted any more.
    fn end(self: Box<Self>, result: Result<Outcome, shamrock_generate::Error>);
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue is full.
    #[error("{waiting} requests are waiting already; try again in {} s", .retry_after.as_secs())]
    Full {
        /// Requests in the queue.
        waiting: usize,
        /// When there may be room.
        retry_after: Duration,
    },
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Draining,
    /// The engine's thread has ended.
    #[error("the engine has stopped; see the server's log")]
    Stopped,
}

/// State of the engine as a probe sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Takes requests.
    Ok,
    /// The pass in hand lasts longer than any should.
    Stalled,
    /// Finishes what it has and takes no more.
    Draining,
    /// The thread has ended.
    Stopped,
}

/// What a probe learns of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// In one word.
    pub status: Status,
    /// Answers in the making.
    pub active: usize,
    /// Requests waiting.
    pub queued: usize,
    /// Time since the engine's last sign of life; none while it has nothing to do.
    pub heartbeat_age: Option<Duration>,
}

/// A handle on the engine's thread. Clones share it; it ends with the last of them, or by
/// [`stop`](Engine::stop).
#[derive(Clone)]
pub struct Engine(Arc<Handle>);

struct Handle {
    queue: Arc<Queue>,
    config: Config,
    limits: Limits,
    backend: &'static str,
    metrics: Metrics,
    capacity: usize,
    prepares: bool,
    /// Set at once; only where there is something to save.
    saving: OnceLock<JoinHandle<()>>,
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(executor: Box<dyn Executor>, options: EngineOptions) -> std::io::Result<Engine> {
        let metrics = Metrics::new();
        let limits = executor.limits();
        let options = EngineOptions {
            parallel: options.parallel.min(limits.max_sequences).max(1),
            chunk_rows: options.chunk_rows.map(|rows| rows.clamp(1, limits.max_rows)),
            ..options
        };
        let queue = Arc::new(Queue::new(&options, metrics.clone()));
        let handle = Handle {
            queue: queue.clone(),
            config: executor.config().clone(),
            limits,
            backend: executor.backend(),
            metrics: metrics.clone(),
            capacity: options.capacity(),
            prepares: options.prepare && options.prefix_bytes > 0,
            saving: OnceLock::new(),
        };
        let saves = options.saved.is_some();
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || Scheduler::new(executor, queue, options, metrics).run())?;
        if saves {
            let _ = handle.saving.set(thread);
        }
        Ok(Engine(Arc::new(handle)))
    }

    /// Puts requests into the queue, all of them or none.
    ///
    /// # Errors
    /// Why there is no place for them.
    pub fn submit(&self, requests: Vec<Request>) -> Result<(), Refusal> {
        let since = Instant::now();
        let requests = requests.into_iter().map(|request| Queued { request, since }).collect();
        self.0.queue.push(requests).inspect_err(|_| self.0.metrics.refused.increment(1))
    }

    /// Whether [`prepare`](Engine::prepare) does anything.
    pub fn prepares(&self) -> bool {
        self.0.prepares
    }

    /// Tells what a later prompt may well begin with. It is committed and kept for that prompt when the engine has
    /// nothing else to do, and let be as soon as it has.
    pub fn prepare(&self, ids: Vec<u32>) {
        if self.0.prepares {
            self.0.queue.foresee(ids);
        }
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// What the executor can hold.
    pub fn limits(&self) -> Limits {
        self.0.limits
    }

    /// Requests that there can be a place for at once.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Name of the backend.
    pub fn backend(&self) -> &'static str {
        self.0.backend
    }

    /// How the engine is.
    pub fn health(&self) -> Health {
        self.0.queue.health()
    }

    /// What the engine counts, in the Prometheus text format.
    pub fn metrics(&self) -> String {
        self.0.metrics.render()
    }

    /// Tidies up the metrics, which somebody has to do now and then though nobody may ask for them.
    pub(crate) fn upkeep(&self) {
        self.0.metrics.upkeep();
    }

    /// Takes no more requests; those it has go on.
    pub fn drain(&self) {
        self.0.queue.drain();
    }

    /// Ends the thread after the pass in hand. Answers in the making and requests in the queue are
    /// dropped.
    pub fn stop(&self) {
        self.0.queue.stop();
    }

    /// Whether nothing is left to be saved after [`stop`](Engine::stop).
    pub fn is_saved(&self) -> bool {
        self.0.saving.get().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.stop();
    }
}
