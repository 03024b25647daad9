//! Conversations as clients send them, to messages as chat templates take them.

use std::collections::HashSet;

use serde_json::{Map, Value};
use shamrock_text::{Message, Prompter, RenderOptions};

use crate::api::body::check_noted;
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
        _ => Err(ApiError::wrong_type(path, "must be a string or an array of text parts")),
    }
}

/// The text of one part of a content.
pub(crate) fn part_text<'a>(part: &'a Value, path: &str) -> Result<&'a str> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    if !matches!(kind, "text" | "input_text" | "output_text") {
        let problem = format!("{kind:?} is not supported; this model reads text only");
        return Err(ApiError::field(format!("{path}.type"), problem).code("unsupported_value"));
    }
    only(part, &["type", "text"], &["annotations", "logprobs", "cache_control"], path)?;
    string(part, "text", path)
}

/// A string that an object must have.
pub(crate) fn string<'a>(object: &'a Value, name: &str, path: &str) -> Result<&'a str> {
    let place = || format!("{path}.{name}");
    let value = object.get(name).ok_or_else(|| ApiError::missing(place()))?;
    value.as_str().ok_or_else(|| ApiError::wrong_type(place(), "must be a string"))
}

/// Refuses fields of an object that would be ignored; empty ones ask for nothing, and those in `noted` are for
/// others than the model. Prefixes are kept anyway, so there is nothing to do for `cache_control`.
pub(crate) fn only(object: &Value, known: &[&str], noted: &[&str], path: &str) -> Result<()> {
    let empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    let fields = object.as_object().into_iter().flatten();
    for (name, value) in fields.filter(|(name, value)| !known.contains(&name.as_str()) && !empty(value)) {
        if !noted.contains(&name.as_str()) {
            return Err(ApiError::unknown(format!("{path}.{name}")));
        }
        check_noted(name, value, &format!("{path}."))?;
    }
    Ok(())
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

/// Refuses results of tools that nobody called, as these APIs do; `field` is where the messages stand.
pub(crate) fn check_results(messages: &[Message], field: &str) -> Result<()> {
    let mut called = HashSet::new();
    for message in messages {
        let calls = message.tool_calls.as_ref().and_then(Value::as_array);
        called.extend(calls.into_iter().flatten().filter_map(|call| call["id"].as_str()));
        if message.role == "tool" && !message.tool_call_id.as_deref().is_some_and(|id| called.contains(id)) {
            let problem = match &message.tool_call_id {
                Some(id) => format!("there is a result for {id:?}, but no call of that name before it"),
                None => "a result must name the call that it is for".to_owned(),
            };
            return Err(ApiError::field(field, problem));
        }
    }
    Ok(())
}

/// What the template is told: `effort` is OpenAI's word for how much to reason, `kwargs` are
/// variables of the template.
pub(crate) fn render_options(
    prompter: &Prompter,
    effort: Option<&str>,
    kwargs: Option<Map<String, Value>>,
) -> Result<RenderOptions> {
    let mut options = RenderOptions { extra: kwargs.unwrap_or_default(), ..RenderOptions::default() };
    options.enable_thinking = match options.extra.remove("enable_thinking") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(on)) => Some(on),
        Some(_) => {
            return Err(ApiError::wrong_type("chat_template_kwargs.enable_thinking", "must be a boolean"));
        }
    };
    for name in ["messages", "tools", "add_generation_prompt"] {
        if options.extra.contains_key(name) {
            return Err(ApiError::field(format!("chat_template_kwargs.{name}"), "is not free to set"));
        }
    }
    if let Some(unused) = options.extra.keys().find(|name| !prompter.uses(name)) {
        let problem = "the model's chat template does not use it";
        let field = format!("chat_template_kwargs.{unused}");
        return Err(ApiError::field(field, problem).code("unsupported_parameter"));
    }
    let field = if effort.is_some() { "reasoning_effort" } else { "chat_template_kwargs.enable_thinking" };
    let asked = match effort {
        None => None,
        Some("none") => Some(false),
        Some("minimal" | "low" | "medium" | "high" | "xhigh") => Some(true),
        Some(other) => {
            let problem = format!("{other:?} is none of none, minimal, low, medium, high, xhigh");
            return Err(ApiError::field("reasoning_effort", problem));
        }
    };
    if let (Some(effort), Some(thinking)) = (asked, options.enable_thinking)
        && effort != thinking
    {
        return Err(ApiError::field("reasoning_effort", "contradicts chat_template_kwargs.enable_thinking"));
    }
    options.enable_thinking = options.enable_thinking.or(asked);
    check_thinking(prompter, options.enable_thinking, field)?;
    Ok(options)
}

/// Refuses to ask for reasoning in `field` where the template knows of none.
pub(crate) fn check_thinking(prompter: &Prompter, asked: Option<bool>, field: &str) -> Result<()> {
    if asked == Some(true) && !prompter.uses("enable_thinking") {
        let problem = "the model's chat template cannot ask for reasoning";
        return Err(ApiError::field(field, problem).code("unsupported_value"));
    }
    Ok(())
}
