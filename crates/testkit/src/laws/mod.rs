//! Laws of the seam: what holds between the passes of one executor, whatever it computes.
//!
//! Random cases over the checkpoint `small` (blocks of 8). A backend that is held to equal numbers
//! gets other cases in every run, one with a tolerance the same ones always: near ties of a random
//! model, which fall either way, should not make its tests a matter of luck.

mod drafts;
mod passes;
mod refusals;
mod states;
mod trial;

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use shamrock_model::{Executor, ModelFile};

use crate::backend::{Backend, Tolerance};
use crate::fixtures::fixture;
use trial::{Checked, Trial};

/// Random cases per law.
const CASES: u32 = 12;
/// Context of the executor that is easily full.
const SMALL_CONTEXT: usize = 16;

/// Checks every law.
///
/// # Panics
/// When some are broken, with all of them: the law, what came out and what should have, and the
/// smallest input found.
pub fn all(backend: &Backend) {
    let model = ModelFile::open(fixture("small/model.q4tp.cmf")).expect("fixture opens");
    let bench = Bench {
        name: &backend.name,
        tolerance: backend.laws,
        executor: RefCell::new(backend.open(&model, None)),
        small: RefCell::new(backend.open(&model, Some(SMALL_CONTEXT))),
    };
    let laws = [
        passes::pieces,
        passes::previews_only_read,
        passes::scored_rows,
        passes::picks,
        passes::batches,
        passes::fused_steps,
        states::rewinding,
        states::snapshots,
        states::moves,
        drafts::exact_drafts,
        refusals::nothing_to_do,
        refusals::nonsense,
        refusals::foreign_states,
    ];
    let broken: Vec<String> = laws.iter().filter_map(|law| law(&bench).err()).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Executors that all laws share, since opening one may take a device a while.
struct Bench<'a> {
    name: &'a str,
    tolerance: Tolerance,
    executor: RefCell<Box<dyn Executor>>,
    /// Another one, whose context is full after [`SMALL_CONTEXT`] rows.
    small: RefCell<Box<dyn Executor>>,
}

impl Bench<'_> {
    /// Checks a law on random inputs.
    fn law<S: Strategy>(
        &self,
        name: &str,
        inputs: S,
        check: impl Fn(&mut Trial<'_>, S::Value) -> Checked,
    ) -> Result<(), String> {
        self.run(&self.executor, CASES, name, inputs, check)
    }

    /// Checks a law that has but one case, in the small context.
    fn fact(&self, name: &str, check: impl Fn(&mut Trial<'_>) -> Checked) -> Result<(), String> {
        self.run(&self.small, 1, name, Just(()), |trial, ()| check(trial))
    }

    fn run<S: Strategy>(
        &self,
        executor: &RefCell<Box<dyn Executor>>,
        cases: u32,
        name: &str,
        inputs: S,
        check: impl Fn(&mut Trial<'_>, S::Value) -> Checked,
    ) -> Result<(), String> {
        let config =
            ProptestConfig { cases, max_shrink_iters: 100, failure_persistence: None, ..Default::default() };
        let mut runner = if self.tolerance == Tolerance::EXACT {
            TestRunner::new(config)
        } else {
            TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
        };
        let result = runner.run(&inputs, |input| {
            let mut executor = executor.borrow_mut();
            check(&mut Trial::new(&mut **executor, self.tolerance), input)
        });
        let broken = |what: String| Err(format!("{}: {name}: {what}", self.name));
        match result {
            Ok(()) => Ok(()),
            Err(TestError::Fail(reason, input)) => broken(format!("{reason}; smallest input {input:?}")),
            Err(TestError::Abort(reason)) => broken(format!("given up: {reason}")),
        }
    }
}
