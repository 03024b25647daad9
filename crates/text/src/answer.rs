//! A model's output as a reader wants it: tokens to text, stop strings watched, reasoning apart.

use crate::{Detokenizer, Error, Piece, ReasoningSplitter, ReasoningTags, StopStrings, Tokenizer};

/// [`Detokenizer`], [`StopStrings`] and [`ReasoningSplitter`] one after another. Special tokens do
/// not become text.
#[derive(Debug, Clone)]
pub struct AnswerStream {
    detokenizer: Detokenizer,
    stops: StopStrings,
    splitter: ReasoningSplitter,
}

/// What one token added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerPart {
    /// Text that is final; may be empty.
    pub pieces: Vec<Piece>,
    /// Index of the stop string that has ended the answer.
    pub stopped: Option<usize>,
}

impl AnswerStream {
    /// The stream of one answer. `in_reasoning` says that the prompt has opened the reasoning.
    pub fn new(tokenizer: Tokenizer, stops: &[String], in_reasoning: bool) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer, true),
            stops: StopStrings::new(stops),
            splitter: ReasoningSplitter::new(ReasoningTags::default(), in_reasoning),
        }
    }

    /// Takes the next token. Once stopped, tokens are dropped.
    ///
    /// # Errors
    /// An id that the tokenizer does not know.
    pub fn push(&mut self, id: u32) -> Result<AnswerPart, Error> {
        let text = self.detokenizer.push(id)?;
        let outcome = self.stops.push(&text);
        Ok(AnswerPart { pieces: self.splitter.push(&outcome.text), stopped: outcome.stopped })
    }

    /// Ends the answer: whatever was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        let tail = self.detokenizer.finish();
        let mut pieces = self.splitter.push(&self.stops.push(&tail).text);
        pieces.extend(self.splitter.push(&self.stops.finish()));
        pieces.extend(self.splitter.finish());
        pieces
    }
}
