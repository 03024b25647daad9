//! Every way an answer can end, at every place it can, and the session it leaves.

use std::ops::ControlFlow;

use proptest::prelude::*;
use shamrock_generate::testing::ScriptedExecutor;
use shamrock_generate::{Accept, Error, Event, Finish, Mode, Options, Rule, Session};
use shamrock_model::{Controls, Executor};

use crate::support::{assert_same, cold, controls, modes, options, prompts, quiet};

/// Asserts that a session knows what its executor holds, and that this leads the conversation.
#[track_caller]
fn assert_in_step(executor: &ScriptedExecutor, session: &Session, conversation: &[u32]) {
    let committed = session.committed();
    assert!(conversation.starts_with(committed), "{committed:?} is not part of {conversation:?}");
    assert_eq!(session.sequence().map_or(&[][..], |seq| executor.ids(seq)), committed);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_stop_id_ends_the_answer_wherever_it_stands(
        seed in any::<u64>(), prompt in prompts(20), mode in modes(), controls in controls(),
    ) {
        let mut executor = ScriptedExecutor::new(seed);
        // Without the ramp a stop id is an id like any other, so it cannot change what precedes it.
        let controls = Controls { length_ramp: Controls::default().length_ramp, ..controls };
        let options = Options { max_tokens: 24, controls: Some(controls.clone()), ..Options::new(mode) };
        let full = cold(&mut executor, &prompt, &Options { ignore_eos: true, ..options.clone() });
        for &id in &full.tokens {
            let stop = full.tokens.iter().position(|&t| t == id).unwrap() + 1;
            let controls = Controls { stop_ids: vec![id], ..controls.clone() };
            let mut session = Session::new();
            let options = Options { controls: Some(controls), ..options.clone() };
            let outcome = session.generate(&mut executor, &prompt, &options, &mut quiet).unwrap();
            prop_assert_eq!(&outcome.tokens, &full.tokens[..stop]);
            prop_assert_eq!(outcome.finish, Finish::Stop { id });
            let conversation = [&prompt[..], &outcome.tokens].concat();
            assert_in_step(&executor, &session, &conversation);
            // The next turn goes on from there.
            let next = [&conversation[..], &[9, 8]].concat();
            let second = session.generate(&mut executor, &next, &options, &mut quiet).unwrap();
            prop_assert!(second.stats.cached_tokens >= prompt.len());
            assert_same(&second, &cold(&mut executor, &next, &options));
        }
    }

    #[test]
    fn a_sink_can_break_off_after_any_event(
        seed in any::<u64>(), prompt in prompts(20), options in options(), chunk_rows in 3..20usize,
    ) {
        let mut executor = ScriptedExecutor::new(seed);
        let options = Options { chunk_rows: Some(chunk_rows), ..options };
        let full = cold(&mut executor, &prompt, &options);
        for breaks_at in 0.. {
            let (mut events, mut seen) = (0, Vec::new());
            let mut session = Session::new();
            let outcome = session.generate(&mut executor, &prompt, &options, &mut |event| {
                if let Event::Token { id, .. } = event {
                    seen.push(id);
                }
                events += 1;
                if events > breaks_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }).unwrap();
            prop_assert_eq!(&outcome.tokens, &seen);
            prop_assert_eq!(&outcome.tokens, &full.tokens[..seen.len()]);
            assert_in_step(&executor, &session, &[&prompt[..], &seen].concat());
            if events <= breaks_at {
                assert_same(&outcome, &full);
                break;
            }
            prop_assert_eq!(events, breaks_at + 1, "no event after a break");
            prop_assert!(outcome.finish == Finish::Cancelled || seen.len() == full.tokens.len());
            // The same question again gets the whole answer.
            let again = session.generate(&mut executor, &prompt, &options, &mut quiet).unwrap();
            assert_same(&again, &full);
            session.close(&mut executor);
        }
    }

    #[test]
    fn a_failed_pass_leaves_a_usable_session(seed in any::<u64>(), prompt in prompts(20), options in options()) {
        let full = cold(&mut ScriptedExecutor::new(seed), &prompt, &options);
        for fails_at in 0..full.stats.passes {
            let mut executor = ScriptedExecutor::new(seed);
            executor.fail_at(fails_at);
            let mut session = Session::new();
            let mut seen = Vec::new();
            let result = session.generate(&mut executor, &prompt, &options, &mut |event| {
                if let Event::Token { id, .. } = event {
                    seen.push(id);
                }
                ControlFlow::Continue(())
            });
            prop_assert!(matches!(result, Err(Error::Model(_))));
            prop_assert_eq!(&seen, &full.tokens[..seen.len()]);
            assert_in_step(&executor, &session, &[&prompt[..], &seen].concat());
            assert_same(&session.generate(&mut executor, &prompt, &options, &mut quiet).unwrap(), &full);
            session.close(&mut executor);
            prop_assert_eq!(executor.held(), (0, 0));
        }
    }
}

