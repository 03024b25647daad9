//! Answers of a form, tools, biases and probabilities, in every API. clover-nano was trained on none
//! of it: what counts is that the form holds.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Api, Reply, api, with};

/// A schema whose texts are short.
fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 8 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "colour": { "enum": ["red", "green"] },
        },
        "required": ["name", "age", "colour"],
        "additionalProperties": false,
    })
}

#[track_caller]
fn assert_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text:?}"));
    let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["name", "age", "colour"], "{text}");
    assert!(value["name"].as_str().unwrap().chars().count() <= 8, "{text}");
    assert!((0..=150).contains(&value["age"].as_i64().unwrap()), "{text}");
    assert!(["red", "green"].contains(&value["colour"].as_str().unwrap()), "{text}");
}

fn ask() -> Value {
    json!({ "messages": [{ "role": "user", "content": "Tell me about Anna, who is 31." }], "max_tokens": 400 })
}

fn streamed(reply: &Reply, field: &str) -> String {
    let text =
        |event: &Value| event.pointer(&format!("/choices/0/delta/{field}"))?.as_str().map(str::to_owned);
    reply.events().iter().filter_map(text).collect()
}

/// The fault class "schema, thinking and streams together".
#[tokio::test]
async fn a_schema_holds_with_and_without_reasoning_streamed_or_not() {
    let api = api();
    let format = json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": person() } });
    // `crates/grammar/tests` goes through all modes.
    for (mode, effort) in [("denoise", "none"), ("denoise", "high"), ("causal", "high"), ("draft", "none")] {
        let body = with(
            ask(),
            json!({ "response_format": format, "reasoning_effort": effort, "shamrock": { "mode": mode } }),
        );
        let whole = api.chat(body.clone()).await;
        let choice = &whole["choices"][0];
        let content = choice["message"]["content"].as_str().unwrap();
        assert_eq!(choice["finish_reason"], "stop", "{whole}");
        assert_person(content);
        assert_eq!(choice["message"]["reasoning_content"].is_string(), effort == "high", "{whole}");
        let reply = api.post("/v1/chat/completions", with(body, json!({ "stream": true }))).await;
        assert_eq!(streamed(&reply, "content"), content);
        assert_eq!(
            streamed(&reply, "reasoning_content"),
            choice["message"]["reasoning_content"].as_str().unwrap_or_default()
        );
    }
}

#[tokio::test]
async fn every_dialect_asks_for_a_form_in_its_own_words() {
    let api = api();
    let question = "Tell me about Anna, who is 31.";
    let format = json!({ "type": "json_schema", "name": "person", "schema": person(), "strict": true });
    let response =
        api.post("/v1/responses", json!({ "input": question, "text": { "format": format } })).await.json();
    assert_person(response["output"][0]["content"][0]["text"].as_str().unwrap());
    assert_eq!(response["text"]["format"]["schema"], person());
    let body = json!({
        "model": "clover-nano", "max_tokens": 400, "messages": ask()["messages"],
        "output_config": { "format": { "type": "json_schema", "schema": person() } },
    });
    let message = api.post("/v1/messages", body).await.json();
    assert_person(message["content"][0]["text"].as_str().unwrap());
    // Any object will do, and one that is cut says so.
    let body = with(ask(), json!({ "response_format": { "type": "json_object" }, "max_tokens": 3 }));
    let cut = api.chat(body).await;
    assert_eq!(cut["choices"][0]["finish_reason"], "length", "{cut}");
    assert!(cut["choices"][0]["message"]["content"].as_str().unwrap().starts_with('{'));
}

#[tokio::test]
async fn sampled_answers_of_a_schema_differ_and_all_hold() {
    let api = api();
    let format = json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": person() } });
    let body = with(ask(), json!({ "response_format": format, "n": 4, "temperature": 1.5, "seed": 3 }));
    let reply = api.chat(body).await;
    let mut texts: Vec<&str> = Vec::new();
    for choice in reply["choices"].as_array().unwrap() {
        texts.push(choice["message"]["content"].as_str().unwrap());
        assert_person(texts[texts.len() - 1]);
    }
    texts.dedup();
    assert!(texts.len() > 1, "{texts:?}");
}

