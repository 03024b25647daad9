//! The executor from end to end: on a Mac on its device, elsewhere (under `--cfg metal_host`) on the
//! stand-in of `tools/metal-linux`, whose command buffers run the kernels on the CPU.
#![cfg(any(target_os = "macos", metal_host))]

use shamrock_metal::{KvPrecision, MetalExecutor, MetalOptions, Precision, Routing};
use shamrock_model::weights::{LayerWeights, Matrix};
use shamrock_model::{Executor, ModelFile, PassStats, Score, Scored, Step};
use shamrock_testkit::{Backend, Tolerance, conformance, fixture, laws};

/// States and arithmetic in f32.
const EXACT: MetalOptions = MetalOptions {
    max_context: None,
    precision: Precision::Full,
    kv: KvPrecision::Full,
    routing: Routing::Host,
    prefetch: true,
    expert_views: 6 << 30,
    profile: false,
};
/// Pages that buffers over the file begin and end at.
const PAGE: usize = 16 << 10;

fn backend(name: &str, options: MetalOptions) -> Backend {
    Backend::new(name, move |model, max_context| {
        MetalExecutor::new(model, &MetalOptions { max_context, ..options })
    })
}

fn model(folder: &str) -> ModelFile {
    ModelFile::open(fixture(&format!("{folder}/model.q4tp.cmf"))).unwrap()
}

#[test]
fn matches_the_oracle() {
    conformance::all(&backend("metal", EXACT));
}

/// How many rows share a product decides on its kernel, and so on the order of its sums: what is one row in
/// one pass and one of many in another differs by f32 rounding, as far as the oracle's own f32 run is off.
#[test]
fn keeps_the_laws_of_the_seam() {
    let f32_rounding = Tolerance { logits: 2e-3, kv: 2e-4, gdn: 2e-5 };
    laws::all(&backend("metal", EXACT).laws(f32_rounding));
}

/// With inputs, keys and values in half precision a last bit of difference moves a rounding of 2^-11: these random
/// models amplify it to some hundredths of a logit. Experts are chosen on the device.
#[test]
fn keeps_the_laws_in_half_precision() {
    let half_rounding = Tolerance { logits: 0.1, kv: 2e-2, gdn: 5e-3 };
    let options = MetalOptions { routing: Routing::Device, ..MetalOptions::default() };
    laws::all(&backend("metal (f16)", options).laws(half_rounding));
}

/// Bytes of the pages around a matrix.
fn span(model: &ModelFile, matrix: Matrix) -> usize {
    let tensor = model.weights.tensor(matrix);
    let start = tensor.offset as usize / PAGE * PAGE;
    (tensor.offset as usize + tensor.bytes.len()).next_multiple_of(PAGE) - start
}

fn experts_of(model: &ModelFile, layer: &LayerWeights) -> usize {
    layer.moe.experts.iter().flat_map(|e| e.matrices()).map(|m| span(model, m)).sum()
}

/// A commit and a preview, with all logits, and what they cost.
fn answers(executor: &mut MetalExecutor, ids: &[u32]) -> (Vec<f32>, PassStats) {
    let block = executor.config().block.clone().unwrap();
    let masks = vec![block.mask_id; block.block_size];
    let seq = executor.open().unwrap();
    let rows: Vec<usize> = (0..ids.len().max(masks.len())).collect();
    let commit = Step::commit(seq, ids, Score::Logits { rows: &rows[..ids.len()] });
    let preview = Step::preview(seq, &masks, Score::Logits { rows: &rows[..masks.len()] });
    let (mut logits, mut stats) = (Vec::new(), PassStats::default());
    for step in [commit, preview] {
        let pass = executor.run(&[step]).unwrap();
        let output = &pass.outputs[0];
        logits.extend_from_slice(values(&output.commit));
        logits.extend_from_slice(values(&output.preview));
        stats.add(&pass.stats);
    }
    executor.close(seq);
    (logits, stats)
}

/// All logits of a score.
fn values(scored: &Scored) -> &[f32] {
    match scored {
        Scored::Logits { values, .. } => values,
        _ => &[],
    }
}

