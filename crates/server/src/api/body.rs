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
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
    }
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    };
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse().ok());
    if announced.is_some_and(|bytes: u64| bytes > limit as u64) {
        return Err(too_large());
    }
    let whole = tokio::time::timeout(options.timeout, to_bytes(request.into_body(), limit)).await;
    let whole = whole.map_err(|_| {
        let message = format!("the body did not come within {} s", options.timeout.as_secs());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
    })?;
    let bytes = whole.map_err(|error| {
        let error = error.into_inner();
        if error.is::<LengthLimitError>() {
            return too_large();
        }
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "incomplete_body",
            format!("the body did not come whole: {error}"),
        )
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
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| misfit("", error))?;
    json.end().map_err(|error| broken(&error))?;
    Ok(value)
}

/// A body that is no JSON.
fn broken(error: &serde_json::Error) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", format!("the body: {error}"))
}

/// Why a value, which stands at `path` in the body, is not what the server takes there.
pub(crate) fn misfit(path: &str, error: serde_path_to_error::Error<serde_json::Error>) -> ApiError {
    let inner = error.path().to_string();
    let inner = inner.trim_end_matches(['.', '?']);
    let error = error.into_inner();
    if !error.is_data() {
        return broken(&error);
    }
    let problem = in_plain_words(&error.to_string());
    let place = |name: &str| {
        let steps = [path, inner, name].into_iter().filter(|step| !step.is_empty());
        steps.collect::<Vec<_>>().join(".")
    };
    let named = |what: &str| Some(problem.strip_prefix(what)?.strip_prefix(" field `")?.split_once('`')?.0);
    if let Some(name) = named("missing") {
        return ApiError::missing(place(name));
    }
    if let Some(name) = named("unknown") {
        let known = inner == name || inner.ends_with(&format!(".{name}"));
        return ApiError::unknown(place(if known { "" } else { name }));
    }
    // Types of several forms say what they must be.
    let code = match problem.starts_with("invalid type") || problem.starts_with("must be a ") {
        true => "invalid_type",
        false => "invalid_value",
    };
    match place("") {
        body if body.is_empty() => {
            ApiError::new(StatusCode::BAD_REQUEST, code, format!("the body: {problem}"))
        }
        field => ApiError::field(field, problem).code(code),
    }
}

/// What is wrong with a value, for people who do not know the types of this program.
fn in_plain_words(problem: &str) -> String {
    let Some((before, rest)) = problem.split_once("expected ") else { return problem.to_owned() };
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

/// What a field for others than the model must be.
fn noted_as(name: &str) -> (&'static str, fn(&Value) -> bool) {
    let labels = |value: &Value| {
        let text = |label: &Value| label.is_string() || label.is_null();
        value.as_object().is_some_and(|labels| labels.values().all(text))
    };
    match name {
        "metadata" => ("an object of strings", labels),
        "annotations" | "logprobs" => ("a list", Value::is_array),
        "cache_control" => ("an object", Value::is_object),
        _ => ("a string", Value::is_string),
    }
}

/// Refuses a field for others than the model that is not what it must be. `null` always will do.
pub(crate) fn check_noted(name: &str, value: &Value, path: &str) -> Result<()> {
    let (kind, fits) = noted_as(name);
    if value.is_null() || fits(value) {
        return Ok(());
    }
    Err(ApiError::wrong_type(format!("{path}{name}"), format!("must be {kind}")))
}

/// Refuses fields that this server does not know, or knows and cannot honour. `null` and the values
/// in `neutral` ask for nothing, where a `null` says that no other does; fields in `noted` are for others
/// than the model.
pub(crate) fn refuse_rest(
    rest: &Map<String, Value>,
    noted: &[&str],
    neutral: &[(&str, Value)],
) -> Result<()> {
    for (name, value) in rest.iter().filter(|(_, value)| !value.is_null()) {
        if noted.contains(&name.as_str()) {
            check_noted(name, value, "")?;
            continue;
        }
        let known: Vec<&Value> = neutral.iter().filter(|(known, _)| known == name).map(|(_, v)| v).collect();
        match known.first() {
            None => return Err(ApiError::unknown(name)),
            Some(Value::Null) => {
                let problem = "this server does not support this field";
                return Err(ApiError::field(name, problem).code("unsupported_parameter"));
            }
            Some(_) if !known.contains(&value) => {
                return Err(ApiError::field(name, "this value is not supported").code("unsupported_value"));
            }
            Some(_) => {}
        }
    }
    Ok(())
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
    #[serde(deny_unknown_fields)]
    struct Item {
        #[serde(rename = "n")]
        _n: u32,
    }

    #[test]
    fn errors_name_the_place() {
        let error = |json: &str| parse::<Body>(json.as_bytes()).map(drop).unwrap_err();
        let at = |json: &str| (error(json).code, error(json).param);
        let field = |code, name: &str| (code, Some(name.to_owned()));
        assert_eq!(at(r#"{"list": [{"n": 1}, {"n": "x"}]}"#), field("invalid_type", "list[1].n"));
        assert_eq!(at(r#"{"list": [{"n": -1}]}"#), field("invalid_value", "list[0].n"));
        assert_eq!(at(r#"{"list": [{}]}"#), field("missing_required_parameter", "list[0].n"));
        assert_eq!(at(r#"{"list": [{"n": 1, "m": 1}]}"#), field("unknown_parameter", "list[0].m"));
        assert_eq!(at("{}"), field("missing_required_parameter", "list"));
        assert_eq!(at("[]"), ("invalid_type", None));
        let deep = format!("{{\"x\": {}", "[".repeat(100_000));
        for broken in ["{", r#"{"list": []} x"#, r#"{"list": [{"n": 1 2"#, &deep] {
            assert_eq!(at(broken), ("invalid_json", None));
        }
    }

    #[test]
    fn only_what_asks_for_nothing_may_be_left_over() {
        let body = |json: Value| parse::<Body>(json.to_string().as_bytes()).unwrap().rest;
        let neutral = [("store", json!(false)), ("audio", Value::Null)];
        let check = |rest: Value| {
            let mut whole = json!({"list": []});
            whole.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            refuse_rest(&body(whole), NOTED, &neutral).map_err(|e| (e.code, e.param.unwrap()))
        };
        let refused = |code, name: &str| Err((code, name.to_owned()));
        assert_eq!(check(json!({"user": "me", "store": false, "tools": null, "audio": null})), Ok(()));
        assert_eq!(check(json!({"metadata": {"a": "b", "c": null}})), Ok(()));
        assert_eq!(check(json!({"store": true})), refused("unsupported_value", "store"));
        assert_eq!(check(json!({"audio": {}})), refused("unsupported_parameter", "audio"));
        assert_eq!(check(json!({"top_kk": 3})), refused("unknown_parameter", "top_kk"));
        assert_eq!(check(json!({"user": 3})), refused("invalid_type", "user"));
        assert_eq!(check(json!({"metadata": "x"})), refused("invalid_type", "metadata"));
        assert_eq!(check(json!({"metadata": {"a": 1}})), refused("invalid_type", "metadata"));
    }
}
