//! One binary for all integration tests, which link and start faster that way.

mod common;
mod convert;
mod failures;
mod quantize;
mod synth;
