//! What can go wrong between a prompt and its answer.

use crate::options::Mode;

/// Result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of generation. Tokens handed to the sink before an error stay valid.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option is out of its range.
    #[error("option {option}: {problem}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What is wrong and what is allowed.
        problem: String,
    },

    /// A mode that previews, asked of a plain causal trunk.
    #[error("mode {0} needs a block-diffusion model; this one has no block record, use mode causal")]
    NotBlockDiffusion(Mode),

    /// There is nothing to answer.
    #[error("the prompt is empty: at least one token is needed")]
    EmptyPrompt,

    /// The prompt holds an id that the model does not know.
    #[error(
        "prompt token {index} has id {id}, outside the vocabulary of {vocab}: is this the model's tokenizer?"
    )]
    PromptToken {
        /// Index in the prompt.
        index: usize,
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab: usize,
    },

    /// The prompt leaves no room for an answer.
    #[error(
        "the prompt has {tokens} tokens but the context holds {limit}, which must fit the answer too; \
         shorten the prompt or raise the context length"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions of the context.
        limit: usize,
    },

    /// No id has a usable logit at a response position.
    #[error(
        "no token can be chosen at response position {position}: every logit is forbidden or not a number"
    )]
    NothingToChoose {
        /// 1-based response position.
        position: u32,
    },

    /// The executor returned another number of scored rows than was asked for.
    #[error("executor returned {found} scored rows where {expected} were asked for")]
    MissingScores {
        /// Rows asked for.
        expected: usize,
        /// Rows that came back.
        found: usize,
    },

    /// A grammar cannot be followed.
    #[error("the grammar of the answer cannot be followed: {problem}")]
    Grammar {
        /// Why not, in a line.
        problem: String,
    },

    /// The executor failed.
    #[error(transparent)]
    Model(#[from] shamrock_model::Error),
}
