//! Every parameter in every API: honoured, which shows in the reply, or refused by its name.

use axum::http::StatusCode;
use serde_json::{Value, json};
use shamrock_server::EngineOptions;

use crate::support::{Reply, api, api_with, with};

/// The APIs in the order of [`Field::known`], with what a request must have.
fn apis() -> [(&'static str, Value); 4] {
    let story = "Write a short story with the words fox, lantern and river.";
    let prompt = format!("<|im_start|>user\n{story}<|im_end|>\n<|im_start|>assistant\n");
    let messages = json!([{ "role": "user", "content": story }]);
    [
        ("/v1/chat/completions", json!({ "messages": messages })),
        ("/v1/completions", json!({ "prompt": prompt })),
        ("/v1/responses", json!({ "input": story })),
        ("/v1/messages", json!({ "model": "clover-nano", "messages": messages, "max_tokens": 24 })),
    ]
}

struct Field {
    name: &'static str,
    /// What it shows beside.
    beside: Value,
    value: Value,
    /// A value of another type.
    wrong: Value,
    /// Which APIs have it.
    known: [bool; 4],
    /// The reply is another one with it.
    shows: bool,
}

fn field(name: &'static str, beside: Value, value: Value, wrong: Value, known: &str) -> Field {
    let known = ['c', 't', 'r', 'm'].map(|api| known.contains(api));
    Field { name, beside, value, wrong, known, shows: true }
}

impl Field {
    fn silent(self) -> Field {
        Field { shows: false, ..self }
    }
}

/// Parameters of chats, texts, responses and messages.
fn fields() -> Vec<Field> {
    let plain = || json!({});
    // Penalties count what stands before a block.
    let causal = || json!({ "shamrock": { "mode": "causal" } });
    // Without a seed: two draws at such a temperature are never alike, while the likeliest token always is.
    let hot = || json!({ "temperature": 3.0 });
    let function = json!({ "name": "f", "parameters": { "type": "object" } });
    let in_chats = json!({ "tools": [{ "type": "function", "function": function }] });
    let in_responses = json!({ "tools": [with(json!({ "type": "function" }), function)] });
    let in_messages = json!({ "tools": [{ "name": "f", "input_schema": { "type": "object" } }] });
    let forced = |tools: &Value| with(tools.clone(), json!({ "tool_choice": "required" }));
    let form = json!({ "format": { "type": "json_schema", "schema": { "enum": ["yes", "no"] } } });
    let probabilities = json!(["message.output_text.logprobs"]);
    vec![
        field("model", plain(), json!("clover-nano"), json!(1), "ctrm").silent(),
        field("temperature", causal(), json!(3.0), json!("hot"), "ctrm"),
        field("top_p", hot(), json!(0.001), json!("x"), "ctrm"),
        field("top_k", hot(), json!(1), json!(-1), "ctm"),
        field("min_p", hot(), json!(1.0), json!([]), "ct"),
        field("seed", json!({ "temperature": 3.0, "seed": 7 }), json!(8), json!(1.5), "ct"),
        field("presence_penalty", causal(), json!(90.0), json!("x"), "ct"),
        field("frequency_penalty", causal(), json!(90.0), json!("x"), "ct"),
        field("repetition_penalty", causal(), json!(90.0), json!(true), "ct"),
        field("stop", plain(), json!(["e"]), json!(3), "ct"),
        field("stop_sequences", plain(), json!(["e"]), json!("e"), "m"),
        field("n", plain(), json!(2), json!("2"), "ct"),
        field("logit_bias", plain(), json!({ "300": 100 }), json!({ "300": "x" }), "ct"),
        field("max_tokens", plain(), json!(2), json!(-2), "ctm"),
        field("max_completion_tokens", plain(), json!(2), json!(2.5), "c"),
        field("max_output_tokens", plain(), json!(2), json!("2"), "r"),
        field("logprobs", plain(), json!(true), json!(3), "c"),
        field("logprobs", plain(), json!(2), json!(true), "t"),
        field("top_logprobs", json!({ "logprobs": true }), json!(2), json!(true), "c"),
        field("top_logprobs", json!({ "include": probabilities }), json!(2), json!(true), "r"),
        field("include", plain(), probabilities, json!("x"), "r"),
        field("response_format", plain(), json!({ "type": "json_object" }), json!("json"), "c"),
        field("text", plain(), form.clone(), json!(1), "r"),
        field("output_config", plain(), form, json!(1), "m"),
        field("reasoning_effort", plain(), json!("low"), json!(1), "c"),
        field("chat_template_kwargs", plain(), json!({ "enable_thinking": true }), json!([]), "c"),
        field("reasoning", plain(), json!({ "effort": "high" }), json!("high"), "r"),
        field("thinking", plain(), json!({ "type": "enabled" }), json!(true), "m"),
        field("stream", plain(), json!(true), json!("true"), "ctrm"),
        field("stream_options", json!({ "stream": true }), json!({ "include_usage": true }), json!(1), "ct"),
        field("tools", plain(), in_chats["tools"].clone(), json!(1), "c"),
        field("tools", plain(), in_responses["tools"].clone(), json!(1), "r"),
        field("tools", plain(), in_messages["tools"].clone(), json!(1), "m"),
        field("tool_choice", in_chats.clone(), json!("required"), json!(1), "c"),
        field("tool_choice", in_responses.clone(), json!("required"), json!(1), "r"),
        field("tool_choice", in_messages, json!({ "type": "any" }), json!("any"), "m"),
        // In a chat it shows with models that call several tools.
        field("parallel_tool_calls", forced(&in_chats), json!(false), json!(1), "c").silent(),
        field("parallel_tool_calls", forced(&in_responses), json!(false), json!(1), "r"),
        field("instructions", plain(), json!("Say no."), json!(1), "r"),
        field("system", plain(), json!("Say no."), json!(1), "m"),
        field("shamrock", plain(), json!({ "events": true }), json!(1), "ctrm"),
    ]
}

/// A reply without what differs each time.
fn essence(reply: &Reply) -> String {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                // The second time more of the prompt is known.
                if let Some(cached) = fields.remove("cache_read_input_tokens") {
                    let read = fields["input_tokens"].as_u64().unwrap() + cached.as_u64().unwrap();
                    fields.insert("input_tokens".into(), read.into());
                }
                for passing in [
                    "id",
                    "created",
                    "created_at",
                    "call_id",
                    "item_id",
                    "cost",
                    "cached_tokens",
                    "passes",
                    "first_block_ms",
                    "elapsed_ms",
                ] {
                    fields.remove(passing);
                }
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    match serde_json::from_str::<Value>(&reply.text) {
        Ok(mut value) => {
            strip(&mut value);
            value.to_string()
        }
        Err(_) => reply
            .events()
            .iter_mut()
            .map(|event| {
                strip(event);
                event.to_string()
            })
            .collect(),
    }
}

fn at_fault(reply: &Reply) -> String {
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.text);
    let error = &reply.json()["error"];
    // The Anthropic API has no place for the name but the message, and none for a code.
    match error["param"].as_str() {
        Some(param) => {
            assert!(error["code"].is_string(), "{}", reply.text);
            param.to_owned()
        }
        None => error["message"].as_str().unwrap().split(':').next().unwrap().to_owned(),
    }
}

