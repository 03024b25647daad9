//! Tools for templates that know of none: told in the system message, calls and results as text.

use serde_json::Value;

use super::{TOOL_CALL_CLOSE, TOOL_CALL_OPEN};
use crate::Message;

/// The same conversation without tools, tool calls and the role `tool`.
pub(crate) fn spell_out(messages: &[Message], tools: Option<&Value>) -> Vec<Message> {
    let mut spelled: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    let mut messages = messages.iter().peekable();
    if let Some(Value::Array(tools)) = tools.filter(|tools| **tools != Value::Array(Vec::new())) {
        let opening = messages.next_if(|message| message.role == "system");
        let parts = opening.map(|message| text(&message.content)).into_iter().chain([introduction(tools)]);
        spelled.push(Message::new("system", parts.collect::<Vec<_>>().join("\n\n")));
    }
    while let Some(message) = messages.next() {
        if message.role == "tool" {
            // Results that follow each other are one turn.
            let mut results = vec![result(message)];
            while let Some(message) = messages.next_if(|message| message.role == "tool") {
                results.push(result(message));
            }
            spelled.push(Message::new("user", results.join("\n")));
            continue;
        }
        let mut message = message.clone();
        if let Some(Value::Array(calls)) = message.tool_calls.take() {
            let said = Some(text(&message.content)).filter(|said| !said.is_empty());
            let parts = said.into_iter().chain(calls.iter().map(call));
            message.content = parts.collect::<Vec<_>>().join("\n").into();
        }
        spelled.push(message);
    }
    spelled
}

fn text(content: &Value) -> String {
    content.as_str().unwrap_or_default().to_owned()
}

fn result(message: &Message) -> String {
    format!("<tool_response>\n{}\n</tool_response>", text(&message.content))
}

fn introduction(tools: &[Value]) -> String {
    let tools: Vec<String> = tools.iter().map(Value::to_string).collect();
    format!(
        "You can call these functions, described in JSON, one a line:\n{}\nTo call one, write\n\
         {TOOL_CALL_OPEN}\n{{\"name\": its name, \"arguments\": an object}}\n{TOOL_CALL_CLOSE}\n\
         and nothing behind it. The result comes in the next message.",
        tools.join("\n")
    )
}

fn call(call: &Value) -> String {
    let function = call.get("function").unwrap_or(call);
    let name = function.get("name").cloned().unwrap_or_default();
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "{}".to_owned(),
    };
    format!("{TOOL_CALL_OPEN}\n{{\"name\": {name}, \"arguments\": {arguments}}}\n{TOOL_CALL_CLOSE}")
}
