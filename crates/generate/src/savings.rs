//! Work that is left out because it cannot change an answer.

use std::str::FromStr;

use crate::error::{Error, Result};

/// One kind of work that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saving {
    /// Once every row up to a fixed stop id, or up to the token limit, is fixed, the rows behind
    /// cost no further pass.
    Settle,
    /// A commit shares the pass of the preview behind it, so that weights are read once for both:
    /// of a resolved block or the prompt's tail in denoising, of the pending token in exact drafting.
    Fuse,
    /// Rows of a block that are fixed already do not run through the head.
    Head,
}

impl Saving {
    /// Every saving.
    pub const ALL: [Saving; 3] = [Saving::Settle, Saving::Fuse, Saving::Head];

    /// Name as options spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Saving::Settle => "settle",
            Saving::Fuse => "fuse",
            Saving::Head => "head",
        }
    }
}

impl FromStr for Saving {
    type Err = Error;

    fn from_str(name: &str) -> Result<Saving> {
        Saving::ALL.into_iter().find(|saving| saving.as_str() == name).ok_or_else(|| Error::Option {
            option: "saving",
            problem: format!("{name:?} is none of settle, fuse, head"),
        })
    }
}

/// A set of savings. Greedy and sampled tokens are the same with any set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savings {
    off: [bool; Saving::ALL.len()],
}

impl Savings {
    /// All of them: the default.
    pub const ALL: Savings = Savings { off: [false; Saving::ALL.len()] };
    /// None of them: the passes are those of the specification, for comparing traces.
    pub const NONE: Savings = Savings { off: [true; Saving::ALL.len()] };

    /// This set less one.
    #[must_use]
    pub fn without(mut self, saving: Saving) -> Savings {
        self.off[saving as usize] = true;
        self
    }

    /// Whether a saving is in the set.
    pub fn has(self, saving: Saving) -> bool {
        !self.off[saving as usize]
    }
}

impl Default for Savings {
    fn default() -> Self {
        Savings::ALL
    }
}
