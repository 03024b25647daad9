//! `GET /openapi.json`.

use axum::Json;
use utoipa::OpenApi;

use crate::api::{chat, completions, messages, models, probes, responses};

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
    )
)]
struct Description;

/// The OpenAPI document.
pub(crate) async fn document() -> Json<utoipa::openapi::OpenApi> {
    Json(Description::openapi())
}
