//! Telling a model's reasoning from its answer.

use crate::scan::partial_marker;

/// The tags around reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningTags {
    /// Opens reasoning.
    pub open: String,
    /// Closes it.
    pub close: String,
}

impl Default for ReasoningTags {
    /// `<think>` and `</think>`.
    fn default() -> Self {
        Self { open: "<think>".to_owned(), close: "</think>".to_owned() }
    }
}

impl ReasoningTags {
    /// Whether a rendered prompt ends inside reasoning, so that the model's first token belongs to
    /// it: the opening tag is the last thing in the prompt.
    pub fn opened_by(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(&self.open)
    }
}

/// A piece of a model's output.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// Text between the reasoning tags.
    Reasoning(String),
    /// Text outside of them.
    Content(String),
    /// A call of a tool begins.
    CallStart {
        /// Name of the tool.
        name: String,
    },
    /// More of the arguments of the call that began last, as JSON.
    CallArguments(String),
}

/// Splits a model's output into reasoning and content, wherever the stream cuts the tags.
///
/// Tags are not part of the pieces, nor are line breaks next to a tag: templates write
/// `<think>\n…\n</think>\n\n…` and add them again when the turn becomes history. A closing tag in
/// content and an opening tag in reasoning are text.
///
/// The pieces, joined by kind, do not depend on how the text is cut into pushes.
#[derive(Debug, Clone)]
pub struct ReasoningSplitter {
    tags: ReasoningTags,
    inside: bool,
    /// A tag was the last thing seen, line breaks aside.
    after_tag: bool,
    /// Line breaks that a tag may follow, then what may be the beginning of that tag.
    held: String,
}

impl ReasoningSplitter {
    /// A splitter at the start of a model's turn. `inside` says that the prompt has opened the
    /// reasoning already, see [`ReasoningTags::opened_by`].
    pub fn new(tags: ReasoningTags, inside: bool) -> Self {
        Self { tags, inside, after_tag: inside, held: String::new() }
    }

    /// Whether the text would now be taken for reasoning.
    pub fn in_reasoning(&self) -> bool {
        self.inside
    }

    /// Takes the next piece of text and returns what became certain, in order.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.held.push_str(text);
        loop {
            let tag = self.next_tag();
            // An empty tag is none.
            let Some(start) = self.held.find(tag).filter(|_| !tag.is_empty()) else {
                break;
            };
            let rest = self.held.split_off(start + tag.len());
            self.held.truncate(start);
            let before = std::mem::replace(&mut self.held, rest);
            self.emit(before.trim_end_matches('\n'), &mut pieces);
            self.inside = !self.inside;
            self.after_tag = true;
        }
        let uncertain = partial_marker(&self.held, &[self.next_tag()]);
        let certain = self.held[..self.held.len() - uncertain].trim_end_matches('\n');
        let rest = self.held.split_off(certain.len());
        let certain = std::mem::replace(&mut self.held, rest);
        self.emit(&certain, &mut pieces);
        pieces
    }

    /// The stream has ended: returns the text held back. The splitter stays where it is, inside or
    /// outside of reasoning.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let held = std::mem::take(&mut self.held);
        self.emit(&held, &mut pieces);
        pieces
    }

    /// The tag that would end the present kind of text.
    fn next_tag(&self) -> &str {
        if self.inside { &self.tags.close } else { &self.tags.open }
    }

    fn emit(&mut self, mut text: &str, pieces: &mut Vec<Piece>) {
        if self.after_tag {
            text = text.trim_start_matches('\n');
        }
        if text.is_empty() {
            return;
        }
        self.after_tag = false;
        pieces.push(if self.inside {
            Piece::Reasoning(text.to_owned())
        } else {
            Piece::Content(text.to_owned())
        });
    }
}
