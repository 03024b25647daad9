//! A model's output as a reader wants it: tokens to text, stop strings watched, reasoning apart.

use crate::{
    Detokenizer, Error, Piece, ReasoningSplitter, ReasoningTags, StopStrings, Tokenizer, ToolCallSplitter,
};

/// [`Detokenizer`], [`StopStrings`], [`ReasoningSplitter`] and perhaps a [`ToolCallSplitter`] one after
/// another. Special tokens do not become text.
#[derive(Debug, Clone)]
pub struct AnswerStream {
    detokenizer: Detokenizer,
    stops: StopStrings,
    splitter: ReasoningSplitter,
    calls: Option<ToolCallSplitter>,
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
            calls: None,
        }
    }

    /// The same with tool calls taken out of the content.
    #[must_use]
    pub fn with_calls(self, calls: ToolCallSplitter) -> Self {
        Self { calls: Some(calls), ..self }
    }

    /// Takes the next token. Once stopped, tokens are dropped.
    ///
    /// # Errors
    /// An id that the tokenizer does not know.
    pub fn push(&mut self, id: u32) -> Result<AnswerPart, Error> {
        let text = self.detokenizer.push(id)?;
        let outcome = self.stops.push(&text);
        let pieces = self.splitter.push(&outcome.text);
        Ok(AnswerPart { pieces: self.split_calls(pieces), stopped: outcome.stopped })
    }

    /// Ends the answer: whatever was held back.
    pub fn finish(&mut self) -> Vec<Piece> {
        let tail = self.detokenizer.finish();
        let mut pieces = self.splitter.push(&self.stops.push(&tail).text);
        pieces.extend(self.splitter.push(&self.stops.finish()));
        pieces.extend(self.splitter.finish());
        let mut pieces = self.split_calls(pieces);
        pieces.extend(self.calls.iter_mut().flat_map(ToolCallSplitter::finish));
        pieces
    }

    fn split_calls(&mut self, pieces: Vec<Piece>) -> Vec<Piece> {
        let Some(calls) = &mut self.calls else { return pieces };
        let split = |piece| match piece {
            Piece::Content(text) => calls.push(&text),
            other => vec![other],
        };
        pieces.into_iter().flat_map(split).collect()
    }
}
