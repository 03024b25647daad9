//! The server's own memory over time; the mapped model does not count.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Growth between two stretches of time that passes for none: allocators keep what threads freed.
const SLACK: f64 = 0.05;
const SLACK_BYTES: u64 = 12 << 20;

/// A thread that looks at a process.
pub struct Memory {
    stop: Arc<AtomicBool>,
    samples: JoinHandle<Vec<u64>>,
}

/// Bytes at equal distances of time; none where the system does not tell.
pub struct Samples(Vec<u64>);

/// Medians of the second and the last quarter: the first is the warm-up.
pub struct Growth {
    pub early: u64,
    pub late: u64,
}

impl Memory {
    pub fn watch(pid: u32) -> Memory {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let samples = std::thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                samples.extend(anonymous(pid));
                std::thread::sleep(Duration::from_millis(200));
            }
            samples
        });
        Memory { stop, samples }
    }

    pub fn stop(self) -> Samples {
        self.stop.store(true, Ordering::Relaxed);
        Samples(self.samples.join().expect("the thread ends"))
    }
}

impl Samples {
    pub fn growth(&self) -> Option<Growth> {
        let quarter = self.0.len() / 4;
        let median = |samples: &[u64]| {
            let mut sorted = samples.to_vec();
            sorted.sort_unstable();
            sorted[sorted.len() / 2]
        };
        let early = self.0.get(quarter..2 * quarter).filter(|s| !s.is_empty())?;
        Some(Growth { early: median(early), late: median(&self.0[3 * quarter..]) })
    }

    pub fn peak(&self) -> u64 {
        self.0.iter().copied().max().unwrap_or(0)
    }
}

impl Growth {
    pub fn is_bounded(&self) -> bool {
        self.late <= self.early + (self.early as f64 * SLACK) as u64 + SLACK_BYTES
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        write!(f, "{:.1} MiB in the second quarter, {:.1} MiB in the last", mib(self.early), mib(self.late))
    }
}

/// Resident memory of a process that is not a file's.
fn anonymous(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(1024 * line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?)
}
