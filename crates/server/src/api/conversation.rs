//! Conversations as clients send them, to messages as chat templates take them.

use serde_json::{Map, Value};
use shamrock_text::{Message, RenderOptions};

use crate::api::error::{ApiError, Result};

/// The text of a message's content: a string, or an array of text parts. `path` is the place of the
/// content in the request.
pub(crate) fn text_of(content: &Value, path: &str) -> Result<String> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Null => Ok(String::new()),
        Value::Array(parts) => {
            let part = |(i, part)| part_text(part, &format!("{path}[{i}]"));
            parts.iter().enumerate().map(part).collect()
        }
        _ => Err(ApiError::field(path, "must be a string or an array of text parts")),
    }
}

/// The text of one part of a content.
pub(crate) fn part_text<'a>(part: &'a Value, path: &str) -> Result<&'a str> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    if !matches!(kind, "text" | "input_text" | "output_text") {
        let problem = format!("{kind:?} is not supported; this model reads text only");
        return Err(ApiError::field(format!("{path}.type"), problem));
    }
    let text = part.get("text").and_then(Value::as_str);
    text.ok_or_else(|| ApiError::field(format!("{path}.text"), "must be a string"))
}

/// A message with a role that templates know.
pub(crate) fn message(role: &str, text: String, path: &str) -> Result<Message> {
    let role = match role {
        "system" | "developer" => "system",
        "user" | "assistant" | "tool" => role,
        _ => {
            let problem = format!("{role:?} is none of system, developer, user, assistant, tool");
            return Err(ApiError::field(format!("{path}.role"), problem));
        }
    };
    Ok(Message::new(role, text))
}

/// What the template is told: `effort` is OpenAI's word for how much to reason, `kwargs` are
/// variables of the template.
pub(crate) fn render_options(
    effort: Option<&str>,
    kwargs: Option<Map<String, Value>>,
) -> Result<RenderOptions> {
    let mut options = RenderOptions { extra: kwargs.unwrap_or_default(), ..RenderOptions::default() };
    options.enable_thinking = match options.extra.remove("enable_thinking") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(on)) => Some(on),
        Some(_) => return Err(ApiError::field("chat_template_kwargs.enable_thinking", "must be a boolean")),
    };
    for name in ["messages", "tools", "add_generation_prompt"] {
        if options.extra.contains_key(name) {
            return Err(ApiError::field(format!("chat_template_kwargs.{name}"), "is not free to set"));
        }
    }
    let asked = match effort {
        None => None,
        Some("none") => Some(false),
        Some("minimal" | "low" | "medium" | "high") => Some(true),
        Some(other) => {
            let problem = format!("{other:?} is none of none, minimal, low, medium, high");
            return Err(ApiError::field("reasoning_effort", problem));
        }
    };
    if let (Some(effort), Some(thinking)) = (asked, options.enable_thinking)
        && effort != thinking
    {
        return Err(ApiError::field("reasoning_effort", "contradicts chat_template_kwargs.enable_thinking"));
    }
    options.enable_thinking = options.enable_thinking.or(asked);
    Ok(options)
}
