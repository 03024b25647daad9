//! What must not change an answer: the way it is drafted, chunked, settled, batched.

use std::time::Duration;

use proptest::prelude::*;
use shamrock_generate::testing::ScriptedExecutor;
use shamrock_generate::{Accept, Mode, Options, Rule, Saving, Savings, Session};
use shamrock_model::{Controls, Executor};

use crate::support::{
    assert_same, cold, controls, fast, modes, options, prompts, quiet, rules, samplings, savings, small,
    traced,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn exact_drafting_is_causal_decoding(
        seed in any::<u64>(), prompt in prompts(30), controls in controls(), sampling in samplings(),
        width in 2..20usize, max_tokens in 0..50usize, context in 20..60usize, ignore_eos in any::<bool>(),
        savings in savings(), ahead in any::<bool>(), row in 0.0f64..1.0,
    ) {
        let mut executor = ScriptedExecutor::new(seed)
            .with_context(context.max(prompt.len() + 1))
            .with_clock(move |commit, preview| Duration::from_secs_f64(1.0 + row * (commit + preview) as f64));
        let causal = Options {
            max_tokens, controls: Some(controls), sampling, ignore_eos, ..Options::new(Mode::Causal)
        };
        let draft = Options {
            mode: Mode::Draft, draft_width: Some(width), ahead, savings, ..causal.clone()
        };
        let auto = Options { mode: Mode::Auto, ..draft.clone() };
        let decoded = cold(&mut executor, &prompt, &causal);
        for drafting in [draft, auto] {
            let drafted = cold(&mut executor, &prompt, &drafting);
            assert_same(&drafted, &decoded);
            // Every pass that commits yields a token at least, as decoding does.
            prop_assert!(drafted.stats.commits <= decoded.stats.commits);
        }
    }

    #[test]
    fn chunks_and_row_limits_change_nothing(
        seed in any::<u64>(), prompt in prompts(60), options in options(), sampling in samplings(),
        chunk_rows in 1..20usize, max_rows in 12..40usize,
    ) {
        let options = Options { sampling, ..options };
        let whole = cold(&mut ScriptedExecutor::new(seed), &prompt, &options);
        let mut limited = ScriptedExecutor::new(seed).with_max_rows(max_rows);
        assert_same(&cold(&mut limited, &prompt, &Options { chunk_rows: Some(chunk_rows), ..options }), &whole);
    }

    #[test]
    fn savings_emit_the_same_for_less(
        seed in any::<u64>(), prompt in prompts(20), options in options(), sampling in samplings(),
        rule in rules(), others in savings(), chunk_rows in 3..20usize,
    ) {
        let mut executor = ScriptedExecutor::new(seed);
        let with = Options { sampling, rule: Some(rule), chunk_rows: Some(chunk_rows), savings: others, ..options };
        let (mut a, mut b) = (Session::new(), Session::new());
        let (short, _) = traced(&mut executor, &mut a, &prompt, &with);
        for saving in Saving::ALL {
            let without = Options { savings: others.without(saving), ..with.clone() };
            let (long, _) = traced(&mut executor, &mut b, &prompt, &without);
            assert_same(&short, &long);
            b.close(&mut executor);
            if with.mode == Mode::Denoise {
                let (less, more) = (&short.stats, &long.stats);
                prop_assert!(less.passes <= more.passes);
                prop_assert!(less.rows <= more.rows);
                prop_assert!(less.scored <= more.scored);
            }
        }
    }

    #[test]
    fn a_batch_gives_what_its_members_give(
        seed in any::<u64>(),
        requests in prop::collection::vec((prompts(20), options(), samplings()), 2..5),
    ) {
        let mut executor = ScriptedExecutor::new(seed).with_max_rows(4096);
        let mut running = Vec::new();
        for (prompt, options, sampling) in &requests {
            let mut session = Session::new();
            let options = Options { sampling: *sampling, ..options.clone() };
            let generation = session.start(&mut executor, prompt, &options).unwrap();
            running.push((session, generation));
        }
        loop {
            let steps: Vec<_> = running.iter().filter_map(|(_, g)| g.step()).collect();
            if steps.is_empty() {
                break;
            }
            let pass = executor.run(&steps).unwrap();
            let active = running.iter_mut().filter(|(_, g)| g.finish().is_none());
            for ((session, generation), output) in active.zip(pass.outputs) {
                generation.absorb(session, &mut executor, output, &pass.stats, &mut quiet).unwrap();
            }
        }
        for ((prompt, options, sampling), (session, generation)) in requests.iter().zip(running) {
            prop_assert_eq!(session.committed().len(), executor.len(session.sequence().unwrap()).unwrap());
            let alone = cold(&mut executor, prompt, &Options { sampling: *sampling, ..options.clone() });
            assert_same(&generation.into_outcome(), &alone);
        }
    }
}

