//! What can go wrong while a model file is made.

use std::io;
use std::path::PathBuf;

use shamrock_cmf::Encoding;

/// Result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of the convert crate; each message is one line that names the file and the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to read a file of the checkpoint.
    #[error("{}: cannot {action}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done to it.
        action: &'static str,
        /// The system's answer.
        error: io::Error,
    },
    /// The caller's progress function asked for it.
    #[error("stopped at {} of {} MB; nothing was written", done_bytes / 1_000_000, total_bytes / 1_000_000)]
    Stopped {
        /// Payload bytes that had been written.
        done_bytes: u64,
        /// Payload bytes of the whole file.
        total_bytes: u64,
    },
    /// A folder that has no weights.
    #[error(
        "{}: holds neither model.safetensors nor model.safetensors.index.json; \
         give the folder of a Hugging Face checkpoint",
        dir.display()
    )]
    NoWeights {
        /// The folder.
        dir: PathBuf,
    },
    /// A JSON file of the checkpoint that does not say what it should.
    #[error("{}: {problem}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        problem: String,
    },
    /// A configuration that describes no possible model of the family.
    #[error("{}: {error}", path.display())]
    Config {
        /// The checkpoint folder or model file.
        path: PathBuf,
        /// The field and its problem.
        error: Box<shamrock_model::Error>,
    },
    /// A file that is not safetensors, or only a part of one.
    #[error(
        "{}: not a whole safetensors file ({error}); it is truncated or damaged, download it again",
        path.display()
    )]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// The parser's finding.
        error: Box<safetensors::SafeTensorError>,
    },
    /// Two tensors that mean the same.
    #[error(
        "{}: tensor {second} is another name of {first} in {}; keep one of them",
        second_file.display(), first_file.display()
    )]
    Duplicate {
        /// Name met first.
        first: String,
        /// Its file.
        first_file: PathBuf,
        /// Name met again.
        second: String,
        /// Its file.
        second_file: PathBuf,
    },
    /// A tensor that the configuration calls for is in no file of the checkpoint.
    #[error(
        "{}: tensor {tensor} {expected:?} is missing from the checkpoint; \
         check that every shard is there and that config.json belongs to it",
        dir.display()
    )]
    MissingTensor {
        /// The checkpoint folder.
        dir: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Shape that the configuration implies.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the configuration implies.
    #[error("{}: tensor {tensor} has shape {found:?}, config.json calls for {expected:?}", path.display())]
    TensorShape {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape that the configuration implies.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a type that is not imported.
    #[error(
        "{}: tensor {tensor} is stored as {found}; only F32, F16 and BF16 are imported, \
         convert the checkpoint to bf16 first",
        path.display()
    )]
    TensorType {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// The safetensors type.
        found: String,
    },
    /// A tensor whose bytes do not match the hash that the file stores for it.
    #[error("{}: tensor {tensor} does not match its stored hash; the file is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
    },
    /// A configuration with absurd numbers.
    #[error(
        "the configuration calls for about {count} tensors, the limit is {limit}; \
         check num_hidden_layers and num_experts"
    )]
    TooManyTensors {
        /// Tensors called for.
        count: usize,
        /// Tensors supported.
        limit: usize,
    },
    /// A matrix that the asked encoding cannot hold.
    #[error("tensor {tensor}: {problem}; choose {hint}")]
    Unfit {
        /// Name of the tensor.
        tensor: String,
        /// Why not.
        problem: String,
        /// The option to choose instead.
        hint: &'static str,
    },
    /// A value that the asked encoding cannot hold.
    #[error("{}: tensor {tensor}: {error}", path.display())]
    Encode {
        /// The file that the value came from.
        path: PathBuf,
        /// Name of the tensor.
        tensor: String,
        /// The value and its place.
        error: Box<shamrock_cmf::Error>,
    },
    /// An encoding that is not offered for its tensors.
    #[error("{option} {found} is not offered; choose one of {choices}")]
    Recipe {
        /// The option, as the command line spells it.
        option: &'static str,
        /// What was asked for.
        found: Encoding,
        /// What can be asked for.
        choices: &'static str,
    },
    /// A geometry that cannot be made.
    #[error("geometry: {0}")]
    Geometry(String),
    /// Input and output are the same file.
    #[error("{}: would be overwritten by its own re-encoding; write to another name", path.display())]
    SameFile {
        /// The file.
        path: PathBuf,
    },
    /// A model file cannot be read.
    #[error(transparent)]
    Model(#[from] shamrock_model::Error),
    /// A model file cannot be read or written.
    #[error(transparent)]
    Container(#[from] shamrock_cmf::Error),
}
