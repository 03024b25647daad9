//! Making model files of the Clover family.
//!
//! | function | from | to |
//! |---|---|---|
//! | [`convert`] | a Hugging Face checkpoint folder | a CMF file |
//! | [`quantize`] | a CMF file | a CMF file in other encodings |
//! | [`synth`] | a [`Geometry`] and a seed | a CMF file of random weights |
//!
//! The three share one table, [`family_tensors`]: which tensors a configuration calls for, in
//! which shape, and what part each plays. A [`Recipe`] turns the parts into encodings. Everything
//! that can be checked without reading weights is checked before the first byte is written; then
//! payloads are made and written a batch at a time, so memory is bounded by the largest tensor and
//! not by the model. A run that fails or is killed leaves no file that opens.

mod convert;
mod error;
mod hf;
mod pipeline;
mod plan;
mod quantize;
mod recipe;
mod synth;

pub use convert::convert;
pub use error::{Error, Result};
pub use pipeline::{OnProgress, Progress, Report};
pub use plan::{FamilyTensor, Packed, Role, TensorKind, family_tensors};
pub use quantize::quantize;
pub use recipe::Recipe;
pub use synth::{Geometry, SynthOptions, synth};
