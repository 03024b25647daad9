//! The scheduler over made-up logits that show every token a row has seen.

use std::time::Duration;

use proptest::prelude::*;
use shamrock_generate::testing::ScriptedExecutor;
use shamrock_generate::{Accept, Error, Mode, Options, Sampling};
use shamrock_model::Origin;
use shamrock_server::{Engine, EngineOptions, Refusal, SavedStates, Status};

use crate::support::{cold, eventually, metric, request, scripted, submit};

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Denoise), Just(Mode::Draft), Just(Mode::Causal)]
}

fn options() -> impl Strategy<Value = Options> {
    (mode(), 1..40usize, 1..12usize, 0..3u64, any::<bool>()).prop_map(|(mode, max, block, seed, typical)| {
        Options {
            max_tokens: max,
            block_size: Some(block),
            draft_width: Some(block.max(2)),
            accept: if typical { Accept::TYPICAL } else { Accept::Exact },
            sampling: Sampling { temperature: if seed > 0 { 0.8 } else { 0.0 }, seed, ..Sampling::GREEDY },
            ..Options::new(mode)
        }
    })
}

/// How a prompt comes from what was said before.
#[derive(Clone, Debug)]
enum Source {
    /// Nothing of it.
    Fresh(Vec<u32>),
    /// An earlier conversation, up to a share (of 256), and more.
    Continue(usize, u8, Vec<u32>),
    /// An earlier prompt again.
    Again(usize),
}

