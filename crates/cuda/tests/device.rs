//! The executor on a device: `cargo test -p shamrock-cuda -- --ignored device`.

mod common;

use common::{conversation, exact, fast, ids, model, open};
use shamrock_cuda::{CudaExecutor, CudaOptions, KvPrecision};
use shamrock_model::executor::Scored;
use shamrock_model::{Executor, LayerState, Score, Step};
use shamrock_testkit::backend::compare;
use shamrock_testkit::{Backend, Tolerance, conformance, laws};

#[test]
#[ignore = "needs a CUDA device"]
fn device_matches_the_oracle() {
    conformance::all(&Backend::new("cuda (split)", |model, context| {
        CudaExecutor::new(model, &CudaOptions { max_context: context, ..exact() })
    }));
}

/// The number of rows of a pass decides which kernels multiply and so in which order products are
/// added up: what is one row in one pass and one of many in another differs by f32 rounding.
#[test]
#[ignore = "needs a CUDA device"]
fn device_keeps_the_laws_of_the_seam() {
    let f32_rounding = Tolerance { logits: 2e-3, kv: 2e-4, gdn: 2e-5 };
    laws::all(
        &Backend::new("cuda (split)", |model, context| {
            CudaExecutor::new(model, &CudaOptions { max_context: context, ..exact() })
        })
        .laws(f32_rounding),
    );
}

/// With inputs of products rounded to half, a last bit of difference moves a rounding: these random
/// models amplify it to a few hundredths of a logit (trained ones do not).
#[test]
#[ignore = "needs a CUDA device"]
fn device_keeps_the_laws_in_half_precision() {
    let half_rounding = Tolerance { logits: 0.5, kv: 5e-2, gdn: 1e-2 };
    laws::all(
        &Backend::new("cuda (half)", |model, context| {
            CudaExecutor::new(model, &CudaOptions { max_context: context, ..fast() })
        })
        .laws(half_rounding),
    );
}

#[test]
#[ignore = "needs a CUDA device"]
fn device_cache_of_experts_gives_the_numbers_of_a_resident_model() {
    for name in ["small", "awkward"] {
        let model = model(name);
        let resident = conversation(&mut open(&model, &exact()).unwrap(), &model).unwrap();
        let mut first = None;

        // The smallest budget is the one that the refusal names.
        let cached = |bytes| open(&model, &CudaOptions { expert_memory: Some(bytes), ..exact() });
        let refusal = cached(1).map(drop).unwrap_err().to_string();
        assert!(refusal.contains("--vram"), "{refusal}");
        let least: u64 = refusal.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number of bytes");
        assert!(cached(least - 1).is_err());

        let experts = model.config.moe.experts;
        let all = experts * model.config.layers.len();
        for room in [experts, experts + 1, all / 2, all - 1] {
            let mut executor = cached(least / experts as u64 * room as u64).unwrap();
            assert_eq!(executor.placement().experts, (room, all));
            let got = conversation(&mut executor, &model).unwrap();
            assert!(
                *first.get_or_insert_with(|| got.clone()) == got,
                "{name}: room for {room}: other numbers"
            );
            // A single row's experts are added in another order where all are resident.
            let numbers = |bits: &[u32]| bits.iter().map(|&x| f32::from_bits(x)).collect::<Vec<_>>();
            compare(&numbers(&got), &numbers(&resident), None, 2e-3)
                .unwrap_or_else(|e| panic!("{name}: {e}"));

            // The same row twice: the second time, experts are there if there is room for a few layers.
            let seq = executor.open().unwrap();
            let block = ids(&model, 1, 9);
            let mut stats = || executor.run(&[Step::preview(seq, &block, Score::None)]).unwrap().stats;
            let (first, again) = (stats(), stats());
            for stats in [&first, &again] {
                assert_eq!(stats.expert_hits + stats.expert_misses, stats.distinct_experts, "{name}: {room}");
                assert_eq!(stats.fill_bytes > 0, stats.expert_misses > 0, "{name}: {room}");
            }
            assert!(room < all - 1 || again.expert_misses <= 1, "{name}: {room}: {again:?}");
            assert!(room > experts || first.expert_misses > 0, "{name}: {room}: {first:?}");
        }
    }
}

