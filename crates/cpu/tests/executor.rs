//! Laws of the seam in both precisions. Everything here is exact: each row is computed by itself,
//! whichever rows share its pass.

use proptest::prelude::*;
use shamrock_cpu::{CpuExecutor, CpuOptions, Precision};
use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
use shamrock_model::{Controls, Error, Executor, LayerState, ModelFile, Pick, Score, SeqId, Shaping, Step};
use shamrock_testkit::fixture;

const VOCAB: u32 = 384;
const MASK: u32 = 310;

fn model() -> ModelFile {
    ModelFile::open(fixture("small/model.q4tp.cmf")).unwrap()
}

fn executor_with(options: CpuOptions) -> CpuExecutor {
    CpuExecutor::new(model(), options).unwrap()
}

fn executor(precision: Precision) -> CpuExecutor {
    executor_with(CpuOptions { precision, ..CpuOptions::default() })
}

fn precisions() -> impl Strategy<Value = Precision> {
    prop::sample::select(vec![Precision::Int8, Precision::F32])
}

fn commit(e: &mut dyn Executor, seq: SeqId, ids: &[u32]) -> Vec<f32> {
    let last = [ids.len().saturating_sub(1)];
    let rows = if ids.is_empty() { &[][..] } else { &last[..] };
    let pass = e.run(&[Step::commit(seq, ids, Score::Logits { rows })]).unwrap();
    if ids.is_empty() { Vec::new() } else { pass.outputs[0].commit.logits(0).to_vec() }
}

fn preview(e: &mut dyn Executor, seq: SeqId, ids: &[u32]) -> Vec<f32> {
    let rows: Vec<usize> = (0..ids.len()).collect();
    let pass = e.run(&[Step::preview(seq, ids, Score::Logits { rows: &rows })]).unwrap();
    (0..ids.len()).flat_map(|r| pass.outputs[0].preview.logits(r)).copied().collect()
}

fn tokens(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..VOCAB, len)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn committing_in_pieces_equals_committing_at_once(
        precision in precisions(),
        ids in tokens(2..80),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let mut e = executor(precision);
        let (whole, pieces) = (e.open().unwrap(), e.open().unwrap());
        let logits = commit(&mut e, whole, &ids);
        let mut at: Vec<usize> = cuts.iter().map(|c| c.index(ids.len())).chain([0, ids.len()]).collect();
        at.sort_unstable();
        let mut last = Vec::new();
        for pair in at.windows(2).filter(|p| p[0] < p[1]) {
            last = commit(&mut e, pieces, &ids[pair[0]..pair[1]]);
        }
        prop_assert_eq!(logits, last);
        prop_assert_eq!(e.export(whole).unwrap(), e.export(pieces).unwrap());
    }

    #[test]
    fn rewinding_equals_never_having_gone_further(
        precision in precisions(),
        prefix in tokens(0..12),
        ids in tokens(1..12),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut e = executor(precision);
        let (a, b) = (e.open().unwrap(), e.open().unwrap());
        let keep = keep.index(ids.len() + 1);
        commit(&mut e, a, &prefix);
        e.run(&[Step::commit(a, &ids, Score::None).rewindable()]).unwrap();
        preview(&mut e, a, &[MASK; 8]);
        e.rewind(a, prefix.len() + keep).unwrap();
        commit(&mut e, b, &prefix);
        commit(&mut e, b, &ids[..keep]);
        prop_assert_eq!(e.export(a).unwrap(), e.export(b).unwrap());
    }

    #[test]
    fn a_batch_equals_its_members(
        precision in precisions(),
        prompts in prop::collection::vec(tokens(1..9), 2..4),
        block in tokens(1..9),
    ) {
        let mut e = executor(precision);
        let seqs: Vec<SeqId> = prompts.iter().map(|_| e.open().unwrap()).collect();
        let rows: Vec<usize> = (0..block.len()).collect();
        let score = Score::Logits { rows: &rows };
        let steps: Vec<Step<'_>> = seqs.iter().zip(&prompts)
            .map(|(&seq, ids)| Step::commit(seq, ids, Score::Logits { rows: &[0] }).then_preview(&block, score))
            .collect();
        let together = e.run(&steps).unwrap();
        for ((ids, seq), output) in prompts.iter().zip(&seqs).zip(&together.outputs) {
            let alone = e.open().unwrap();
            let commit = e.run(&[Step::commit(alone, ids, Score::Logits { rows: &[0] })]).unwrap();
            prop_assert_eq!(&output.commit, &commit.outputs[0].commit);
            let preview = e.run(&[Step::preview(alone, &block, score)]).unwrap();
            prop_assert_eq!(&output.preview, &preview.outputs[0].preview);
            prop_assert_eq!(e.export(alone).unwrap(), e.export(*seq).unwrap());
        }
    }

    #[test]
    fn snapshot_and_export_bring_a_state_back(precision in precisions(), ids in tokens(1..20), more in tokens(1..9)) {
        let mut e = executor(precision);
        let seq = e.open().unwrap();
        commit(&mut e, seq, &ids);
        let (snapshot, state) = (e.snapshot(seq).unwrap(), e.export(seq).unwrap());
        let there = preview(&mut e, seq, &[MASK; 8]);
        commit(&mut e, seq, &more);
        e.restore(snapshot, seq).unwrap();
        prop_assert_eq!(&e.export(seq).unwrap(), &state);
        let mut other = executor(precision);
        let moved = other.open().unwrap();
        other.import(moved, &state).unwrap();
        prop_assert_eq!(preview(&mut other, moved, &[MASK; 8]), there);
        prop_assert_eq!(commit(&mut other, moved, &more), commit(&mut e, seq, &more));
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let ids: Vec<u32> = (0..50).map(|i| i * 7 % VOCAB).collect();
    for precision in [Precision::Int8, Precision::F32] {
        let results = [1, 2, 3].map(|threads| {
            let mut e =
                executor_with(CpuOptions { threads: Some(threads), precision, ..CpuOptions::default() });
            let seq = e.open().unwrap();
            (commit(&mut e, seq, &ids), preview(&mut e, seq, &[MASK; 8]), commit(&mut e, seq, &[5]))
        });
        assert!(results.iter().all(|r| *r == results[0]), "{precision:?}");
    }
}