fn function(name: &str, strict: bool) -> Value {
    let parameters = json!({
        "type": "object",
        "properties": { "city": { "enum": ["Rome", "Oslo"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    json!({ "name": name, "description": "Tells the weather.", "parameters": parameters, "strict": strict })
}

fn tools() -> Value {
    let tool = |name| json!({ "type": "function", "function": function(name, false) });
    json!([tool("weather"), tool("climate")])
}

#[track_caller]
fn assert_arguments(value: &Value) {
    assert!(["Rome", "Oslo"].contains(&value["city"].as_str().unwrap()), "{value}");
    assert!((1..=9).contains(&value["days"].as_i64().unwrap()), "{value}");
}

/// Calls of a whole reply and of the stream of the same: names and arguments.
async fn calls(api: &Api, body: Value) -> Vec<(String, Value)> {
    let whole = api.chat(body.clone()).await;
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
    assert!(choice["message"]["content"].is_null(), "{whole}");
    let whole: Vec<(String, String)> = choice["message"]["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| {
            assert!(
                call["id"].as_str().unwrap().starts_with("call_") && call["type"] == "function",
                "{call}"
            );
            let text = |name: &str| call["function"][name].as_str().unwrap().to_owned();
            (text("name"), text("arguments"))
        })
        .collect();
    let reply = api.post("/v1/chat/completions", with(body, json!({ "stream": true }))).await;
    assert_eq!(streamed(&reply, "content"), "", "{}", reply.text);
    let mut streamed: Vec<(String, String)> = Vec::new();
    for event in reply.events() {
        let Some(deltas) = event.pointer("/choices/0/delta/tool_calls").and_then(Value::as_array) else {
            continue;
        };
        for delta in deltas {
            let index = delta["index"].as_u64().unwrap() as usize;
            if let Some(name) = delta["function"]["name"].as_str() {
                assert_eq!(index, streamed.len());
                streamed.push((name.to_owned(), String::new()));
            }
            streamed[index].1.push_str(delta["function"]["arguments"].as_str().unwrap());
        }
    }
    assert_eq!(streamed, whole);
    whole.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap())).collect()
}

#[tokio::test]
async fn a_tool_that_must_be_called_is_called_as_its_schema_says() {
    let api = api();
    for (mode, effort) in [("denoise", "high"), ("draft", "none")] {
        let extra = json!({ "tools": tools(), "shamrock": { "mode": mode }, "reasoning_effort": effort });
        let body = with(ask(), extra);
        let single = json!({ "tool_choice": "required", "parallel_tool_calls": false });
        let required = calls(&api, with(body.clone(), single)).await;
        assert_eq!(required.len(), 1);
        assert_arguments(&required[0].1);
        let name = if mode == "draft" { "weather" } else { "climate" };
        let choice = json!({ "tool_choice": { "type": "function", "function": { "name": name } } });
        let named = calls(&api, with(body, choice)).await;
        assert_eq!((named.len(), named[0].0.as_str()), (1, name));
        assert_arguments(&named[0].1);
    }
}

#[tokio::test]
async fn tools_may_be_left_alone_or_told_of_and_results_come_back() {
    let api = api();
    // Without tools, what looks like a call is text.
    let none = api.chat(with(ask(), json!({ "tools": tools(), "tool_choice": "none" }))).await;
    let plain = api.chat(ask()).await;
    assert_eq!(none["choices"], plain["choices"]);
    let told = api.chat(with(ask(), json!({ "tools": tools() }))).await;
    let prompt = |reply: &Value| reply["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt(&told) > prompt(&plain) + 50, "the prompt tells of the tools: {told}");
    // Strict tools hold whatever calls there are, among text of any kind.
    let strict = json!([{ "type": "function", "function": function("weather", true) }]);
    let strict = api.chat(with(ask(), json!({ "tools": strict, "max_tokens": 60 }))).await;
    for call in strict["choices"][0]["message"]["tool_calls"].as_array().into_iter().flatten() {
        assert_arguments(&serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap());
    }
    // A form and tools: one or the other.
    let format = json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": person() } });
    let either = api.chat(with(ask(), json!({ "tools": tools(), "response_format": format }))).await;
    match either["choices"][0]["message"]["content"].as_str() {
        Some(text) => assert_person(text),
        None => assert!(either["choices"][0]["message"]["tool_calls"].is_array(), "{either}"),
    }
    let call = json!({ "id": "call_1", "type": "function",
        "function": { "name": "weather", "arguments": "{\"city\": \"Rome\", \"days\": 2}" } });
    let history = json!([
        { "role": "user", "content": "How warm is it?" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "call_1", "content": "20 degrees" },
    ]);
    let next = api.chat(json!({ "messages": history, "tools": tools(), "max_tokens": 8 })).await;
    assert!(prompt(&next) > 20, "{next}");
}

#[tokio::test]
async fn responses_have_calls_as_items_of_their_own() {
    let api = api();
    let tool = with(json!({ "type": "function" }), function("weather", true));
    let body = json!({
        "input": "How warm is it in Rome?", "tools": [tool],
        "tool_choice": { "type": "function", "name": "weather" },
    });
    let whole = api.post("/v1/responses", body.clone()).await.json();
    assert_eq!(
        (&whole["status"], &whole["output"][0]["type"]),
        (&json!("completed"), &json!("function_call"))
    );
    assert_eq!(whole["output"].as_array().unwrap().len(), 1, "{whole}");
    let arguments = whole["output"][0]["arguments"].as_str().unwrap();
    assert_arguments(&serde_json::from_str(arguments).unwrap());
    assert_eq!(whole["tools"][0]["name"], "weather");
    let reply = api.post("/v1/responses", with(body, json!({ "stream": true }))).await;
    let events = reply.events();
    let of = |kind: &str| events.iter().filter(|e| e["type"] == kind).cloned().collect::<Vec<_>>();
    let deltas = of("response.function_call_arguments.delta");
    let joined: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(joined, arguments);
    let done = &of("response.function_call_arguments.done")[0];
    assert_eq!((&done["arguments"], &done["name"]), (&json!(arguments), &json!("weather")));
    let item = &of("response.output_item.done")[0]["item"];
    assert_eq!(item["call_id"], of("response.output_item.added")[0]["item"]["call_id"]);
    // The call and its result go in again.
    let call = whole["output"][0].clone();
    let result =
        json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "20 degrees" });
    let input = json!([{ "role": "user", "content": "How warm is it in Rome?" }, call, result]);
    let next = api.post("/v1/responses", json!({ "input": input, "max_output_tokens": 8 })).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.text);
}

