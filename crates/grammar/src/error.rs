//! Why there is no grammar.

/// Result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of this crate. Every message is a single line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The tokenizer's tokens are no strings of bytes.
    #[error("grammars need a byte-level vocabulary (GPT-2, Qwen, Clover); this tokenizer has another")]
    Vocabulary,

    /// The source is too long to be looked at.
    #[error("the source has {bytes} bytes; at most {limit} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The most.
        limit: usize,
    },

    /// The source is wrong, asks for what cannot be enforced, or costs too much.
    #[error("{0}")]
    Source(String),
}

/// Folds a message of the library into one line of bounded length.
pub(crate) fn one_line(message: impl ToString) -> String {
    const LONGEST: usize = 400;
    let message = message.to_string();
    // What the library says of a panic of its own: of no use to who wrote the source.
    let message = message.split("<backtrace>").next().unwrap_or_default();
    let mut line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}