/// Experts are viewed and let go at every budget, down to none, and nothing changes but the cost.
#[test]
fn any_budget_gives_the_same_numbers() {
    let model = model("awkward");
    let ids: Vec<u32> = (1..30).collect();
    let layers = &model.weights.layers;
    let all: usize = layers.iter().map(|layer| experts_of(&model, layer)).sum();
    let one: usize = layers.iter().map(|layer| experts_of(&model, layer)).max().unwrap();
    let open =
        |expert_views| MetalExecutor::new(model.clone(), &MetalOptions { expert_views, ..EXACT }).unwrap();

    let mut roomy = open(all);
    let (want, first) = answers(&mut roomy, &ids);
    let (_, again) = answers(&mut roomy, &ids);
    assert_eq!(again.expert_misses, 0, "all experts in use were viewed");
    assert_eq!(again.expert_hits, first.expert_hits + first.expert_misses);
    assert_eq!(again.distinct_experts, again.expert_hits);
    for budget in [0, PAGE, one / 3, one, one * 3 / 2, all / 2] {
        let mut tight = open(budget);
        for round in 0..2 {
            let (got, stats) = answers(&mut tight, &ids);
            assert_eq!(got, want, "budget {budget}");
            assert_eq!(stats.distinct_experts, stats.expert_hits + stats.expert_misses);
            assert!(stats.expert_misses > 0, "budget {budget}, round {round}: everything was there");
            assert!(
                tight.expert_bytes() <= budget.max(one),
                "{} viewed, budget {budget}",
                tight.expert_bytes()
            );
        }
    }
}

/// Whether experts are chosen on the host or on the device makes no difference but in waits. On a Mac, whose GPU
/// has an exponential function of its own, shares differ in their last digits, and with them choices that are
/// nearly equal; there the laws of the seam compare the numbers.
#[test]
fn routing_on_the_device_gives_the_same_numbers() {
    let cases = [("small", Precision::Full), ("awkward", Precision::Half), ("kernel", Precision::Half)];
    for (folder, precision) in cases {
        let (model, ids) = (model(folder), (1..40).collect::<Vec<u32>>());
        let on_host = MetalOptions { precision, ..EXACT };
        let on_device = MetalOptions { routing: Routing::Device, ..on_host };
        let layers = model.config.layers.len() as u64;
        let (want, plain) = answers(&mut MetalExecutor::new(model.clone(), &on_host).unwrap(), &ids);
        let (got, stats) = answers(&mut MetalExecutor::new(model, &on_device).unwrap(), &ids);
        if cfg!(metal_host) {
            assert!(got == want, "{folder}, {precision:?}");
            assert_eq!(stats.distinct_experts, plain.distinct_experts);
            assert_eq!(stats.weight_bytes, plain.weight_bytes);
        }
        assert_eq!((stats.expert_hits, stats.expert_misses), (stats.distinct_experts, 0));
        // Two passes; up to 64 scored rows share the last wait.
        assert_eq!((plain.waits, stats.waits), (2 * (layers + 1), 2), "{folder}");
    }
}

/// Refused when it is opened, with what to do.
#[test]
fn routing_on_the_device_needs_all_experts() {
    let model = model("small");
    let all: usize = model.weights.layers.iter().map(|layer| experts_of(&model, layer)).sum();
    let open = |expert_views| {
        MetalExecutor::new(model.clone(), &MetalOptions { routing: Routing::Device, expert_views, ..EXACT })
    };
    assert_eq!(open(all).unwrap().expert_bytes(), all);
    let error = open(all - 1).err().unwrap().to_string();
    assert!(error.contains("beyond --expert-views") && error.contains("--routing host"), "{error}");
}

/// With stages measured one by one the numbers are the same, and there is a time for each stage.
#[test]
fn profiles_name_every_stage() {
    for routing in [Routing::Host, Routing::Device] {
        profiles_name_every_stage_of(&MetalOptions { routing, ..EXACT });
    }
}

