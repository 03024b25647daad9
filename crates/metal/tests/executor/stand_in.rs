//! What only the stand-in can do: refuse, fail when it is told to, and count.

use shamrock_model::Error;
use shamrock_model::weights::{LayerWeights, Matrix, MixerWeights};

use super::views::{PAGE, experts_of, span};
use super::*;

unsafe extern "C" {
    safe fn fake_metal_set_working_set(bytes: usize) -> usize;
    safe fn fake_metal_set_max_buffer(bytes: usize) -> usize;
    safe fn fake_metal_set_macos(major: u32) -> u32;
    safe fn fake_metal_refuse_queues(count: u32);
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
    let options = MetalOptions { expert_views: budget as u64, ..EXACT };
    let mut executor = MetalExecutor::new(model.clone(), &options).unwrap();
    assert_eq!(fake_metal_viewed() - before, dense);
    fake_metal_take_peak();
    let ids: Vec<u32> = (1..60).collect();
    answers(&mut executor, &ids);
    let (peak, viewed) = (fake_metal_take_peak(), fake_metal_viewed() - before);
    assert!(peak <= bound && bound < dense / 2, "{peak} bytes wired at a time, {bound} allowed of {dense}");
    assert_eq!(viewed, dense + executor.expert_bytes());
    assert!(executor.expert_bytes() <= budget.max(largest(&|layer| experts_of(&model, layer))));
    drop(executor);
    assert_eq!(fake_metal_viewed(), before);
}

/// What the views are for: a model larger than all that the device can keep wired runs, its experts come and go, and
/// nothing differs from where everything fits.
#[test]
fn a_model_larger_than_the_working_set_runs() {
    let model = model("kernel");
    let score = Score::Logits { rows: &[0, 1] };
    let run = |executor: &mut MetalExecutor| {
        let seq = executor.open().unwrap();
        let step = Step::commit(seq, &[1, 2], score).then_preview(&[310, 310], score);
        executor.run(&[step]).unwrap()
    };
    let want = run(&mut MetalExecutor::new(model.clone(), &EXACT).unwrap()).outputs;

    let bytes = model.container().bytes().len();
    let small = bytes / 4 * 3; // scratch and states count too
    let enough = fake_metal_set_working_set(small);
    let options = MetalOptions { expert_views: 40 * PAGE as u64, ..EXACT };
    let mut executor = MetalExecutor::new(model, &options).unwrap();
    fake_metal_take_peak();
    let passes = [(); 2].map(|()| run(&mut executor));
    let peak = fake_metal_take_peak();
    fake_metal_set_working_set(enough);
    for pass in passes {
        assert!(pass.outputs == want, "other numbers with experts evicted");
        // In the second too, so what the first viewed has gone.
        assert!(pass.stats.expert_misses > 0);
    }
    assert!(0 < peak && peak < small, "{peak} bytes wired at a time, {small} allowed of {bytes}");
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
    assert_eq!(executor.epoch(seq).unwrap(), 0, "all of it was made here");
    for n in 1..=pass.stats.waits as u32 {
        executor.import(seq, &state).unwrap();
        assert_eq!(executor.epoch(seq).unwrap(), 2 * u64::from(n) - 1, "command buffer {n}");
        fake_metal_fail_in(n);
        assert!(failed(&executor.run(&[commit, company])), "command buffer {n}");
        assert!(matches!(executor.run(&[commit]), Err(Error::LostSequence(lost)) if lost == seq));
        assert!(matches!(executor.export(seq), Err(Error::LostSequence(_))));
        assert!(matches!(executor.epoch(seq), Err(Error::LostSequence(_))));
        assert_eq!((executor.export(other).unwrap(), executor.epoch(other).unwrap()), (others.clone(), 0));
        executor.import(seq, &state).unwrap();
        assert_eq!(
            executor.run(&[commit, company]).unwrap().outputs,
            pass.outputs,
            "after command buffer {n}"
        );
    }
    // A rewind that fails loses it too, and no more.
    executor.import(seq, &state).unwrap();
    executor.run(&[commit.rewindable()]).unwrap();
    fake_metal_fail_in(1);
    assert!(failed(&executor.rewind(seq, 4)));
    assert!(matches!(executor.len(seq), Err(Error::LostSequence(_))));
    executor.import(seq, &state).unwrap();
    assert_eq!(executor.run(&[commit, company]).unwrap().outputs, pass.outputs, "after a rewind");
}

