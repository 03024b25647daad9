//! The bookkeeping behind the [seam](crate::executor), the same for every backend: which sequences
//! are open, how long they are, which are lost, how far each can be rewound, and what is kept as a
//! snapshot.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::executor::{Limits, SeqId, SnapshotId, Step, check_steps};
use crate::plan::{self, PlannedPart};
use crate::state::{LayerState, SequenceState};

/// Sequences and snapshots of one executor.
///
/// `S` is one committed state as the backend holds it: vectors on the host, buffers or a slot on a
/// device. `U` is what the backend needs beside it to cut the last commit back. Both are opaque:
/// whatever copies, fills or cuts a state is passed in as a closure, may fail, and is called only
/// once the arguments are known to be good. A state that goes out of use is handed back or dropped.
///
/// A sequence is *lost* from the moment its state is first written to until the write succeeds, so
/// that an error on the way leaves it marked, and only it.
#[derive(Debug)]
pub struct Sequences<S, U = ()> {
    limits: Limits,
    open: BTreeMap<SeqId, Sequence<S, U>>,
    snapshots: BTreeMap<SnapshotId, Snapshot<S>>,
    last_id: u64,
}

/// An open sequence.
#[derive(Debug)]
pub struct Sequence<S, U = ()> {
    /// Committed state.
    pub state: S,
    len: usize,
    lost: bool,
    undo: Option<Undo<U>>,
}

/// Of the last commit, when that was rewindable.
#[derive(Debug)]
struct Undo<U> {
    /// Length before the commit.
    from: usize,
    data: U,
}

#[derive(Debug)]
struct Snapshot<S> {
    len: usize,
    state: S,
}

/// Where [`Sequences::rewind`] cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Rows that were committed before the rewindable commit.
    pub from: usize,
    /// Rows that stay committed; at least `from`.
    pub len: usize,
}

impl Cut {
    /// Rows of the rewindable commit that stay.
    pub fn kept(self) -> usize {
        self.len - self.from
    }
}

impl<S, U> Sequence<S, U> {
    fn new(state: S) -> Self {
        Sequence { state, len: 0, lost: false, undo: None }
    }

    /// Committed rows; during a pass, those before it.
    #[expect(clippy::len_without_is_empty, reason = "a length in rows, not a collection")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The state, and where the commit that is running leaves what cuts it back (`None` unless that
    /// is wanted).
    pub fn state_and_undo(&mut self) -> (&mut S, Option<&mut U>) {
        (&mut self.state, self.undo.as_mut().map(|undo| &mut undo.data))
    }

    /// Runs `write`, which makes the state one of `len` rows.
    fn write(&mut self, len: usize, write: impl FnOnce(&mut S, Option<&U>) -> Result<()>) -> Result<()> {
        self.lost = true;
        write(&mut self.state, self.undo.as_ref().map(|undo| &undo.data))?;
        (self.len, self.lost) = (len, false);
        Ok(())
    }
}

impl<S, U: Default> Sequences<S, U> {
    /// None yet.
    pub fn new(limits: Limits) -> Self {
        Sequences { limits, open: BTreeMap::new(), snapshots: BTreeMap::new(), last_id: 0 }
    }

    /// What the executor can hold.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Sequences open and snapshots held.
    pub fn held(&self) -> (usize, usize) {
        (self.open.len(), self.snapshots.len())
    }

    /// An open sequence that is not lost.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`], [`Error::LostSequence`].
    pub fn get(&self, seq: SeqId) -> Result<&Sequence<S, U>> {
        match self.open.get(&seq) {
            None => Err(Error::UnknownSequence(seq)),
            Some(s) if s.lost => Err(Error::LostSequence(seq)),
            Some(s) => Ok(s),
        }
    }