#[test]
fn no_tokens_asked_for_means_only_the_prompt_is_committed() {
    for mode in [Mode::Denoise, Mode::Draft, Mode::Causal] {
        let mut executor = ScriptedExecutor::new(5);
        let mut session = Session::new();
        let options = Options { max_tokens: 0, ..Options::new(mode) };
        let outcome = session.generate(&mut executor, &[1, 2, 3], &options, &mut quiet).unwrap();
        assert_eq!((outcome.tokens.len(), outcome.finish), (0, Finish::Length));
        assert_eq!(session.committed(), [1, 2, 3]);
    }
}

#[test]
fn a_row_without_a_candidate_is_an_error() {
    for mode in [Mode::Denoise, Mode::Draft, Mode::Causal] {
        let mut executor = ScriptedExecutor::new(5);
        let mut session = Session::new();
        let options = Options { suppress: (0..ScriptedExecutor::VOCAB).collect(), ..Options::new(mode) };
        let error = session.generate(&mut executor, &[1], &options, &mut quiet).unwrap_err();
        assert!(matches!(error, Error::NothingToChoose { position: 1 }), "{error}");
        let fine = Options { max_tokens: 9, ..Options::new(mode) };
        assert_same(
            &session.generate(&mut executor, &[1], &fine, &mut quiet).unwrap(),
            &cold(&mut executor, &[1], &fine),
        );
    }
}

#[test]
fn options_are_refused_by_name() {
    let executor = ScriptedExecutor::new(1);
    let base = || Options::new(Mode::Denoise);
    let controls = |controls| Options { controls: Some(controls), ..base() };
    let sampling = |sampling| Options { sampling, ..base() };
    let greedy = shamrock_generate::Sampling::GREEDY;
    for (options, message) in [
        (Options { block_size: Some(0), ..base() }, "option block_size: 0 is out of range 1..=256"),
        (Options { block_size: Some(257), ..base() }, "option block_size: 257 is out of range 1..=256"),
        (Options { draft_width: Some(1), ..base() }, "option draft_width: 1 is out of range 2..=256"),
        (Options { chunk_rows: Some(0), ..base() }, "option chunk_rows: 0 must be at least 1"),
        (
            Options { rule: Some(Rule::threshold(1.5)), ..base() },
            "option threshold: 1.5 is out of range 0..=1",
        ),
        (
            Options { rule: Some(Rule::threshold(f32::NAN)), ..base() },
            "option threshold: NaN is out of range 0..=1",
        ),
        (
            Options { accept: Accept::TYPICAL, ..Options::new(Mode::Auto) },
            "option accept: mode auto keeps exactly the text of causal decoding",
        ),
        (
            sampling(shamrock_generate::Sampling { temperature: -1.0, ..greedy }),
            "option temperature: -1 must be a finite number of at least 0",
        ),
        (
            sampling(shamrock_generate::Sampling { top_p: 2.0, ..greedy }),
            "option top_p: 2 is out of range 0..=1",
        ),
        (
            controls(Controls { repetition_penalty: 0.0, ..Controls::default() }),
            "option repetition_penalty: 0 must be positive",
        ),
        (
            controls(Controls { presence_penalty: f32::INFINITY, ..Controls::default() }),
            "option presence_penalty: inf is not a finite number",
        ),
    ] {
        assert_eq!(options.check(executor.config()).unwrap_err().to_string(), message);
    }
}

#[test]
fn prompts_are_refused_with_the_reason() {
    let mut executor = ScriptedExecutor::new(1).with_context(8);
    let mut refuse = |prompt: &[u32]| {
        let mut session = Session::new();
        let error = session.generate(&mut executor, prompt, &Options::new(Mode::Causal), &mut quiet);
        assert_eq!(executor.held(), (0, 0));
        error.unwrap_err()
    };
    assert!(matches!(refuse(&[]), Error::EmptyPrompt));
    assert!(matches!(refuse(&[1, 2, 24]), Error::PromptToken { index: 2, id: 24, vocab: 24 }));
    assert!(matches!(refuse(&[1; 8]), Error::PromptTooLong { tokens: 8, limit: 8 }));
}

#[test]
fn a_plain_trunk_decodes_and_refuses_blocks() {
    let mut executor = ScriptedExecutor::new(1).without_blocks();
    for mode in [Mode::Denoise, Mode::Draft] {
        let error = Options::new(mode).check(executor.config()).unwrap_err();
        assert!(matches!(error, Error::NotBlockDiffusion(refused) if refused == mode));
    }
    let options = Options { max_tokens: 9, ignore_eos: true, ..Options::for_model(executor.config()) };
    assert_eq!(options.mode, Mode::Causal);
    let decoded = cold(&mut executor, &[1, 2], &options);
    assert_eq!(decoded.tokens.len(), 9);
    assert_same(&cold(&mut executor, &[1, 2], &Options { mode: Mode::Auto, ..options }), &decoded);
}
