//! Grammars of answers, compiled by [`llguidance`].
//!
//! A [`Compiler`] knows one model's vocabulary. It makes a JSON schema, a set of tools or a Lark grammar
//! into a [`Grammar`] for [`Constraint`](shamrock_generate::Constraint), which holds in every mode.
//!
//! Sources come from anyone. A source has a greatest size, and compiling it, its lexer's memory and
//! each mask have budgets; what exceeds one is an error. Compiling runs on a
//! thread with a stack of its own, deep enough for what the size allows.

mod calls;
mod compiler;
mod dates;
mod error;
mod matcher;
mod schema;
mod vocabulary;

pub use calls::{Calls, Otherwise};
pub use compiler::{Compiler, Source};
pub use error::{Error, Result};
#[doc(no_inline)]
pub use shamrock_generate::Grammar;