fn sources() -> impl Strategy<Value = Source> {
    let ids = |longest| prop::collection::vec(0..ScriptedExecutor::MASK, 1..longest);
    prop_oneof![
        ids(40).prop_map(Source::Fresh),
        (any::<usize>(), any::<u8>(), ids(12)).prop_map(|(i, keep, ids)| Source::Continue(i, keep, ids)),
        any::<usize>().prop_map(Source::Again),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Ragged batches, chunked prompts, identical twins, kept states under pressure, drafts over
    /// kept states: each answer is what a fresh session gives.
    #[test]
    fn an_answer_in_a_crowd_is_the_answer_alone(
        seed in any::<u64>(),
        rounds in prop::collection::vec(prop::collection::vec((sources(), options()), 1..6), 1..5),
        parallel in 1..5usize,
        chunk_rows in 1..40usize,
        // None, a few states, plenty: a state here takes 8 bytes a position.
        prefix_bytes in prop_oneof![Just(0), 200..2000u64, Just(1 << 20)],
        prefix_every in 0..20usize,
    ) {
        let mut alone = ScriptedExecutor::new(seed);
        let engine_options =
            EngineOptions { parallel, chunk_rows: Some(chunk_rows), prefix_bytes, prefix_every, ..EngineOptions::default() };
        let (engine, script, _) = scripted(ScriptedExecutor::new(seed), engine_options);
        let mut said: Vec<(Vec<u32>, Vec<u32>)> = Vec::new();
        for round in rounds {
            let mut asked = Vec::new();
            for (source, options) in round {
                let prompt = match source {
                    Source::Continue(i, keep, ids) if !said.is_empty() => {
                        let (prompt, answer) = &said[i % said.len()];
                        let all = [&prompt[..], answer].concat();
                        [&all[..all.len() * usize::from(keep) / 256], &ids].concat()
                    }
                    Source::Again(i) if !said.is_empty() => said[i % said.len()].0.clone(),
                    Source::Fresh(ids) | Source::Continue(_, _, ids) => ids,
                    Source::Again(_) => vec![1, 2, 3],
                };
                if prompt.len() < 200 {
                    let ear = submit(&engine, &prompt, &options);
                    asked.push((prompt, options, ear));
                }
            }
            for (prompt, options, ear) in asked {
                let outcome = ear.wait().unwrap();
                prop_assert_eq!(&outcome.tokens, &cold(&mut alone, &prompt, &options));
                said.push((prompt, outcome.tokens));
            }
            eventually("every sequence is closed", || script.lock().unwrap().held().0 == 0);
            prop_assert!(metric(&engine, "shamrock_prefix_bytes") <= prefix_bytes as f64);
        }
        engine.stop();
        eventually("every state is freed", || script.lock().unwrap().held() == (0, 0));
    }

    /// A pass that fails takes those with it whose rows it was committing; the rest never notice.
    #[test]
    fn a_failing_pass_fails_only_whom_it_hit(seed in any::<u64>(), fails_after in 0..12usize) {
        let mut alone = ScriptedExecutor::new(seed);
        let (engine, script, gate) = scripted(ScriptedExecutor::new(seed), EngineOptions::default());
        script.lock().unwrap().fail_at(fails_after);
        gate.close();
        let options = Options { max_tokens: 30, ..Options::new(Mode::Denoise) };
        let prompts: Vec<Vec<u32>> = (0..4).map(|i| (0..4 + 9 * i).collect::<Vec<u32>>()).collect();
        let prompts: Vec<Vec<u32>> =
            prompts.into_iter().map(|p| p.into_iter().map(|id| id % 20).collect()).collect();
        let ears: Vec<_> = prompts.iter().map(|prompt| submit(&engine, prompt, &options)).collect();
        gate.open();
        for (prompt, ear) in prompts.iter().zip(&ears) {
            match ear.wait() {
                Ok(outcome) => prop_assert_eq!(&outcome.tokens, &cold(&mut alone, prompt, &options)),
                Err(error) => prop_assert!(matches!(error, Error::Model(_)), "{}", error),
            }
        }
        // The engine goes on as if nothing had been, also where the answers took fewer passes.
        script.lock().unwrap().fail_at(usize::MAX);
        let again = submit(&engine, &prompts[0], &options).wait().unwrap();
        prop_assert_eq!(again.tokens, cold(&mut alone, &prompts[0], &options));
        eventually("every sequence is closed", || script.lock().unwrap().held().0 == 0);
    }
}

/// Prompts of every length about three blocks' edges, each with its own tokens and as the beginning of
/// the next, so that kept states end on and beside every edge.
#[test]
fn every_prompt_length_gives_the_answer_alone() {
    let mut alone = ScriptedExecutor::new(11);
    let (engine, _, _) = scripted(ScriptedExecutor::new(11), EngineOptions::default());
    let ids: Vec<u32> = (0..60).map(|i| i * 7 % ScriptedExecutor::MASK).collect();
    for mode in Mode::ALL {
        for block in [1, 3, 8] {
            let options = Options { max_tokens: 19, block_size: Some(block), ..Options::new(mode) };
            for length in 1..=3 * 8 + 1 {
                for prompt in [&ids[..length], &ids[60 - length..]] {
                    let outcome = submit(&engine, prompt, &options).wait().unwrap();
                    assert_eq!(outcome.tokens, cold(&mut alone, prompt, &options), "{mode} {block} {length}");
                }
            }
        }
    }
}

#[test]
fn whoever_hangs_up_costs_no_further_pass() {
    let (engine, script, gate) = scripted(ScriptedExecutor::new(3), EngineOptions::default());
    // In the prompt, in the first block, in a later one.
    let options =
        Options { chunk_rows: Some(4), max_tokens: 100, ignore_eos: true, ..Options::new(Mode::Denoise) };
    for passes in [1, 3, 12] {
        let before = gate.arrived();
        gate.close();
        let ear = submit(&engine, &[5; 10], &options);
        for pass in 1..passes {
            gate.wait_for(before + pass);
            gate.step();
        }
        gate.wait_for(before + passes);
        ear.hang_up();
        gate.open();
        assert!(ear.was_dropped());
        let after = gate.arrived();
        assert!(after <= before + passes + 1, "{} passes after hanging up", after - before - passes);
        assert_eq!(script.lock().unwrap().held().0, 0);
    }
}

#[test]
fn a_full_queue_says_when_to_come_again_and_frees_the_places_of_those_who_left() {
    let options = EngineOptions { parallel: 1, queue: 2, ..EngineOptions::default() };
    let (engine, _, gate) = scripted(ScriptedExecutor::new(3), options);
    let options = Options { max_tokens: 5, ..Options::new(Mode::Causal) };
    gate.close();
    let first = submit(&engine, &[1], &options);
    gate.wait_for(1);
    let (second, third) = (submit(&engine, &[2], &options), submit(&engine, &[3], &options));
    let refusal = engine.submit(vec![request(&[4], &options).0]).unwrap_err();
    let Refusal::Full { waiting: 2, retry_after } = refusal else { panic!("{refusal:?}") };
    assert!((1..=60).contains(&retry_after.as_secs()));
    // The engine is busy, yet the place is free at once. Two need two places, or none is taken.
    second.hang_up();
    let both = vec![request(&[4], &options).0, request(&[5], &options).0];
    assert!(matches!(engine.submit(both), Err(Refusal::Full { .. })));
    let fourth = submit(&engine, &[4], &options);
    assert!(second.was_dropped());
    gate.open();
    for ear in [first, third, fourth] {
        assert!(ear.wait().is_ok());
    }
    assert_eq!(metric(&engine, "shamrock_refused_total"), 2.0);
}

#[test]
fn a_wedged_engine_is_not_healthy() {
    let options = EngineOptions { stall_after: Duration::from_millis(20), ..EngineOptions::default() };
    let (engine, _, gate) = scripted(ScriptedExecutor::new(3), options);
    assert_eq!(engine.health().status, Status::Ok);
    gate.close();
    let ear = submit(&engine, &[1], &Options { max_tokens: 5, ..Options::new(Mode::Causal) });
    eventually("the stall shows", || engine.health().status == Status::Stalled);
    assert_eq!(engine.health().active, 1);
    gate.open();
    assert!(ear.wait().is_ok());
    eventually("health comes back", || engine.health().status == Status::Ok);
}

#[test]
fn draining_finishes_what_is_there_and_takes_no_more() {
    let options = EngineOptions { parallel: 1, ..EngineOptions::default() };
    let (engine, _, gate) = scripted(ScriptedExecutor::new(3), options);
    let options = Options { max_tokens: 20, ..Options::new(Mode::Denoise) };
    gate.close();
    let (active, queued) = (submit(&engine, &[1], &options), submit(&engine, &[2], &options));
    gate.wait_for(1);
    engine.drain();
    assert_eq!(engine.health().status, Status::Draining);
    assert_eq!(engine.submit(vec![request(&[3], &options).0]), Err(Refusal::Draining));
    gate.open();
    assert!(active.wait().is_ok() && queued.wait().is_ok());
}

#[test]
fn stopping_drops_what_is_there() {
    let options = EngineOptions { parallel: 1, ..EngineOptions::default() };
    let (engine, script, gate) = scripted(ScriptedExecutor::new(3), options);
    let options = Options { max_tokens: 200, ignore_eos: true, ..Options::new(Mode::Denoise) };
    gate.close();
    let (active, queued) = (submit(&engine, &[1], &options), submit(&engine, &[2], &options));
    gate.wait_for(1);
    engine.stop();
    gate.open();
    assert!(active.was_dropped() && queued.was_dropped());
    eventually("everything is freed", || script.lock().unwrap().held() == (0, 0));
    assert_eq!(engine.submit(vec![request(&[3], &options).0]), Err(Refusal::Stopped));
}

#[test]
fn the_third_prompt_of_a_kind_finds_all_that_they_share() {
    let (engine, _, _) = scripted(ScriptedExecutor::new(3), EngineOptions::default());
    let options = Options { max_tokens: 3, ..Options::new(Mode::Denoise) };
    let system: Vec<u32> = (0..30).map(|i| i % 7).collect();
    let cached: Vec<usize> = [[10, 11], [12, 13], [14, 15]]
        .iter()
        .map(|user| {
            let prompt = [&system[..], &user[..]].concat();
            submit(&engine, &prompt, &options).wait().unwrap().stats.cached_tokens
        })
        .collect();
    assert_eq!(cached, [0, 0, 30]);
}

#[test]
fn a_prompt_leaves_states_on_its_way() {
    let options = EngineOptions { prefix_every: 8, ..EngineOptions::default() };
    let (engine, _, _) = scripted(ScriptedExecutor::new(3), options);
    let options = Options { max_tokens: 3, ..Options::new(Mode::Denoise) };
    let ids: Vec<u32> = (0..30).map(|i| i % 7).collect();
    let mut alone = ScriptedExecutor::new(3);
    for (shared, cached) in [(30, 0), (7, 0), (8, 8), (23, 16), (24, 24)] {
        let prompt = [&ids[..shared], &[10 + shared as u32 % 3]].concat();
        let outcome = submit(&engine, &prompt, &options).wait().unwrap();
        assert_eq!(outcome.stats.cached_tokens, cached, "{shared} tokens shared");
        assert_eq!(outcome.tokens, cold(&mut alone, &prompt, &options));
    }
}

#[test]
fn what_may_come_is_prepared_while_there_is_nothing_else_to_do() {
    let options = EngineOptions { chunk_rows: Some(16), ..EngineOptions::default() };
    let (engine, script, gate) = scripted(ScriptedExecutor::new(9), options.clone());
    let ids: Vec<u32> = (0..130).map(|i| i * 7 % ScriptedExecutor::MASK).collect();
    let (first, second) = (&ids[..50], &ids[60..124]);
    let prepared = || metric(&engine, "shamrock_prepared_tokens_total");
    engine.prepare(first.to_vec());
    eventually("it is prepared", || prepared() == 50.0);
    let mut alone = ScriptedExecutor::new(9);
    let mut answered = |prompt: &[u32], cached: usize| {
        for mode in Mode::ALL {
            let options = Options { max_tokens: 19, ..Options::new(mode) };
            let outcome = submit(&engine, prompt, &options).wait().unwrap();
            assert_eq!(outcome.tokens, cold(&mut alone, prompt, &options), "{mode}");
            assert!(outcome.stats.cached_tokens >= cached, "{mode}: {}", outcome.stats.cached_tokens);
        }
    };
    answered(&[first, &[3, 1, 4]].concat(), 50);

    // Somebody comes: what is prepared so far is kept, and the rest let be.
    let before = gate.arrived();
    gate.close();
    engine.prepare(first.to_vec());
    engine.prepare(second.to_vec());
    gate.wait_for(before + 1);
    let somebody = submit(&engine, &[1], &Options { max_tokens: 3, ..Options::new(Mode::Causal) });
    gate.open();
    assert!(somebody.wait().is_ok());
    assert_eq!(prepared(), 50.0 + 16.0, "what is known already takes no pass");
    answered(&[second, &[3, 1, 4]].concat(), 16);
    engine.stop();
    eventually("everything is freed", || script.lock().unwrap().held() == (0, 0));

    let off = EngineOptions { prepare: false, ..options };
    assert!(!scripted(ScriptedExecutor::new(9), off).0.prepares());
}

/// Ends an engine and waits until its states are on the disk.
fn ended(engine: Engine) {
    engine.stop();
    eventually("the states are saved", || engine.is_saved());
}

#[test]
fn kept_states_survive_a_restart_and_those_of_others_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let start = |who: &str| {
        let origin = Origin { model: 1, engine: who.into() };
        let saved = Some(SavedStates { path: dir.path().join("states"), origin });
        scripted(ScriptedExecutor::new(5), EngineOptions { saved, ..EngineOptions::default() }).0
    };
    let options = Options { max_tokens: 20, ..Options::new(Mode::Denoise) };
    let prompt: Vec<u32> = (0..30).map(|i| i % ScriptedExecutor::MASK).collect();
    let engine = start("scripted");
    let first = submit(&engine, &prompt, &options).wait().unwrap();
    ended(engine);

    let next = [&prompt[..], &first.tokens, &[7, 8, 9]].concat();
    let want = cold(&mut ScriptedExecutor::new(5), &next, &options);
    for (who, cached) in [("another", false), ("another", true), ("scripted", false)] {
        let engine = start(who);
        let got = submit(&engine, &next, &options).wait().unwrap();
        assert_eq!(got.tokens, want);
        assert_eq!(got.stats.cached_tokens >= prompt.len(), cached, "{who}");
        ended(engine);
    }
    // Damage costs time, never a wrong answer.
    let mut file = std::fs::read(dir.path().join("states")).unwrap();
    let last = file.len() - 9;
    file[last] ^= 1;
    std::fs::write(dir.path().join("states"), file).unwrap();
    let engine = start("scripted");
    assert_eq!(submit(&engine, &next, &options).wait().unwrap().tokens, want);
    ended(engine);
}