/// A queue on which something failed ignores whatever comes next. Where the device gives no other, it is the failure
/// that is told, and what is tried next asks again.
#[test]
fn the_first_error_is_told() {
    let mut executor = MetalExecutor::new(model("small"), &EXACT).unwrap();
    let seq = executor.open().unwrap();
    let commit = Step::commit(seq, &[1, 2, 3], Score::None).rewindable();
    let preview = Step::preview(seq, &[310; 8], Score::Logits { rows: &[0] });
    executor.run(&[commit]).unwrap();
    let (state, pass) = (executor.export(seq).unwrap(), executor.run(&[preview]).unwrap());
    let says = |result: shamrock_model::Result<()>, what: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    fake_metal_refuse_queues(1);
    fake_metal_fail_in(1);
    says(executor.run(&[preview]).map(|_| ()), "Insufficient Memory (code 8)");
    says(executor.rewind(seq, 2), "a command buffer failed (rewind): Ignored (for causing prior");
    executor.import(seq, &state).unwrap();
    assert_eq!(executor.run(&[preview]).unwrap().outputs, pass.outputs);
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

/// The system's version is asked for first; before macOS 15 there is another switch for fast math.
#[test]
fn an_old_system_is_told_so() {
    let now = fake_metal_set_macos(13);
    let (refused, missing) = (MetalExecutor::new(model("small"), &EXACT), shamrock_metal::available());
    fake_metal_set_macos(14);
    let oldest = MetalExecutor::new(model("small"), &EXACT).map(|_| ());
    fake_metal_set_macos(now);
    oldest.unwrap();
    for error in [refused.err().unwrap(), missing.unwrap_err()].map(|error| error.to_string()) {
        assert!(error.contains("macOS 13.0 is too old: the kernels need macOS 14"), "{error}");
    }
}

/// Every span is held against the largest buffer when a model is opened, an expert's too, which is not viewed before
/// it is chosen.
#[test]
fn a_tensor_beyond_the_devices_buffers_is_refused_by_name() {
    let refusal = |model: ModelFile, limit: usize| {
        let enough = fake_metal_set_max_buffer(limit);
        let result = MetalExecutor::new(model, &EXACT);
        fake_metal_set_max_buffer(enough);
        result.err().unwrap().to_string()
    };
    // Of the models at hand the one with spans that are larger than what else is allocated when a model is opened.
    let whole = ModelFile::open(shamrock_testkit::root().join("models/clover-nano.cmf")).unwrap();
    let refused = |model: ModelFile, matrix: Matrix| {
        let (name, bytes) = (whole.weights.tensor(matrix).name, span(&whole, matrix));
        let error = refusal(model, bytes - 1);
        let said =
            format!("{name} needs a buffer of {bytes} bytes, and this device's have up to {}", bytes - 1);
        assert!(error.contains(&said), "{error}");
    };
    refused(whole.clone(), whole.weights.head);

    // The same with an expert in the place of the embedding, and a small head.
    let (mut other, mut weights) = (whole.clone(), (*whole.weights).clone());
    weights.head.id = weights.layers[0].moe.router.id;
    weights.layers[3].moe.experts[20].down.id = weights.embed.id;
    other.weights = weights.into();
    refused(other, whole.weights.embed);
}

/// Refused when it is opened, with the tensor's name and what to do.
#[test]
fn shapes_beyond_the_kernels_are_refused_by_name() {
    let mut narrow = model("small");
    narrow.config.gdn.key_dim = 96;
    refused(narrow, &EXACT, &["model.layers.0: linear_key_head_dim 96", "--backend cpu"]);

    let mut wide = model("small");
    wide.config.attention.head_dim = 288;
    refused(wide, &EXACT, &["model.layers.1: head_dim 288", "--backend cpu"]);

    let mut odd = model("small");
    let mut weights = (*odd.weights).clone();
    weights.layers[2].moe.experts[5].down.cols = 48;
    odd.weights = weights.into();
    refused(odd, &EXACT, &["model.layers.2.mlp.experts.5.down_proj.weight with 48 columns"]);
}

/// What the device cannot choose among. (That all experts must fit: `views`, and
/// [`too_small_a_working_set_is_an_error_and_not_the_end`].)
#[test]
fn experts_beyond_routing_on_the_device_are_refused() {
    let on_device = &ROUTINGS[1];
    let mut many = model("small");
    many.config.moe.experts = 1025;
    refused(many, on_device, &["1025 experts of which 2 are chosen", "--routing host"]);

    let mut choosy = model("small");
    (choosy.config.moe.experts, choosy.config.moe.top_k) = (100, 65);
    refused(choosy, on_device, &["100 experts of which 65 are chosen", "--routing host"]);

    let mut mixed = model("small");
    let mut weights = (*mixed.weights).clone();
    weights.layers[2].moe.experts[5].down.id = weights.layers[2].moe.router.id;
    mixed.weights = weights.into();
    refused(mixed, on_device, &["experts of layer 2 differ in encoding", "--routing host"]);
}

/// Panics unless opening fails with an error that says all of this.
fn refused(model: ModelFile, options: &MetalOptions, said: &[&str]) {
    let error = MetalExecutor::new(model, options).err().unwrap().to_string();
    said.iter().for_each(|said| assert!(error.contains(said), "{error}"));
}
