//! The fast CPU executor.
//!
//! Weights stay where they are, in the container's mapping, in the file's own encoding; they are
//! unpacked a few rows at a time into first-level cache and multiplied with every row of the pass.
//! All rows of all steps go through a projection together, so a pass reads each weight byte once.
//!
//! | module | owns |
//! |---|---|
//! | `kernel` | the inner loops, once portable and once per instruction set |
//! | `pool`, `cores` | the threads, and where they run |
//! | `linear` | weights as panels, activations as operands, and their product over the threads |
//! | `gdn`, `attention`, `moe`, `head` | the stages of a layer, over all rows of a pass |
//! | `pass` | one pass: the layers in order |
//! | `state` | what is committed, layer by layer |
//! | `residency`, `memory` | experts within a memory budget; what a model needs and the machine has |
//! | `machine` | peaks of the machine, for benchmarks |
//! | `executor` | sequences and the [`Executor`](shamrock_model::Executor) seam |
//!
//! # Results
//! A row's result depends neither on the rows that share its pass nor on the number of threads:
//! every sum has a fixed order. [`Precision::F32`] computes with the decoded weights as they are.
//! [`Precision::Int8`] rounds the inputs of quantised matrices to 8 bits per 32 columns; its
//! integer sums are exact, so that every instruction set gives the same bits.

mod attention;
mod cores;
mod executor;
mod gdn;
mod head;
#[doc(hidden)]
pub mod kernel;
#[doc(hidden)]
pub mod linear;
mod machine;
mod math;
mod memory;
mod moe;
mod pass;
mod pool;
mod residency;
mod state;

pub use executor::CpuExecutor;
pub use machine::{Machine, processor_time};
pub use memory::{Memory, anonymous_memory, available_memory};

/// How inputs of quantised matrices are multiplied. Matrices stored as floats (the router among
/// them) are always multiplied in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Inputs rounded to 8-bit integers, one scale per row and 32 columns.
    #[default]
    Int8,
    /// Inputs as they are: the path that holds the conformance tolerances.
    F32,
}

/// How keys and values of committed rows are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvPrecision {
    /// Half precision: 2 bytes a number.
    #[default]
    F16,
    /// Single precision: the path that holds the conformance tolerances.
    F32,
}

/// Options of [`CpuExecutor`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Positions a sequence may reach; `None` takes the model's own limit.
    pub max_context: Option<usize>,
    /// Worker threads; `None` takes one per physical core that the process may use.
    pub threads: Option<usize>,
    /// Keep each worker thread on a core of its own (Linux only). The thread that runs passes stays free.
    pub pin: bool,
    /// Arithmetic of quantised matrices.
    pub precision: Precision,
    /// Storage of keys and values.
    pub kv: KvPrecision,
    /// Bytes of weights to keep in memory: experts beyond it are let go of, the least recently used
    /// first, and fetched again ahead of their use. `None` leaves it all to the system, which is
    /// faster where everything fits.
    pub memory_budget: Option<u64>,
}
