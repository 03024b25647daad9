//! The rows of a pass.

use shamrock_model::{PlannedPart, Result, Step};

use super::state::States;

/// A pass's parts, commits first, and its size.
pub(crate) struct Plan<'a> {
    pub(crate) parts: Vec<PlannedPart<'a>>,
    pub(crate) rows: usize,
}

impl<'a> Plan<'a> {
    /// Lays the rows of `steps` out.
    ///
    /// # Errors
    /// Those of [`shamrock_model::Sequences::plan`].
    pub(crate) fn new(steps: &'a [Step<'a>], states: &States) -> Result<Plan<'a>> {
        let parts = states.plan(steps)?;
        let rows = parts.last().map_or(0, |part| part.rows.end);
        Ok(Plan { parts, rows })
    }
}
