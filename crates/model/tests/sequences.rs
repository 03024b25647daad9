//! The bookkeeping of sequences when what it is given to do fails. (When all goes well, the laws of
//! the seam speak for it.)

use serde_json::json;
use shamrock_model::{
    Config, Error, LayerKind, LayerState, Limits, Result, Score, SeqId, SequenceState, Sequences, Step,
};

/// A state is the committed ids; undo data the ids of the commit.
type Ids = Sequences<Vec<u32>, Vec<u32>>;

const LIMITS: Limits = Limits { max_context: 8, max_rows: 6, chunk_rows: 6, max_sequences: 2 };

fn config() -> Config {
    let mut hf = shamrock_testkit::json("small/hf/config.json");
    hf["num_hidden_layers"] = json!(1);
    hf["layer_types"] = json!(["full_attention"]);
    Config::from_hf(&hf, None).unwrap()
}

fn broken<T>() -> Result<T> {
    Err(Error::Device { backend: "test", problem: "broken".into() })
}

/// Runs steps, failing where `fails` says so.
fn run(sequences: &mut Ids, steps: &[Step<'_>], fails: bool) -> Result<()> {
    sequences.run(&config(), steps, |sequences| {
        for step in steps.iter().filter(|s| !s.commit.is_empty()) {
            let (state, undo) = sequences.get_mut(step.seq)?.state_and_undo();
            state.extend_from_slice(step.commit);
            assert_eq!(undo.is_some(), step.rewindable);
            undo.into_iter().for_each(|u| u.extend_from_slice(step.commit));
        }
        if fails { broken() } else { Ok(()) }
    })
}

/// Two sequences of two rows.
fn two() -> (Ids, SeqId, SeqId) {
    let mut sequences = Ids::new(LIMITS);
    let (a, b) = (sequences.open(|| Ok(vec![])).unwrap(), sequences.open(|| Ok(vec![])).unwrap());
    for seq in [a, b] {
        run(&mut sequences, &[Step::commit(seq, &[1, 2], Score::None)], false).unwrap();
    }
    (sequences, a, b)
}

fn lost<T: std::fmt::Debug>(result: Result<T>, seq: SeqId) {
    assert!(matches!(result, Err(Error::LostSequence(s)) if s == seq), "{result:?}");
}

#[test]
fn a_failed_pass_loses_what_it_committed_to_and_nothing_else() {
    let (mut sequences, a, b) = two();
    let snapshot = sequences.snapshot(a, |ids, _| Ok(ids.clone())).unwrap();
    let steps = [Step::commit(a, &[3], Score::None).rewindable(), Step::preview(b, &[4; 3], Score::None)];
    assert!(run(&mut sequences, &steps, true).is_err());
    lost(sequences.len(a), a);
    lost(sequences.rewind(a, 2, |_, _, _| Ok(())), a);
    lost(sequences.snapshot(a, |ids, _| Ok(ids.clone())), a);
    lost(sequences.export(a, |_, _| Ok(vec![])), a);
    lost(run(&mut sequences, &[Step::preview(a, &[4], Score::None)], false), a);
    assert_eq!((sequences.len(b).unwrap(), &sequences.get(b).unwrap().state), (2, &vec![1, 2]));

    let copy = |from: &Vec<u32>, len: usize, to: &mut Vec<u32>| {
        assert_eq!(len, 2);
        to.clone_from(from);
        Ok(())
    };
    sequences.restore(snapshot, a, copy).unwrap();
    assert_eq!((sequences.len(a).unwrap(), &sequences.get(a).unwrap().state), (2, &vec![1, 2]));
    // What the failed commit could have been cut back by is gone with it.
    assert!(matches!(
        sequences.rewind(a, 1, |_, _, _| Ok(())),
        Err(Error::Rewind { asked: 1, from: 2, to: 2 })
    ));
}

#[test]
fn a_refused_pass_changes_nothing() {
    let (mut sequences, a, b) = two();
    run(&mut sequences, &[Step::commit(a, &[3, 4], Score::None).rewindable()], false).unwrap();
    let steps = [Step::commit(a, &[5], Score::None), Step::commit(b, &[1; 7], Score::None)];
    assert!(matches!(run(&mut sequences, &steps, false), Err(Error::Step(_))));
    let steps = [Step::commit(a, &[5; 5], Score::None)];
    assert!(matches!(run(&mut sequences, &steps, false), Err(Error::ContextLength { needed: 9, limit: 8 })));
    assert_eq!((sequences.len(a).unwrap(), sequences.len(b).unwrap()), (4, 2));
    // Previews and refused commits leave the way back open, to any row and more than once.
    run(&mut sequences, &[Step::preview(a, &[6; 4], Score::None).rewindable()], false).unwrap();
    for (len, kept) in [(3, 1), (2, 0)] {
        sequences
            .rewind(a, len, |state, undo, cut| {
                assert_eq!((undo.as_slice(), cut.from, cut.kept()), (&[3, 4][..], 2, kept));
                state.truncate(cut.len);
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(sequences.get(a).unwrap().state, [1, 2]);
    run(&mut sequences, &[Step::commit(a, &[7], Score::None)], false).unwrap();
    assert!(matches!(sequences.rewind(a, 2, |_, _, _| Ok(())), Err(Error::Rewind { .. })));
}

#[test]
fn a_failed_write_loses_the_sequence_and_a_failed_read_does_not() {
    let (mut sequences, a, b) = two();
    let snapshot = sequences.snapshot(b, |ids, _| Ok(ids.clone())).unwrap();
    assert!(sequences.snapshot(a, |_, _| broken()).is_err());
    assert!(sequences.export(a, |_, _| broken()).is_err());
    assert_eq!((sequences.len(a).unwrap(), sequences.held()), (2, (2, 1)));

    assert!(sequences.restore(snapshot, a, |_, _, _| broken()).is_err());
    lost(sequences.len(a), a);
    sequences.restore(snapshot, a, |_, _, _| Ok(())).unwrap();
    run(&mut sequences, &[Step::commit(a, &[3], Score::None).rewindable()], false).unwrap();
    assert!(sequences.rewind(a, 2, |_, _, _| broken()).is_err());
    lost(sequences.len(a), a);

    let width = config().attention.kv_width();
    let host = |len: usize| {
        let rows = vec![0.0; len * width];
        SequenceState { len, layers: vec![LayerState::Kv { k: rows.clone(), v: rows }] }
    };
    assert_eq!(config().layers, [LayerKind::Full]);
    let short = SequenceState { len: 2, ..host(1) };
    let refused = sequences.import(&config(), b, &short, |_| broken());
    assert!(matches!(refused, Err(Error::State(_))));
    let refused = sequences.import(&config(), b, &host(9), |_| broken());
    assert!(matches!(refused, Err(Error::ContextLength { needed: 9, limit: 8 })));
    assert_eq!(sequences.len(b).unwrap(), 2);
    assert!(sequences.import(&config(), b, &host(3), |_| broken()).is_err());
    lost(sequences.len(b), b);
    sequences.import(&config(), b, &host(3), |_| Ok(())).unwrap();
    assert_eq!(sequences.len(b).unwrap(), 3);
}

#[test]
fn ids_are_never_reused_and_states_come_back() {
    let (mut sequences, a, b) = two();
    assert!(matches!(sequences.open(|| Ok(vec![])), Err(Error::Step(_))));
    assert_eq!((sequences.close(a), sequences.close(a)), (Some(vec![1, 2]), None));
    assert!(sequences.open(broken).is_err());
    let c = sequences.open(|| Ok(vec![])).unwrap();
    assert!(c != a && c != b);
    assert!(matches!(sequences.len(a), Err(Error::UnknownSequence(s)) if s == a));
    let snapshot = sequences.snapshot(b, |ids, _| Ok(ids.clone())).unwrap();
    assert!(matches!(sequences.restore(snapshot, a, |_, _, _| Ok(())), Err(Error::UnknownSequence(_))));
    assert_eq!((sequences.release(snapshot), sequences.release(snapshot)), (Some(vec![1, 2]), None));
    assert!(matches!(sequences.restore(snapshot, b, |_, _, _| Ok(())), Err(Error::UnknownSnapshot(_))));
}
