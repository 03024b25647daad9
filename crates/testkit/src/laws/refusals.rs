//! Arguments are checked before anything changes.

use proptest::prelude::*;
use shamrock_model::{Controls, LayerState, Score, Scored, SequenceState, Shaping, Step};

use super::Bench;
use super::trial::{MASK, VOCAB, done, refused};

pub(super) fn nothing_to_do(bench: &Bench<'_>) -> Result<(), String> {
    bench.fact("nothing is done for nothing", |t| {
        prop_assert_eq!(t.run(&[])?.outputs.len(), 0);
        let seq = t.open()?;
        prop_assert_eq!(t.executor.len(seq).ok(), Some(0), "length of a new sequence");
        t.commit(seq, &[1, 2, 3])?;
        let before = t.state(seq)?;
        let pass = t.run(&[Step::commit(seq, &[], Score::None).rewindable()])?;
        let output = &pass.outputs[0];
        prop_assert!(output.commit == Scored::None && output.preview == Scored::None, "{output:?}");
        done(t.executor.rewind(seq, 3))?;
        t.unchanged("state", seq, &before)
    })
}

pub(super) fn nonsense(bench: &Bench<'_>) -> Result<(), String> {
    bench.fact("nonsense is refused and changes nothing", |t| {
        let (seq, other, closed) = (t.open_with(&[1; 10])?, t.open_with(&[1; 3])?, t.open()?);
        let (before, others) = (t.state(seq)?, t.state(other)?);
        t.executor.close(closed);
        let long = vec![1; t.executor.limits().max_rows + 1];
        let controls = Controls::default();
        let shaping = Shaping {
            controls: &controls,
            forbidden: &[],
            counts: &[],
            first_position: 1,
            think_open: false,
        };
        let one_probe = Score::Picks { rows: &[0, 1], shaping, probes: &[5] };
        let cases = [
            (Step::commit(seq, &[1, VOCAB], Score::None), "token id 384 at row 1 is outside the vocabulary"),
            (Step::preview(seq, &[VOCAB], Score::None), "outside the vocabulary"),
            (Step::commit(seq, &[1; 7], Score::None), "context holds 16"),
            (Step::preview(seq, &[1; 7], Score::None), "context holds 16"),
            (
                Step::commit(seq, &[1; 4], Score::None).then_preview(&[MASK; 3], Score::None),
                "context holds 16",
            ),
            (Step::commit(seq, &long, Score::None), "rows in one pass"),
            (Step::preview(seq, &[MASK; 4], Score::Logits { rows: &[4] }), "row 4 is to be scored"),
            (Step::preview(seq, &[MASK; 4], one_probe), "1 probes for 2 rows"),
            (Step::commit(closed, &[1], Score::None), "unknown sequence"),
        ];
        for (step, message) in cases {
            refused("a step", t.executor.run(&[step]), message)?;
            // Nor does its company get anywhere.
            let good = Step::commit(other, &[1], Score::None);
            refused("a step in company", t.executor.run(&[good, step]), message)?;
        }
        let step = Step::commit(seq, &[1], Score::None);
        refused("a sequence in two steps", t.executor.run(&[step, step]), "twice")?;
        refused("rewinding a plain commit", t.executor.rewind(seq, 3), "cannot rewind to length 3")?;
        refused("rewinding forwards", t.executor.rewind(seq, 11), "cannot rewind to length 11")?;
        refused("length of a closed sequence", t.executor.len(closed), "unknown sequence")?;
        refused("snapshot of a closed sequence", t.executor.snapshot(closed), "unknown sequence")?;
        refused("export of a closed sequence", t.executor.export(closed), "unknown sequence")?;
        refused("import to a closed sequence", t.executor.import(closed, &before), "unknown sequence")?;
        let snapshot = t.snapshot(seq)?;
        refused("restoring a closed sequence", t.executor.restore(snapshot, closed), "unknown sequence")?;
        t.unchanged("state", seq, &before)?;
        t.unchanged("state of the company", other, &others)?;

        t.commit(seq, &[1; 6])?; // exactly full
        for step in [Step::commit(seq, &[1], Score::None), Step::preview(seq, &[MASK], Score::None)] {
            refused("a step over a full context", t.executor.run(&[step]), "17 positions are needed")?;
        }
        Ok(())
    })
}

pub(super) fn foreign_states(bench: &Bench<'_>) -> Result<(), String> {
    bench.fact("a foreign state is refused", |t| {
        let seq = t.open_with(&[1, 2])?;
        let good = t.state(seq)?;
        let width = t.executor.config().attention.kv_width();
        let of_length = |len: usize| {
            let mut state = SequenceState { len, ..good.clone() };
            for layer in &mut state.layers {
                if let LayerState::Kv { k, v } = layer {
                    [k, v].into_iter().for_each(|rows| rows.resize(len * width, 0.0));
                }
            }
            state
        };
        let mut other_kind = good.clone();
        other_kind.layers[0] = LayerState::Kv { k: Vec::new(), v: Vec::new() };
        let mut fewer = good.clone();
        fewer.layers.pop();
        for (state, message) in [
            (SequenceState { len: 3, ..good.clone() }, "wrong size for length 3"),
            (SequenceState { len: usize::MAX, ..good.clone() }, "wrong size"),
            (other_kind, "layer 0 is of another kind"),
            (fewer, "layers, the model has"),
            (of_length(17), "17 positions are needed"),
        ] {
            refused("a foreign state", t.executor.import(seq, &state), message)?;
        }
        t.unchanged("state", seq, &good)?;
        done(t.executor.import(seq, &of_length(16)))?;
        prop_assert_eq!(t.executor.len(seq).ok(), Some(16), "length of an imported state");
        Ok(())
    })
}
