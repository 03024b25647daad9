//! What an answer may say: a language over tokens, followed from left to right.
//!
//! This crate knows grammars only by these traits; `shamrock-grammar` makes them of JSON schemas.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::options::Settings;

/// A language of answers.
pub trait Grammar: fmt::Debug + Send + Sync {
    /// A matcher at the start of a text.
    ///
    /// # Errors
    /// What is wrong, in a line.
    fn matcher(&self) -> std::result::Result<Box<dyn Matcher>, String>;
}

/// A place in a text of a [`Grammar`]. Stop ids are no part of the text: they may come where it
/// [may end](Matcher::may_end).
///
/// From every place that [`advance`](Matcher::advance) leads to, the text can be completed.
pub trait Matcher: Send {
    /// Sets the logits of all ids that cannot come next to −∞; those of stop ids mean nothing
    /// afterwards.
    ///
    /// # Errors
    /// What is wrong, in a line; too costly a grammar, for instance.
    fn mask(&mut self, logits: &mut [f32]) -> std::result::Result<(), String>;

    /// The id that comes next, where there is just one; it may be `None` there too.
    ///
    /// # Errors
    /// As [`mask`](Matcher::mask).
    fn forced(&mut self) -> std::result::Result<Option<u32>, String>;

    /// Goes on behind an id, or stays where it is and says `false` if that cannot come next.
    ///
    /// # Errors
    /// As [`mask`](Matcher::mask).
    fn advance(&mut self, id: u32) -> std::result::Result<bool, String>;

    /// Goes back by a number of ids.
    ///
    /// # Errors
    /// As [`mask`](Matcher::mask).
    fn rewind(&mut self, tokens: usize) -> std::result::Result<(), String>;

    /// Whether the text may end here.
    ///
    /// # Errors
    /// As [`mask`](Matcher::mask).
    fn may_end(&mut self) -> std::result::Result<bool, String>;
}

/// Holds an answer to a grammar, in every mode: the answer is a text of it, or the beginning of one
/// where the token limit or the end of the context cut it.
#[derive(Clone, Debug)]
pub struct Constraint {
    /// The language.
    pub grammar: Arc<dyn Grammar>,
    /// The text starts behind this id: the end of reasoning that the prompt has opened. Until then
    /// everything goes but the end of the answer.
    pub after: Option<u32>,
}

impl PartialEq for Constraint {
    /// Whether both hold to the very same grammar.
    fn eq(&self, other: &Constraint) -> bool {
        Arc::ptr_eq(&self.grammar, &other.grammar) && self.after == other.after
    }
}

/// Where an answer stands in the text that it is held to.
pub(crate) struct Guide {
    matcher: Box<dyn Matcher>,
    after: Option<u32>,
    stop_ids: Vec<u32>,
    place: Place,
    /// The places before each token taken since the last [`settle`](Guide::settle).
    trail: Vec<Place>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the reasoning.
    Before,
    /// In the text.
    Inside,
    /// Behind a stop id.
    Behind,
}

impl Guide {
    pub(crate) fn new(constraint: &Constraint, settings: &Settings) -> Result<Guide> {
        Ok(Guide {
            matcher: constraint.grammar.matcher().map_err(failed)?,
            after: constraint.after,
            stop_ids: settings.controls.stop_ids.clone(),
            place: if constraint.after.is_some() { Place::Before } else { Place::Inside },
            trail: Vec::new(),
        })
    }

    /// Forbids the ids that cannot come next.
    pub(crate) fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let ends = match self.place {
            Place::Before => false,
            Place::Inside => self.matcher.may_end().map_err(failed)?,
            Place::Behind => return Ok(()),
        };
        let logit = |id: &u32, logits: &[f32]| logits.get(*id as usize).copied();
        let stops: Vec<Option<f32>> = self.stop_ids.iter().map(|id| logit(id, logits)).collect();
        if self.place == Place::Inside {
            self.matcher.mask(logits).map_err(failed)?;
        }
        for (&id, stop) in self.stop_ids.iter().zip(stops) {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = stop.filter(|_| ends).unwrap_or(f32::NEG_INFINITY);
            }
        }
        Ok(())
    }

    /// The id that comes next, where the text leaves no choice.
    pub(crate) fn forced(&mut self) -> Result<Option<u32>> {
        match self.place {
            Place::Inside => self.matcher.forced().map_err(failed),
            Place::Before | Place::Behind => Ok(None),
        }
    }

    /// Goes on behind an id, if it can come next.
    pub(crate) fn advance(&mut self, id: u32) -> Result<bool> {
        let stops = self.stop_ids.contains(&id);
        let next = match self.place {
            Place::Before if stops => None,
            Place::Before => Some(if self.after == Some(id) { Place::Inside } else { Place::Before }),
            Place::Inside if stops => self.matcher.may_end().map_err(failed)?.then_some(Place::Behind),
            Place::Inside => self.matcher.advance(id).map_err(failed)?.then_some(Place::Inside),
            Place::Behind => Some(Place::Behind),
        };
        if let Some(next) = next {
            self.trail.push(std::mem::replace(&mut self.place, next));
        }
        Ok(next.is_some())
    }

    /// Goes back by a number of tokens that were taken since the last settlement.
    pub(crate) fn rewind(&mut self, tokens: usize) -> Result<()> {
        let mut inside = 0;
        for _ in 0..tokens {
            let Some(before) = self.trail.pop() else { break };
            inside += usize::from(before == Place::Inside && self.place == Place::Inside);
            self.place = before;
        }
        self.matcher.rewind(inside).map_err(failed)
    }

    /// Forgets how to go back.
    pub(crate) fn settle(&mut self) {
        self.trail.clear();
    }
}

fn failed(problem: String) -> Error {
    Error::Grammar { problem }
}
