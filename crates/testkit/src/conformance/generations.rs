//! One greedy run of the conformance fixtures: tokens, confidences, ending and trace.

use std::ops::ControlFlow;

use serde_json::{Value, json};
use shamrock_generate::{Accept, Finish, Mode, Options, Outcome, Rule, Savings, Session};
use shamrock_model::config::Ramp;
use shamrock_model::{Controls, Executor};

use crate::fixtures::ids;

/// An answer with its events as JSON, as a trace file has them.
///
/// # Panics
/// When the answer fails.
pub fn traced(
    executor: &mut dyn Executor,
    session: &mut Session,
    prompt: &[u32],
    options: &Options,
) -> (Outcome, Vec<Value>) {
    let mut events = Vec::new();
    let outcome = session.generate(executor, prompt, options, &mut |event| {
        events.push(serde_json::to_value(event).expect("an event is JSON"));
        ControlFlow::Continue(())
    });
    (outcome.unwrap_or_else(|e| panic!("{:?} of {prompt:?}: {e}", options.mode)), events)
}

fn number(value: &Value, key: &str) -> f32 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number {key}")) as f32
}

fn ramp(controls: &Value, strength: &str, name: &str) -> Ramp {
    Ramp {
        strength: number(controls, strength),
        start: number(controls, &format!("{name}_start")) as u32,
        window: number(controls, &format!("{name}_window")) as u32,
    }
}

fn options(case: &Value) -> Options {
    let (controls, arguments) = (&case["controls"], &case["arguments"]);
    let mode: Mode = case["mode"].as_str().unwrap().parse().unwrap();
    let size = |key: &str| arguments[key].as_u64().map(|n| n as usize);
    let typical = |key: &str, default| arguments[key].as_f64().map_or(default, |n| n as f32);
    Options {
        max_tokens: case["max_tokens"].as_u64().unwrap() as usize,
        rule: Some(Rule::threshold(number(controls, "threshold"))),
        block_size: size("block_size"),
        draft_width: size("width"),
        accept: if arguments["exact"] == json!(true) {
            Accept::Exact
        } else {
            Accept::Typical { ratio: typical("ratio", 0.9), delta: typical("delta", 0.6) }
        },
        controls: Some(Controls {
            presence_penalty: number(controls, "presence_penalty"),
            frequency_penalty: number(controls, "frequency_penalty"),
            repetition_penalty: number(controls, "repetition_penalty"),
            length_ramp: ramp(controls, "length_penalty", "length_penalty"),
            think_end_ramp: ramp(controls, "think_end_bias", "think_end"),
            think_end_id: controls["think_end_token_id"].as_u64().map(|id| id as u32),
            stop_ids: ids(&controls["stop_token_ids"]),
        }),
        suppress: ids(&controls["suppress_token_ids"]),
        ignore_eos: controls["ignore_eos"].as_bool().unwrap(),
        savings: Savings::NONE,
        ..Options::new(mode)
    }
}

/// Keeps `keys` of an object, so that gaps and costs do not take part in a comparison.
fn only(value: &Value, keys: &[&str]) -> Value {
    keys.iter().map(|&key| (key.to_owned(), value[key].clone())).collect::<serde_json::Map<_, _>>().into()
}

/// The specification's trace form, from our events.
fn trace(mode: Mode, events: &[Value]) -> Vec<Value> {
    let mut entries: Vec<Value> = Vec::new();
    for event in events {
        match (mode, event["work"].as_str()) {
            (Mode::Denoise, Some("denoise")) => {
                if event["step"] == json!(0) {
                    entries.push(json!({ "position": event["length"], "emitted": 0, "passes": [] }));
                }
                let entry = entries.last_mut().unwrap();
                entry["block"] = event["ids"].clone();
                entry["passes"].as_array_mut().unwrap().push(only(event, &["rows", "tokens", "forced"]));
            }
            (Mode::Denoise, None) => {
                let emitted = &mut entries.last_mut().unwrap()["emitted"];
                *emitted = json!(emitted.as_u64().unwrap() + 1);
            }
            (Mode::Draft, Some("verify")) => {
                entries.push(only(event, &["width", "drafts", "accepted", "bonus"]));
            }
            (Mode::Causal, Some("decode")) => entries.push(only(event, &["token"])),
            _ => {}
        }
    }
    entries
}

fn expected_trace(mode: Mode, case: &Value) -> Vec<Value> {
    let entry = |entry: &Value| match mode {
        Mode::Denoise => {
            let mut kept = only(entry, &["position", "emitted", "block"]);
            let passes = entry["passes"].as_array().unwrap();
            kept["passes"] = passes.iter().map(|p| only(p, &["rows", "tokens", "forced"])).collect();
            kept
        }
        Mode::Draft => only(entry, &["width", "drafts", "accepted", "bonus"]),
        Mode::Causal => only(entry, &["token"]),
        Mode::Auto => unreachable!("not of the specification"),
    };
    case["trace"].as_array().unwrap().iter().map(entry).collect()
}

/// Runs one of the oracle's cases; probabilities may be off by `tolerance`.
pub(super) fn check(executor: &mut dyn Executor, what: &str, case: &Value, tolerance: f32) {
    let (options, prompt) = (options(case), ids(&case["prompt_ids"]));
    let mut session = Session::new();
    let (outcome, events) = traced(executor, &mut session, &prompt, &options);

    assert_eq!(outcome.tokens, ids(&case["tokens"]), "{what}: tokens");
    let finish = match outcome.finish {
        Finish::Stop { id } => {
            assert_eq!(outcome.tokens.last(), Some(&id));
            "stop"
        }
        Finish::Length => "length",
        other => panic!("{what}: {other:?}"),
    };
    assert_eq!(case["finish"], finish, "{what}: finish");
    for (i, (got, want)) in outcome.confidence.iter().zip(case["confidence"].as_array().unwrap()).enumerate()
    {
        let want = want.as_f64().unwrap();
        assert!(
            (f64::from(*got) - want).abs() <= f64::from(tolerance),
            "{what}: confidence {i} is {got}, expected {want}"
        );
    }
    let trace = trace(options.mode, &events);
    assert_eq!(trace, expected_trace(options.mode, case), "{what}: trace");

    // The session holds the leading part of the conversation: as much as the specification's state,
    // short of drafts behind a stop id.
    let conversation = [&prompt[..], &outcome.tokens].concat();
    let held = session.committed();
    assert_eq!(held, &conversation[..held.len()], "{what}: committed ids");
    assert_eq!(held.len(), executor.len(session.sequence().unwrap()).unwrap());
    let want = case["committed_tokens"].as_u64().unwrap() as usize;
    if options.mode == Mode::Draft {
        let rounds = trace.iter().map(|round| round["accepted"].as_u64().unwrap() as usize + 1);
        assert_eq!(prompt.len() + rounds.sum::<usize>(), want, "{what}: committed by the rounds");
        assert!(held.len() == want || finish == "stop" && held.len() == conversation.len());
    } else {
        assert_eq!(held.len(), want, "{what}: committed");
    }
    session.close(executor);
}
