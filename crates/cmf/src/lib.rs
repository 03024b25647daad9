//! CMF v2 model containers: reader, writer, verifier and weight encodings.
//!
//! A CMF file is one memory-mappable file: a fixed envelope, a JSON header, a binary
//! directory of tensors, the tensor payloads and the bytes of a `tokenizer.json`. The byte
//! layout is told in the repository's `docs/format.md`. This crate knows nothing of models: what a header field or
//! a tensor means is its user's business.
//!
//! - [`Container`] maps a file and checks its metadata; no weight byte is read until somebody
//!   looks at a [`Tensor`]. A file is valid or opening it is an [`Error`] that says what is
//!   wrong and where.
//! - [`Encoding`] names how a tensor's numbers are stored. [`encode()`] makes payloads,
//!   [`Tensor::decode`] and [`Tensor::decode_rows`] read them back, and the modules [`q8_row`],
//!   [`q8_2f`], [`q4_tiled`] and [`q4tp`] give typed views for kernels that compute on payloads
//!   in place.
//! - [`Writer`] makes a file whose layout is fixed up front, so tensors can be written in any
//!   order and one at a time; an unfinished file never opens.
//! - [`hash64`] and [`Hasher64`] are the format's checksum; [`Container::verify`] checks them all.
//!
//! ```
//! use shamrock_cmf::{Container, Encoding, TensorSpec, Writer, encode};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("tiny.cmf");
//! let weight: Vec<f32> = (0..128).map(|i| i as f32 / 64.0 - 1.0).collect();
//! let spec = TensorSpec { name: "w".into(), encoding: Encoding::Q4tp, shape: vec![2, 64] };
//!
//! let mut writer = Writer::create(&path, serde_json::json!({ "arch": {} }), b"", vec![spec])?;
//! writer.write(0, &encode(Encoding::Q4tp, 2, 64, &weight)?)?;
//! writer.finish()?;
//!
//! let container = Container::open(&path)?;
//! let decoded = container.get("w").expect("just written").decode()?;
//! assert!(weight.iter().zip(&decoded).all(|(a, b)| (a - b).abs() < 0.1));
//! # Ok(())
//! # }
//! ```

mod container;
mod directory;
mod encoding;
mod envelope;
mod error;
mod hash;
mod index;
mod verify;
mod writer;

pub use container::{Container, Hint, Tensor, TensorId, Tensors};
pub use encoding::{Encoding, decode, decode_rows, encode, encode_into, q4_tiled, q4tp, q8_2f, q8_row};
pub use envelope::Features;
pub use error::{EncodingError, Error, FormatError, TensorProblem, WriteError};
pub use hash::{Hasher64, hash64};
pub use verify::{Problem, VerifyReport};
pub use writer::{TensorSpec, TensorWriter, Writer};