/// Programs tell errors apart by their codes, which are those of the OpenAI API.
#[tokio::test]
async fn errors_have_the_code_of_their_kind() {
    let api = api();
    let [(chat, base), (text, prompt), (response, input), _] = apis();
    let said = |message: Value| json!({ "messages": [message] });
    for (path, base, change, code, param) in [
        (chat, &base, json!({ "x": 1 }), "unknown_parameter", "x"),
        (chat, &base, json!({ "shamrock": { "x": 1 } }), "unknown_parameter", "shamrock.x"),
        (chat, &base, json!({ "stream_options": { "x": 1 } }), "unknown_parameter", "stream_options.x"),
        (
            chat,
            &base,
            said(json!({ "role": "user", "content": "x", "x": 1 })),
            "unknown_parameter",
            "messages[0].x",
        ),
        (
            chat,
            &base,
            said(json!({ "role": "user", "content": [{ "type": "text", "text": "", "x": 1 }] })),
            "unknown_parameter",
            "messages[0].content[0].x",
        ),
        (
            response,
            &input,
            json!({ "input": [{ "role": "user", "x": 1 }] }),
            "unknown_parameter",
            "input[0].x",
        ),
        (chat, &base, json!({ "prediction": {} }), "unsupported_parameter", "prediction"),
        (chat, &base, json!({ "store": true }), "unsupported_value", "store"),
        (response, &input, json!({ "tools": [{ "type": "web_search" }] }), "invalid_value", "tools[0].type"),
        (chat, &base, json!({ "n": 0 }), "invalid_value", "n"),
        (chat, &base, json!({ "top_p": 1.5 }), "invalid_value", "top_p"),
        (chat, &base, json!({ "temperature": -1 }), "invalid_value", "temperature"),
        (chat, &base, json!({ "logprobs": true, "top_logprobs": 21 }), "invalid_value", "top_logprobs"),
        (chat, &base, json!({ "max_tokens": 0 }), "invalid_value", "max_tokens"),
        (chat, &base, json!({ "max_tokens": -1 }), "invalid_value", "max_tokens"),
        (chat, &base, json!({ "shamrock": { "threshold": 2 } }), "invalid_value", "shamrock.threshold"),
        (chat, &base, said(json!({ "role": "x", "content": "x" })), "invalid_value", "messages[0].role"),
        (chat, &base, json!({ "temperature": "hot" }), "invalid_type", "temperature"),
        (chat, &base, json!({ "stop": 3 }), "invalid_type", "stop"),
        (chat, &base, json!({ "user": 3 }), "invalid_type", "user"),
        (chat, &base, json!({ "metadata": "x" }), "invalid_type", "metadata"),
        (text, &prompt, json!({ "safety_identifier": [] }), "invalid_type", "safety_identifier"),
        (response, &input, json!({ "input": 3 }), "invalid_type", "input"),
        (chat, &json!({}), json!({}), "missing_required_parameter", "messages"),
        (text, &json!({}), json!({}), "missing_required_parameter", "prompt"),
        (chat, &base, said(json!({ "content": "x" })), "missing_required_parameter", "messages[0].role"),
        (response, &input, json!({ "input": [{}] }), "missing_required_parameter", "input[0].role"),
    ] {
        let reply = api.post(path, with(base.clone(), change.clone())).await;
        assert_eq!(at_fault(&reply), param, "{change}: {}", reply.text);
        assert_eq!(reply.json()["error"]["code"], code, "{change}: {}", reply.text);
    }
    let none = api.send(crate::support::post(chat, "{".to_owned())).await;
    assert_eq!(none.json()["error"]["code"], "invalid_json");
    assert_eq!(api.get("/v1/none").await.json()["error"]["code"], "unknown_url");
}

