//! What the tests on a device and on its stand-in share.
#![allow(dead_code, reason = "each test program uses a part")]

use shamrock_cuda::{CudaExecutor, CudaOptions, KvPrecision, Precision};
use shamrock_model::executor::Scored;
use shamrock_model::{Controls, Executor, ModelFile, Result, Score, Shaping, Step};
use shamrock_testkit::fixture;

/// A tiny checkpoint.
pub(crate) fn model(name: &str) -> ModelFile {
    ModelFile::open(fixture(&format!("{name}/model.q4tp.cmf"))).expect("fixture opens")
}

/// Inputs of products rounded to half, half keys and values. Kernels are compiled once a process.
pub(crate) fn fast() -> CudaOptions {
    let kept = std::env::temp_dir().join(format!("shamrock-test-kernels-{}", std::process::id()));
    CudaOptions { kernel_cache: Some(kept), ..CudaOptions::default() }
}

/// Products of two halves and f32 states: f32 in all but name.
pub(crate) fn exact() -> CudaOptions {
    CudaOptions { precision: Precision::Split, kv: KvPrecision::Full, ..fast() }
}

/// An executor over it.
pub(crate) fn open(model: &ModelFile, options: &CudaOptions) -> Result<CudaExecutor> {
    CudaExecutor::new(model.clone(), options)
}

/// `count` ids that depend on `salt`.
pub(crate) fn ids(model: &ModelFile, count: usize, salt: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 7 + salt * 13 + 3) % model.config.vocab_size) as u32).collect()
}

/// All kinds of passes, some of them in shapes that come back and so are replayed. Returns the bits
/// of every number.
pub(crate) fn conversation(executor: &mut CudaExecutor, model: &ModelFile) -> Result<Vec<u32>> {
    let (first, second) = (executor.open()?, executor.open()?);
    let mut numbers = Vec::new();
    let rows: Vec<usize> = (0..5).collect();
    let controls = Controls::default();
    let shaping =
        Shaping { controls: &controls, forbidden: &[1], counts: &[], first_position: 1, think_open: false };
    let mut run = |executor: &mut CudaExecutor, steps: &[Step<'_>]| -> Result<()> {
        for output in executor.run(steps)?.outputs {
            for scored in [output.commit, output.preview] {
                numbers.extend((0..scored.picks().len()).flat_map(|i| {
                    let pick = scored.picks()[i];
                    [pick.token, pick.probability.to_bits(), pick.entropy.to_bits()]
                }));
                if let Scored::Logits { values, .. } = scored {
                    numbers.extend(values.iter().map(|x| x.to_bits()));
                }
            }
        }
        Ok(())
    };
    let logits = Score::Logits { rows: &rows };
    run(executor, &[Step::commit(first, &ids(model, 37, 1), Score::Logits { rows: &[36] })])?;
    run(executor, &[Step::commit(second, &ids(model, 3, 2), Score::None)])?;
    for salt in 3..6 {
        let (block, token) = (ids(model, 8, salt), ids(model, 1, salt));
        let picks = Score::Picks { rows: &rows, shaping, probes: &[] };
        run(executor, &[Step::preview(first, &block, picks)])?;
        run(executor, &[Step::commit(second, &token, Score::Logits { rows: &[0] })])?;
        run(executor, &[Step::commit(first, &block, Score::None).rewindable().then_preview(&block, logits)])?;
        executor.rewind(first, executor.len(first)? - 3)?;
        run(executor, &[Step::preview(second, &block, logits), Step::commit(first, &token, Score::None)])?;
    }
    executor.close(first);
    executor.close(second);
    Ok(numbers)
}