#[test]
fn settling_early_saves_passes() {
    let saved = |controls: Controls, max_tokens| -> usize {
        (0..50u64)
            .map(|seed| {
                let mut executor = ScriptedExecutor::new(seed);
                let early = Options {
                    max_tokens,
                    rule: Some(Rule::threshold(0.95)),
                    controls: Some(controls.clone()),
                    ..Options::new(Mode::Denoise)
                };
                let late = Options { savings: Savings::ALL.without(Saving::Settle), ..early.clone() };
                let mut passes = |options| cold(&mut executor, &[1, 2, 3], options).stats.passes;
                passes(&late) - passes(&early)
            })
            .sum()
    };
    let many = Controls { stop_ids: (0..6).collect(), ..Controls::default() };
    assert!(saved(many, 64) > 50, "rows behind a stop id");
    assert!(saved(Controls::default(), 3) > 50, "rows behind the token limit");
}

#[test]
fn a_commit_shares_the_pass_of_the_next_preview() {
    let mut executor = ScriptedExecutor::new(3);
    let options = Options { max_tokens: 32, ignore_eos: true, ..Options::new(Mode::Denoise) };
    let (outcome, events) = traced(&mut executor, &mut Session::new(), &[7; 20], &options);
    let committed: Vec<u64> = events
        .iter()
        .filter(|e| e["event"] == "pass" && e["committed"] != 0)
        .map(|e| {
            assert_eq!((&e["work"], &e["step"]), (&"denoise".into(), &0.into()));
            e["committed"].as_u64().unwrap()
        })
        .collect();
    // The prompt, then every block but the last.
    assert_eq!(committed, [20, 8, 8, 8]);
    assert_eq!(outcome.stats.passes, outcome.stats.previews);
    assert_eq!(outcome.stats.blocks, 4);
}

#[test]
fn typical_acceptance_keeps_more_drafts_than_exact() {
    let rounds = |accept| -> usize {
        (0..30u64)
            .map(|seed| {
                let options =
                    Options { max_tokens: 60, ignore_eos: true, accept, ..Options::new(Mode::Draft) };
                cold(&mut ScriptedExecutor::new(seed), &[4, 2], &options).stats.blocks
            })
            .sum()
    };
    assert!(rounds(Accept::Typical { ratio: 0.1, delta: 0.1 }) < rounds(Accept::Exact));
    assert!(rounds(Accept::Exact) < 30 * 59, "some drafts are accepted");
}

proptest! {
    // Real arithmetic, so only a few: the scripts above are the ones that search.
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn exact_drafting_is_causal_decoding_on_a_model(
        prompt in prompts(20), controls in controls(), width in 2..9usize, ahead in any::<bool>(),
    ) {
        for mut executor in [Box::new(small()) as Box<dyn Executor>, Box::new(fast())] {
            let causal = Options { max_tokens: 16, controls: Some(controls.clone()), ..Options::new(Mode::Causal) };
            let draft = Options { draft_width: Some(width), ahead, mode: Mode::Draft, ..causal.clone() };
            let auto = Options { mode: Mode::Auto, ..draft.clone() };
            let decoded = cold(&mut *executor, &prompt, &causal);
            assert_same(&cold(&mut *executor, &prompt, &draft), &decoded);
            assert_same(&cold(&mut *executor, &prompt, &auto), &decoded);
        }
    }

    #[test]
    fn chunks_and_turns_change_nothing_on_a_model(
        mode in modes(), prompt in prompts(20), more in prompts(9), chunk_rows in 1..9usize,
    ) {
        let mut executor = small();
        let options = Options { max_tokens: 12, ..Options::new(mode) };
        let mut session = Session::new();
        let chunked = Options { chunk_rows: Some(chunk_rows), ..options.clone() };
        let (first, _) = traced(&mut executor, &mut session, &prompt, &chunked);
        assert_same(&first, &cold(&mut executor, &prompt, &options));
        let next = [&prompt[..], &first.tokens, &more].concat();
        let (second, _) = traced(&mut executor, &mut session, &next, &options);
        prop_assert!(second.stats.cached_tokens >= prompt.len());
        assert_same(&second, &cold(&mut executor, &next, &options));
    }
}

#[test]
fn every_prompt_length_modulo_the_block_denoises_alike() {
    let mut executor = small();
    let ids: Vec<u32> = (0..18).map(|i| i * 13 % 300).collect();
    let options = Options { max_tokens: 10, ..Options::new(Mode::Denoise) };
    for length in 1..=ids.len() {
        let prompt = &ids[..length];
        let whole = cold(&mut executor, prompt, &options);
        let rows = Options { chunk_rows: Some(1), ..options.clone() };
        assert_same(&cold(&mut executor, prompt, &rows), &whole);
    }
}
