//! What the tests of the other crates share: the conformance fixtures, and what every backend has
//! to hold. Everything here panics on failure: it serves tests.
//!
//! | module | owns |
//! |---|---|
//! | [`fixtures`] | the files, wherever this checkout has them |
//! | [`backend`] | a backend under test: how it opens a model, and how far its results may lie apart |
//! | [`laws`] | what holds between the passes of one executor |
//! | [`conformance`] | what holds between an executor and the oracle's numbers |
//!
//! A backend's tests are two calls:
//! ```no_run
//! # use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
//! use shamrock_testkit::{Backend, conformance, laws};
//!
//! let backend = Backend::new("mine", |model, max_context| {
//!     # type MyExecutor = ReferenceExecutor;
//!     # type MyOptions = ReferenceOptions;
//!     MyExecutor::new(model, MyOptions { max_context, ..MyOptions::DEFAULT })
//! });
//! laws::all(&backend);
//! conformance::all(&backend);
//! ```

pub mod backend;
pub mod conformance;
pub mod fixtures;
pub mod laws;

pub use backend::{Backend, Tolerance};
pub use fixtures::*;
