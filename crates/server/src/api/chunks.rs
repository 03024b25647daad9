//! What chat and text completions share of their replies, which are whole or come in chunks.

use axum::Json;
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::api::Head;
use crate::api::answer::Ended;
use crate::api::error::{ApiError, Dialect, Result};
use crate::api::usage::Usage;

/// What a stream has beside the answer.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct StreamOptions {
    /// End with a chunk that carries the usage.
    include_usage: Option<bool>,
    /// Padding against traffic analysis; must be off.
    include_obfuscation: Option<bool>,
}

impl StreamOptions {
    /// Whether the usage is wanted; checks that nothing else is.
    pub(crate) fn usage(options: Option<StreamOptions>, streaming: bool) -> Result<bool> {
        let StreamOptions { include_usage, include_obfuscation } = options.unwrap_or_default();
        if include_obfuscation == Some(true) {
            let error = ApiError::field("stream_options.include_obfuscation", "is not supported");
            return Err(error.code("unsupported_value"));
        }
        let include_usage = include_usage.unwrap_or(false);
        if include_usage && !streaming {
            return Err(ApiError::field("stream_options", "needs `stream`"));
        }
        Ok(include_usage)
    }
}

/// A reply that is not streamed.
pub(crate) fn whole(
    head: &Head,
    kind: &str,
    choices: Vec<Value>,
    usage: &Usage,
    passes: Vec<Value>,
) -> Response {
    let mut object = head.object(kind);
    object["choices"] = choices.into();
    object["usage"] = usage.openai();
    if !passes.is_empty() {
        object["shamrock"] = json!({ "events": passes });
    }
    Json(object).into_response()
}

/// A pass with the number of its answer.
pub(crate) fn with_choice(index: usize, mut pass: Value) -> Value {
    pass["choice"] = index.into();
    pass
}

/// The chunks of one reply.
pub(crate) struct Chunks {
    head: Head,
    kind: &'static str,
    include_usage: bool,
    usage: Usage,
}

impl Chunks {
    pub(crate) fn new(head: Head, kind: &'static str, include_usage: bool, usage: Usage) -> Chunks {
        Chunks { head, kind, include_usage, usage }
    }

    fn object(&self, choices: Value) -> Value {
        let mut object = self.head.object(self.kind);
        object["choices"] = choices;
        if self.include_usage {
            object["usage"] = Value::Null;
        }
        object
    }

    /// A chunk about one answer.
    pub(crate) fn choice(&self, choice: Value) -> Event {
        data(&self.object(json!([choice])))
    }

    pub(crate) fn pass(&self, index: usize, pass: Value) -> Event {
        let mut chunk = self.object(json!([]));
        chunk["shamrock"] = with_choice(index, pass);
        data(&chunk)
    }

    /// An answer has ended.
    pub(crate) fn count(&mut self, index: usize, ended: &Ended) {
        self.usage.add(index, ended);
    }

    /// What follows the last answer's end.
    pub(crate) fn end(&self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.include_usage {
            let mut chunk = self.object(json!([]));
            chunk["usage"] = self.usage.openai();
            events.push(data(&chunk));
        }
        events.push(Event::default().data("[DONE]"));
        events
    }

    pub(crate) fn error(error: &ApiError) -> Vec<Event> {
        vec![data(&error.body(Dialect::OpenAi))]
    }
}

/// An event with JSON data and no name.
fn data(value: &Value) -> Event {
    Event::default().data(value.to_string())
}
