//! The description of the API, held against what the API does.

use serde_json::{Value, json};
use shamrock_server::EngineOptions;

use crate::support::{Api, api, api_with, with};

/// Where a value is not as a schema of the document says: other fields than these, another type.
fn differs(document: &Value, schema: &Value, value: &Value, place: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#')).unwrap_or_else(|| panic!("no {name}"));
        return differs(document, schema, value, place);
    }
    if let Some(choices) = schema["oneOf"].as_array().or(schema["anyOf"].as_array()) {
        let problems: Vec<Option<String>> =
            choices.iter().map(|choice| differs(document, choice, value, place)).collect();
        return problems.iter().all(Option::is_some).then(|| format!("{place}: {problems:?}"));
    }
    if let Some(words) = schema["enum"].as_array() {
        return (!words.contains(value)).then(|| format!("{place}: {value} is none of {words:?}"));
    }
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        Value::Null => return None,
        one => vec![one.clone()],
    };
    let fits = |kind: &Value| match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    };
    if !types.iter().any(fits) {
        return Some(format!("{place}: {value} is no {types:?}"));
    }
    if let Some(items) = value.as_array() {
        return items
            .iter()
            .find_map(|item| differs(document, &schema["items"], item, &format!("{place}[]")));
    }
    let fields = value.as_object()?;
    if schema["additionalProperties"].is_object() {
        let schema = &schema["additionalProperties"];
        return fields
            .iter()
            .find_map(|(name, value)| differs(document, schema, value, &format!("{place}.{name}")));
    }
    let properties = schema["properties"].as_object()?;
    let mut required = schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap());
    if let Some(missing) = required.find(|name| !fields.contains_key(*name)) {
        return Some(format!("{place}.{missing} is missing"));
    }
    fields.iter().find_map(|(name, value)| match properties.get(name) {
        Some(schema) => differs(document, schema, value, &format!("{place}.{name}")),
        None => Some(format!("{place}.{name} is not described")),
    })
}

async fn assert_described(api: &Api, path: &str, body: Option<Value>) {
    let document = api.get("/openapi.json").await.json();
    let (method, reply) = match &body {
        Some(body) => ("post", api.post(path, body.clone()).await),
        None => ("get", api.get(path).await),
    };
    if reply.status.is_success()
        && let Some(body) = body
    {
        assert_body_is_described(&document, path, &body);
    }
    let path = if path.starts_with("/v1/models/") { "/v1/models/{id}" } else { path };
    let response = &document["paths"][path][method]["responses"][reply.status.as_str()];
    let schema = &response["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{path} {}: {response}", reply.status);
    if let Some(problem) = differs(&document, schema, &reply.json(), "") {
        panic!("{path} {}: {problem}", reply.status);
    }
}

#[track_caller]
fn assert_body_is_described(document: &Value, path: &str, body: &Value) {
    let schema = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{path} {document}");
    if let Some(problem) = differs(document, schema, body, "") {
        panic!("{path} is asked with {problem}");
    }
}

