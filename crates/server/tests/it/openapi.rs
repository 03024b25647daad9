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
    let (Some(fields), Some(properties)) = (value.as_object(), schema["properties"].as_object()) else {
        return None;
    };
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
    let (method, reply) = match body {
        Some(body) => ("post", api.post(path, body).await),
        None => ("get", api.get(path).await),
    };
    let path = if path.starts_with("/v1/models/") { "/v1/models/{id}" } else { path };
    let response = &document["paths"][path][method]["responses"][reply.status.as_str()];
    let schema = &response["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{path} {}: {response}", reply.status);
    if let Some(problem) = differs(&document, schema, &reply.json(), "") {
        panic!("{path} {}: {problem}", reply.status);
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
        ("/v1/messages/count_tokens", message),
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
