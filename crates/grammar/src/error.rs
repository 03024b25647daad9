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

/// What is said of a source that makes the library panic.
pub(crate) const BEYOND: &str = "it cannot be compiled; simpler parts may";

/// A message of the library as one line of bounded length, without what only its makers can read: panics,
/// names of its types, and the grammars into which tools are written.
pub(crate) fn in_plain_words(message: impl ToString) -> String {
    const LONGEST: usize = 400;
    let message = message.to_string();
    if message.contains("panic: ") {
        return BEYOND.to_owned();
    }
    // Lines of the grammar with their numbers, which may be one that the caller has not written.
    let quoted = |line: &&str| line.split_once(" | ").is_some_and(|(n, _)| n.trim().parse::<u32>().is_ok());
    let lines = message.lines().take_while(|line| !quoted(line));
    let mut line = lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
    for (theirs, plain) in [
        ("NoExtensionBias", "no text satisfies it"),
        ("ParserTooComplex", "it allows too much at a time"),
        ("LexerTooComplex", "its texts and patterns are too complex"),
        ("Unimplemented keys:", "not supported here:"),
        (
            "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
            "`oneOf` is supported where its schemas surely exclude one another; else use `anyOf`",
        ),
        (" <non-verbose/>", ""),
        ("Expected f64 for", "a number is needed for"),
    ] {
        line = line.replace(theirs, plain);
    }
    if line.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|&at| line.is_char_boundary(at)).unwrap_or(0);
        line.truncate(end);
        line.push('…');
    }
    line
}
