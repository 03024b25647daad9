//! Reading request bodies: bounded, JSON only, with errors that name the field.

use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use http_body_util::LengthLimitError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::api::ServerOptions;
use crate::api::error::{ApiError, Result};

/// A JSON body, as large as the server takes and as long under way.
pub(crate) async fn read_json<T: DeserializeOwned>(request: Request, options: &ServerOptions) -> Result<T> {
    let limit = options.max_body;
    // A page of another origin can send a form or plain text without asking first, but not this.
    if !is_json(request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok())) {
        let message = "the body must have the content type application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).code("request_too_large")
    };
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if announced.is_some_and(|bytes: u64| bytes > limit as u64) {
        return Err(too_large());
    }
    let whole = tokio::time::timeout(options.timeout, to_bytes(request.into_body(), limit)).await;
    let whole = whole.map_err(|_| {
        let message = format!("the body did not come within {} s", options.timeout.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message).code("timeout")
    })?;
    let bytes = whole.map_err(|error| {
        let error = error.into_inner();
        if error.is::<LengthLimitError>() {
            return too_large();
        }
        ApiError::new(StatusCode::BAD_REQUEST, format!("the body did not come whole: {error}"))
    })?;
    parse(&bytes)
}

fn is_json(content_type: Option<&str>) -> bool {
    content_type
        .and_then(|value| value.split(';').next())
        .is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json"))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let problem = in_plain_words(&error.into_inner());
        match path.as_str() {
            "." | "?" => ApiError::new(StatusCode::BAD_REQUEST, format!("the body: {problem}")),
            _ => ApiError::field(path, problem),
        }
    })?;
    json.end().map_err(|e| ApiError::new(StatusCode::BAD_REQUEST, format!("the body: {e}")))?;
    Ok(value)
}

/// What is wrong with a value, for people who do not know the types of this program.
pub(crate) fn in_plain_words(problem: &serde_json::Error) -> String {
    let problem = problem.to_string();
    let Some((before, rest)) = problem.split_once("expected ") else { return problem };
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    let (kind, after) = rest.split_at(end);
    let kind = match kind {
        "usize" | "u64" | "u32" | "u8" => "an integer of at least 0",
        "i64" => "an integer from -2^63 to 2^63 - 1",
        "f32" => "a number",
        other => other,
    };
    format!("{before}expected {kind}{after}")
}

/// Fields that are for others than the model.
pub(crate) const NOTED: &[&str] = &["user", "metadata", "safety_identifier", "prompt_cache_key"];

/// Refuses fields that this server does not know, or knows and cannot honour. `null` and the values
/// in `neutral` ask for nothing; fields in `noted` are for others than the model.
pub(crate) fn refuse_rest(
    rest: &Map<String, Value>,
    noted: &[&str],
    neutral: &[(&str, Value)],
) -> Result<()> {
    let asks = |(name, value): &(&String, &Value)| {
        !value.is_null()
            && !noted.contains(&name.as_str())
            && !neutral.iter().any(|(known, same)| known == name && same == *value)
    };
    match rest.iter().find(asks) {
        None => Ok(()),
        Some((name, _)) if neutral.iter().any(|(known, _)| known == name) => {
            Err(ApiError::field(name, "this value is not supported").code("unsupported_value"))
        }
        Some((name, _)) => {
            Err(ApiError::field(name, "this server does not support this field")
                .code("unsupported_parameter"))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Body {
        #[serde(rename = "list")]
        _list: Vec<Item>,
        #[serde(flatten)]
        rest: Map<String, Value>,
    }

    #[derive(Debug, Deserialize)]
    struct Item {
        #[serde(rename = "n")]
        _n: u32,
    }

    #[test]
    fn errors_name_the_place() {
        let param = |json: &str| parse::<Body>(json.as_bytes()).unwrap_err().param;
        assert_eq!(param(r#"{"list": [{"n": 1}, {"n": "x"}]}"#).as_deref(), Some("list[1].n"));
        assert_eq!(param("{"), None);
        assert_eq!(param(r#"{"list": []} x"#), None);
        assert_eq!(param(&"[".repeat(100_000)), None);
    }

    #[test]
    fn only_what_asks_for_nothing_may_be_left_over() {
        let body = |json: Value| parse::<Body>(json.to_string().as_bytes()).unwrap().rest;
        let check = |json: Value| {
            refuse_rest(&body(json), &["user"], &[("store", json!(false))]).map_err(|e| e.param.unwrap())
        };
        assert_eq!(check(json!({"list": [], "user": "me", "store": false, "tools": null})), Ok(()));
        assert_eq!(check(json!({"list": [], "store": true})), Err("store".to_owned()));
        assert_eq!(check(json!({"list": [], "top_kk": 3})), Err("top_kk".to_owned()));
    }
}
