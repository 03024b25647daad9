//! The HTTP side: one module per API, over what they share.

mod answer;
mod body;
mod chat;
mod chunks;
mod completions;
mod conversation;
mod error;
mod format;
mod guard;
mod logprobs;
mod messages;
mod models;
mod openapi;
mod params;
mod probes;
mod responses;
mod sequel;
mod stream;
mod tools;
mod usage;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Value, json};
use shamrock_generate::Options;
use shamrock_text::Prompter;

use crate::engine::Engine;
use crate::page;
use crate::random::id;
use error::{ApiError, Dialect, Result};
use format::Grammars;

/// How the server answers.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Name of the model in the API.
    pub name: String,
    /// What an answer is made with where a request does not say.
    pub defaults: Options,
    /// Key that requests to `/v1` must bring; none lets everybody in.
    pub api_key: Option<String>,
    /// Origins whose pages may use the API; `*` lets all.
    pub cors: Vec<String>,
    /// Names of this server, besides `localhost` and all addresses, by which a request may ask for it;
    /// none lets any name pass. Without them a page of a stranger whose name is made to lead here counts
    /// as one of this server's own.
    pub hosts: Option<Vec<String>>,
    /// Most bytes of a body.
    pub max_body: usize,
    /// Most time from a request to the end of its answer.
    pub timeout: Duration,
}

impl ServerOptions {
    /// A model's name and its defaults; nothing else said.
    pub fn new(name: impl Into<String>, defaults: Options) -> ServerOptions {
        ServerOptions {
            name: name.into(),
            defaults,
            api_key: None,
            cors: Vec::new(),
            hosts: None,
            max_body: 8 << 20,
            timeout: Duration::from_secs(600),
        }
    }
}

/// What every handler knows.
pub struct App {
    pub(crate) engine: Engine,
    pub(crate) prompter: Prompter,
    pub(crate) options: ServerOptions,
    grammars: Grammars,
    /// Seconds since 1970.
    created: u64,
}

impl App {
    /// Joins an engine with the text side of its model.
    pub fn new(engine: Engine, prompter: Prompter, options: ServerOptions) -> App {
        App { engine, prompter, options, grammars: Grammars::new(), created: unix_time() }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// All routes.
    pub fn router(self: Arc<App>) -> Router {
        let cors = guard::cors(&self.options.cors);
        Router::new()
            .merge(page::routes())
            .route("/v1/chat/completions", post(chat::chat))
            .route("/v1/completions", post(completions::completions))
            .route("/v1/messages", post(messages::messages))
            .route("/v1/messages/count_tokens", post(messages::count_tokens))
            .route("/v1/responses", post(responses::responses))
            .route("/v1/models", get(models::list))
            .route("/v1/models/{id}", get(models::one))
            .route("/health", get(probes::health))
            .route("/metrics", get(probes::metrics))
            .route("/openapi.json", get(openapi::document))
            .fallback(not_found)
            .method_not_allowed_fallback(not_allowed)
            .layer(from_fn_with_state(self.clone(), guard::authorize))
            .layer(cors)
            .layer(from_fn_with_state(self.clone(), guard::check_host))
            .with_state(self)
    }

    /// Refuses a model that is not served here.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<()> {
        match asked {
            Some(asked) if asked != self.options.name => {
                let message = format!(
                    "The model {asked:?} is not served here; this server has {:?}",
                    self.options.name
                );
                Err(ApiError {
                    param: Some("model".into()),
                    ..ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message)
                })
            }
            _ => Ok(()),
        }
    }

    /// Makes a prompt away from the threads that serve connections: a long one takes its time.
    pub(crate) async fn prompt<T: Send + 'static>(
        &self,
        make: impl FnOnce(&Prompter) -> std::result::Result<T, shamrock_text::Error> + Send + 'static,
    ) -> Result<T> {
        let prompter = self.prompter.clone();
        match tokio::task::spawn_blocking(move || make(&prompter)).await {
            Ok(prompt) => Ok(prompt?),
            Err(error) => {
                tracing::error!(%error, "making a prompt");
                let message = "the prompt could not be made";
                Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message))
            }
        }
    }
}

/// What the objects of one reply share.
struct Head {
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
}

impl Head {
    fn new(app: &App, prefix: &str) -> Head {
        let backend = app.engine.backend();
        Head {
            id: id(prefix),
            created: unix_time(),
            model: app.options.name.clone(),
            fingerprint: format!("shamrock-{}-{backend}", env!("CARGO_PKG_VERSION")),
        }
    }

    fn object(&self, kind: &str) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        })
    }
}

fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// A number as it was written: the shortest decimal that is this f32, not the f64 next to it.
fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn reply(dialect: Dialect, result: Result<Response>) -> Response {
    result.unwrap_or_else(|error| error.response(dialect))
}

async fn not_found(uri: Uri) -> Response {
    let message = format!("there is nothing at {}", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "unknown_url", message).response(Dialect::of(uri.path()))
}

async fn not_allowed(method: Method, uri: Uri) -> Response {
    let message = format!("{} does not take {method}", uri.path());
    let error = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_supported", message);
    error.response(Dialect::of(uri.path()))
}
