//! What can go wrong between a model file and a pass.

use crate::executor::{SeqId, SnapshotId};

/// Result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of the model crate; each message is one line that names the place.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The container itself is damaged or unreadable.
    #[error(transparent)]
    Container(#[from] shamrock_cmf::Error),

    /// A configuration field is missing, of the wrong type, or out of range.
    #[error("{source_name}: {field}: {problem}")]
    Config {
        /// Where the configuration came from (`config.json`, `CMF header`, ...).
        source_name: String,
        /// Dotted path of the field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },

    /// A tensor the configuration calls for is not in the file.
    #[error("{file}: tensor {tensor} is missing (expected shape {expected:?})")]
    MissingTensor {
        /// Model file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Shape the configuration implies.
        expected: Vec<usize>,
    },

    /// A tensor has another shape than the configuration implies.
    #[error("{file}: tensor {tensor} has shape {found:?}, the configuration calls for {expected:?}")]
    TensorShape {
        /// Model file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape the configuration implies.
        expected: Vec<usize>,
    },

    /// A tensor is stored in an encoding that cannot serve its purpose.
    #[error("{file}: tensor {tensor} is {found}, but {problem}")]
    TensorEncoding {
        /// Model file.
        file: String,
        /// Tensor name.
        tensor: String,
        /// Encoding in the file.
        found: shamrock_cmf::Encoding,
        /// Why this will not do.
        problem: &'static str,
    },

    /// A token id outside the vocabulary.
    #[error("token id {id} at row {row} is outside the vocabulary of {vocab}")]
    TokenId {
        /// The id.
        id: u32,
        /// Row of the step it stands in.
        row: usize,
        /// Vocabulary size.
        vocab: usize,
    },

    /// A pass would run past the context the executor was made for.
    #[error(
        "{needed} positions are needed but the context holds {limit}; shorten the prompt or raise the context length"
    )]
    ContextLength {
        /// Positions needed.
        needed: usize,
        /// Positions available.
        limit: usize,
    },

    /// A preview of a model that was not trained for block diffusion.
    #[error("this model has no block-diffusion record: it runs in causal mode only")]
    NotBlockDiffusion,

    /// A step that asks for something meaningless.
    #[error("invalid step: {0}")]
    Step(String),

    /// The sequence is not (or no longer) open.
    #[error("unknown sequence {0:?}")]
    UnknownSequence(SeqId),

    /// The snapshot is not (or no longer) held.
    #[error("unknown snapshot {0:?}")]
    UnknownSnapshot(SnapshotId),

    /// An earlier commit failed half-way; import a state or close the sequence.
    #[error("sequence {0:?} was lost by a failed commit; import its state again or close it")]
    LostSequence(SeqId),

    /// `rewind` outside what the last rewindable commit covers.
    #[error("cannot rewind to length {asked}: the last rewindable commit covers {from}..={to}")]
    Rewind {
        /// Length asked for.
        asked: usize,
        /// Shortest length that can be had.
        from: usize,
        /// Current length.
        to: usize,
    },

    /// An imported state does not fit the model.
    #[error("imported state does not fit this model: {0}")]
    State(String),

    /// A device has too little memory left for a pass or a state. What was there before is as it was.
    #[error(
        "{backend}: out of device memory{}; end other conversations, or leave more room with --ctx or --vram",
        bytes.map_or(String::new(), |n| format!(" ({n} bytes more were needed)"))
    )]
    DeviceMemory {
        /// Backend name.
        backend: &'static str,
        /// Bytes of the allocation that failed, if one of this crate's.
        bytes: Option<usize>,
    },

    /// A device has failed for good: every pass fails from now on, until the program is started again.
    #[error("{backend}: the device is lost ({problem}); start the program again")]
    DeviceLost {
        /// Backend name.
        backend: &'static str,
        /// What the driver said.
        problem: String,
    },

    /// A device or driver failure of a backend.
    #[error("{backend}: {problem}")]
    Device {
        /// Backend name.
        backend: &'static str,
        /// One line of cause.
        problem: String,
    },
}
