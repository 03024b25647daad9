//! Committed states: cut back, kept, moved.

use proptest::prelude::*;
use proptest::sample::Index;
use shamrock_model::{Error, Score, Step};

use super::Bench;
use super::trial::{MASK, Trial, blocks, done, refused, same_logits, tokens};

pub(super) fn rewinding(bench: &Bench<'_>) -> Result<(), String> {
    let kept = (any::<Index>(), any::<Index>());
    let inputs = (tokens(0..12), tokens(1..12), kept, any::<bool>(), tokens(1..5));
    bench.law("a rewound commit never happened", inputs, |t, (prefix, ids, kept, fused, more)| {
        let (seq, company) = (t.open_with(&prefix)?, t.open()?);
        let block = if fused { &[MASK; 8][..] } else { &[] };
        t.run(&[
            Step::commit(company, &more, Score::None).rewindable(),
            Step::commit(seq, &ids, Score::None).rewindable().then_preview(block, Score::None),
        ])?;
        t.preview(seq, &[MASK; 8])?; // leaves the way back open
        let first = kept.0.index(ids.len() + 1);
        let second = kept.1.index(first + 1);
        for kept in [first, second] {
            done(t.executor.rewind(seq, prefix.len() + kept))?;
            let never = t.open_with(&prefix)?;
            t.commit(never, &ids[..kept])?;
            t.same_sequence(&format!("state with {kept} rows kept"), seq, never)?;
            t.executor.close(never);
        }
        let never = t.open_with(&[&prefix, &ids[..second]].concat())?;
        let block = [MASK; 8];
        same_logits(t.tolerance, "preview after it", &t.preview(seq, &block)?, &t.preview(never, &block)?)?;
        same_logits(t.tolerance, "commit after it", &t.commit(seq, &more)?, &t.commit(never, &more)?)?;
        let end = prefix.len() + second + more.len();
        prop_assert!(
            matches!(t.executor.rewind(seq, end - 1), Err(Error::Rewind { .. })),
            "a plain commit was rewound"
        );
        prop_assert_eq!(t.state(seq)?.len, end, "length after a refused rewind");
        let whole = t.open_with(&more)?;
        t.same_sequence("state of a sequence in the same pass", company, whole)
    })
}

pub(super) fn snapshots(bench: &Bench<'_>) -> Result<(), String> {
    let inputs = (tokens(0..20), tokens(1..9));
    bench.law("a snapshot brings a state back", inputs, |t, (ids, more)| {
        let (seq, other) = (t.open_with(&ids)?, t.open_with(&more)?);
        let (snapshot, state) = (t.snapshot(seq)?, t.state(seq)?);
        let preview = t.preview(seq, &[MASK; 8])?;
        let step = Step::commit(seq, &more, Score::None).rewindable();
        t.run(&[step])?;
        done(t.executor.restore(snapshot, seq))?;
        t.unchanged("state after restoring", seq, &state)?;
        // What could be rewound is another state's.
        if !ids.is_empty() {
            let rewound = t.executor.rewind(seq, ids.len() - 1);
            prop_assert!(matches!(rewound, Err(Error::Rewind { .. })), "rewound a restored state");
        }
        t.commit(seq, &more)?;
        t.executor.close(seq);
        done(t.executor.restore(snapshot, other))?;
        t.unchanged("state of another sequence after restoring", other, &state)?;
        same_logits(t.tolerance, "preview after restoring", &t.preview(other, &[MASK; 8])?, &preview)?;
        t.executor.release(snapshot);
        refused("a released snapshot", t.executor.restore(snapshot, other), "unknown snapshot")?;
        t.unchanged("state after a refused restore", other, &state)
    })
}

pub(super) fn moves(bench: &Bench<'_>) -> Result<(), String> {
    let inputs = (tokens(0..8), tokens(1..5), blocks(1..5));
    bench.law("a conversation moves to another executor", inputs, |t, (ids, more, block)| {
        let seq = t.open_with(&ids)?;
        let state = t.state(seq)?;
        let mut small = bench.small.borrow_mut();
        let mut there = Trial::new(&mut **small, t.tolerance);
        let moved = there.open_with(&more)?;
        done(there.executor.import(moved, &state))?;
        there.unchanged("state there", moved, &state)?;
        same_logits(t.tolerance, "preview there", &there.preview(moved, &block)?, &t.preview(seq, &block)?)?;
        same_logits(t.tolerance, "commit there", &there.commit(moved, &more)?, &t.commit(seq, &more)?)?;
        t.same_state("state there after a commit", &there.state(moved)?, &t.state(seq)?)
    })
}
