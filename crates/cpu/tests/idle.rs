//! Threads that wait cost nothing. By itself in this process, whose time it measures.
#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use shamrock_cpu::{CpuExecutor, CpuOptions, processor_time};
use shamrock_model::{Executor, ModelFile, Score, Step};
use shamrock_testkit::fixture;

#[test]
fn an_idle_executor_burns_no_processor_time() {
    const THREADS: usize = 3;
    let model = ModelFile::open(fixture("small/model.q4tp.cmf")).unwrap();
    let options = CpuOptions { threads: Some(THREADS), ..CpuOptions::default() };
    let mut e = CpuExecutor::new(model, options).unwrap();
    let seq = e.open().unwrap();
    e.run(&[Step::commit(seq, &[1; 40], Score::None)]).unwrap();
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    assert!(threads >= THREADS, "the pool has its threads still");
    let (clock, before) = (Instant::now(), processor_time().unwrap());
    std::thread::sleep(Duration::from_millis(500));
    // Spinning a little before they sleep is part of it: a fraction of a millisecond for each.
    let (spent, wall) = (processor_time().unwrap() - before, clock.elapsed());
    assert!(spent < wall / 20, "{spent:?} of processor time in {wall:?} of idling");
    // And they wake again.
    e.run(&[Step::commit(seq, &[1; 40], Score::None)]).unwrap();
}
