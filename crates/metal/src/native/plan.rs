//! The rows of a pass.

use shamrock_model::{Part, Result, Score, SeqId, Step};

use super::state::States;

/// Rows of one part of one step.
pub(crate) struct PlannedPart<'a> {
    pub(crate) step: usize,
    pub(crate) part: Part,
    pub(crate) seq: SeqId,
    pub(crate) ids: &'a [u32],
    pub(crate) score: &'a Score<'a>,
    /// First row in the pass.
    pub(crate) row0: usize,
    /// Position of the first row.
    pub(crate) position: usize,
    /// The commit can be cut back.
    pub(crate) rewindable: bool,
}

/// A pass's parts: commits first, so that previews see the states they leave, layer by layer.
pub(crate) struct Plan<'a> {
    pub(crate) parts: Vec<PlannedPart<'a>>,
    pub(crate) rows: usize,
}

impl<'a> Plan<'a> {
    /// Lays the rows of `steps` out.
    ///
    /// # Errors
    /// Those of [`shamrock_model::Sequences::get_mut`].
    pub(crate) fn new(steps: &'a [Step<'a>], states: &mut States) -> Result<Plan<'a>> {
        let mut plan = Plan { parts: Vec::new(), rows: 0 };
        for part in [Part::Commit, Part::Preview] {
            for (i, step) in steps.iter().enumerate() {
                let (ids, score, behind) = match part {
                    Part::Commit => (step.commit, &step.commit_score, 0),
                    Part::Preview => (step.preview, &step.preview_score, step.commit.len()),
                };
                if ids.is_empty() {
                    continue;
                }
                plan.parts.push(PlannedPart {
                    step: i,
                    part,
                    seq: step.seq,
                    ids,
                    score,
                    row0: plan.rows,
                    position: states.get_mut(step.seq)?.len() + behind,
                    rewindable: part == Part::Commit && step.rewindable,
                });
                plan.rows += ids.len();
            }
        }
        Ok(plan)
    }
}
