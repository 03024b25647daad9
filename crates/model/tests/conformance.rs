//! The reference executor against the float64 oracle's numbers on the tiny checkpoints.
//!
//! Tolerances are those of `fixtures/README.md`: the oracle's own float32 run is off by up to
//! 1.5e-4 on logits and residual rows, 3.3e-5 on K/V and 2.1e-6 on the GDN state.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use shamrock_model::reference::{Event, ReferenceExecutor, ReferenceOptions, Site};
use shamrock_model::{Executor, LayerState, ModelFile, Part, Score, Step};
use shamrock_testkit::{Expected, FOLDERS, assert_close, convert_f16, fixture, ids};

const LOGITS: f32 = 1e-3;
const KV: f32 = 1e-4;
const GDN: f32 = 1e-5;

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

fn executor(path: &Path) -> ReferenceExecutor {
    let model = ModelFile::open(path).expect("container opens");
    ReferenceExecutor::new(model, ReferenceOptions::DEFAULT).expect("executor starts")
}

fn check_rows(what: &str, seen: &Seen, expected: &Expected, prefix: &str) {
    for (name, rows) in &seen.rows {
        if let Some(want) = expected.get(&format!("{prefix}/{name}")) {
            assert_close(&format!("{what} {prefix}/{name}"), rows, &want.values, LOGITS);
        }
    }
}

fn expert_ids(value: &Value) -> Vec<Vec<u32>> {
    value.as_array().expect("rows of experts").iter().map(ids).collect()
}

#[test]
fn quantised_containers_match_the_oracle() {
    for folder in FOLDERS {
        check(folder, &fixture(&format!("{folder}/model.q4tp.cmf")), ".q4tp");
    }
}

#[test]
fn half_precision_containers_match_the_oracle() {
    check("small", &fixture("small/model.f16.cmf"), ".f16");
    // Every weight of these two is exact in f16, so their numbers are those over the Hugging Face
    // folder, for which the oracle also wrote the residual stream after every mixer and layer.
    for folder in ["awkward", "kernel"] {
        let (_guard, path) = convert_f16(folder);
        check(folder, &path, "");
    }
}

/// Prompt pass, state and three previews of one container.
fn check(folder: &str, container: &Path, suffix: &str) {
    let what = format!("{folder}{suffix}");
    let expected = Expected::load(folder, suffix);
    let mut executor = executor(container);
    let seq = executor.open().unwrap();

    let prompt = expected.ids("/prompt_ids");
    let all: Vec<usize> = (0..prompt.len()).collect();
    let mut seen = Seen::default();
    let step = Step::commit(seq, &prompt, Score::Logits { rows: &all });
    let pass = executor.run_observed(&[step], &mut |_, e| seen.note(e)).unwrap();
    let logits = (0..all.len()).flat_map(|r| pass.outputs[0].commit.logits(r)).copied().collect::<Vec<_>>();
    assert_close(&format!("{what} causal"), &logits, &expected.array("causal_logits").values, LOGITS);
    check_rows(&what, &seen, &expected, "causal");
    assert_eq!(
        seen.experts[0],
        expert_ids(&expected.json["causal_experts_layer0"]),
        "{what}: experts of layer 0"
    );

    let state = executor.export(seq).unwrap();
    assert_eq!(state.len, prompt.len());
    let layer = |kind: &str| expected.json["state_layers"][kind].as_u64().unwrap() as usize;
    let LayerState::Gdn { ring, memory } = &state.layers[layer("gdn")] else { panic!("not a GDN layer") };
    assert_close(&format!("{what} ring"), ring, &expected.array("state/gdn_ring").values, GDN);
    assert_close(&format!("{what} S"), memory, &expected.array("state/gdn_S").values, GDN);
    let LayerState::Kv { k, v } = &state.layers[layer("attention")] else { panic!("not attention") };
    assert_close(&format!("{what} k"), k, &expected.array("state/attn_k").values, KV);
    assert_close(&format!("{what} v"), v, &expected.array("state/attn_v").values, KV);

    for block in ["masked", "partial", "short"] {
        let ids_of_block = expected.ids(&format!("/{block}/block_ids"));
        let all: Vec<usize> = (0..ids_of_block.len()).collect();
        let mut seen = Seen::default();
        let step = Step::preview(seq, &ids_of_block, Score::Logits { rows: &all });
        let mut observe = |site: Site, e: Event<'_>| {
            assert_eq!(site, Site { step: 0, part: Part::Preview });
            seen.note(e);
        };
        let pass = executor.run_observed(&[step], &mut observe).unwrap();
        let what = format!("{what} {block}");
        let logits =
            (0..all.len()).flat_map(|r| pass.outputs[0].preview.logits(r)).copied().collect::<Vec<_>>();
        assert_close(&what, &logits, &expected.array(&format!("{block}/logits")).values, LOGITS);
        check_rows(&what, &seen, &expected, block);
        for (i, (coreset, experts)) in seen.coresets.iter().zip(&seen.experts).enumerate() {
            let want = &expected.json[block];
            let want_coreset =
                Some(&want["coreset"]).filter(|c| !c.is_null()).map(|c| ids(&c[i.to_string()]));
            assert_eq!(*coreset, want_coreset, "{what}: coreset of layer {i}");
            assert_eq!(*experts, expert_ids(&want["experts"][i.to_string()]), "{what}: experts of layer {i}");
        }
        assert_eq!(executor.export(seq).unwrap(), state, "{what}: a preview changes no state");
    }
}
