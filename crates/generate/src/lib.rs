//! From a prompt to an answer: the generation modes, written once over
//! [`Executor`](shamrock_model::Executor) and knowing neither a backend nor text.
//!
//! | mode | how an answer is made |
//! |---|---|
//! | [`Mode::Denoise`] | a block of masks is previewed until every row is fixed, then committed |
//! | [`Mode::Draft`] | a preview proposes, a scored commit verifies, the rest is rewound |
//! | [`Mode::Causal`] | the trunk's ordinary decoding, one token a pass |
//! | [`Mode::Auto`] | exact drafting or causal decoding, whatever is faster now |
//!
//! A [`Session`] is one conversation on one executor sequence. [`Session::generate`] runs an answer
//! to its end; [`Session::start`] gives the same answer as a [`Generation`], a state machine which
//! says what the next pass is ([`Generation::step`]) and takes its result
//! ([`Generation::absorb`]), so that a scheduler can put many answers into one pass.
//!
//! Whoever listens gets an [`Event`] for every pass and every token, and can end the answer after
//! each of them. Events serialise to JSON lines.
//!
//! ```
//! use std::ops::ControlFlow;
//! use shamrock_generate::{Event, Options, Session};
//! use shamrock_model::Executor;
//! # use shamrock_generate::testing::ScriptedExecutor;
//! # fn main() -> Result<(), shamrock_generate::Error> {
//! # let mut executor = ScriptedExecutor::new(1);
//! let options = Options { max_tokens: 20, ..Options::for_model(executor.config()) };
//! let mut session = Session::new();
//! let outcome = session.generate(&mut executor, &[3, 1, 4], &options, &mut |event| {
//!     if let Event::Token { id, .. } = event {
//!         print!("{id} ");
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! println!("{} tokens in {} passes", outcome.tokens.len(), outcome.stats.passes);
//! session.close(&mut executor);
//! # Ok(())
//! # }
//! ```

mod answer;
mod causal;
mod choice;
mod constraint;
mod denoise;
mod draft;
mod error;
mod event;
mod generation;
mod history;
mod lookahead;
mod options;
mod outcome;
mod pace;
pub mod rule;
mod sampling;
mod savings;
mod session;
#[cfg(feature = "testing")]
pub mod testing;

pub use constraint::{Constraint, Grammar, Matcher};
pub use error::{Error, Result};
pub use event::{Alternative, Event, PassEvent, Sink, Work};
pub use generation::Generation;
pub use options::{Accept, Mode, Options};
pub use outcome::{Finish, Outcome, Stats};
pub use pace::Pace;
pub use rule::Rule;
pub use sampling::Sampling;
pub use savings::{Saving, Savings};
pub use session::{Session, SessionOptions, reusable};
