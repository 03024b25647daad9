//! What happened, in figures.

use std::fmt::Write;
use std::time::{Duration, Instant};

use super::client::Answer;
use super::memory::Samples;

/// One part of the test.
pub struct Phase {
    begun: Instant,
    took: Duration,
    /// By job.
    pub answers: Vec<(usize, Answer)>,
    pub given_up: usize,
    pub problems: Vec<String>,
}

impl Phase {
    pub fn begin() -> Phase {
        Phase {
            begun: Instant::now(),
            took: Duration::ZERO,
            answers: Vec::new(),
            given_up: 0,
            problems: Vec::new(),
        }
    }

    pub fn restart(&mut self) {
        self.begun = Instant::now();
    }

    pub fn end(mut self) -> Phase {
        self.took = self.begun.elapsed();
        self
    }

    fn row(&self, name: &str) -> String {
        let seconds = self.took.as_secs_f64();
        let tokens: u64 = self.answers.iter().map(|(_, answer)| answer.tokens).sum();
        let quantile = |of: fn(&Answer) -> Duration, share: f64| {
            let mut times: Vec<Duration> = self.answers.iter().map(|(_, answer)| of(answer)).collect();
            times.sort_unstable();
            let at = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
            times.get(at).map_or(0.0, Duration::as_secs_f64)
        };
        format!(
            "{name:<18} {:>8} {:>9} {:>7.1} {:>8.1} {:>8.2} {:>8.2} {:>8.2} {:>8.2} {:>8.2}",
            self.answers.len(),
            self.given_up,
            self.answers.len() as f64 / seconds,
            tokens as f64 / seconds,
            quantile(|a| a.first, 0.5),
            quantile(|a| a.first, 0.95),
            quantile(|a| a.total, 0.5),
            quantile(|a| a.total, 0.95),
            quantile(|a| a.total, 0.99),
        )
    }
}

/// A table of both phases, and the memory under load.
pub fn report(alone: &Phase, crowd: &Phase, memory: &Samples, clients: u64) -> String {
    let mut text = format!(
        "load: {clients} clients for {:.0} s; times in seconds\n{:<18} {:>8} {:>9} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        crowd.took.as_secs_f64(),
        "",
        "answers",
        "given up",
        "req/s",
        "tok/s",
        "first50",
        "first95",
        "total50",
        "total95",
        "total99"
    );
    let _ = writeln!(text, "{}\n{}", alone.row("one at a time"), crowd.row("the crowd"));
    if let Some(growth) = memory.growth() {
        let _ =
            write!(text, "memory: {growth}, {:.1} MiB at most", memory.peak() as f64 / f64::from(1 << 20));
    }
    text
}
