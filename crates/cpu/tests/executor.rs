//! Laws of the seam in both precisions. Everything here is exact: each row is computed by itself,
//! whichever rows share its pass.

use shamrock_cpu::{CpuExecutor, CpuOptions, KvPrecision, Precision};
use shamrock_model::{Executor, ModelFile, Score, Step};
use shamrock_testkit::{Backend, fixture, laws};

const VOCAB: u32 = 384;
const MASK: u32 = 310;

fn model() -> ModelFile {
    ModelFile::open(fixture("small/model.q4tp.cmf")).unwrap()
}

#[test]
fn the_laws_of_the_seam_hold() {
    for (precision, kv) in [(Precision::Int8, KvPrecision::F16), (Precision::F32, KvPrecision::F32)] {
        laws::all(&Backend::new(format!("cpu ({precision:?}, {kv:?})"), move |model, max_context| {
            CpuExecutor::new(model, CpuOptions { max_context, precision, kv, ..Default::default() })
        }));
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let ids: Vec<u32> = (0..50).map(|i| i * 7 % VOCAB).collect();
    for precision in [Precision::Int8, Precision::F32] {
        let results = [1, 2, 3].map(|threads| {
            let options = CpuOptions { threads: Some(threads), precision, ..CpuOptions::default() };
            let mut e = CpuExecutor::new(model(), options).unwrap();
            let seq = e.open().unwrap();
            let score = Score::Logits { rows: &[0, 7] };
            let fused = Step::commit(seq, &ids, score).then_preview(&[MASK; 8], score);
            let single = Step::commit(seq, &[5], Score::Logits { rows: &[0] });
            [fused, single].map(|step| e.run(&[step]).unwrap().outputs)
        });
        assert!(results.iter().all(|r| *r == results[0]), "{precision:?}");
    }
}

#[test]
fn a_pass_reads_each_dense_weight_once_whatever_its_rows() {
    let mut e = CpuExecutor::new(model(), CpuOptions::default()).unwrap();
    let (a, b) = (e.open().unwrap(), e.open().unwrap());
    let one = e.run(&[Step::commit(a, &[1], Score::None)]).unwrap().stats;
    let both = e
        .run(&[
            Step::commit(a, &[1; 9], Score::None).then_preview(&[MASK; 8], Score::None),
            Step::commit(b, &[1], Score::None),
        ])
        .unwrap()
        .stats;
    let weights = &model().weights;
    let ffn = &weights.layers[0].moe.experts[0];
    let expert: usize = [ffn.gate, ffn.up, ffn.down].iter().map(|m| weights.tensor(*m).bytes.len()).sum();
    let row = weights.tensor(weights.embed).bytes.len() / weights.embed.rows;
    let dense = |stats: &shamrock_model::PassStats, rows: u64| {
        stats.weight_bytes - stats.distinct_experts * expert as u64 - rows * row as u64
    };
    assert_eq!(dense(&one, 1), dense(&both, 18));
    assert!(both.stages.iter().map(|s| s.0).eq(["embed", "gdn", "router", "moe", "attention", "head"]));
}
