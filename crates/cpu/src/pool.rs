//! A persistent pool of threads with a short way to work.
//!
//! A layer is a handful of parallel regions of tens to hundreds of microseconds, so what counts is how
//! soon threads start and that nobody waits for one that does not. The caller works too; a thread that
//! has finished spins a little while before it sleeps, so that within a pass the next region finds
//! it awake; and a region ends when its tasks are done, whether or not all threads have joined.
//!
//! Tasks are handed out one at a time in ascending order. Which thread runs a task is left to chance,
//! so results must not depend on it.

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use crate::cores;

/// Turns of a waiting loop before a thread sleeps (a worker) or yields (the caller): 20 to 100 µs.
const PATIENCE: usize = 2000;

/// In [`Shared::state`]: threads inside the region, whether it may be entered, its number.
const INSIDE: u64 = (1 << 16) - 1;
const OPEN: u64 = 1 << 16;
const NEXT_REGION: u64 = 1 << 17;

/// The threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// A region runs: a second one, from inside a task or from another thread, runs by itself.
    busy: AtomicBool,
}

struct Worker {
    handle: JoinHandle<()>,
    asleep: Arc<AtomicBool>,
}

struct Shared {
    /// See [`INSIDE`], [`OPEN`] and [`NEXT_REGION`].
    state: AtomicU64,
    /// Next task to hand out.
    next: AtomicUsize,
    /// Written while the region is closed and empty, read inside it.
    region: UnsafeCell<Region>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    shutdown: AtomicBool,
}

/// What a region does: `work` of each task below `tasks`.
#[derive(Clone, Copy)]
struct Region {
    tasks: usize,
    work: *const (dyn Fn(usize) + Sync),
}

// SAFETY: `region` is written only while nobody is inside (see `Pool::run`); what it points to is
// `Sync` and outlives the region.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Pool {
    /// The calling thread by itself.
    pub(crate) fn alone() -> Pool {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            region: UnsafeCell::new(Region { tasks: 0, work: &|_| {} }),
            panic: Mutex::new(None),
            shutdown: AtomicBool::new(false),
        });
        Pool { shared, workers: Vec::new(), busy: AtomicBool::new(false) }
    }

    /// A pool of `threads` threads, the caller's being one of them. The `i`-th of them stays on
    /// processor `pins[i]`, where there is one: but for the caller's, which is not ours, and whatever
    /// else it starts would stay there too. It finds the processor that is left.
    ///
    /// # Errors
    /// When a thread cannot be started or pinned.
    pub(crate) fn new(threads: usize, pins: &[usize]) -> io::Result<Pool> {
        let mut pool = Pool::alone();
        for i in 1..threads.min(INSIDE as usize) {
            let (shared, asleep) = (pool.shared.clone(), Arc::new(AtomicBool::new(false)));
            let worker_asleep = asleep.clone();
            let cpu = pins.iter().copied().cycle().nth(i);
            let (tell, told) = mpsc::channel();
            let handle = thread::Builder::new().name(format!("shamrock-cpu-{i}")).spawn(move || {
                let pinned = cpu.map_or(Ok(()), cores::pin);
                let failed = pinned.is_err();
                // Nobody listens only if `new` has failed meanwhile.
                if tell.send(pinned).is_ok() && !failed {
                    shared.serve(&worker_asleep);
                }
            })?;
            pool.workers.push(Worker { handle, asleep });
            told.recv().unwrap_or(Ok(()))?;
        }
        Ok(pool)
    }

    /// Number of threads, the caller's included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work` for every task below `tasks` and returns when all are done.
    ///
    /// # Panics
    /// With the panic of a task, after all threads have left.
    pub(crate) fn run(&self, tasks: usize, work: impl Fn(usize) + Sync) {
        let alone = tasks < 2 || self.workers.is_empty();
        if alone || self.busy.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(work);
            return;
        }
        type Work<'a> = &'a (dyn Fn(usize) + Sync + 'a);
        let work: Work<'_> = &work;
        // SAFETY: only the lifetime changes; this function does not return before everyone has left
        // the region.
        let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        let shared = &*self.shared;
        // SAFETY: the region is closed and empty (`busy` keeps other callers out), so nobody reads.
        unsafe { *shared.region.get() = Region { tasks, work } };
        shared.next.store(0, Ordering::Relaxed);
        let number = shared.state.load(Ordering::Relaxed) / NEXT_REGION;
        shared.state.store((number + 1).wrapping_mul(NEXT_REGION) | OPEN, Ordering::Release);
        // Orders the state before the look at who sleeps; `Shared::wait` does the opposite.
        fence(Ordering::SeqCst);
        for worker in self.workers.iter().take(tasks - 1) {
            if worker.asleep.load(Ordering::Relaxed) && worker.asleep.swap(false, Ordering::Relaxed) {
                worker.handle.thread().unpark();
            }
        }
        shared.work();
        shared.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut turns = 0;
        while shared.state.load(Ordering::Acquire) & INSIDE != 0 {
            turns += 1;
            if turns < PATIENCE { std::hint::spin_loop() } else { thread::yield_now() }
        }
        let panic = shared.panic.lock().map_or(None, |mut panic| panic.take());
        self.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Gives every item to `work`, in parallel.
    pub(crate) fn for_each<T: Send>(&self, items: Vec<T>, work: impl Fn(T) + Sync) {
        struct Slots<T>(Vec<UnsafeCell<Option<T>>>);
        // SAFETY: every slot is touched by one task only.
        unsafe impl<T: Send> Sync for Slots<T> {}
        impl<T> Slots<T> {
            /// # Safety
            /// Called once for each `i`.
            unsafe fn take(&self, i: usize) -> Option<T> {
                // SAFETY: nobody else has this slot.
                unsafe { (*self.0[i].get()).take() }
            }
        }
        let slots = Slots(items.into_iter().map(|item| UnsafeCell::new(Some(item))).collect());
        self.run(slots.0.len(), |i| {
            // SAFETY: each task runs once.
            if let Some(item) = unsafe { slots.take(i) } {
                work(item);
            }
        });
    }

    /// Gives every chunk of `size` values (the last may be shorter) to `work` with its number.
    pub(crate) fn for_chunks<T: Send>(
        &self,
        data: &mut [T],
        size: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        self.for_each(data.chunks_mut(size.max(1)).enumerate().collect(), |(i, chunk)| work(i, chunk));
    }
}

