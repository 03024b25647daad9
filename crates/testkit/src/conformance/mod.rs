//! What holds between an executor and the oracle's numbers on the tiny checkpoints.

mod generations;

use std::path::PathBuf;

use shamrock_model::{Config, Executor, LayerState, ModelFile, Score, Scored, SeqId, Step};

use crate::backend::{Backend, Tolerance, compare};
use crate::fixtures::{Expected, FOLDERS, convert_f16, fixture};

pub use generations::traced;

/// One container and what the oracle says about it.
pub struct Case {
    /// Folder and encoding.
    pub name: String,
    /// The container.
    pub model: ModelFile,
    /// The numbers.
    pub expected: Expected,
    /// Keeps a converted container on the disk.
    _folder: Option<tempfile::TempDir>,
}

/// Every container: as converted by another program to q4tp, and in f16. Every weight of `awkward`
/// and `kernel` is exact in f16, so their numbers are those over the Hugging Face folder.
pub fn cases() -> Vec<Case> {
    let case = |folder: &str, encoding: &str, path: PathBuf, suffix: &str, guard| Case {
        name: format!("{folder} in {encoding}"),
        model: ModelFile::open(path).expect("fixture opens"),
        expected: Expected::load(folder, suffix),
        _folder: guard,
    };
    let q4tp = FOLDERS
        .map(|folder| case(folder, "q4tp", fixture(&format!("{folder}/model.q4tp.cmf")), ".q4tp", None));
    let converted = ["awkward", "kernel"].map(|folder| {
        let (guard, path) = convert_f16(folder);
        case(folder, "f16", path, "", Some(guard))
    });
    let small = case("small", "f16", fixture("small/model.f16.cmf"), ".f16", None);
    q4tp.into_iter().chain([small]).chain(converted).collect()
}

/// Checks passes, states, greedy generation and moves to and from the reference executor.
///
/// # Panics
/// At the first difference, with the container, what was compared, and the row.
pub fn all(backend: &Backend) {
    passes(backend);
    generations(backend);
    moves(backend);
}

/// Checks logits of a prompt pass, the state after it, and logits of three previews.
///
/// # Panics
/// As [`all`].
pub fn passes(backend: &Backend) {
    for Case { name, model, expected, .. } in cases() {
        let mut executor = backend.open(&model, None);
        let fail =
            |what: &str, problem: String| -> ! { panic!("{}: {name}: {what}: {problem}", backend.name) };
        let check = |what: &str, got: &[f32], array: &str, width: usize, tolerance: f32| {
            let want = &expected.array(array).values;
            compare(got, want, Some(width), tolerance).unwrap_or_else(|problem| fail(what, problem));
        };
        let Config { vocab_size: vocab, attention, gdn, .. } = &model.config;
        let Tolerance { logits, kv, gdn: gdn_tolerance } = backend.oracle;

        let (seq, prompt) = (executor.open().expect("a sequence opens"), expected.ids("/prompt_ids"));
        let rows: Vec<usize> = (0..prompt.len()).collect();
        let got = scored(&mut *executor, Step::commit(seq, &prompt, Score::Logits { rows: &rows }), &name);
        check("logits of the prompt", &got, "causal_logits", *vocab, logits);

        let state = executor.export(seq).expect("a state is exported");
        let layer = |kind: &str| {
            let index = expected.json["state_layers"][kind].as_u64().expect("a layer") as usize;
            (index, &state.layers[index])
        };
        let (i, LayerState::Gdn { ring, memory }) = layer("gdn") else { panic!("{name}: not a GDN layer") };
        check(&format!("ring of layer {i}"), ring, "state/gdn_ring", gdn.channels(), gdn_tolerance);
        check(&format!("memory of layer {i}"), memory, "state/gdn_S", gdn.value_dim, gdn_tolerance);
        let (i, LayerState::Kv { k, v }) = layer("attention") else { panic!("{name}: not attention") };
        check(&format!("keys of layer {i}"), k, "state/attn_k", attention.kv_width(), kv);
        check(&format!("values of layer {i}"), v, "state/attn_v", attention.kv_width(), kv);

        for block in ["masked", "partial", "short"] {
            let ids = expected.ids(&format!("/{block}/block_ids"));
            let rows: Vec<usize> = (0..ids.len()).collect();
            let got = scored(&mut *executor, Step::preview(seq, &ids, Score::Logits { rows: &rows }), &name);
            check(&format!("logits of the {block} block"), &got, &format!("{block}/logits"), *vocab, logits);
            let after = executor.export(seq).expect("a state is exported");
            Tolerance::EXACT
                .compare_states(&model.config, &after, &state)
                .unwrap_or_else(|problem| fail("state after a preview", problem));
        }
    }
}