    /// An open sequence for the pass at work. Lost ones are not refused: one that is being committed
    /// to counts as lost until the pass has succeeded.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn get_mut(&mut self, seq: SeqId) -> Result<&mut Sequence<S, U>> {
        self.open.get_mut(&seq).ok_or(Error::UnknownSequence(seq))
    }

    /// Opens a sequence over the state that `empty` makes.
    ///
    /// # Errors
    /// [`Error::Step`] at the limit, and what `empty` returns.
    pub fn open(&mut self, empty: impl FnOnce() -> Result<S>) -> Result<SeqId> {
        if self.open.len() >= self.limits.max_sequences {
            return Err(Error::Step(format!("{} sequences are open already", self.open.len())));
        }
        let sequence = Sequence::new(empty()?);
        let id = SeqId(self.fresh_id());
        self.open.insert(id, sequence);
        Ok(id)
    }

    /// Closes a sequence and hands its state back; `None` for an unknown id.
    pub fn close(&mut self, seq: SeqId) -> Option<S> {
        self.open.remove(&seq).map(|sequence| sequence.state)
    }

    /// Committed rows of a sequence.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`], [`Error::LostSequence`].
    pub fn len(&self, seq: SeqId) -> Result<usize> {
        Ok(self.get(seq)?.len)
    }

    /// Checks `steps` and runs them with `pass`, which advances the states of those that commit and
    /// leaves [undo data](Sequence::state_and_undo) where that is wanted.
    ///
    /// # Errors
    /// Those of [`check_steps`], before anything changes, and what `pass` returns; then every
    /// sequence that it was to commit to is lost.
    pub fn run<T>(
        &mut self,
        config: &Config,
        steps: &[Step<'_>],
        pass: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        check_steps(config, self.limits, steps, |seq| self.len(seq))?;
        let commits = || steps.iter().filter(|step| !step.commit.is_empty());
        for step in commits() {
            let sequence = self.get_mut(step.seq)?;
            sequence.lost = true;
            sequence.undo = step.rewindable.then(|| Undo { from: sequence.len, data: U::default() });
        }
        let result = pass(self)?;
        for step in commits() {
            let sequence = self.get_mut(step.seq)?;
            sequence.len += step.commit.len();
            sequence.lost = false;
        }
        Ok(result)
    }

    /// Lays the rows of a pass out, from within [`run`](Self::run).
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn plan<'a>(&self, steps: &'a [Step<'a>]) -> Result<Vec<PlannedPart<'a>>> {
        plan::parts(steps, |seq| self.open.get(&seq).map(Sequence::len).ok_or(Error::UnknownSequence(seq)))
    }

    /// Cuts a sequence back to `len` rows: `cut` makes its state what it was after them. The undo
    /// data stays, so that the sequence can be cut further.
    ///
    /// # Errors
    /// [`Error::Rewind`] when the last commit was not rewindable or does not cover `len`, the errors
    /// of [`get`](Self::get), and what `cut` returns; then the sequence is lost.
    pub fn rewind(
        &mut self,
        seq: SeqId,
        len: usize,
        cut: impl FnOnce(&mut S, &U, Cut) -> Result<()>,
    ) -> Result<()> {
        let to = self.len(seq)?;
        if len == to {
            return Ok(());
        }
        let sequence = self.get_mut(seq)?;
        let from = sequence.undo.as_ref().map_or(to, |undo| undo.from);
        let refused = || Error::Rewind { asked: len, from, to };
        if !(from..to).contains(&len) {
            return Err(refused());
        }
        sequence.write(len, |state, undo| cut(state, undo.ok_or_else(refused)?, Cut { from, len }))
    }

    /// Keeps what `copy` makes of a sequence's state and length.
    ///
    /// # Errors
    /// Those of [`get`](Self::get), and what `copy` returns.
    pub fn snapshot(&mut self, seq: SeqId, copy: impl FnOnce(&S, usize) -> Result<S>) -> Result<SnapshotId> {
        let Sequence { state, len, .. } = self.get(seq)?;
        let snapshot = Snapshot { len: *len, state: copy(state, *len)? };
        let id = SnapshotId(self.fresh_id());
        self.snapshots.insert(id, snapshot);
        Ok(id)
    }

    /// Makes a sequence's state that of a snapshot: `copy` gets the snapshot's state and length, and
    /// the state to overwrite.
    ///
    /// # Errors
    /// [`Error::UnknownSnapshot`], those of [`import`](Self::import) but for the shape, and what
    /// `copy` returns; then the sequence is lost.
    pub fn restore(
        &mut self,
        snapshot: SnapshotId,
        into: SeqId,
        copy: impl FnOnce(&S, usize, &mut S) -> Result<()>,
    ) -> Result<()> {
        let kept = self.snapshots.get(&snapshot).ok_or(Error::UnknownSnapshot(snapshot))?;
        let sequence = self.open.get_mut(&into).ok_or(Error::UnknownSequence(into))?;
        replace(sequence, self.limits, kept.len, |state| copy(&kept.state, kept.len, state))
    }

    /// Forgets a snapshot and hands its state back; `None` for an unknown id.
    pub fn release(&mut self, snapshot: SnapshotId) -> Option<S> {
        self.snapshots.remove(&snapshot).map(|snapshot| snapshot.state)
    }

    /// The host form of a sequence, whose layers `read` makes from its state and length.
    ///
    /// # Errors
    /// Those of [`get`](Self::get), and what `read` returns.
    pub fn export(
        &self,
        seq: SeqId,
        read: impl FnOnce(&S, usize) -> Result<Vec<LayerState>>,
    ) -> Result<SequenceState> {
        let Sequence { state, len, .. } = self.get(seq)?;
        Ok(SequenceState { len: *len, layers: read(state, *len)? })
    }

    /// Gives a sequence, lost or not, the state `from`, which `fill` copies over the old one.
    ///
    /// # Errors
    /// [`Error::State`] when `from` is not a state of this model, [`Error::ContextLength`] when it is
    /// too long, [`Error::UnknownSequence`], and what `fill` returns; then the sequence is lost.
    pub fn import(
        &mut self,
        config: &Config,
        seq: SeqId,
        from: &SequenceState,
        fill: impl FnOnce(&mut S) -> Result<()>,
    ) -> Result<()> {
        from.check(config)?;
        let limits = self.limits;
        replace(self.get_mut(seq)?, limits, from.len, fill)
    }

    fn fresh_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}

/// Gives a sequence another state of `len` rows, of which nothing can be cut back.
fn replace<S, U>(
    sequence: &mut Sequence<S, U>,
    limits: Limits,
    len: usize,
    fill: impl FnOnce(&mut S) -> Result<()>,
) -> Result<()> {
    if len > limits.max_context {
        return Err(Error::ContextLength { needed: len, limit: limits.max_context });
    }
    sequence.undo = None;
    sequence.write(len, |state, _| fill(state))
}