fn profiles_name_every_stage_of(options: &MetalOptions) {
    let model = model("small");
    let mut plain = MetalExecutor::new(model.clone(), options).unwrap();
    let mut profiling = MetalExecutor::new(model, &MetalOptions { profile: true, ..*options }).unwrap();
    let ((want, none), (got, stats)) = (answers(&mut plain, &[1, 2, 3]), answers(&mut profiling, &[1, 2, 3]));
    assert_eq!(got, want);
    assert!(none.stages.is_empty());
    let names: Vec<&str> = stats.stages.iter().map(|(name, _)| *name).collect();
    let mut stages = vec![
        "norm + router",
        "gdn mixers",
        "attention mixers",
        "gate|up",
        "activation",
        "down",
        "combine",
        "head",
    ];
    stages.extend((options.routing == Routing::Device).then_some("gather"));
    assert!(stages.iter().all(|stage| names.contains(stage)), "{names:?}");
    assert_eq!(stats.stages.iter().map(|(_, time)| *time).sum::<std::time::Duration>(), stats.device);
}

/// What only the stand-in can do: refuse, fail when it is told to, and count.
#[cfg(metal_host)]
mod stand_in {
    use shamrock_model::Error;
    use shamrock_model::weights::MixerWeights;

    use super::*;

    unsafe extern "C" {
        safe fn fake_metal_set_working_set(bytes: usize) -> usize;
        safe fn fake_metal_fail_in(command_buffers: u32);
        safe fn fake_metal_take_peak() -> usize;
        safe fn fake_metal_viewed() -> usize;
    }

    /// The host chooses experts, and waits for every layer and for the head; the device chooses, and the host waits once.
    const ROUTINGS: [MetalOptions; 2] = [EXACT, MetalOptions { routing: Routing::Device, ..EXACT }];

    /// Whether something failed on the device.
    fn failed<T>(result: &shamrock_model::Result<T>) -> bool {
        matches!(result, Err(Error::Device { backend: "metal", problem }) if problem.contains("Insufficient Memory (code 8)"))
    }

    /// A command buffer wires one layer's weights, whatever else is viewed; and views go with their executor.
    #[test]
    fn one_layer_is_wired_at_a_time() {
        let model = model("kernel");
        let spans = |matrices: Vec<Matrix>| matrices.iter().map(|&m| span(&model, m)).sum::<usize>();
        let mixer = |layer: &LayerWeights| {
            let mixer = match &layer.mixer {
                MixerWeights::Full(a) => vec![a.q, a.k, a.v, a.o],
                MixerWeights::Linear(g) => vec![g.qkv, g.z, g.a, g.b, g.out],
            };
            spans([mixer, vec![layer.moe.router, layer.moe.shared_gate]].concat())
        };
        let experts =
            |layer: &LayerWeights| experts_of(&model, layer) + spans(layer.moe.shared.matrices().to_vec());
        let layers = &model.weights.layers;
        let shared: usize = layers.iter().map(|layer| spans(layer.moe.shared.matrices().to_vec())).sum();
        let head = span(&model, model.weights.head);
        let dense = layers.iter().map(mixer).sum::<usize>() + shared + head;
        let largest = |of: &dyn Fn(&LayerWeights) -> usize| layers.iter().map(of).max().unwrap();
        let bound = largest(&experts) + largest(&mixer).max(head);

        let before = fake_metal_viewed();
        let budget = 40 * PAGE;
        let mut executor =
            MetalExecutor::new(model.clone(), &MetalOptions { expert_views: budget, ..EXACT }).unwrap();
        assert_eq!(fake_metal_viewed() - before, dense);
        fake_metal_take_peak();
        let ids: Vec<u32> = (1..60).collect();
        answers(&mut executor, &ids);
        let (peak, viewed) = (fake_metal_take_peak(), fake_metal_viewed() - before);
        assert!(
            peak <= bound && bound < dense / 2,
            "{peak} bytes wired at a time, {bound} allowed of {dense}"
        );
        assert_eq!(viewed, dense + executor.expert_bytes());
        assert!(executor.expert_bytes() <= budget.max(largest(&|layer| experts_of(&model, layer))));
        drop(executor);
        assert_eq!(fake_metal_viewed(), before);
    }

