//! One case of a law.

use std::ops::Range;

use proptest::prelude::*;
use shamrock_model::{Executor, Pass, Score, Scored, SeqId, SequenceState, SnapshotId, Step};

use crate::backend::{Tolerance, compare};

/// Vocabulary and mask of `small`.
pub(super) const VOCAB: u32 = 384;
pub(super) const MASK: u32 = 310;

pub(super) type Checked<T = ()> = Result<T, TestCaseError>;

/// One case; what it opens is closed at its end.
pub(super) struct Trial<'a> {
    pub(super) executor: &'a mut dyn Executor,
    pub(super) tolerance: Tolerance,
    opened: Vec<SeqId>,
    kept: Vec<SnapshotId>,
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        self.opened.iter().for_each(|&seq| self.executor.close(seq));
        self.kept.iter().for_each(|&snapshot| self.executor.release(snapshot));
    }
}

pub(super) fn done<T>(result: shamrock_model::Result<T>) -> Checked<T> {
    result.map_err(|e| TestCaseError::fail(format!("refused or failed: {e}")))
}

impl<'a> Trial<'a> {
    pub(super) fn new(executor: &'a mut dyn Executor, tolerance: Tolerance) -> Self {
        Trial { executor, tolerance, opened: Vec::new(), kept: Vec::new() }
    }

    pub(super) fn open(&mut self) -> Checked<SeqId> {
        let seq = done(self.executor.open())?;
        self.opened.push(seq);
        Ok(seq)
    }

    /// A sequence that holds `ids`.
    pub(super) fn open_with(&mut self, ids: &[u32]) -> Checked<SeqId> {
        let seq = self.open()?;
        self.commit(seq, ids)?;
        Ok(seq)
    }

    pub(super) fn run(&mut self, steps: &[Step<'_>]) -> Checked<Pass> {
        let pass = done(self.executor.run(steps))?;
        prop_assert_eq!(pass.outputs.len(), steps.len(), "one output per step");
        Ok(pass)
    }

    /// Commits and returns the logits of all rows.
    pub(super) fn commit(&mut self, seq: SeqId, ids: &[u32]) -> Checked<Vec<f32>> {
        let rows: Vec<usize> = (0..ids.len()).collect();
        let pass = self.run(&[Step::commit(seq, ids, Score::Logits { rows: &rows })])?;
        logits(&pass.outputs[0].commit, rows.len())
    }

    /// Previews and returns the logits of all rows.
    pub(super) fn preview(&mut self, seq: SeqId, ids: &[u32]) -> Checked<Vec<f32>> {
        let rows: Vec<usize> = (0..ids.len()).collect();
        let pass = self.run(&[Step::preview(seq, ids, Score::Logits { rows: &rows })])?;
        logits(&pass.outputs[0].preview, rows.len())
    }

    pub(super) fn snapshot(&mut self, seq: SeqId) -> Checked<SnapshotId> {
        let snapshot = done(self.executor.snapshot(seq))?;
        self.kept.push(snapshot);
        Ok(snapshot)
    }

    pub(super) fn state(&self, seq: SeqId) -> Checked<SequenceState> {
        let state = done(self.executor.export(seq))?;
        prop_assert_eq!(done(self.executor.len(seq))?, state.len, "length of the exported state");
        Ok(state)
    }

    pub(super) fn same_state(&self, what: &str, got: &SequenceState, want: &SequenceState) -> Checked {
        agree(what, self.tolerance.compare_states(self.executor.config(), got, want))
    }

    /// The two sequences hold the same state.
    pub(super) fn same_sequence(&self, what: &str, got: SeqId, want: SeqId) -> Checked {
        self.same_state(what, &self.state(got)?, &self.state(want)?)
    }

    /// The sequence holds exactly what it held.
    pub(super) fn unchanged(&self, what: &str, seq: SeqId, before: &SequenceState) -> Checked {
        let config = self.executor.config();
        agree(what, Tolerance::EXACT.compare_states(config, &self.state(seq)?, before))
    }
}

pub(super) fn same_logits(tolerance: Tolerance, what: &str, got: &[f32], want: &[f32]) -> Checked {
    agree(what, compare(got, want, Some(VOCAB as usize), tolerance.logits))
}

pub(super) fn agree(what: &str, result: Result<(), String>) -> Checked {
    result.map_err(|problem| TestCaseError::fail(format!("{what}: {problem}")))
}

/// The logits of `rows` rows, which were asked for.
pub(super) fn logits(scored: &Scored, rows: usize) -> Checked<Vec<f32>> {
    match scored {
        Scored::Logits { values, vocab }
            if (values.len(), *vocab) == (rows * VOCAB as usize, VOCAB as usize) =>
        {
            Ok(values.clone())
        }
        Scored::None if rows == 0 => Ok(Vec::new()),
        other => Err(TestCaseError::fail(format!("{rows} rows of logits were asked for, got {other:?}"))),
    }
}

pub(super) fn tokens(len: Range<usize>) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..VOCAB, len)
}

/// Ids of a block: some resolved, some masks.
pub(super) fn blocks(len: Range<usize>) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![Just(MASK), 0..VOCAB], len)
}

/// Passes when something was refused for the right reason.
pub(super) fn refused<T>(what: &str, result: shamrock_model::Result<T>, reason: &str) -> Checked {
    let got = match result {
        Ok(_) => "nothing was wrong".to_owned(),
        Err(e) => e.to_string(),
    };
    prop_assert!(got.contains(reason), "{}: {}, expected {:?}", what, got, reason);
    Ok(())
}
