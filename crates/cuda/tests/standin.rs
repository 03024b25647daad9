//! What only the stand-in for a device can show: results under every order of threads and of streams,
//! memory that runs out at every allocation, and a device that breaks at every launch.
//! `tools/cuda-standin.sh` builds the stand-in and runs these tests, and those of `device.rs`, over it.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{conversation, exact, ids, model, open};
use libloading::{Library, Symbol};
use shamrock_cuda::CudaExecutor;
use shamrock_model::{Error, Executor, Score, SeqId, Step};

/// The stand-in's settings (`standin/controls.h`); one test at a time has them.
struct StandIn {
    library: Library,
    _alone: MutexGuard<'static, ()>,
}

impl StandIn {
    fn take() -> StandIn {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: loading the stand-in runs no code but the setting of its variables.
        let library = unsafe { Library::new("libcuda.so") }.expect("run tools/cuda-standin.sh");
        let it = StandIn { library, _alone: alone };
        it.reset();
        it
    }

    fn set<A>(&self, control: &str, value: A) {
        // SAFETY: `control` is one of the functions of `controls.h` that take one value of this type.
        let set: Symbol<'_, unsafe extern "C" fn(A)> =
            unsafe { self.library.get(control) }.expect("the stand-in, not a driver");
        // SAFETY: as above; the functions may be called at any time.
        unsafe { set(value) }
    }

    fn schedule(&self, order: i32) {
        self.set("standin_schedule", order);
    }

    fn defer(&self, lazily: bool) {
        self.set("standin_defer", i32::from(lazily));
    }

    fn fail_allocation(&self, n: i64) {
        self.set("standin_fail_allocation", n);
    }

    fn lose_device(&self, launches: i64) {
        self.set("standin_lose_device", launches);
    }

    fn memory_in_use(&self) -> usize {
        // SAFETY: the function takes nothing and returns a number.
        let get: Symbol<'_, unsafe extern "C" fn() -> usize> =
            unsafe { self.library.get("standin_memory_in_use") }.expect("the stand-in, not a driver");
        // SAFETY: as above.
        unsafe { get() }
    }

    fn reset(&self) {
        self.schedule(0);
        self.defer(false);
        self.fail_allocation(0);
        self.lose_device(0);
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.reset();
    }
}

#[test]
#[ignore = "needs the stand-in, see tools/cuda-standin.sh"]
fn results_depend_on_no_order_of_threads_or_streams() {
    let standin = StandIn::take();
    for name in ["small", "awkward"] {
        let model = model(name);
        let mut want = None;
        for (order, lazily) in [(0, false), (1, true), (2, true)] {
            standin.schedule(order);
            standin.defer(lazily);
            let got = conversation(&mut open(&model, &exact()).unwrap(), &model).unwrap();
            let want = want.get_or_insert_with(|| got.clone());
            assert!(got == *want, "{name}: order {order}, deferred {lazily}: other numbers");
        }
    }
}

#[test]
#[ignore = "needs the stand-in, see tools/cuda-standin.sh"]
fn memory_that_runs_out_fails_what_asked_for_it_and_nothing_else() {
    let standin = StandIn::take();
    let model = model("small");
    let before = standin.memory_in_use();

    // While a model is opened, at every allocation there is.
    let mut failures = 0;
    for n in 1.. {
        standin.fail_allocation(n);
        match open(&model, &exact()) {
            Ok(_) => break,
            Err(Error::DeviceMemory { .. }) => failures += 1,
            Err(other) => panic!("allocation {n}: {other}"),
        }
        assert_eq!(standin.memory_in_use(), before, "allocation {n}: memory was not given back");
    }
    assert!(failures >= 4, "{failures} allocations");

    // In a pass: its sequence is lost, another goes on.
    standin.fail_allocation(0);
    let mut executor = open(&model, &exact()).unwrap();
    let (long, other) = (executor.open().unwrap(), executor.open().unwrap());
    let (prompt, block) = (ids(&model, 5, 1), ids(&model, 8, 2));
    executor.run(&[Step::commit(other, &prompt, Score::None)]).unwrap();
    let look = |executor: &mut CudaExecutor| -> Vec<f32> {
        let pass = executor.run(&[Step::preview(other, &block, Score::Logits { rows: &[0, 7] })]).unwrap();
        [pass.outputs[0].preview.logits(0), pass.outputs[0].preview.logits(1)].concat()
    };
    let want = look(&mut executor);
    standin.fail_allocation(1);
    let failed = executor.run(&[Step::commit(long, &ids(&model, 300, 3), Score::None)]);
    assert!(matches!(failed, Err(Error::DeviceMemory { bytes: Some(_), .. })), "{failed:?}");
    assert_eq!(look(&mut executor), want);
    assert!(matches!(executor.len(long), Err(Error::LostSequence(_))));
    let state = executor.export(other).unwrap();
    executor.import(long, &state).unwrap();
    let again = executor.run(&[Step::preview(long, &block, Score::Logits { rows: &[0, 7] })]).unwrap();
    assert_eq!([again.outputs[0].preview.logits(0), again.outputs[0].preview.logits(1)].concat(), want);
}

#[test]
#[ignore = "needs the stand-in, see tools/cuda-standin.sh"]
fn a_lost_device_fails_every_pass_and_not_the_process() {
    let standin = StandIn::take();
    let model = model("small");
    let (prompt, block) = (ids(&model, 5, 1), ids(&model, 8, 2));
    let pass = |executor: &mut CudaExecutor, seq: SeqId| {
        executor.run(&[
            Step::commit(seq, &prompt, Score::None).then_preview(&block, Score::Logits { rows: &[0] })
        ])
    };
    // Launched one by one, while they are recorded, and replayed.
    for (passes, launches) in [(0, 1), (0, 20), (1, 7), (2, 30)] {
        for lazily in [false, true] {
            standin.defer(lazily);
            let mut executor = open(&model, &exact()).unwrap();
            let seqs: Vec<SeqId> = (0..=passes).map(|_| executor.open().unwrap()).collect();
            for &seq in &seqs[..passes] {
                pass(&mut executor, seq).unwrap();
            }
            standin.lose_device(launches);
            let failed = pass(&mut executor, seqs[passes]);
            assert!(matches!(failed, Err(Error::DeviceLost { .. })), "launch {launches}: {failed:?}");
            for &seq in &seqs {
                assert!(pass(&mut executor, seq).is_err());
            }
            assert!(executor.open().is_err(), "a sequence on a lost device");
            drop(executor);
            standin.lose_device(0);
        }
    }
    // With a new device all is well, to the bit.
    let run = || conversation(&mut open(&model, &exact()).unwrap(), &model).unwrap();
    assert_eq!(run(), run());
}
