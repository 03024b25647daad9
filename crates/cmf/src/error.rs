//! Everything that can go wrong, in one line each.

use std::io;
use std::path::PathBuf;

use crate::envelope::Features;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a file.
    #[error("{}: cannot {action}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done to it.
        action: &'static str,
        /// The system's answer.
        error: io::Error,
    },
    /// The disk filled up while a file was being written. The partial file is removed.
    #[error(
        "{}: disk full: the whole file needs {needed} bytes; free space there or write elsewhere",
        path.display()
    )]
    DiskFull {
        /// The partial file.
        path: PathBuf,
        /// Size of the finished file in bytes.
        needed: u64,
    },
    /// The file is not a CMF file that this version can read.
    #[error("{}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and where.
        problem: FormatError,
    },
    /// A file changed its length while it was mapped.
    #[error(
        "{}: the file had {mapped} bytes when it was opened and has {now} now; \
         do not modify a model file in use, open it again",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Length at opening, in bytes.
        mapped: u64,
        /// Length now, in bytes.
        now: u64,
    },
    /// A file cannot be written as asked.
    #[error("{}: {problem}", path.display())]
    Write {
        /// The file to be made.
        path: PathBuf,
        /// What is wrong with the request.
        problem: WriteError,
    },
    /// An encoding cannot hold a shape or values, or a payload does not fit its shape.
    #[error(transparent)]
    Encoding(#[from] EncodingError),
}

/// Why bytes are not a CMF file that this version can read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Shorter than the envelope.
    #[error("{len} bytes are too few for the 128-byte CMF envelope; the file is truncated or not a CMF file")]
    TooShort {
        /// File length in bytes.
        len: u64,
    },
    /// The first four bytes are wrong.
    #[error(
        "not a CMF file: starts with {found:02x?}, expected [43, 4d, 46, 01]; \
         a conversion that did not finish looks like this too"
    )]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Another format version.
    #[error("CMF version {found} at byte 4; this reader knows version 2, convert the model again")]
    Version {
        /// The version found.
        found: u32,
    },
    /// Flags are reserved.
    #[error("flags {found:#010x} at byte 8, expected 0; the file is damaged or from a newer writer")]
    Flags {
        /// The flags found.
        found: u32,
    },
    /// The file needs features that this reader does not have.
    #[error(
        "requires features this reader does not have: {missing} (of {required:#x} at byte 12); \
         only plain model files are supported"
    )]
    Features {
        /// The unsupported bits.
        missing: Features,
        /// All required bits.
        required: u32,
    },
    /// Feature bit 0 is clear.
    #[error("feature bit 0 (tensor directory) is clear in {found:#x} at byte 12; the file is damaged")]
    NoDirectoryBit {
        /// All required bits.
        found: u32,
    },
    /// Feature bit 15 and the header disagree.
    #[error(
        "feature bit 15 (block diffusion) is {} but header field arch.block_diffusion is {}; \
         the file is damaged",
        if *.bit { "set" } else { "clear" },
        if *.bit { "absent" } else { "present" }
    )]
    BlockDiffusion {
        /// The state of the bit.
        bit: bool,
    },
    /// A section reaches past the end of the file or into the envelope.
    #[error(
        "{section} section (offset {offset}, {len} bytes) does not lie between the 128-byte envelope \
         and the end of the file at {file_len}; the file is truncated or damaged"
    )]
    Section {
        /// Name of the section.
        section: &'static str,
        /// Its offset in bytes from the start of the file.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// File length in bytes.
        file_len: u64,
    },
    /// Two sections share bytes.
    #[error("{first} and {second} sections overlap at byte {at}; the file is damaged")]
    Overlap {
        /// The section that begins first.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// First shared byte.
        at: u64,
    },
    /// A section that this reader does not know what to do with is not empty.
    #[error(
        "{section} section (offset {offset}, {len} bytes) is present without a supported feature; \
         only plain model files are supported"
    )]
    ForeignSection {
        /// Name of the section.
        section: &'static str,
        /// Its offset in bytes from the start of the file.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// The data section is not page aligned.
    #[error("data section at offset {offset} is not aligned to 4096 bytes; the file is damaged")]
    DataAlignment {
        /// Its offset in bytes from the start of the file.
        offset: u64,
    },
    /// A metadata section does not match its hash.
    #[error(
        "{section} section hashes to {computed:016x}, the envelope says {stored:016x}; the file is damaged"
    )]
    SectionHash {
        /// Name of the section.
        section: &'static str,
        /// The envelope's hash.
        stored: u64,
        /// The hash of the bytes.
        computed: u64,
    },
    /// The header is larger than any real one.
    #[error("header of {len} bytes exceeds the limit of {limit}; the file is damaged")]
    HeaderSize {
        /// Its length in bytes.
        len: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The header is not JSON.
    #[error("header is not valid JSON: {message}")]
    HeaderJson {
        /// The parser's message, with line and column.
        message: String,
    },
    /// The header is JSON but not that of a CMF file.
    #[error("header field {field} is {found}, expected {expected}")]
    HeaderField {
        /// Path of the field.
        field: &'static str,
        /// What is there, shortened.
        found: String,
        /// What should be there.
        expected: &'static str,
    },
    /// The directory's own structure is broken.
    #[error("directory: {what} ({count} tensors, pool at {pool}, {len} bytes); the file is damaged")]
    Directory {
        /// What is wrong.
        what: &'static str,
        /// Claimed number of tensors.
        count: u64,
        /// Claimed offset of the name pool from the directory's start, in bytes.
        pool: u64,
        /// Length of the directory in bytes.
        len: u64,
    },
    /// The name of a tensor is broken.
    #[error("directory record {index}: {what}; the file is damaged")]
    TensorName {
        /// Position in the directory.
        index: u64,
        /// What is wrong.
        what: String,
    },
    /// A tensor record is broken or not supported.
    #[error("tensor {name} (directory record {index}): {problem}")]
    Tensor {
        /// Position in the directory.
        index: u64,
        /// Name of the tensor.
        name: String,
        /// What is wrong with it.
        problem: TensorProblem,
    },
}

