//! What this machine reaches at best, for the floors that benchmarks print.

use std::hint::black_box;
use std::time::{Duration, Instant};

use shamrock_model::{Error, Result};

use crate::cores;
use crate::kernel::{Columns, Isa};
use crate::pool::Pool;

/// Bytes that a thread reads: more than its share of any cache.
const SPAN: usize = 64 << 20;
/// Rounds of dot products that a thread does: some milliseconds.
const ROUNDS: usize = 200_000;
/// Of so many runs the best counts.
const RUNS: usize = 7;

/// Peaks of all threads together.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Threads in use.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub isa: &'static str,
    /// Bytes read from memory a second.
    pub read: f64,
    /// Operations on 8-bit weights and 8-bit activations a second, a multiply-add counting as two,
    /// all operands in first-level cache.
    pub bytes: f64,
    /// The same on 4-bit weights.
    pub nibbles: f64,
}

impl Machine {
    /// Measures; takes about a second. `threads` as in [`CpuOptions`](crate::CpuOptions).
    ///
    /// # Errors
    /// [`Error::Device`] when the threads cannot be started.
    pub fn measure(threads: Option<usize>) -> Result<Machine> {
        let (isa, threads) = (Isa::detect(), threads.unwrap_or_else(cores::default_threads));
        let pool = Pool::new(threads, &[])
            .map_err(|e| Error::Device { backend: "cpu", problem: format!("cannot start a thread: {e}") })?;
        let mut spans = vec![vec![1u64; SPAN / size_of::<u64>()]; threads];
        let best = |work: &mut dyn FnMut()| {
            let times = (0..RUNS).map(|_| {
                let clock = Instant::now();
                work();
                clock.elapsed().as_secs_f64()
            });
            times.fold(f64::INFINITY, f64::min)
        };
        let read = best(&mut || {
            pool.for_chunks(&mut spans, 1, |_, span| {
                black_box(isa.run(|| span[0].iter().fold(0u64, |sum, v| sum.wrapping_add(*v))));
            });
        });
        let products = |columns| {
            let ops = isa.peak(columns, 1);
            let time = best(&mut || {
                pool.run(threads, |_| {
                    black_box(isa.peak(columns, ROUNDS));
                })
            });
            ops * (ROUNDS * threads) as f64 / time
        };
        Ok(Machine {
            threads,
            isa: isa.name(),
            read: (threads * SPAN) as f64 / read,
            bytes: products(Columns::Natural),
            nibbles: products(Columns::Paired),
        })
    }
}

/// Processor time of this process so far, all threads: what to compare on a machine that does other work
/// too. `None` where it cannot be told.
pub fn processor_time() -> Option<Duration> {
    // In the scheduler's account of a thread, nanoseconds on a processor come first.
    let of_thread = |task: std::io::Result<std::fs::DirEntry>| {
        let account = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        account.split(' ').next()?.parse::<u64>().ok()
    };
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    tasks.map(of_thread).sum::<Option<u64>>().map(Duration::from_nanos)
}
