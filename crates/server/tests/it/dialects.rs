//! The Anthropic messages and the OpenAI responses, whole and streamed.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Reply, api, with};

/// Names and data of server-sent events, whose data must repeat the name.
fn named(reply: &Reply) -> Vec<(String, Value)> {
    let names: Vec<&str> = reply.text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    let events = reply.events();
    assert_eq!(names.len(), events.len(), "{}", reply.text);
    names
        .into_iter()
        .zip(events)
        .map(|(name, data)| {
            assert_eq!(data["type"], name);
            (name.to_owned(), data)
        })
        .collect()
}

fn question() -> Value {
    json!({ "model": "clover-nano", "max_tokens": 300, "messages": [{ "role": "user", "content": "What is 12 * 13?" }] })
}

#[tokio::test]
async fn a_message_streams_as_the_blocks_it_has() {
    let api = api();
    for thinking in [json!({ "type": "disabled" }), json!({ "type": "enabled", "budget_tokens": 1024 })] {
        let body = with(question(), json!({ "thinking": thinking }));
        let whole = api.post("/v1/messages", body.clone()).await.json();
        assert_eq!(whole["stop_reason"], "end_turn", "{whole}");
        let reply = api.post("/v1/messages", with(body, json!({ "stream": true }))).await;
        let events = named(&reply);
        assert_eq!(events.first().unwrap().0, "message_start");
        assert_eq!(events.last().unwrap().0, "message_stop");
        // Rebuilt from the events as a client does it.
        let mut content: Vec<Value> = Vec::new();
        let mut open = None;
        for (name, data) in &events {
            match name.as_str() {
                "content_block_start" => {
                    assert_eq!((open, &data["index"]), (None, &json!(content.len())));
                    open = Some(content.len());
                    content.push(data["content_block"].clone());
                }
                "content_block_delta" => {
                    let block = &mut content[open.expect("a block is open")];
                    for (kind, field) in [("text_delta", "text"), ("thinking_delta", "thinking")] {
                        if data["delta"]["type"] == kind {
                            let text = block[field].as_str().unwrap().to_owned();
                            block[field] = (text + data["delta"][field].as_str().unwrap()).into();
                        }
                    }
                }
                "content_block_stop" => assert_eq!(data["index"], open.take().expect("a block is open")),
                "message_delta" => {
                    assert_eq!(data["delta"]["stop_reason"], whole["stop_reason"]);
                    assert_eq!(data["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
                }
                _ => {}
            }
        }
        assert_eq!(json!(content), whole["content"]);
    }
}

#[tokio::test]
async fn messages_end_at_stop_sequences_and_errors_have_their_shape() {
    let api = api();
    let stopped =
        api.post("/v1/messages", with(question(), json!({ "stop_sequences": ["156", "zzz"] }))).await.json();
    assert_eq!(stopped["stop_reason"], "stop_sequence", "{stopped}");
    assert_eq!(stopped["stop_sequence"], "156");
    assert!(!stopped["content"][0]["text"].as_str().unwrap().contains("156"));
    let cases = [
        (json!({ "tools": [{ "name": "f" }] }), "tools[0]"),
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "stop_sequences": [""] }), "stop_sequences[0]"),
        (json!({ "messages": [{ "role": "system", "content": "x" }] }), "messages[0].role"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
            "messages[0].content[0].type",
        ),
    ];
    for (change, field) in cases {
        let reply = api.post("/v1/messages", with(question(), change)).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        let error = reply.json();
        assert_eq!(
            (&error["type"], &error["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
        assert!(error["error"]["message"].as_str().unwrap().contains(field), "{error}");
    }
    for change in
        [json!({}), json!({ "max_tokens": null, "stream": true }), json!({ "max_tokens": null, "top_k": 3 })]
    {
        let reply = api.post("/v1/messages/count_tokens", with(question(), change)).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "there is no answer to say anything about");
    }
    let count = with(question(), json!({ "max_tokens": null }));
    let count = api.post("/v1/messages/count_tokens", count).await.json();
    let usage = api.post("/v1/messages", question()).await.json()["usage"].clone();
    let read = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(count["input_tokens"], read);
}

#[tokio::test]
async fn a_response_streams_as_the_items_it_has() {
    let api = api();
    for effort in ["none", "high"] {
        let body = json!({ "input": "What is 12 * 13?", "reasoning": { "effort": effort } });
        let whole = api.post("/v1/responses", body.clone()).await.json();
        assert_eq!(whole["status"], "completed", "{whole}");
        let reply = api.post("/v1/responses", with(body, json!({ "stream": true }))).await;
        let events = named(&reply);
        let numbers: Vec<u64> =
            events.iter().map(|(_, data)| data["sequence_number"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
        let (name, last) = events.last().unwrap();
        assert_eq!(name, "response.completed");
        // Ids are fresh each time; the rest is the same.
        let text = |item: &Value| (item["type"].clone(), item["content"].clone());
        let items = |response: &Value| -> Vec<_> {
            response["output"].as_array().unwrap().iter().map(text).collect()
        };
        assert_eq!(items(&last["response"]), items(&whole));
        let deltas: String = events
            .iter()
            .filter(|(n, _)| n == "response.output_text.delta")
            .map(|(_, d)| d["delta"].as_str().unwrap())
            .collect();
        assert_eq!(whole["output"].as_array().unwrap().last().unwrap()["content"][0]["text"], deltas);
        // What came out goes in again.
        let mut input = vec![json!({ "role": "user", "content": "What is 12 * 13?" })];
        input.extend(whole["output"].as_array().unwrap().clone());
        input.push(json!({ "role": "user", "content": [{ "type": "input_text", "text": "And 12 * 14?" }] }));
        let next = api.post("/v1/responses", json!({ "input": input, "max_output_tokens": 4 })).await;
        assert_eq!(next.status, StatusCode::OK, "{}", next.text);
        assert_eq!(next.json()["incomplete_details"]["reason"], "max_output_tokens");
    }
    for (change, field) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "store": true }), "store"),
        (json!({ "reasoning": { "effort": "huge" } }), "reasoning.effort"),
        (json!({ "input": [{ "type": "web_search_call" }] }), "input[0].type"),
        (json!({ "input": [{ "type": "function_call" }] }), "input[0].call_id"),
        (json!({ "include": ["file_search_call.results"] }), "include[0]"),
        (json!({ "input": [{ "role": "user", "content": "x", "mood": 1 }] }), "input[0].mood"),
    ] {
        let reply = api.post("/v1/responses", with(json!({ "input": "x" }), change)).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{field}: {}", reply.text);
        assert_eq!(reply.json()["error"]["param"], field, "{}", reply.text);
    }
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let api = api();
    let page = api.get("/").await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    let mut found = 0;
    for file in ["style.css", "app.js", "watch.js", "markdown.js"] {
        let reply = api.get(&format!("/{file}")).await;
        assert_eq!(reply.status, StatusCode::OK);
        assert!(!reply.text.contains("//cdn") && !reply.text.contains("https://"), "{file}");
        found += usize::from(page.text.contains(file));
    }
    assert_eq!(found, 2, "the page names its style and its program; that imports the rest");
}