/// What is wrong with a tensor's directory record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorProblem {
    /// Another tensor has this name.
    #[error("the name is already taken by record {other}; the file is damaged")]
    Duplicate {
        /// Position of the other tensor.
        other: u64,
    },
    /// The encoding id is unknown or not supported.
    #[error(
        "encoding id {id} ({}) is not supported by this reader; convert the model to one of f32, f16, \
         bf16, q8_row, q8_2f, q4_tiled, q4tp",
        name.unwrap_or("unknown")
    )]
    Encoding {
        /// The id.
        id: u8,
        /// The name of an encoding that others know.
        name: Option<&'static str>,
    },
    /// Too many dimensions.
    #[error("{found} dimensions, the format allows 6; the file is damaged")]
    Rank {
        /// Number of dimensions claimed.
        found: u8,
    },
    /// A dimension beyond the rank is not zero.
    #[error("dimension {dim} is {value} beyond rank {rank}, expected 0; the file is damaged")]
    TrailingDim {
        /// Which dimension.
        dim: usize,
        /// Its value.
        value: u32,
        /// The tensor's rank.
        rank: u8,
    },
    /// The encoding cannot hold the shape.
    #[error("{0}")]
    Shape(EncodingError),
    /// The byte length is not the encoding's for the shape.
    #[error("{found} bytes, but {encoding} {shape:?} takes {expected}; the file is damaged")]
    Length {
        /// Bytes in the record.
        found: u64,
        /// Bytes the encoding needs.
        expected: u64,
        /// The encoding.
        encoding: crate::Encoding,
        /// The shape.
        shape: Vec<usize>,
    },
    /// The payload is not aligned.
    #[error("offset {offset} in the data section is not aligned to 64 bytes; the file is damaged")]
    Alignment {
        /// Offset from the data section's start, in bytes.
        offset: u64,
    },
    /// The payload reaches past the data section.
    #[error(
        "payload (offset {offset}, {len} bytes) passes the end of the data section at {data_len}; \
         the file is truncated or damaged"
    )]
    Range {
        /// Offset from the data section's start, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Length of the data section in bytes.
        data_len: u64,
    },
}

/// Why a file cannot be written as asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The header is not what the format asks for.
    #[error("header: {0}")]
    Header(String),
    /// A tensor specification that the format cannot hold.
    #[error("tensor {name} (number {index}): {what}")]
    Spec {
        /// Position in the list of specifications.
        index: usize,
        /// Name of the tensor.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// The file would exceed what 64-bit offsets or the directory can address.
    #[error("{0}")]
    TooLarge(&'static str),
    /// A payload that does not have the size its specification says.
    #[error("tensor {name}: payload has {found} bytes, its encoding and shape take {expected}")]
    PayloadLength {
        /// Name of the tensor.
        name: String,
        /// Bytes given.
        found: u64,
        /// Bytes the specification needs.
        expected: u64,
    },
    /// A tensor was written before.
    #[error("tensor {name}: written twice")]
    Twice {
        /// Name of the tensor.
        name: String,
    },
    /// Tensors were not written.
    #[error("{count} tensors were not written, the first is {first}")]
    Missing {
        /// How many.
        count: usize,
        /// Name of the first one.
        first: String,
    },
    /// Somebody else is writing the same file.
    #[error("another process is writing this file; wait for it or choose another name")]
    Busy,
}

/// Why an encoding cannot hold a shape or values, or a payload cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodingError {
    /// Not a name of an encoding.
    #[error("unknown encoding {0:?}; expected f32, f16, bf16, q8_row, q8_2f, q4_tiled or q4tp")]
    Name(String),
    /// Not a matrix.
    #[error("{encoding} holds matrices only, not shape {shape:?}")]
    NotMatrix {
        /// The encoding.
        encoding: &'static str,
        /// The shape.
        shape: Vec<usize>,
    },
    /// Columns do not divide into groups.
    #[error("{encoding} needs a multiple of 32 columns, not {cols}")]
    Columns {
        /// The encoding.
        encoding: &'static str,
        /// Number of columns.
        cols: usize,
    },
    /// The size does not fit 64 bits.
    #[error("the byte length of shape {shape:?} overflows")]
    Overflow {
        /// The shape.
        shape: Vec<usize>,
    },
    /// A payload does not have the size of its shape.
    #[error("{encoding} payload of {rows} x {cols} takes {expected} bytes, not {found}")]
    PayloadLength {
        /// The encoding.
        encoding: &'static str,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Bytes needed.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// A buffer of values does not have the size of its shape.
    #[error("{rows} x {cols} values expected, the buffer holds {found}")]
    ValueCount {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Values given.
        found: usize,
    },
    /// A range of rows passes the end of the matrix.
    #[error("rows {start}..{end} of a matrix of {rows} rows")]
    Rows {
        /// First row asked for.
        start: usize,
        /// End of the rows asked for.
        end: usize,
        /// Rows of the matrix.
        rows: usize,
    },
    /// A value that the encoding cannot hold.
    #[error("value {value} at row {row}, column {col} cannot be held by {encoding}")]
    Value {
        /// The encoding.
        encoding: &'static str,
        /// Row of the first such value.
        row: usize,
        /// Its column.
        col: usize,
        /// The value, printed.
        value: String,
    },
}