#[test]
fn a_conversation_moves_to_the_reference_executor_and_back() {
    let mut fast = executor(Precision::F32);
    let mut plain = ReferenceExecutor::new(model(), ReferenceOptions::DEFAULT).unwrap();
    let (a, b) = (fast.open().unwrap(), plain.open().unwrap());
    commit(&mut fast, a, &[1, 2, 3, 4, 5]);
    plain.import(b, &fast.export(a).unwrap()).unwrap();
    assert_eq!(plain.export(b).unwrap(), fast.export(a).unwrap());
    // Tolerance of the conformance tests.
    let (x, y) = (commit(&mut fast, a, &[6, 7]), commit(&mut plain, b, &[6, 7]));
    shamrock_testkit::assert_close("after the move", &x, &y, 1e-3);
    fast.import(a, &plain.export(b).unwrap()).unwrap();
    let (x, y) = (preview(&mut fast, a, &[MASK; 8]), preview(&mut plain, b, &[MASK; 8]));
    shamrock_testkit::assert_close("after the return", &x, &y, 1e-3);
}

#[test]
fn picks_are_the_shaped_logits_read_off() {
    let mut e = executor(Precision::Int8);
    let seq = e.open().unwrap();
    commit(&mut e, seq, &[1, 2, 3]);
    let block = [MASK; 8];
    let logits = preview(&mut e, seq, &block);
    let controls = Controls { presence_penalty: 3.0, ..Controls::default() };
    let shaping = Shaping {
        controls: &controls,
        forbidden: &[MASK],
        counts: &[(5, 1), (9, 2)],
        first_position: 4,
        think_open: false,
    };
    let rows = [6, 2];
    let step = Step::preview(seq, &block, Score::Picks { rows: &rows, shaping, probes: &[11, 12] });
    let pass = e.run(&[step]).unwrap();
    for ((pick, row), probe) in pass.outputs[0].preview.picks().iter().zip(rows).zip([11, 12]) {
        let mut shaped = logits[row * VOCAB as usize..(row + 1) * VOCAB as usize].to_vec();
        shaping.apply(row, &mut shaped);
        assert_eq!(*pick, Pick::from_logits(&shaped, Some(probe)));
    }
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let mut e = executor_with(CpuOptions { max_context: Some(16), ..CpuOptions::default() });
    let seq = e.open().unwrap();
    commit(&mut e, seq, &[1; 10]);
    let before = e.export(seq).unwrap();
    let cases = [
        (Step::commit(seq, &[VOCAB], Score::None), "outside the vocabulary"),
        (Step::commit(seq, &[1; 7], Score::None), "context holds 16"),
        (Step::commit(seq, &[1; 4], Score::None).then_preview(&[MASK; 3], Score::None), "context holds 16"),
        (Step::preview(seq, &[MASK; 4], Score::Logits { rows: &[4] }), "row 4 is to be scored"),
        (Step::commit(SeqId(99), &[1], Score::None), "unknown sequence"),
    ];
    for (step, message) in cases {
        let error = e.run(&[step]).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    assert!(matches!(e.rewind(seq, 3), Err(Error::Rewind { asked: 3, from: 10, to: 10 })));
    let mut foreign = before.clone();
    foreign.layers[0] = LayerState::Kv { k: Vec::new(), v: Vec::new() };
    assert!(e.import(seq, &foreign).unwrap_err().to_string().contains("layer 0"));
    assert_eq!(e.export(seq).unwrap(), before);

    commit(&mut e, seq, &[1; 6]); // exactly full
    assert!(e.run(&[Step::commit(seq, &[1], Score::None)]).is_err());
    e.close(seq);
    assert!(matches!(e.len(seq), Err(Error::UnknownSequence(_))));
}

#[test]
fn a_pass_reads_each_dense_weight_once_whatever_its_rows() {
    let mut e = executor(Precision::Int8);
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
