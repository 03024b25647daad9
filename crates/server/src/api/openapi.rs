//! `GET /openapi.json`.

pub(crate) mod bodies;
pub(crate) mod replies;

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use utoipa::OpenApi;

use crate::api::error::Dialect;
use crate::api::{App, chat, completions, messages, models, probes, responses};

/// The API described.
#[derive(OpenApi)]
#[openapi(
    info(title = "shamrock", description = "Block-diffusion language models over APIs that exist already"),
    paths(
        chat::chat,
        completions::completions,
        messages::messages,
        messages::count_tokens,
        responses::responses,
        models::list,
        models::one,
        probes::health,
        probes::metrics
    ),
    components(schemas(replies::ErrorReply, replies::MessagesErrorReply))
)]
struct Description;

/// What goes wrong with any request that has a body.
const ERRORS: [(u16, &str); 9] = [
    (400, "A field that cannot be honoured, a schema that cannot be enforced, or a prompt that is too long"),
    (404, "Another model is served"),
    (408, "The body did not come in time"),
    (413, "The body is too large"),
    (415, "The body is not JSON"),
    (429, "The queue is full; Retry-After says when to come again"),
    (500, "The engine failed on the request"),
    (503, "The server is shutting down, or its engine has stopped"),
    (504, "No end in time"),
];

/// The OpenAPI document.
pub(crate) async fn document(State(app): State<Arc<App>>) -> Json<Value> {
    let mut document = serde_json::to_value(Description::openapi()).unwrap_or_default();
    let keyed = app.options.api_key.is_some();
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        if !path.starts_with("/v1/") {
            continue;
        }
        let errors = match Dialect::of(path) {
            Dialect::OpenAi => "#/components/schemas/ErrorReply",
            Dialect::Anthropic => "#/components/schemas/MessagesErrorReply",
        };
        for operation in item.as_object_mut().into_iter().flat_map(|item| item.values_mut()) {
            let mut add = |status: u16, description: &str| {
                operation["responses"][status.to_string()] = json!({
                    "description": description,
                    "content": { "application/json": { "schema": { "$ref": errors } } },
                });
            };
            if keyed {
                add(401, "The API key is missing or wrong");
            }
            if operation_takes_a_body(path) {
                ERRORS.iter().for_each(|&(status, description)| add(status, description));
            } else if path.contains('{') {
                add(404, "Another model is served");
            }
            if keyed {
                operation["security"] = json!([{ "bearer": [] }, { "key": [] }]);
            }
        }
    }
    if keyed {
        document["components"]["securitySchemes"] = json!({
            "bearer": { "type": "http", "scheme": "bearer" },
            "key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
        });
    }
    Json(document)
}

fn operation_takes_a_body(path: &str) -> bool {
    !path.starts_with("/v1/models")
}