#[tokio::test]
async fn every_parameter_is_honoured_or_refused_in_every_api() {
    let api = api_with(EngineOptions::default(), |options| options.defaults.max_tokens = 24);
    let document = api.get("/openapi.json").await.json();
    for (which, (path, base)) in apis().into_iter().enumerate() {
        let mut known: Vec<&str> = fields().iter().filter(|f| f.known[which]).map(|f| f.name).collect();
        for Field { name, beside, value, wrong, known: known_in, shows } in fields() {
            if !known.contains(&name) {
                let refused = api.post(path, with(base.clone(), json!({ name: value }))).await;
                assert_eq!(at_fault(&refused), name, "{path}: {}", refused.text);
            }
            if !known_in[which] {
                continue;
            }
            let base = with(base.clone(), beside);
            let reply = |value: &Value| api.post(path, with(base.clone(), json!({ name: value })));
            let (before, after) = (api.post(path, base.clone()).await, reply(&value).await);
            for reply in [&before, &after] {
                assert_eq!(reply.status, StatusCode::OK, "{path} {name}: {}", reply.text);
            }
            assert!(!shows || essence(&before) != essence(&after), "{path}: {name} shows in {}", after.text);
            let wrong = reply(&wrong).await;
            assert!(at_fault(&wrong).starts_with(name), "{path}: {}", wrong.text);
        }
        // Nothing that a body can have is missing above.
        let body = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        let body = document.pointer(body["$ref"].as_str().unwrap().trim_start_matches('#')).unwrap();
        let mut described: Vec<&str> =
            body["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        known.extend(["messages", "prompt", "input"].iter().filter(|input| !base[**input].is_null()));
        known.sort_unstable();
        known.dedup();
        described.sort_unstable();
        assert_eq!(known, described, "{path}");
    }
}

/// Objects inside of a body have no fields that are passed over either.
#[tokio::test]
async fn unknown_fields_are_refused_at_every_depth() {
    let api = api();
    let [chat, text, response, message] = apis();
    let said = |role: &str, content: Value| json!([{ "role": "user", "content": "x" }, { "role": role, "content": content }]);
    let function = json!({ "name": "f", "parameters": {}, "x": 1 });
    for ((path, base), change, place) in [
        (&chat, json!({ "x": 1 }), "x"),
        (&chat, json!({ "messages": [{ "role": "user", "content": "x", "x": 1 }] }), "messages[0].x"),
        (
            &chat,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "", "x": 1 }] }] }),
            "messages[0].content[0].x",
        ),
        (
            &chat,
            json!({ "messages": [{ "role": "user", "content": "x", "tool_call_id": "c" }] }),
            "messages[0].tool_call_id",
        ),
        (
            &chat,
            json!({ "messages": [{ "role": "user", "content": "x", "reasoning_content": "c" }] }),
            "messages[0].reasoning_content",
        ),
        (
            &chat,
            json!({ "messages": [{ "role": "assistant", "tool_calls": [{ "id": "c", "x": 1, "function": { "name": "f", "arguments": "" } }] }] }),
            "messages[0].tool_calls[0].x",
        ),
        (&chat, json!({ "messages": said("tool", json!("x")) }), "messages"),
        (&chat, json!({ "stream": true, "stream_options": { "x": 1 } }), "stream_options.x"),
        (
            &chat,
            json!({ "stream": true, "stream_options": { "include_obfuscation": true } }),
            "stream_options.include_obfuscation",
        ),
        (&chat, json!({ "response_format": { "type": "json_object", "x": 1 } }), "response_format.x"),
        (&chat, json!({ "tools": [{ "type": "function", "function": function }] }), "tools[0].x"),
        (&chat, json!({ "shamrock": { "x": 1 } }), "shamrock.x"),
        (&text, json!({ "shamrock": { "x": 1 } }), "shamrock.x"),
        (&text, json!({ "echo": true }), "echo"),
        (&response, json!({ "reasoning": { "x": 1 } }), "reasoning.x"),
        (&response, json!({ "reasoning": { "summary": "auto" } }), "reasoning.summary"),
        (&response, json!({ "text": { "x": 1 } }), "text.x"),
        (&response, json!({ "text": { "verbosity": "low" } }), "text.verbosity"),
        (&response, json!({ "input": [{ "role": "user", "content": "x", "x": 1 }] }), "input[0].x"),
        (
            &response,
            json!({ "input": [{ "role": "user", "content": "x", "call_id": "c" }] }),
            "input[0].call_id",
        ),
        (
            &response,
            json!({ "input": [{ "type": "function_call_output", "call_id": "c", "output": "x" }] }),
            "input",
        ),
        (&response, json!({ "input": [] }), "input"),
        (
            &response,
            json!({ "tools": [with(json!({ "type": "function" }), function.clone())] }),
            "tools[0].x",
        ),
        (&message, json!({ "messages": [{ "role": "user", "content": "x", "x": 1 }] }), "messages[0].x"),
        (
            &message,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "", "x": 1 }] }] }),
            "messages[0].content[0].x",
        ),
        (
            &message,
            json!({ "messages": said("user", json!([{ "type": "tool_result", "tool_use_id": "c" }])) }),
            "messages",
        ),
        // An answer that is begun for the model would have to be gone on with.
        (&message, json!({ "messages": said("assistant", json!("x")) }), "messages[1].role"),
        (&message, json!({ "tools": [{ "type": "web_search", "name": "w" }] }), "tools[0].type"),
        (&message, json!({ "tools": [{ "name": "w" }] }), "tools[0].input_schema"),
        (&message, json!({ "output_config": { "effort": "low" } }), "output_config.effort"),
        (&message, json!({ "thinking": { "type": "disabled", "x": 1 } }), "thinking.x"),
        (&message, json!({ "metadata": { "user_id": 3 } }), "metadata"),
        (&message, json!({ "cache_control": "ephemeral" }), "cache_control"),
        (
            &message,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "", "cache_control": 1 }] }] }),
            "messages[0].content[0].cache_control",
        ),
        (&message, json!({ "tool_choice": { "type": "none", "x": 1 } }), "tool_choice.x"),
    ] {
        let reply = api.post(path, with(base.clone(), change)).await;
        assert!(place.starts_with(&at_fault(&reply)), "{path} {place}: {}", reply.text);
    }
    // `null` asks for nothing, at any depth, and some fields are for others than the model.
    let few = json!({ "max_tokens": 1, "user": "me", "metadata": {}, "safety_identifier": "x", "prompt_cache_key": "x" });
    for ((path, base), change) in [
        (
            &chat,
            with(
                few.clone(),
                json!({ "audio": null, "x": null, "stream_options": { "include_usage": null } }),
            ),
        ),
        (&text, few),
        (
            &response,
            json!({ "max_output_tokens": 1, "reasoning": { "effort": null, "summary": null }, "text": { "format": null } }),
        ),
        (
            &message,
            json!({ "max_tokens": 1, "metadata": { "user_id": "me" }, "cache_control": { "type": "ephemeral" }, "mcp_servers": [] }),
        ),
    ] {
        let reply = api.post(path, with(base.clone(), change)).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.text);
    }
}

/// Whatever a request names, its error stays short, and speaks of no type of this program.
#[tokio::test]
async fn errors_are_short_and_in_plain_words() {
    let api = api();
    let [(path, base), ..] = apis();
    let long = "x".repeat(100_000);
    let deep = format!("{{\"messages\":{}1{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let mut replies = vec![api.send(crate::support::post(path, deep)).await];
    for change in [
        json!({ "model": long }),
        json!({ "messages": [{ "role": long, "content": "x" }] }),
        json!({ "logit_bias": { (long.as_str()): 1 } }),
        json!({ (long.as_str()): 1 }),
        json!({ "seed": 1u64 << 63 }),
        json!({ "max_tokens": -1 }),
        json!({ "max_tokens": 1e30 }),
        json!({ "top_p": "x" }),
        json!({ "logit_bias": { "+5": 1 } }),
    ] {
        replies.push(api.post(path, with(base.clone(), change)).await);
    }
    for reply in replies {
        assert!(reply.status.is_client_error() && reply.text.len() < 2000, "{}", reply.text);
        let typed = ["usize", "i64", "f32", "u32"].iter().any(|kind| reply.text.contains(kind));
        assert!(!typed, "{}", reply.text);
    }
}
