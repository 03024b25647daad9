//! Generation against the conformance runs, against a literal transcript of the specification, and
//! against itself: whatever must not change an answer does not.

mod auto;
mod conformance;
mod constraint;
mod context;
mod endings;
mod modes;
mod sampling;
mod sessions;
mod specification;
mod support;
