//! A place in a text of a compiled grammar.

use std::fmt;

use llguidance::Matcher as Inner;

use crate::error::in_plain_words;

/// A compiled grammar: matchers start as copies of a fresh one and share its lexer's tables.
pub(crate) struct Compiled {
    fresh: Inner,
    /// What it was made of, for debugging.
    source: String,
}

impl Compiled {
    pub(crate) fn new(fresh: Inner, source: String) -> Compiled {
        Compiled { fresh, source }
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").field("source", &self.source).finish_non_exhaustive()
    }
}

impl shamrock_generate::Grammar for Compiled {
    fn matcher(&self) -> Result<Box<dyn shamrock_generate::Matcher>, String> {
        Ok(Box::new(Matcher(self.fresh.clone())))
    }
}

struct Matcher(Inner);

impl Matcher {
    /// Whether the text is over: nothing can come behind it. An error if it is for another reason.
    fn is_over(&self) -> Result<bool, String> {
        match self.0.get_error() {
            Some(error) => Err(in_plain_words(error)),
            None if self.0.is_stopped() && !self.0.stop_reason().is_ok() => {
                Err(in_plain_words(self.0.stop_reason()))
            }
            None => Ok(self.0.is_stopped()),
        }
    }
}

impl shamrock_generate::Matcher for Matcher {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        if self.is_over()? {
            logits.fill(f32::NEG_INFINITY);
            return Ok(());
        }
        let allowed = self.0.compute_mask().map_err(in_plain_words)?;
        // 32 ids to a word.
        for (logits, &word) in logits.chunks_mut(32).zip(allowed.as_slice()) {
            if word == u32::MAX {
                continue;
            }
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Ok(())
    }

    fn forced(&mut self) -> Result<Option<u32>, String> {
        if self.is_over()? {
            return Ok(None);
        }
        let first = self.0.compute_ff_tokens().first().copied();
        // A failure gives no tokens either, and leaves the matcher in error.
        self.is_over().map(|_| first)
    }

    fn advance(&mut self, id: u32) -> Result<bool, String> {
        if self.is_over()? {
            return Ok(false);
        }
        Ok(self.0.try_consume_tokens(&[id]).map_err(in_plain_words)? == 1)
    }

    fn rewind(&mut self, tokens: usize) -> Result<(), String> {
        self.0.rollback(tokens).map_err(in_plain_words)
    }

    fn may_end(&mut self) -> Result<bool, String> {
        Ok(self.is_over()? || self.0.is_accepting().map_err(in_plain_words)?)
    }
}
