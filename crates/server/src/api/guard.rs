//! Who may use the API.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use crate::api::App;
use crate::api::error::{ApiError, Dialect};

/// Refuses requests that name another server. A page can make its own name lead to this address (DNS
/// rebinding), and is then of the same origin for its browser; but it cannot lie about the name.
pub(crate) async fn check_host(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if let Some(hosts) = &app.options.hosts {
        let asked = request.uri().authority().map(Authority::as_str);
        let header = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
        if let Some(other) = asked.into_iter().chain(header).find(|name| !is_ours(name, hosts)) {
            let message = format!("this is not {other:?}; its names can be given with --allow-host");
            let error = ApiError::new(StatusCode::MISDIRECTED_REQUEST, "unknown_host", message);
            return error.response(Dialect::of(request.uri().path()));
        }
    }
    next.run(request).await
}

/// Whether a host, with a port or without, is an address, `localhost`, or one of `names`.
fn is_ours(host: &str, names: &[String]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let host = authority.host().trim_end_matches('.');
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    let known = |name: &str| name.eq_ignore_ascii_case(host);
    address.is_ok() || known("localhost") || names.iter().any(|name| known(name))
}

/// Lets requests to `/v1` pass that bring the key, as `Authorization: Bearer` or `x-api-key`.
pub(crate) async fn authorize(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if let Some(key) = &app.options.api_key
        && path.starts_with("/v1/")
        && !presented(request.headers()).is_some_and(|given| same(given, key.as_bytes()))
    {
        let message = "the API key is missing or wrong; send it as Authorization: Bearer KEY or as x-api-key";
        let error = ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message);
        return error.response(Dialect::of(path));
    }
    next.run(request).await
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
    });
    bearer.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes))
}

/// Compares in a time that tells the length at most.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differences) == 0
}

/// Pages of these origins may use the API; those of no other, since without this layer's headers a
/// browser keeps replies from them.
pub(crate) fn cors(origins: &[String]) -> CorsLayer {
    if origins.is_empty() {
        return CorsLayer::new();
    }
    let layer = CorsLayer::new().allow_methods([Method::GET, Method::POST]).allow_headers(Any);
    if origins.iter().any(|origin| origin == "*") {
        layer.allow_origin(Any)
    } else {
        // What cannot stand in a header is no origin of any page.
        layer.allow_origin(AllowOrigin::list(origins.iter().filter_map(|origin| origin.parse().ok())))
    }
}
