//! What can go wrong between text and token ids.

/// An error of this crate. Every message is a single line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a `tokenizer.json` that the tokenizers library can load.
    #[error("tokenizer.json: {0}; the file is damaged or of an unknown kind")]
    InvalidTokenizer(String),

    /// The tokenizer failed on a text it was asked to encode.
    #[error("cannot encode {bytes} bytes of text: {reason}")]
    Encode {
        /// Length of the text in bytes.
        bytes: usize,
        /// What the tokenizer said.
        reason: String,
    },

    /// The tokenizer failed on ids it was asked to decode.
    #[error("cannot decode {tokens} tokens: {reason}")]
    Decode {
        /// How many ids were given.
        tokens: usize,
        /// What the tokenizer said.
        reason: String,
    },

    /// A conversation was given to a model that knows no conversations.
    #[error("the model file carries no chat template; give a plain text instead of messages")]
    NoChatTemplate,

    /// The chat template is not valid, or failed on this conversation.
    #[error("chat template, line {line}: {reason}")]
    Template {
        /// Line of the template source, from 1; 0 where the engine names none.
        line: usize,
        /// What the template engine said.
        reason: String,
    },

    /// The template called `raise_exception`: it does not accept this conversation.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),

    /// The template used up the work that a conversation of this size may cost.
    #[error(
        "chat template, line {line}: stopped after {steps} steps; \
         the template loops or its output explodes"
    )]
    TemplateTooCostly {
        /// Line that was being rendered, from 1; 0 where the engine names none.
        line: usize,
        /// The budget; a step is a node of the template that is evaluated, or 16 bytes of data.
        steps: u64,
    },

    /// The messages use every character that could stand in for a control token's.
    #[error(
        "the messages contain every reserved code point (U+FDD0 to U+FDEF and plane 16), \
         so control tokens in them cannot be told apart; remove those characters"
    )]
    NoFreeSentinel,
}

/// Folds a message of a library into one line.
pub(crate) fn one_line(message: impl ToString) -> String {
    let message = message.to_string();
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}
