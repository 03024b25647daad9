//! What the server counts, in the Prometheus text format.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram, with_local_recorder,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use shamrock_generate::{Finish, Outcome};
use shamrock_model::PassStats;

/// Upper bounds of time buckets in seconds.
const SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];
/// Upper bounds of buckets for tokens per pass.
const TOKENS: [f64; 9] = [1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0];

/// Handles on every metric. They belong to this server, not to the process; clones share them.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Handles>);

pub(crate) struct Handles {
    exporter: PrometheusHandle,
    pub(crate) queued: Gauge,
    pub(crate) active: Gauge,
    pub(crate) prefix_entries: Gauge,
    pub(crate) prefix_bytes: Gauge,
    pub(crate) refused: Counter,
    pub(crate) first_block: Histogram,
    queue_time: Histogram,
    answer_time: Histogram,
    pass_time: Histogram,
    tokens_per_pass: Histogram,
    passes: Counter,
    pass_answers: Counter,
    pass_rows: Counter,
    deciding: Counter,
    distinct_experts: Counter,
    weight_bytes: Counter,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    pub(crate) prepared: Counter,
    generated_tokens: Counter,
    prefix_hits: Counter,
    prefix_misses: Counter,
    speed: Speed,
    /// Answers by how they ended.
    finished: Finished,
}

struct Finished {
    stop: Counter,
    length: Counter,
    context: Counter,
    cancelled: Counter,
    timeout: Counter,
    failed: Counter,
}

/// How fast tokens come, from one look to the next.
struct Speed {
    gauge: Gauge,
    tokens: AtomicU64,
    /// When it was last looked at, and how many there were.
    last: Mutex<(Instant, u64)>,
}

impl Speed {
    fn new(gauge: Gauge) -> Speed {
        Speed { gauge, tokens: AtomicU64::new(0), last: Mutex::new((Instant::now(), 0)) }
    }

    fn update(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let time = last.0.elapsed();
        // Within less, a block more or less is all that shows.
        if time >= Duration::from_secs(1) {
            let tokens = self.tokens.load(Ordering::Relaxed);
            self.gauge.set((tokens - last.1) as f64 / time.as_secs_f64());
            *last = (Instant::now(), tokens);
        }
    }
}

impl Metrics {
    /// Metrics that stand at zero.
    pub(crate) fn new() -> Metrics {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)
            .and_then(|b| b.set_buckets_for_metric(Matcher::Suffix("tokens_per_pass".into()), &TOKENS))
            .expect("there are buckets")
            .build_recorder();
        let exporter = recorder.handle();
        let handles = with_local_recorder(&recorder, || Handles::register(exporter));
        Metrics(Arc::new(handles))
    }

    /// Puts what was measured into its buckets; until then every measurement takes memory.
    pub(crate) fn upkeep(&self) {
        self.0.speed.update();
        self.0.exporter.run_upkeep();
    }

    /// All metrics in the Prometheus text format.
    pub(crate) fn render(&self) -> String {
        self.upkeep();
        self.0.exporter.render()
    }
}

impl std::ops::Deref for Metrics {
    type Target = Handles;

    fn deref(&self) -> &Handles {
        &self.0
    }
}

