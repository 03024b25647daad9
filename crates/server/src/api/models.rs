//! `GET /v1/models`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::api::error::Dialect;
use crate::api::openapi::replies;
use crate::api::{App, decimal, reply};

/// Lists the one model.
#[utoipa::path(get, path = "/v1/models", responses((status = 200, description = "A list of models", body = replies::ModelsReply)))]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [app.model()] }))
}

/// Describes it.
#[utoipa::path(
    get,
    path = "/v1/models/{id}",
    params(("id" = String, Path, description = "Name of the model")),
    responses((status = 200, description = "The model", body = replies::ModelReply))
)]
pub(crate) async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    reply(Dialect::OpenAi, app.check_model(Some(&id)).map(|()| Json(app.model()).into_response()))
}

impl App {
    fn model(&self) -> Value {
        let config = self.engine.config();
        json!({
            "id": self.options.name,
            "object": "model",
            "created": self.created,
            "owned_by": "shamrock",
            "shamrock": {
                "backend": self.engine.backend(),
                "max_context": self.engine.limits().max_context,
                "mode": self.options.defaults.mode,
                "block_size": config.block.as_ref().map(|block| block.block_size),
                "threshold": config.block.as_ref().map(|block| decimal(block.threshold)),
            },
        })
    }
}