#[tokio::test]
async fn replies_are_as_they_are_described_to_the_last_field() {
    let api = api();
    let messages = json!([{ "role": "user", "content": "What is 3 + 4?" }]);
    let chat = json!({ "messages": messages, "max_tokens": 40 });
    let message = json!({ "model": "clover-nano", "messages": messages, "max_tokens": 40 });
    let response = json!({ "input": "What is 3 + 4?", "max_output_tokens": 40 });
    let events = json!({ "shamrock": { "events": true } });
    let tool = json!([{ "type": "function", "function": { "name": "now" } }]);
    for (path, body) in [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/chat/completions", with(chat.clone(), events.clone())),
        ("/v1/chat/completions", with(chat.clone(), json!({ "logprobs": true, "top_logprobs": 2 }))),
        ("/v1/chat/completions", with(chat.clone(), json!({ "tools": tool, "tool_choice": "required" }))),
        ("/v1/chat/completions", with(chat.clone(), json!({ "reasoning_effort": "high" }))),
        ("/v1/chat/completions", with(chat.clone(), json!({ "model": "another" }))),
        ("/v1/chat/completions", with(chat, json!({ "top_kk": 1 }))),
        ("/v1/completions", json!({ "prompt": "Once", "max_tokens": 3 })),
        ("/v1/completions", with(json!({ "prompt": "Once", "logprobs": 2 }), events.clone())),
        ("/v1/completions", json!({ "prompt": [] })),
        ("/v1/responses", response.clone()),
        ("/v1/responses", with(response.clone(), events.clone())),
        ("/v1/responses", with(response, json!({ "max_output_tokens": 1 }))),
        ("/v1/messages", message.clone()),
        ("/v1/messages", with(message.clone(), events)),
        ("/v1/messages", with(message.clone(), json!({ "max_tokens": 0 }))),
        ("/v1/messages/count_tokens", with(message, json!({ "max_tokens": null }))),
    ] {
        assert_described(&api, path, Some(body)).await;
    }
    for path in ["/v1/models", "/v1/models/clover-nano", "/v1/models/another", "/health"] {
        assert_described(&api, path, None).await;
    }
    let keyed = api_with(EngineOptions::default(), |options| options.api_key = Some("sesame".into()));
    assert_described(&keyed, "/v1/models", None).await;
    let (open, keyed) = (api.get("/openapi.json").await.json(), keyed.get("/openapi.json").await.json());
    assert!(open["components"]["securitySchemes"].is_null());
    assert_eq!(keyed["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    let security = |path: &str| keyed["paths"][path]["get"]["security"].is_array();
    assert!(security("/v1/models") && !security("/health"));
}

/// Every event of a stream is as it is described, and so is every body that is taken.
#[tokio::test]
async fn events_and_bodies_are_as_they_are_described_to_the_last_field() {
    let api = api();
    let document = api.get("/openapi.json").await.json();
    let messages = json!([{ "role": "user", "content": [{ "type": "text", "text": "What is 3 + 4?" }] }]);
    let stream = |body: Value| with(body, json!({ "stream": true, "shamrock": { "events": true } }));
    let drafts = json!({ "shamrock": { "mode": "draft", "events": true } });
    let decode = json!({ "shamrock": { "mode": "causal", "events": true } });
    let tools = json!([{ "type": "function", "function": { "name": "now" } }]);
    let call = json!({ "id": "c", "type": "function", "function": { "name": "now", "arguments": "{}" } });
    let chat = stream(
        json!({ "messages": messages, "max_tokens": 40, "stream_options": { "include_usage": true } }),
    );
    let called = json!([
        { "role": "user", "content": "x" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c", "content": "noon" },
    ]);
    let response = stream(json!({ "input": "What is 3 + 4?", "max_output_tokens": 40 }));
    let items = json!([
        { "role": "user", "content": [{ "type": "input_text", "text": "x" }] },
        { "type": "reasoning", "content": [{ "type": "reasoning_text", "text": "x" }] },
        { "type": "function_call", "call_id": "c", "name": "now", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c", "output": "noon" },
    ]);
    let message = stream(json!({ "model": "clover-nano", "messages": messages, "max_tokens": 40 }));
    let turns = json!([
        { "role": "user", "content": "x" },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "c", "name": "now", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c", "content": "noon" }] },
    ]);
    for (path, body) in [
        ("/v1/chat/completions", chat.clone()),
        (
            "/v1/chat/completions",
            with(chat.clone(), json!({ "messages": called, "logprobs": true, "top_logprobs": 1 })),
        ),
        ("/v1/chat/completions", with(chat.clone(), drafts.clone())),
        ("/v1/chat/completions", with(chat.clone(), decode)),
        ("/v1/chat/completions", with(chat.clone(), json!({ "tools": tools, "tool_choice": "required" }))),
        ("/v1/chat/completions", with(chat, json!({ "reasoning_effort": "high" }))),
        ("/v1/completions", stream(json!({ "prompt": ["Once", "Twice"], "max_tokens": 3, "logprobs": 2 }))),
        ("/v1/completions", with(stream(json!({ "prompt": [5, 6], "logit_bias": { "5": 1 } })), drafts)),
        ("/v1/responses", with(response.clone(), json!({ "reasoning": { "effort": "high" } }))),
        ("/v1/responses", with(response.clone(), json!({ "include": ["message.output_text.logprobs"] }))),
        ("/v1/responses", with(response.clone(), json!({ "input": items }))),
        ("/v1/responses", with(response.clone(), json!({ "text": { "format": { "type": "json_object" } } }))),
        (
            "/v1/responses",
            with(
                response,
                json!({ "tools": [{ "type": "function", "name": "now" }], "tool_choice": "required" }),
            ),
        ),
        ("/v1/messages", with(message.clone(), json!({ "system": "x", "thinking": { "type": "enabled" } }))),
        (
            "/v1/messages",
            with(
                message.clone(),
                json!({ "tools": [{ "name": "now", "input_schema": {} }], "tool_choice": { "type": "any" } }),
            ),
        ),
        ("/v1/messages", with(message, json!({ "messages": turns }))),
    ] {
        assert_body_is_described(&document, path, &body);
        let reply = api.post(path, body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        let response = &document["paths"][path]["post"]["responses"]["200"];
        let schema = &response["content"]["text/event-stream"]["schema"];
        assert!(schema.is_object(), "{path}: {response}");
        for event in reply.events() {
            if let Some(problem) = differs(&document, schema, &event, "") {
                panic!("{path} {event}: {problem}");
            }
        }
    }
}
