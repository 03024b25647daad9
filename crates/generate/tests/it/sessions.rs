//! Conversations: a warm session answers exactly as a cold one, from as few rows as it can.

use proptest::prelude::*;
use shamrock_generate::testing::ScriptedExecutor;
use shamrock_generate::{Mode, Options, Session, SessionOptions};
use shamrock_model::{Executor, Origin, SequenceState, StateReader, StateWriter};

use crate::support::{assert_same, cold, options, prompts, quiet};

/// What a user does between two answers.
#[derive(Clone, Debug)]
enum Turn {
    /// Goes on behind the whole conversation.
    Continue(Vec<u32>),
    /// Goes on behind this share (of 256) of it.
    Edit(u8, Vec<u32>),
    /// Asks the same again.
    Retry,
    /// Asks the same again after the program was ended and started.
    Restart,
}

fn turns() -> impl Strategy<Value = Vec<(Turn, Options, Option<usize>, Option<usize>)>> {
    let turn = prop_oneof![
        prompts(12).prop_map(Turn::Continue),
        (any::<u8>(), prompts(12)).prop_map(|(keep, ids)| Turn::Edit(keep, ids)),
        Just(Turn::Retry),
        Just(Turn::Restart),
    ];
    let stable = prop::option::of(0..40usize);
    let fails = prop::option::weighted(0.2, 0..6usize);
    prop::collection::vec((turn, options(), stable, fails), 1..7)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_conversation_answers_as_if_each_turn_were_the_first(
        seed in any::<u64>(), first in prompts(20), turns in turns(), checkpoints in 0..4usize,
    ) {
        let mut executor = ScriptedExecutor::new(seed).with_context(400);
        let mut session = Session::with_options(SessionOptions { checkpoints });
        let (mut prompt, mut conversation) = (first.clone(), first);
        for (turn, options, stable_prefix, fails) in turns {
            match turn {
                Turn::Continue(ids) => prompt = [&conversation[..], &ids].concat(),
                Turn::Edit(keep, ids) => {
                    let keep = conversation.len() * usize::from(keep) / 256;
                    prompt = [&conversation[..keep], &ids].concat();
                }
                Turn::Retry => {}
                Turn::Restart => {
                    let cached = session.cached(&executor, &prompt, options.mode);
                    let file = saved(&mut executor, &session);
                    executor = ScriptedExecutor::new(seed).with_context(400);
                    session = Session::with_options(SessionOptions { checkpoints });
                    resume(&file, &mut executor, &mut session);
                    prop_assert_eq!(session.cached(&executor, &prompt, options.mode), cached);
                }
            }
            executor.fail_at(usize::MAX);
            let want = cold(&mut executor, &prompt, &options);
            let options = Options { checkpoints: stable_prefix.into_iter().collect(), ..options };
            executor.fail_at(fails.map_or(usize::MAX, |after| executor.passes() + after));
            let cached = session.cached(&executor, &prompt, options.mode);
            let result = session.generate(&mut executor, &prompt, &options, &mut quiet);
            prop_assert_eq!(session.sequence().map_or(&[][..], |s| executor.ids(s)), session.committed());
            prop_assert!(executor.held().1 <= checkpoints);
            if let Ok(got) = result {
                assert_same(&got, &want);
                prop_assert_eq!(got.stats.cached_tokens, cached);
                conversation = [&prompt[..], &got.tokens].concat();
            } else {
                prop_assert!(fails.is_some());
            }
        }
        session.close(&mut executor);
        prop_assert_eq!(executor.held(), (0, 0));
        prop_assert!(session.committed().is_empty());
    }
}

fn origin() -> Origin {
    Origin { model: 1, engine: "scripted".into() }
}

/// A session as a file.
fn saved(executor: &mut ScriptedExecutor, session: &Session) -> Vec<u8> {
    let mut writer = StateWriter::new(Vec::new(), &origin(), b"", session.states() as u32).unwrap();
    let push = |ids: &[u32], state: &SequenceState| {
        writer.push(ids, state).unwrap();
        Ok::<(), shamrock_model::Error>(())
    };
    session.save(executor, push).unwrap();
    writer.into_inner()
}

