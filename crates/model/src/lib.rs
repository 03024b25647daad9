//! The Clover family of block-diffusion language models.
//!
//! | module | owns |
//! |---|---|
//! | [`config`] | geometry, block-diffusion record and generation defaults, from a Hugging Face folder or a CMF header |
//! | [`weights`] | tensors bound by name, with shape and encoding checks |
//! | [`routing`] | expert choice and the block coreset, shared by every executor that routes on the host |
//! | [`shaping`], [`pick`] | penalties, forbidden ids and ramps; how a row of logits becomes a pick |
//! | [`executor`] | the seam: two verbs, *preview* and *commit*, over explicit sequences |
//! | [`sequences`] | the bookkeeping of sequences and snapshots that every executor holds |
//! | [`plan`] | how the rows of a pass are laid out |
//! | [`state`], [`state_file`] | a committed state in the plain host form, and in a file |
//! | [`math`] | small operators over rows that the executors on the host share |
//! | [`mod@reference`] | the plain f32 executor that defines what every other one must compute |
//!
//! The mathematics is written down in `docs/architecture.md`.

pub mod config;
mod error;
pub mod executor;
mod file;
pub mod math;
pub mod pick;
pub mod plan;
pub mod reference;
pub mod routing;
pub mod sequences;
pub mod shaping;
pub mod state;
pub mod state_file;
pub mod weights;

pub use config::{Config, Controls, LayerKind};
pub use error::{Error, Result};
pub use executor::{Executor, Limits, Part, Pass, PassStats, Score, Scored, SeqId, SnapshotId, Step};
pub use file::ModelFile;
pub use pick::{Pick, PickPart};
pub use plan::PlannedPart;
pub use sequences::{Sequence, Sequences};
pub use shaping::Shaping;
pub use state::{LayerState, SequenceState};
pub use state_file::{Origin, StateFileError, StateReader, StateWriter};
pub use weights::Weights;