impl Handles {
    fn register(exporter: PrometheusHandle) -> Handles {
        let gauge_of = |name: &'static str, what: &'static str| {
            describe_gauge!(name, what);
            gauge!(name)
        };
        let count = |name: &'static str, what: &'static str| {
            describe_counter!(name, what);
            counter!(name)
        };
        let seconds = |name: &'static str, what: &'static str| {
            describe_histogram!(name, Unit::Seconds, what);
            histogram!(name)
        };
        describe_counter!("shamrock_answers_total", "Answers by how they ended");
        let finished = |how: &'static str| counter!("shamrock_answers_total", "finish" => how);
        describe_histogram!(
            "shamrock_tokens_per_pass",
            "Tokens of an answer over the passes that decided them"
        );
        Handles {
            exporter,
            queued: gauge_of("shamrock_queue_length", "Requests waiting"),
            active: gauge_of("shamrock_active_sequences", "Answers in the making"),
            prefix_entries: gauge_of("shamrock_prefix_states", "States kept for later prompts"),
            prefix_bytes: gauge_of("shamrock_prefix_bytes", "Bytes of the states kept for later prompts"),
            refused: count("shamrock_refused_total", "Requests that the queue had no place for"),
            first_block: seconds("shamrock_first_block_seconds", "From a request to its first token"),
            queue_time: seconds("shamrock_queue_seconds", "From a request to its first pass"),
            answer_time: seconds("shamrock_answer_seconds", "From the first pass of an answer to its end"),
            pass_time: seconds("shamrock_pass_seconds", "Time of a pass"),
            tokens_per_pass: histogram!("shamrock_tokens_per_pass"),
            passes: count("shamrock_passes_total", "Passes of the executor"),
            pass_answers: count("shamrock_pass_answers_total", "Answers in passes, summed over passes"),
            pass_rows: count("shamrock_pass_rows_total", "Rows of passes"),
            deciding: count("shamrock_deciding_passes_total", "Passes that decided tokens, per answer"),
            distinct_experts: count(
                "shamrock_distinct_experts_total",
                "Experts read, summed over layers and passes",
            ),
            weight_bytes: count("shamrock_weight_bytes_total", "Bytes of weights read"),
            prompt_tokens: count("shamrock_prompt_tokens_total", "Tokens of prompts"),
            cached_tokens: count("shamrock_cached_tokens_total", "Of these, taken from kept states"),
            prepared: count(
                "shamrock_prepared_tokens_total",
                "Tokens committed ahead of the prompts that may come",
            ),
            generated_tokens: count("shamrock_generated_tokens_total", "Tokens of answers"),
            prefix_hits: count("shamrock_prefix_hits_total", "Prompts that went on from a kept state"),
            prefix_misses: count("shamrock_prefix_misses_total", "Prompts that started from nothing"),
            speed: Speed::new(gauge_of(
                "shamrock_tokens_per_second",
                "Tokens of all answers per second, over the last seconds",
            )),
            finished: Finished {
                stop: finished("stop"),
                length: finished("length"),
                context: finished("context"),
                cancelled: finished("cancelled"),
                timeout: finished("timeout"),
                failed: finished("error"),
            },
        }
    }

    pub(crate) fn begun(&self, prompt: usize, cached: usize, waited: Duration) {
        self.queue_time.record(waited);
        self.prompt_tokens.increment(prompt as u64);
        self.cached_tokens.increment(cached as u64);
        let found = if cached > 0 { &self.prefix_hits } else { &self.prefix_misses };
        found.increment(1);
    }

    pub(crate) fn pass(&self, answers: usize, rows: usize, time: Duration, cost: &PassStats) {
        self.passes.increment(1);
        self.pass_answers.increment(answers as u64);
        self.pass_rows.increment(rows as u64);
        self.pass_time.record(time);
        self.distinct_experts.increment(cost.distinct_experts);
        self.weight_bytes.increment(cost.weight_bytes);
    }

    pub(crate) fn absorbed(&self, tokens: usize, decided: bool) {
        self.generated_tokens.increment(tokens as u64);
        self.speed.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        self.deciding.increment(u64::from(decided));
    }

    /// Somebody gave an answer up, in the queue or in the making: the server for lack of time, or who
    /// had asked for it.
    pub(crate) fn abandoned(&self, late: bool) {
        let finished = if late { &self.finished.timeout } else { &self.finished.cancelled };
        finished.increment(1);
    }

    /// An answer came to an end that its listener hears of.
    pub(crate) fn finished(&self, finish: Finish) {
        let finished = match finish {
            // A listener that is still there breaks off at a stop string.
            Finish::Stop { .. } | Finish::Cancelled => &self.finished.stop,
            Finish::Length => &self.finished.length,
            Finish::Context => &self.finished.context,
        };
        finished.increment(1);
    }

    /// What an answer took, however it ended.
    pub(crate) fn ended(&self, outcome: &Outcome) {
        self.answer_time.record(outcome.stats.elapsed);
        if outcome.stats.deciding > 0 {
            self.tokens_per_pass.record(outcome.tokens.len() as f64 / outcome.stats.deciding as f64);
        }
    }

    pub(crate) fn failed(&self) {
        self.finished.failed.increment(1);
    }
}
