//! Tests of the server: the engine over made-up logits, the API over the model in the box.

mod dialects;
mod engine;
mod faults;
mod http;
mod openapi;
mod parameters;
mod structured;
mod support;
