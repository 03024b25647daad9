//! HTTP over any [`Executor`](shamrock_model::Executor): APIs that people's tools already speak.
//!
//! ```text
//!  clients ──► axum handlers ── prompts ──► Engine (one thread) ──► Executor
//!     ▲             │   ▲                      │
//!     └── JSON, SSE ┘   └──── text, events ────┘
//! ```
//!
//! - [`Engine`] owns the executor. It puts the next steps of all answers into one pass, keeps
//!   states for prompts that begin alike, and sheds load it has no place for.
//! - [`App`] holds the routes: OpenAI's chat and text completions, models, health, metrics.
//! - [`serve`] runs them on a socket, until it is told to stop.
//!
//! Nothing here is global: a process can hold several servers.

mod api;
mod engine;
mod metrics;
mod page;
mod random;
mod serve;

pub use api::{App, ServerOptions};
pub use engine::{Engine, EngineOptions, Health, Listener, Refusal, Request, SavedStates, Status};
pub use serve::serve;