/// Checks that half of the rows of every pass have all their logits near the oracle's. It is what can be said of
/// arithmetic that rounds so much that a choice between nearly equal experts goes the other way here and there, which
/// moves a row of these random models by whole logits.
///
/// # Panics
/// As [`all`].
pub fn typical_rows(backend: &Backend) {
    for Case { name, model, expected, .. } in cases() {
        let mut executor = backend.open(&model, None);
        let seq = executor.open().expect("a sequence opens");
        for (ids, array) in [
            ("/prompt_ids", "causal_logits"),
            ("/masked/block_ids", "masked/logits"),
            ("/partial/block_ids", "partial/logits"),
            ("/short/block_ids", "short/logits"),
        ] {
            let (ids, want) = (expected.ids(ids), &expected.array(array).values);
            let rows: Vec<usize> = (0..ids.len()).collect();
            let verb = if array == "causal_logits" { Step::commit } else { Step::preview };
            let got = scored(&mut *executor, verb(seq, &ids, Score::Logits { rows: &rows }), &name);
            assert_eq!(got.len(), want.len(), "{}: {name}: {array}", backend.name);
            let vocab = model.config.vocab_size;
            let mut off: Vec<f32> = (got.chunks_exact(vocab).zip(want.chunks_exact(vocab)))
                .map(|(got, want)| got.iter().zip(want).map(|(g, w)| (g - w).abs()).max_by(f32::total_cmp))
                .map(|worst| worst.expect("a vocabulary"))
                .collect();
            off.sort_by(f32::total_cmp);
            let (median, allowed) = (off[off.len() / 2], backend.oracle.logits);
            assert!(
                median <= allowed,
                "{}: {name}: half the rows of {array} are off by {median:e} or more, allowed {allowed:e}",
                backend.name
            );
        }
    }
}

/// Checks [`generations_of`] every container.
///
/// # Panics
/// As [`all`].
pub fn generations(backend: &Backend) {
    cases().iter().for_each(|case| generations_of(backend, case));
}

/// Checks every greedy run of the oracle: tokens, confidences, endings and traces, in all modes.
///
/// # Panics
/// As [`all`].
pub fn generations_of(backend: &Backend, case: &Case) {
    let mut executor = backend.open(&case.model, None);
    for run in case.expected.json["generations"].as_array().expect("runs") {
        let what = format!("{}: {}: run {}", backend.name, case.name, run["name"]);
        generations::check(&mut *executor, &what, run, backend.oracle.probability());
    }
}

/// Checks that conversations go on alike when they move to the reference executor and back.
///
/// # Panics
/// As [`all`].
pub fn moves(backend: &Backend) {
    for folder in FOLDERS {
        let model = ModelFile::open(fixture(&format!("{folder}/model.q4tp.cmf"))).expect("fixture opens");
        let (mut tested, mut plain) = (backend.open(&model, None), Backend::reference().open(&model, None));
        let block = model.config.block.clone().expect("a block-diffusion model");
        let masks = vec![block.mask_id; block.block_size];
        let (a, b) = (tested.open().expect("a sequence opens"), plain.open().expect("a sequence opens"));
        let what = format!("{}: {folder}", backend.name);
        let both = |what: &str, tested: &mut dyn Executor, plain: &mut dyn Executor, commit: &[u32]| {
            let last = [commit.len() - 1];
            let rows: Vec<usize> = (0..masks.len()).collect();
            let steps = |seq: SeqId| {
                [
                    Step::commit(seq, commit, Score::Logits { rows: &last }),
                    Step::preview(seq, &masks, Score::Logits { rows: &rows }),
                ]
            };
            for (got, want) in steps(a).into_iter().zip(steps(b)) {
                let (got, want) = (scored(tested, got, what), scored(plain, want, what));
                compare(&got, &want, Some(model.config.vocab_size), backend.oracle.logits)
                    .unwrap_or_else(|problem| panic!("{what}: {problem}"));
            }
        };
        let first: Vec<u32> = (1..40).collect();
        tested.run(&[Step::commit(a, &first, Score::None)]).expect("a pass runs");
        let state = tested.export(a).expect("a state is exported");
        plain.import(b, &state).expect("the reference takes the state");
        both(&format!("{what}: moved to the reference"), &mut *tested, &mut *plain, &[6, 7]);
        let state = plain.export(b).expect("a state is exported");
        tested.import(a, &state).expect("the state comes back");
        both(&format!("{what}: moved back"), &mut *tested, &mut *plain, &[8, 9, 10]);
    }
}

/// Logits of all the rows that a step asks for.
fn scored(executor: &mut dyn Executor, step: Step<'_>, what: &str) -> Vec<f32> {
    let pass = executor.run(&[step]).unwrap_or_else(|e| panic!("{what}: {e}"));
    let output = &pass.outputs[0];
    match (&output.commit, &output.preview) {
        (Scored::Logits { values, .. }, Scored::None) | (Scored::None, Scored::Logits { values, .. }) => {
            values.clone()
        }
        other => panic!("{what}: logits of one part were asked for, got {other:?}"),
    }
}
