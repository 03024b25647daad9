//! The f32 path against the float64 oracle's numbers on the tiny checkpoints, and the integer path
//! against the f32 path where the rounding of activations can be told from noise.
//!
//! Tolerances are those of `fixtures/README.md`: the oracle's own float32 run is off by up to
//! 1.5e-4 on logits, 3.3e-5 on K/V and 2.1e-6 on the GDN state.

use shamrock_cpu::{CpuExecutor, CpuOptions, Precision};
use shamrock_model::{Executor, LayerState, ModelFile, Score, Step};
use shamrock_testkit::{Expected, FOLDERS, assert_close, find};

const LOGITS: f32 = 1e-3;
const KV: f32 = 1e-4;
const GDN: f32 = 1e-5;

/// Every (folder, container, expectations) triple that this checkout can check. For `kernel` and
/// `awkward` every weight is exact in f16, so their f16 container also has the expectations made
/// over the Hugging Face weights.
fn cases() -> Vec<(&'static str, &'static str, &'static str)> {
    let mut cases = Vec::new();
    for folder in FOLDERS {
        for (file, suffix) in [("model.q4tp.cmf", ".q4tp"), ("model.f16.cmf", ".f16"), ("model.f16.cmf", "")]
        {
            let exact_in_f16 = folder != "small";
            if find(&format!("{folder}/{file}")).is_some() && (!suffix.is_empty() || exact_in_f16) {
                cases.push((folder, file, suffix));
            }
        }
    }
    cases
}

fn executor(folder: &str, file: &str, precision: Precision) -> CpuExecutor {
    let path = find(&format!("{folder}/{file}")).expect("container is there");
    let model = ModelFile::open(path).expect("container opens");
    CpuExecutor::new(model, CpuOptions { precision, ..CpuOptions::default() }).expect("executor starts")
}

#[test]
fn passes_and_states_match_the_oracle() {
    let cases = cases();
    assert!(cases.len() >= 4, "the repository holds three q4tp containers and one f16 container");
    for (folder, file, suffix) in cases {
        let what = format!("{folder}/{file}{suffix}");
        let expected = Expected::load(folder, suffix);
        let mut executor = executor(folder, file, Precision::F32);
        let seq = executor.open().unwrap();

        let prompt = expected.ids("/prompt_ids");
        let all: Vec<usize> = (0..prompt.len()).collect();
        let pass = executor.run(&[Step::commit(seq, &prompt, Score::Logits { rows: &all })]).unwrap();
        let logits: Vec<f32> =
            (0..all.len()).flat_map(|r| pass.outputs[0].commit.logits(r)).copied().collect();
        assert_close(&format!("{what} causal"), &logits, &expected.array("causal_logits").values, LOGITS);

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
            let ids = expected.ids(&format!("/{block}/block_ids"));
            let all: Vec<usize> = (0..ids.len()).collect();
            let pass = executor.run(&[Step::preview(seq, &ids, Score::Logits { rows: &all })]).unwrap();
            let logits: Vec<f32> =
                (0..all.len()).flat_map(|r| pass.outputs[0].preview.logits(r)).copied().collect();
            let want = &expected.array(&format!("{block}/logits")).values;
            assert_close(&format!("{what} {block}"), &logits, want, LOGITS);
            assert_eq!(executor.export(seq).unwrap(), state, "{what}: a preview changes no state");
        }
    }
}