/// Few rows choose their experts in one launch, many in three: a block's preview beside nothing else and
/// beside a commit of many rows. Products, too, are of few rows or of many, so f32 rounding differs.
#[test]
#[ignore = "needs a CUDA device"]
fn device_few_rows_choose_their_experts_as_many_do() {
    for name in ["small", "awkward"] {
        let model = model(name);
        let mut executor = open(&model, &exact()).unwrap();
        let (first, second) = (executor.open().unwrap(), executor.open().unwrap());
        let (prompt, block) = (ids(&model, 150, 1), ids(&model, 9, 2));
        executor.run(&[Step::commit(first, &prompt[..40], Score::None)]).unwrap();
        let all: Vec<usize> = (0..block.len()).collect();
        let preview = || Step::preview(first, &block, Score::Logits { rows: &all });
        let alone = logits(&mut executor, &[preview()]);
        let beside = logits(&mut executor, &[Step::commit(second, &prompt, Score::None), preview()]);
        compare(&alone, &beside, None, 2e-3).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// Passes of few rows take several steps in one launch; beside a commit of many rows the same rows take them one
/// by one, to the same numbers and the same state: seen in logits, and in previews behind a rewind, which goes
/// through the rows kept for it. Products of few and of many rows differ by f32 rounding.
#[test]
#[ignore = "needs a CUDA device"]
fn device_few_rows_go_in_few_launches_as_many_do_in_more() {
    for name in ["small", "awkward"] {
        let model = model(name);
        let mut executor = open(&model, &exact()).unwrap();
        let (prompt, block, many) = (ids(&model, 10, 1), ids(&model, 8, 2), ids(&model, 70, 3));
        let all: Vec<usize> = (0..block.len()).collect();
        let mut run = |rows: usize, beside: bool| -> Vec<f32> {
            let (first, second) = (executor.open().unwrap(), executor.open().unwrap());
            executor.run(&[Step::commit(first, &prompt, Score::None)]).unwrap();
            let pass = |executor: &mut CudaExecutor, step| {
                let steps = [step, Step::commit(second, &many, Score::None)];
                logits(executor, if beside { &steps } else { &steps[..1] })
            };
            let (ids, score) = (&block[..rows], Score::Logits { rows: &all[..rows] });
            let mut numbers = pass(&mut executor, Step::commit(first, ids, score).rewindable());
            numbers.extend(pass(&mut executor, Step::preview(first, ids, score)));
            executor.rewind(first, prompt.len() + rows / 2).unwrap();
            numbers.extend(pass(
                &mut executor,
                Step::preview(first, &block[..3], Score::Logits { rows: &[0, 2] }),
            ));
            executor.close(first);
            executor.close(second);
            numbers
        };
        for rows in [1, 4, 8] {
            let (few, as_many) = (run(rows, false), run(rows, true));
            compare(&few, &as_many, None, 2e-3).unwrap_or_else(|e| panic!("{name}, {rows} rows: {e}"));
        }
    }
}

/// With half keys and values attention runs on tensor cores, with f32 ones in f32. The former rounds
/// queries, keys, values and softmax weights to half, which this random model amplifies, to whole logits where
/// a near tie between two experts turns round. That befalls a few rows; a fault would befall all of them, so
/// most rows must agree. Previews behind a prefix of several tiles of keys, several sequences in one pass.
#[test]
#[ignore = "needs a CUDA device"]
fn device_attention_on_tensor_cores_agrees_with_that_in_f32() {
    let model = model("awkward");
    let run = |kv: KvPrecision| -> Vec<f32> {
        let mut executor = open(&model, &CudaOptions { kv, ..fast() }).unwrap();
        let (first, second) = (executor.open().unwrap(), executor.open().unwrap());
        let (prompt, block) = (ids(&model, 150, 1), ids(&model, 9, 2));
        let all: Vec<usize> = (0..block.len()).collect();
        let every = Score::Logits { rows: &all };
        // In parts that the recurrence walks in f32: only attention is to differ.
        let mut passes: Vec<_> = prompt
            .chunks(15)
            .map(|part| vec![Step::commit(first, part, Score::Logits { rows: &[0, 14] })])
            .collect();
        passes.extend([
            vec![
                Step::preview(first, &block, every),
                Step::commit(second, &block, Score::Logits { rows: &[8] }).then_preview(&block, every),
            ],
            vec![Step::commit(first, &block[..1], Score::Logits { rows: &[0] })],
        ]);
        passes.iter().flat_map(|steps| logits(&mut executor, steps)).collect()
    };
    let (tensor, plain) = (run(KvPrecision::Half), run(KvPrecision::Full));
    assert!(tensor != plain, "the same kernel ran twice");
    let vocab = model.config.vocab_size;
    let apart =
        |(a, b): (&[f32], &[f32])| a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    let rows: Vec<f32> = tensor.chunks(vocab).zip(plain.chunks(vocab)).map(apart).collect();
    let close = rows.iter().filter(|apart| **apart < 0.2).count();
    assert!(close * 4 >= rows.len() * 3, "largest differences of {} rows: {rows:?}", rows.len());
}

/// Attention of few rows makes its queries and keys itself, unless a preview is in the pass: to the bit where
/// one split has all keys, here behind a short prompt. Behind a long one the number of splits, which depends on
/// the whole pass, differs. Five rows: fewer are normed in another order.
#[test]
#[ignore = "needs a CUDA device"]
fn device_attention_of_few_rows_prepares_what_many_have_prepared() {
    let model = model("awkward");
    let mut executor = open(&model, &fast()).unwrap();
    let (rows, others) = (ids(&model, 5, 1), ids(&model, 3, 2));
    let mut run = |prompt: usize, beside: bool| -> Vec<f32> {
        let (first, second) = (executor.open().unwrap(), executor.open().unwrap());
        executor.run(&[Step::commit(first, &ids(&model, prompt, 3), Score::None)]).unwrap();
        let all = [0, 1, 2, 3, 4];
        let steps = [
            Step::commit(first, &rows, Score::Logits { rows: &all }),
            Step::preview(second, &others, Score::None),
        ];
        let numbers = logits(&mut executor, if beside { &steps } else { &steps[..1] });
        executor.close(first);
        executor.close(second);
        numbers
    };
    assert!(run(7, false) == run(7, true), "one split");
    compare(&run(150, false), &run(150, true), None, 0.1).unwrap();
}

/// A long commit walks its recurrence in chunks on tensor cores, with halves, a short one row by row in
/// f32. The first layer's inputs are the same to the bit either way, so that its memory shows the two
/// kernels alone: 32 rows' sums of halves (2^-11 each) against f32, for entries below 1 or so.
#[test]
#[ignore = "needs a CUDA device"]
fn device_long_commits_leave_the_memory_that_short_ones_do() {
    for name in ["small", "awkward", "kernel"] {
        let model = model(name);
        let mut executor = open(&model, &fast()).unwrap();
        let prompt = ids(&model, 150, 1);
        let mut memory = |rows: usize| {
            let seq = executor.open().unwrap();
            for chunk in prompt.chunks(rows) {
                executor.run(&[Step::commit(seq, chunk, Score::None)]).unwrap();
            }
            let state = executor.export(seq).unwrap();
            executor.close(seq);
            state
                .layers
                .into_iter()
                .find_map(|layer| match layer {
                    LayerState::Gdn { memory, .. } => Some(memory),
                    LayerState::Kv { .. } => None,
                })
                .expect("a linear layer")
        };
        let (short, long, odd) = (memory(20), memory(150), memory(75));
        let largest = short.iter().fold(0.0f32, |top, x| top.max(x.abs()));
        assert!(short != long, "{name}: the same kernel ran twice");
        for long in [long, odd] {
            compare(&long, &short, None, 2e-3 * largest)
                .unwrap_or_else(|e| panic!("{name} (largest {largest}): {e}"));
        }
    }
}

/// Runs a pass and returns all its logits.
fn logits(executor: &mut CudaExecutor, steps: &[Step<'_>]) -> Vec<f32> {
    let outputs = executor.run(steps).unwrap().outputs;
    outputs
        .into_iter()
        .flat_map(|output| [output.commit, output.preview])
        .flat_map(|scored| match scored {
            Scored::Logits { values, .. } => values,
            _ => Vec::new(),
        })
        .collect()
}
