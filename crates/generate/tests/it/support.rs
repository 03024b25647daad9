//! Running an answer and looking at it.

use std::ops::ControlFlow;

use proptest::prelude::*;
use shamrock_cpu::{CpuExecutor, CpuOptions};
use shamrock_generate::rule::Threshold;
use shamrock_generate::testing::ScriptedExecutor;
use shamrock_generate::{Accept, Event, Mode, Options, Outcome, Rule, Sampling, Saving, Savings, Session};
use shamrock_model::config::Ramp;
use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
use shamrock_model::{Controls, Executor, ModelFile};
pub(crate) use shamrock_testkit::conformance::traced;

/// A sink that listens to nothing.
pub(crate) fn quiet(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// An answer in a session of its own.
pub(crate) fn cold(executor: &mut dyn Executor, prompt: &[u32], options: &Options) -> Outcome {
    let mut session = Session::new();
    let outcome = session.generate(executor, prompt, options, &mut quiet).unwrap();
    session.close(executor);
    outcome
}

/// Asserts that two answers are the same, whatever they cost.
#[track_caller]
pub(crate) fn assert_same(a: &Outcome, b: &Outcome) {
    assert_eq!(a.tokens, b.tokens);
    assert_eq!(a.confidence, b.confidence);
    assert_eq!(a.finish, b.finish);
}

/// The reference executor over `small`: blocks of 8.
pub(crate) fn small() -> ReferenceExecutor {
    let model = ModelFile::open(shamrock_testkit::fixture("small/model.q4tp.cmf")).unwrap();
    ReferenceExecutor::new(model, ReferenceOptions { threads: Some(1), ..ReferenceOptions::DEFAULT }).unwrap()
}

/// The CPU executor over `awkward`: blocks of 32.
pub(crate) fn fast() -> CpuExecutor {
    let model = ModelFile::open(shamrock_testkit::fixture("awkward/model.q4tp.cmf")).unwrap();
    CpuExecutor::new(model, CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap()
}

/// Ids without the mask.
pub(crate) fn prompts(longest: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..ScriptedExecutor::MASK, 1..=longest)
}

pub(crate) fn modes() -> impl Strategy<Value = Mode> {
    prop::sample::select(Mode::ALL.to_vec())
}

/// Any set of savings.
pub(crate) fn savings() -> impl Strategy<Value = Savings> {
    prop::sample::subsequence(Saving::ALL.to_vec(), 0..=Saving::ALL.len())
        .prop_map(|off| off.into_iter().fold(Savings::ALL, Savings::without))
}

/// The threshold of options that fix rows by one.
pub(crate) fn threshold(options: &Options) -> f32 {
    match options.rule {
        Some(Rule::Threshold(Threshold { above })) => above,
        ref other => panic!("{other:?}"),
    }
}

fn ramps() -> impl Strategy<Value = Ramp> {
    let on = (-3.0f32..9.0, 0..20u32, 1..20u32);
    prop_oneof![Just(Ramp::OFF), on.prop_map(|(strength, start, window)| Ramp { strength, start, window }),]
}

/// Penalties that bite and ramps that rise within a few tokens, or none.
pub(crate) fn controls() -> impl Strategy<Value = Controls> {
    let neutral = (Just(0.0f32), Just(0.0f32), Just(1.0f32)).boxed();
    let biting = (-1.0f32..2.0, -0.5f32..1.0, 0.7f32..2.0).boxed();
    (prop_oneof![neutral, biting], ramps(), ramps()).prop_map(|(penalties, length_ramp, think_end_ramp)| {
        Controls {
            presence_penalty: penalties.0,
            frequency_penalty: penalties.1,
            repetition_penalty: penalties.2,
            length_ramp,
            think_end_ramp,
            think_end_id: Some(2),
            stop_ids: vec![ScriptedExecutor::STOP, 5],
        }
    })
}

/// Every rule, with numbers at which it fixes some rows and leaves some.
pub(crate) fn rules() -> impl Strategy<Value = Rule> {
    let names = ["threshold", "margin", "entropy", "budget", "positions", "left", "remask"];
    (prop::sample::select(names.to_vec()), 0.2f32..0.95, 0.2f32..0.95).prop_map(|(name, x, y)| {
        let numbers = match name {
            "positions" | "left" | "remask" => format!("{x},{y}"),
            _ => x.to_string(),
        };
        format!("{name}:{numbers}").parse().unwrap()
    })
}

/// Greedy or not.
pub(crate) fn samplings() -> impl Strategy<Value = Sampling> {
    let drawn = (0.3f32..1.5, 0..8usize, 0.5f32..1.0, 0.0f32..0.2, any::<u64>());
    prop_oneof![
        Just(Sampling::GREEDY),
        drawn.prop_map(|(temperature, top_k, top_p, min_p, seed)| Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            seed
        }),
    ]
}

/// Greedy options of any mode that differ from the defaults in everything that shapes an answer.
pub(crate) fn options() -> impl Strategy<Value = Options> {
    let accept = prop_oneof![Just(Accept::Exact), Just(Accept::Typical { ratio: 0.3, delta: 0.3 })];
    let numbers = (0..40usize, 0.2f32..0.95, 1..12usize, 2..12usize);
    (modes(), controls(), accept, any::<(bool, bool)>(), numbers).prop_map(
        |(mode, controls, accept, (ignore_eos, ahead), (max_tokens, threshold, block, width))| Options {
            max_tokens,
            rule: Some(Rule::threshold(threshold)),
            block_size: Some(block),
            draft_width: Some(width),
            ahead,
            accept: if mode == Mode::Auto { Accept::Exact } else { accept },
            controls: Some(controls),
            suppress: vec![3],
            ignore_eos,
            ..Options::new(mode)
        },
    )
}
