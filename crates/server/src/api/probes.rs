//! `GET /health` and `GET /metrics`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::api::App;
use crate::api::openapi::replies;
use crate::engine::Status;

/// Tells whether the engine makes progress: 200 if it does and takes requests, 503 otherwise.
#[utoipa::path(
    get,
    path = "/health",
    responses(
        (status = 200, description = "Ready", body = replies::HealthReply),
        (status = 503, description = "Stalled, draining or stopped", body = replies::HealthReply)
    )
)]
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let health = app.engine.health();
    let status = match health.status {
        Status::Ok => StatusCode::OK,
        Status::Stalled | Status::Draining | Status::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = json!({
        "status": health.status,
        "model": app.options.name,
        "active": health.active,
        "queued": health.queued,
        "heartbeat_age_ms": health.heartbeat_age.map(|age| age.as_millis() as u64),
    });
    (status, Json(body)).into_response()
}

/// Metrics in the Prometheus text format.
#[utoipa::path(get, path = "/metrics", responses((status = 200, description = "Prometheus text format", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.engine.metrics())
}
