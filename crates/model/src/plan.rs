//! How the rows of a pass are laid out, the same for every backend.

use std::ops::Range;

use crate::error::Result;
use crate::executor::{Part, Score, Scored, SeqId, Step, StepOutput};

/// The rows of one part of one step, in the order of a pass: all commits before all previews, so that a preview
/// finds the state that its step's commit leaves, layer by layer. Made by
/// [`Sequences::plan`](crate::Sequences::plan).
#[derive(Clone, Debug)]
pub struct PlannedPart<'a> {
    /// The step, by its number in the pass.
    pub step: usize,
    /// Which half of the step.
    pub part: Part,
    /// The sequence.
    pub seq: SeqId,
    /// Ids, one per row; at least one.
    pub ids: &'a [u32],
    /// What to return for them.
    pub score: &'a Score<'a>,
    /// Position of the first row in its sequence.
    pub position: usize,
    /// Rows of the pass, over all its parts.
    pub rows: Range<usize>,
    /// Places of the rows to score among all that the pass scores, in the order of `score`.
    pub scored: Range<usize>,
    /// The commit must leave what cuts it back.
    pub rewindable: bool,
}

impl PlannedPart<'_> {
    /// Puts what was scored where the step's output has it.
    pub fn put(&self, outputs: &mut [StepOutput], scored: Scored) {
        match self.part {
            Part::Commit => outputs[self.step].commit = scored,
            Part::Preview => outputs[self.step].preview = scored,
        }
    }
}

/// The parts of `steps` that have rows; `len` is a sequence's committed length.
pub(crate) fn parts<'a>(
    steps: &'a [Step<'a>],
    len: impl Fn(SeqId) -> Result<usize>,
) -> Result<Vec<PlannedPart<'a>>> {
    let mut parts: Vec<PlannedPart<'a>> = Vec::new();
    for part in [Part::Commit, Part::Preview] {
        for (i, step) in steps.iter().enumerate() {
            let (ids, score, behind) = match part {
                Part::Commit => (step.commit, &step.commit_score, 0),
                Part::Preview => (step.preview, &step.preview_score, step.commit.len()),
            };
            if ids.is_empty() {
                continue;
            }
            let (row0, scored0) = parts.last().map_or((0, 0), |part| (part.rows.end, part.scored.end));
            parts.push(PlannedPart {
                step: i,
                part,
                seq: step.seq,
                ids,
                score,
                position: len(step.seq)? + behind,
                rows: row0..row0 + ids.len(),
                scored: scored0..scored0 + score.rows().len(),
                rewindable: part == Part::Commit && step.rewindable,
            });
        }
    }
    Ok(parts)
}
