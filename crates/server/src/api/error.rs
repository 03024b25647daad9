//! Errors as clients expect them: one kind inside, rendered in the shape of the API that was asked.

use std::borrow::Cow;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::engine::Refusal;

/// Whose shapes a reply has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
}

impl Dialect {
    /// The API that a path belongs to.
    pub(crate) fn of(path: &str) -> Dialect {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Dialect::Anthropic
        } else {
            Dialect::OpenAi
        }
    }
}

/// Most bytes of a message and of the place of a field: a request can name anything at any length.
const LONGEST_MESSAGE: usize = 1000;
const LONGEST_PARAM: usize = 200;

/// Why a request fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The field at fault, as a path: `messages[2].role`.
    pub(crate) param: Option<String>,
    /// A word that programs test for.
    pub(crate) code: &'static str,
    /// Seconds after which another try makes sense.
    pub(crate) retry_after: Option<u64>,
}

pub(crate) type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code, retry_after: None }
    }

    /// A field whose value cannot be taken: out of its range, or against another one.
    pub(crate) fn field(param: impl Into<String>, problem: impl Into<String>) -> ApiError {
        let (param, problem) = (param.into(), problem.into());
        let message = format!("{param}: {problem}");
        ApiError { param: Some(param), ..ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message) }
    }

    /// A field of another type than it has.
    pub(crate) fn wrong_type(param: impl Into<String>, problem: impl Into<String>) -> ApiError {
        ApiError::field(param, problem).code("invalid_type")
    }

    /// A field that must be there.
    pub(crate) fn missing(param: impl Into<String>) -> ApiError {
        ApiError::field(param, "is required").code("missing_required_parameter")
    }

    /// A field that is none.
    pub(crate) fn unknown(param: impl Into<String>) -> ApiError {
        ApiError::field(param, "there is no such field").code("unknown_parameter")
    }

    pub(crate) fn code(self, code: &'static str) -> ApiError {
        ApiError { code, ..self }
    }

    /// A prompt without room for an answer.
    pub(crate) fn context_length(tokens: usize, limit: usize) -> ApiError {
        let message = format!(
            "This model's maximum context length is {limit} tokens, answer included; the prompt has {tokens}. \
             Please shorten it."
        );
        ApiError {
            param: Some("messages".into()),
            ..ApiError::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
        }
    }

    /// The answer did not come in time.
    pub(crate) fn timeout(seconds: u64) -> ApiError {
        let message = format!("no answer within {seconds} s");
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message)
    }

    /// The engine's thread is gone.
    pub(crate) fn stopped() -> ApiError {
        Refusal::Stopped.into()
    }

    pub(crate) fn body(&self, dialect: Dialect) -> Value {
        let message = shortened(&self.message, LONGEST_MESSAGE);
        match dialect {
            Dialect::OpenAi => json!({
                "error": {
                    "message": message,
                    "type": self.openai_type(),
                    "param": self.param.as_ref().map(|param| shortened(param, LONGEST_PARAM)),
                    "code": self.code,
                }
            }),
            Dialect::Anthropic => json!({
                "type": "error",
                "error": { "type": self.anthropic_type(), "message": message },
            }),
        }
    }

    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "service_unavailable",
            _ => "server_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            _ => "api_error",
        }
    }

    pub(crate) fn response(self, dialect: Dialect) -> Response {
        let mut response = (self.status, Json(self.body(dialect))).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A text, or its beginning and end.
fn shortened(text: &str, longest: usize) -> Cow<'_, str> {
    if text.len() <= longest {
        return text.into();
    }
    let boundary = |at: &usize| text.is_char_boundary(*at);
    let head = (0..=longest / 2).rev().find(boundary).unwrap_or(0);
    let tail = (text.len() - longest / 2..).find(boundary).unwrap_or(text.len());
    format!("{}…{}", &text[..head], &text[tail..]).into()
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        let (status, code, retry_after) = match refusal {
            Refusal::Full { retry_after, .. } => {
                (StatusCode::TOO_MANY_REQUESTS, "queue_full", retry_after.as_secs())
            }
            Refusal::Draining => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down", 10),
            Refusal::Stopped => (StatusCode::SERVICE_UNAVAILABLE, "engine_stopped", 30),
        };
        ApiError { retry_after: Some(retry_after), ..ApiError::new(status, code, refusal.to_string()) }
    }
}

impl From<shamrock_text::Error> for ApiError {
    /// What the text side says of a client's messages.
    fn from(error: shamrock_text::Error) -> ApiError {
        ApiError {
            param: Some("messages".into()),
            ..ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", error.to_string())
        }
    }
}

impl From<shamrock_generate::Error> for ApiError {
    fn from(error: shamrock_generate::Error) -> ApiError {
        use shamrock_generate::Error;
        match error {
            Error::Option { option, problem } => ApiError::field(field_of(option), problem),
            Error::NotBlockDiffusion(_) => {
                ApiError::field("shamrock.mode", error.to_string()).code("unsupported_value")
            }
            Error::PromptTooLong { tokens, limit } => ApiError::context_length(tokens, limit),
            // The grammar is the client's: it exceeds a budget, or has no text behind some token.
            Error::Grammar { .. } => {
                ApiError::new(StatusCode::BAD_REQUEST, "grammar_failed", error.to_string())
            }
            Error::EmptyPrompt => ApiError::field("prompt", error.to_string()),
            other => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "engine_error", other.to_string()),
        }
    }
}

/// The field of a request that sets an option of a generation.
fn field_of(option: &str) -> String {
    match option {
        "temperature" | "top_p" | "min_p" | "presence_penalty" | "frequency_penalty"
        | "repetition_penalty" | "logit_bias" => option.to_owned(),
        "constraint" => "response_format".to_owned(),
        extension => format!("shamrock.{extension}"),
    }
}
