//! One module per command, each with its arguments and a `run`.

mod advise;
pub mod bench;
pub mod completions;
pub mod convert;
pub mod eval;
pub mod info;
pub mod logits;
pub mod man;
pub mod ppl;
pub mod pull;
pub mod quantize;
pub mod run;
pub mod serve;
pub mod synth;
pub mod verify;