    #[test]
    fn a_failing_preview_leaves_the_state_as_it_was() {
        for options in ROUTINGS {
            let mut executor = MetalExecutor::new(model("small"), &options).unwrap();
            let seq = executor.open().unwrap();
            executor.run(&[Step::commit(seq, &[1, 2, 3], Score::None)]).unwrap();
            let state = executor.export(seq).unwrap();
            let preview = Step::preview(seq, &[310; 8], Score::Logits { rows: &[0, 5] });
            let pass = executor.run(&[preview]).unwrap();
            for n in 1..=pass.stats.waits as u32 {
                fake_metal_fail_in(n);
                assert!(failed(&executor.run(&[preview])), "command buffer {n}");
                assert_eq!(executor.export(seq).unwrap(), state, "command buffer {n}");
                assert_eq!(executor.run(&[preview]).unwrap().outputs, pass.outputs, "command buffer {n}");
            }
        }
    }

    #[test]
    fn a_failing_commit_loses_its_sequence_and_no_other() {
        ROUTINGS.iter().for_each(a_failing_commit_loses_its_sequence);
    }

    fn a_failing_commit_loses_its_sequence(options: &MetalOptions) {
        let mut executor = MetalExecutor::new(model("small"), options).unwrap();
        let (seq, other) = (executor.open().unwrap(), executor.open().unwrap());
        let first = Step::commit(seq, &[1, 2, 3], Score::None);
        executor.run(&[first, Step::commit(other, &[4, 5], Score::None)]).unwrap();
        let (state, others) = (executor.export(seq).unwrap(), executor.export(other).unwrap());
        let commit = Step::commit(seq, &[6, 7], Score::Logits { rows: &[1] });
        let company = Step::preview(other, &[310; 8], Score::None);
        let pass = executor.run(&[commit, company]).unwrap();
        for n in 1..=pass.stats.waits as u32 {
            executor.import(seq, &state).unwrap();
            fake_metal_fail_in(n);
            assert!(failed(&executor.run(&[commit, company])), "command buffer {n}");
            assert!(matches!(executor.run(&[commit]), Err(Error::LostSequence(lost)) if lost == seq));
            assert!(matches!(executor.export(seq), Err(Error::LostSequence(_))));
            assert_eq!(executor.export(other).unwrap(), others);
            executor.import(seq, &state).unwrap();
            assert_eq!(
                executor.run(&[commit, company]).unwrap().outputs,
                pass.outputs,
                "after command buffer {n}"
            );
        }
        // A rewind that fails loses it too; nothing to replay needs no device.
        executor.import(seq, &state).unwrap();
        executor.run(&[commit.rewindable()]).unwrap();
        fake_metal_fail_in(1);
        assert!(failed(&executor.rewind(seq, 4)));
        assert!(matches!(executor.len(seq), Err(Error::LostSequence(_))));
        fake_metal_fail_in(0);
    }

    #[test]
    fn too_small_a_working_set_is_an_error_and_not_the_end() {
        let mut executor = MetalExecutor::new(model("small"), &EXACT).unwrap();
        let seq = executor.open().unwrap();
        let preview = Step::preview(seq, &[310; 8], Score::Logits { rows: &[0] });
        let enough = fake_metal_set_working_set(100_000);
        let (refused, routing) = (executor.run(&[preview]), MetalExecutor::new(model("small"), &ROUTINGS[1]));
        fake_metal_set_working_set(enough);
        assert!(failed(&refused), "{refused:?}");
        let error = routing.err().unwrap().to_string();
        assert!(error.contains("the device can keep") && error.contains("--routing host"), "{error}");
        executor.run(&[preview]).unwrap();
    }

    /// Refused when it is opened, with the tensor's name and what to do.
    #[test]
    fn shapes_beyond_the_kernels_are_refused_by_name() {
        let mut narrow = model("small");
        narrow.config.gdn.key_dim = 96;
        let error = MetalExecutor::new(narrow, &EXACT).err().unwrap().to_string();
        assert!(error.contains("linear_key_head_dim 96") && error.contains("--backend cpu"), "{error}");

        let mut odd = model("small");
        let mut weights = (*odd.weights).clone();
        weights.layers[2].moe.experts[5].down.cols = 48;
        odd.weights = weights.into();
        let error = MetalExecutor::new(odd, &EXACT).err().unwrap().to_string();
        assert!(error.contains("model.layers.2.mlp.experts.5.down_proj.weight with 48 columns"), "{error}");
    }
}