fn resume(file: &[u8], executor: &mut ScriptedExecutor, session: &mut Session) {
    let mut reader = StateReader::new(file, file.len() as u64).unwrap();
    assert_eq!(*reader.origin(), origin());
    while let Some((ids, state)) = reader.next(executor.config()).unwrap() {
        session.resume(executor, &ids, &state).unwrap();
    }
}

#[test]
fn a_state_of_another_model_leaves_nothing_behind() {
    let mut executor = ScriptedExecutor::new(2);
    let mut session = Session::new();
    let options = Options { max_tokens: 9, ..Options::new(Mode::Denoise) };
    ask(&mut executor, &mut session, &[1, 2, 3], &options);
    let state = executor.export(session.sequence().unwrap()).unwrap();
    let ids = session.committed().to_vec();
    let foreign: Vec<u32> = ids.iter().map(|id| id + 1_000_000).collect();
    assert!(session.resume(&mut executor, &foreign, &state).is_err());
    assert!(session.resume(&mut executor, &ids[1..], &state).is_err());
    let short = SequenceState { layers: Vec::new(), ..state.clone() };
    assert!(session.resume(&mut executor, &ids, &short).is_err());
    assert!(session.committed().is_empty() && session.sequence().is_none());
    let mut narrow = ScriptedExecutor::new(2).with_context(2);
    assert!(Session::new().resume(&mut narrow, &ids, &state).is_err(), "longer than the context");
    assert_eq!(narrow.held().0, 0);
}

fn ask(executor: &mut ScriptedExecutor, session: &mut Session, prompt: &[u32], options: &Options) -> usize {
    session.generate(executor, prompt, options, &mut quiet).unwrap().stats.cached_tokens
}

#[test]
fn a_template_that_rewrites_the_answer_costs_only_what_it_rewrote() {
    let mut executor = ScriptedExecutor::new(2);
    let mut session = Session::new();
    // The prompt ends with an opening (20, 21) that later turns drop.
    let shared = [1, 2, 3, 4, 5, 6];
    let prompt = [&shared[..], &[20, 21]].concat();
    let options = Options { max_tokens: 9, checkpoints: vec![6], ..Options::new(Mode::Causal) };
    assert_eq!(ask(&mut executor, &mut session, &prompt, &options), 0);
    let next = [&shared[..], &[7, 8, 9]].concat();
    assert_eq!(ask(&mut executor, &mut session, &next, &options), 6);
    // The same question again: all but the opening, whose last row must be scored.
    assert_eq!(ask(&mut executor, &mut session, &prompt, &options), 6);
    let blocks = Options { mode: Mode::Denoise, ..options };
    assert_eq!(ask(&mut executor, &mut session, &prompt, &blocks), 8, "denoising needs no row of the prompt");
}

#[test]
fn the_checkpoint_least_recently_used_goes_first() {
    let mut executor = ScriptedExecutor::new(2);
    let mut session = Session::with_options(SessionOptions { checkpoints: 2 });
    let options = Options { max_tokens: 1, ..Options::new(Mode::Denoise) };
    for prompt in [[1, 1], [2, 2], [1, 1], [3, 3]] {
        ask(&mut executor, &mut session, &prompt, &options);
    }
    assert_eq!(executor.held(), (1, 2));
    assert_eq!(session.cached(&executor, &[1, 1], Mode::Denoise), 2);
    assert_eq!(session.cached(&executor, &[2, 2], Mode::Denoise), 0, "used before the first was used again");
}

#[test]
fn checkpoints_that_the_executor_lost_are_done_without() {
    let mut executor = ScriptedExecutor::new(2);
    let mut session = Session::new();
    let options = Options { max_tokens: 9, ..Options::new(Mode::Denoise) };
    ask(&mut executor, &mut session, &[1, 2, 3], &options);
    for id in 0..10 {
        executor.release(shamrock_model::SnapshotId(id));
    }
    executor.close(session.sequence().unwrap());
    let got = session.generate(&mut executor, &[1, 2, 3], &options, &mut quiet).unwrap();
    assert_same(&got, &cold(&mut executor, &[1, 2, 3], &options));
}
