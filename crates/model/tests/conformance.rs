//! The reference executor against the float64 oracle's numbers on the tiny checkpoints: what every
//! backend has to match, and what only the reference shows, the residual stream and the routing.

use std::collections::BTreeMap;

use serde_json::Value;
use shamrock_model::reference::{Event, ReferenceExecutor, ReferenceOptions, Site};
use shamrock_model::{Executor, Part, Score, Step};
use shamrock_testkit::conformance::{self, Case};
use shamrock_testkit::{Backend, Expected, Tolerance, assert_close, ids};

/// What an observed part went through.
#[derive(Default)]
struct Seen {
    rows: BTreeMap<String, Vec<f32>>,
    coresets: Vec<Option<Vec<u32>>>,
    experts: Vec<Vec<Vec<u32>>>,
}

impl Seen {
    fn note(&mut self, event: Event<'_>) {
        let mut rows = |name: String, rows: &[f32]| {
            self.rows.insert(name, rows.to_vec());
        };
        match event {
            Event::Embedded(x) => rows("embed".into(), x),
            Event::Mixed(i, x) => rows(format!("mixer{i}"), x),
            Event::Layer(i, x) => rows(format!("layer{i}"), x),
            Event::Normed(x) => rows("final".into(), x),
            Event::Routed(_, coreset, routes) => {
                self.coresets.push(coreset.map(<[u32]>::to_vec));
                let row = |r| routes.row(r).iter().map(|c| c.expert).collect();
                self.experts.push((0..routes.rows()).map(row).collect());
            }
        }
    }
}

fn check_rows(what: &str, seen: &Seen, expected: &Expected, prefix: &str) {
    for (name, rows) in &seen.rows {
        if let Some(want) = expected.get(&format!("{prefix}/{name}")) {
            assert_close(&format!("{what} {prefix}/{name}"), rows, &want.values, Tolerance::ORACLE.logits);
        }
    }
}

fn expert_ids(value: &Value) -> Vec<Vec<u32>> {
    value.as_array().expect("rows of experts").iter().map(ids).collect()
}

#[test]
fn passes_and_states_match_the_oracle() {
    conformance::passes(&Backend::reference());
}

#[test]
fn what_lies_between_matches_the_oracle() {
    for case in conformance::cases() {
        check(&case);
    }
}

/// Residual stream, coresets and experts of the prompt pass and three previews of one container.
fn check(Case { name, model, expected, .. }: &Case) {
    let mut executor = ReferenceExecutor::new(model.clone(), ReferenceOptions::DEFAULT).unwrap();
    let seq = executor.open().unwrap();

    let prompt = expected.ids("/prompt_ids");
    let mut seen = Seen::default();
    executor.run_observed(&[Step::commit(seq, &prompt, Score::None)], &mut |_, e| seen.note(e)).unwrap();
    check_rows(name, &seen, expected, "causal");
    let experts = expert_ids(&expected.json["causal_experts_layer0"]);
    assert_eq!(seen.experts[0], experts, "{name}: experts of layer 0");

    for block in ["masked", "partial", "short"] {
        let ids_of_block = expected.ids(&format!("/{block}/block_ids"));
        let mut seen = Seen::default();
        let mut observe = |site: Site, e: Event<'_>| {
            assert_eq!(site, Site { step: 0, part: Part::Preview });
            seen.note(e);
        };
        let step = Step::preview(seq, &ids_of_block, Score::None);
        executor.run_observed(&[step], &mut observe).unwrap();
        let what = format!("{name}: {block} block");
        check_rows(&what, &seen, expected, block);
        for (i, (coreset, experts)) in seen.coresets.iter().zip(&seen.experts).enumerate() {
            let want = &expected.json[block];
            let want_coreset =
                Some(&want["coreset"]).filter(|c| !c.is_null()).map(|c| ids(&c[i.to_string()]));
            assert_eq!(*coreset, want_coreset, "{what}: coreset of layer {i}");
            assert_eq!(*experts, expert_ids(&want["experts"][i.to_string()]), "{what}: experts of layer {i}");
        }
    }
}