#[tokio::test]
async fn messages_have_calls_as_blocks() {
    let api = api();
    let tool = json!({ "name": "weather", "input_schema": function("weather", false)["parameters"] });
    let body = json!({
        "model": "clover-nano", "max_tokens": 200, "tools": [tool], "tool_choice": { "type": "any",
        "disable_parallel_tool_use": true },
        "messages": [{ "role": "user", "content": "How warm is it in Rome?" }],
    });
    let whole = api.post("/v1/messages", body.clone()).await.json();
    assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
    let block = &whole["content"][0];
    assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("weather")));
    assert_arguments(&block["input"]);
    let reply = api.post("/v1/messages", with(body.clone(), json!({ "stream": true }))).await;
    let json: String = reply
        .events()
        .iter()
        .filter(|event| event["delta"]["type"] == "input_json_delta")
        .map(|event| event["delta"]["partial_json"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), block["input"]);
    let result = json!([
        { "type": "tool_result", "tool_use_id": block["id"], "content": [{ "type": "text", "text": "20 degrees" }] },
        { "type": "text", "text": "So?" },
    ]);
    let mut messages = body["messages"].as_array().unwrap().clone();
    messages.push(json!({ "role": "assistant", "content": whole["content"] }));
    messages.push(json!({ "role": "user", "content": result }));
    let next =
        with(body, json!({ "messages": messages, "tool_choice": { "type": "auto" }, "max_tokens": 8 }));
    let next = api.post("/v1/messages", next).await;
    assert_eq!(next.status, StatusCode::OK, "{}", next.text);
}