impl Shared {
    /// A worker's life.
    fn serve(&self, asleep: &AtomicBool) {
        let mut seen = 0;
        loop {
            let Some(state) = self.wait(seen, asleep) else { return };
            seen = state / NEXT_REGION;
            if self.enter(state) {
                self.work();
                self.state.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// The state as soon as it is of another region than `seen`; `None` at the end.
    fn wait(&self, seen: u64, asleep: &AtomicBool) -> Option<u64> {
        let mut turns = 0;
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state / NEXT_REGION != seen {
                return Some(state);
            }
            if self.shutdown.load(Ordering::Acquire) {
                return None;
            }
            turns += 1;
            if turns < PATIENCE {
                std::hint::spin_loop();
                continue;
            }
            asleep.store(true, Ordering::Relaxed);
            // Orders the word that we sleep before the last look at the state; `Pool::run` does the
            // opposite, so that one of the two sees the other.
            fence(Ordering::SeqCst);
            let state = self.state.load(Ordering::Relaxed);
            if state / NEXT_REGION == seen && !self.shutdown.load(Ordering::Relaxed) {
                thread::park();
            }
            asleep.store(false, Ordering::Relaxed);
        }
    }

    /// Joins the region of `state` unless it has been closed.
    fn enter(&self, mut state: u64) -> bool {
        let region = state / NEXT_REGION;
        while state & OPEN != 0 && state / NEXT_REGION == region {
            match self.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Takes tasks until there are none.
    fn work(&self) {
        // SAFETY: we are inside the region (the caller: it opened it), so `region` is not written, and
        // `work` is alive.
        let (tasks, work) = unsafe {
            let region = *self.region.get();
            (region.tasks, &*region.work)
        };
        let done = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return;
                }
                work(task);
            }
        }));
        if let Err(panic) = done {
            // No more tasks for anybody.
            self.next.store(tasks, Ordering::Relaxed);
            if let Ok(mut first) = self.panic.lock() {
                first.get_or_insert(panic);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.handle.thread().unpark();
            // A worker does not panic: tasks are caught.
            let _ = worker.handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_in_region_after_region() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads, &[]).unwrap();
            for region in 0..300 {
                let mut counts = vec![0u32; region % 37];
                pool.for_chunks(&mut counts, 2, |i, chunk| {
                    for (j, count) in chunk.iter_mut().enumerate() {
                        *count += (2 * i + j) as u32 + 1;
                    }
                });
                assert!(counts.iter().enumerate().all(|(i, &count)| count == i as u32 + 1));
                if region % 100 == 0 {
                    thread::sleep(std::time::Duration::from_millis(5)); // workers fall asleep
                }
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pool_that_cannot_be_pinned_says_so() {
        let cores = cores::physical_cores();
        let pool = Pool::new(cores.len() + 2, &cores).unwrap(); // more threads than cores share them
        let done = AtomicUsize::new(0);
        pool.run(50, |_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 50);
        assert!(Pool::new(3, &[0, 1023]).is_err(), "a processor that is not there");
    }

    #[test]
    fn a_region_inside_a_task_runs_by_itself() {
        let pool = Pool::new(3, &[]).unwrap();
        let sum = AtomicUsize::new(0);
        pool.run(4, |_| {
            pool.run(5, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            })
        });
        assert_eq!(sum.into_inner(), 4 * 10);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3, &[]).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(50, |i| assert!(i != 7, "task seven"))));
        assert!(caught.unwrap_err().downcast_ref::<&str>().is_some_and(|m| m.contains("seven")));
        let done = AtomicUsize::new(0);
        pool.run(50, |_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 50);
    }
}