#[tokio::test]
async fn a_bias_steers_and_the_likeliest_tokens_are_told() {
    let api = api();
    for mode in ["denoise", "draft"] {
        let body = with(
            ask(),
            json!({ "logit_bias": { "300": 100 }, "max_tokens": 4, "logprobs": true, "top_logprobs": 3,
                    "shamrock": { "mode": mode } }),
        );
        let whole = api.chat(body.clone()).await;
        let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
        let first = &tokens[0]["token"];
        assert!(tokens.iter().all(|token| token["token"] == *first), "{whole}");
        for token in tokens {
            let top = token["top_logprobs"].as_array().unwrap();
            assert_eq!((top.len(), &top[0]["token"]), (3, first), "{token}");
            let log = |entry: &Value| entry["logprob"].as_f64().unwrap();
            assert!((log(&top[0]) - log(token)).abs() < 1e-6 && log(&top[0]) >= log(&top[1]), "{token}");
            let bytes: Vec<u8> =
                token["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect();
            assert_eq!(String::from_utf8(bytes).unwrap(), token["token"].as_str().unwrap());
        }
        let reply = api.post("/v1/chat/completions", with(body, json!({ "stream": true }))).await;
        let entries = |event: &Value| event.pointer("/choices/0/logprobs/content")?.as_array().cloned();
        let streamed: Vec<Value> = reply.events().iter().filter_map(entries).flatten().collect();
        assert_eq!(&streamed, tokens);
    }
    let body = json!({ "prompt": "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n", "max_tokens": 5, "logprobs": 2, "logit_bias": { "300": -100 } });
    let reply = api.post("/v1/completions", body).await.json();
    let logprobs = &reply["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    assert_eq!(logprobs["top_logprobs"].as_array().unwrap().len(), tokens.len());
    assert!(logprobs["top_logprobs"][0][tokens[0].as_str().unwrap()].is_number(), "{reply}");
    let body = json!({
        "input": "What is 3 + 4?", "include": ["message.output_text.logprobs"], "top_logprobs": 2,
    });
    let reply = api.post("/v1/responses", body).await.json();
    let part = &reply["output"][0]["content"][0];
    let told = part["logprobs"].as_array().unwrap().iter().map(|token| token["token"].as_str().unwrap());
    assert_eq!(told.collect::<String>(), part["text"].as_str().unwrap());
    assert_eq!(part["logprobs"][0]["top_logprobs"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn forms_and_tools_that_cannot_be_are_refused_by_name() {
    let api = api();
    let schema =
        |schema: Value| json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let tool = |name: &str| json!([{ "type": "function", "function": { "name": name } }]);
    let cases = [
        (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
        (json!({ "response_format": schema(json!({ "type": "wombat" })) }), "response_format"),
        (
            json!({ "response_format": schema(json!({ "type": "string", "pattern": "(" })) }),
            "response_format",
        ),
        (json!({ "response_format": schema(json!({ "$ref": "http://127.0.0.1:1/x" })) }), "response_format"),
        (json!({ "response_format": schema(json!({ "enum": ["x".repeat(70_000)] })) }), "response_format"),
        (json!({ "tools": [{ "type": "retrieval" }] }), "tools[0].type"),
        (json!({ "tools": tool("a b") }), "tools[0]"),
        (json!({ "tools": tool("f"), "tool_choice": "sometimes" }), "tool_choice"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (
            json!({ "tools": tool("f"), "tool_choice": { "type": "function", "function": { "name": "g" } } }),
            "tool_choice",
        ),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias.x"),
        (json!({ "logit_bias": { "5": 101 } }), "logit_bias.5"),
        (json!({ "logit_bias": { "99999": 1 } }), "logit_bias"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (
            json!({ "response_format": schema(json!({ "type": "integer", "minimum": 1e30 })) }),
            "response_format",
        ),
        (
            json!({ "response_format": { "type": "json_object" }, "shamrock": { "ignore_eos": true } }),
            "shamrock.ignore_eos",
        ),
    ];
    for (change, field) in cases {
        let reply = api.post("/v1/chat/completions", with(ask(), change)).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{field}: {}", reply.text);
        assert_eq!(reply.json()["error"]["param"], field, "{}", reply.text);
    }
}

#[tokio::test]
async fn a_tool_without_parameters_is_called_with_none() {
    let api = api();
    for function in [json!({ "name": "now" }), json!({ "name": "now", "parameters": null })] {
        let tools = json!([{ "type": "function", "function": function }]);
        let body =
            with(ask(), json!({ "tools": tools, "tool_choice": "required", "parallel_tool_calls": false }));
        assert_eq!(calls(&api, body).await, [("now".to_owned(), json!({}))]);
    }
}

/// The fault class "tool arguments cut at every byte", as a client sees it: whatever of the call there
/// was room for, none of it is content.
#[tokio::test]
async fn a_call_that_is_cut_leaves_nothing_in_the_content() {
    let api = api();
    let body = with(
        ask(),
        json!({ "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false,
        "shamrock": { "mode": "causal" } }),
    );
    let whole = api.chat(body.clone()).await;
    let tokens = whole["usage"]["completion_tokens"].as_u64().unwrap();
    let arguments =
        whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    // Every byte is cut at in `crates/text/tests`.
    for limit in (1..tokens).step_by(5) {
        let cut = api.chat(with(body.clone(), json!({ "max_tokens": limit }))).await;
        let message = &cut["choices"][0]["message"];
        assert_eq!(cut["choices"][0]["finish_reason"], "length", "{limit}");
        assert!(message["content"].as_str().is_none_or(str::is_empty), "{limit}: {message}");
        if let Some(call) = message["tool_calls"].get(0) {
            let part = call["function"]["arguments"].as_str().unwrap();
            assert!(arguments.starts_with(part), "{limit}: {part} of {arguments}");
        }
    }
}

/// The fault class "a character across a block's edge": four bytes, four tokens, blocks of every
/// small size, streamed.
#[tokio::test]
async fn characters_across_the_edges_of_blocks_stay_whole() {
    let api = api();
    let text = "😀é漢🏳️‍🌈.";
    let schema =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "const": text } } });
    for block in [1, 2, 3, 4, 5, 7] {
        for extra in [
            json!({ "mode": "denoise", "block_size": block }),
            json!({ "mode": "draft", "draft_width": block + 1 }),
        ] {
            let body = with(ask(), json!({ "response_format": schema, "stream": true, "shamrock": extra }));
            let reply = api.post("/v1/chat/completions", body).await;
            assert_eq!(streamed(&reply, "content"), format!("\"{text}\""), "blocks of {block}");
        }
    }
}
