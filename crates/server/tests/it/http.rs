//! The API over the model in the box.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use futures_util::StreamExt;
use serde_json::{Value, json};
use shamrock_server::EngineOptions;

use crate::support::{api, api_with, eventually, post, with};

fn ask(question: &str) -> Value {
    json!({ "model": "clover-nano", "messages": [{ "role": "user", "content": question }] })
}

fn content(reply: &Value) -> &str {
    reply["choices"][0]["message"]["content"].as_str().unwrap()
}

/// The text of streamed chat chunks.
fn streamed(events: &[Value], field: &str) -> String {
    events.iter().filter_map(|e| e.pointer(&format!("/choices/0/delta/{field}"))?.as_str()).collect()
}

#[tokio::test]
async fn a_chat_is_answered_with_its_figures() {
    let api = api();
    let reply = api.chat(ask("What is 47 * 36?")).await;
    assert!(content(&reply).contains("1692"), "{reply}");
    assert_eq!(reply["object"], "chat.completion");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(reply["choices"][0]["message"]["role"], "assistant");
    let usage = &reply["usage"];
    let count =
        |path: &str| usage.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}: {usage}"));
    assert_eq!(count("/total_tokens"), count("/prompt_tokens") + count("/completion_tokens"));
    assert!(count("/shamrock/tokens_per_pass") > 1.0, "blocks give many tokens a pass: {usage}");
    assert_eq!(count("/prompt_tokens_details/cached_tokens"), 0.0);
    // The same again: nothing of the prompt is left to do, and not a letter differs.
    let again = api.chat(ask("What is 47 * 36?")).await;
    assert_eq!(content(&again), content(&reply));
    assert_eq!(
        again.pointer("/usage/prompt_tokens_details/cached_tokens"),
        again.pointer("/usage/prompt_tokens")
    );
}

/// clover-nano's template shows a past turn without the tags that said there was to be no reasoning, so that no
/// state of that turn can be gone on from.
#[tokio::test]
async fn a_second_turn_finds_all_but_its_own_message() {
    let api = api();
    let alone = api_with(EngineOptions { prepare: false, ..EngineOptions::default() }, |_| {});
    let story = "Write a short story with the words fox, lantern and river.";
    let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
    for stream in [false, true] {
        let question = if stream { "What is 47 * 36?" } else { story };
        let before = api.metric("shamrock_prepared_tokens_total");
        let first = api.post("/v1/chat/completions", with(ask(question), json!({ "stream": stream }))).await;
        let answer =
            if stream { streamed(&first.events(), "content") } else { content(&first.json()).to_owned() };
        eventually("the next turn is prepared", || api.metric("shamrock_prepared_tokens_total") > before);
        let messages =
            json!([turn("user", question), turn("assistant", &answer), turn("user", "\nAnd 12 + 30?")]);
        let body = json!({ "messages": messages });
        let (second, cold) = (api.chat(body.clone()).await, alone.chat(body).await);
        assert_eq!(content(&second), content(&cold));
        let left = |reply: &Value| {
            let usage = &reply["usage"];
            let cached = usage.pointer("/prompt_tokens_details/cached_tokens").unwrap();
            usage["prompt_tokens"].as_u64().unwrap() - cached.as_u64().unwrap()
        };
        assert!(left(&second) < 24 && left(&cold) > 40, "{second} {cold}");
    }
}

#[tokio::test]
async fn a_stream_says_what_the_whole_reply_says() {
    let api = api();
    for (mode, logprobs) in [("denoise", false), ("draft", true), ("causal", true)] {
        let body = with(
            ask("Sort these words: pear, apple, plum"),
            json!({ "shamrock": { "mode": mode }, "logprobs": logprobs }),
        );
        let whole = api.chat(body.clone()).await;
        let body = with(body, json!({ "stream": true, "stream_options": { "include_usage": true } }));
        let reply = api.post("/v1/chat/completions", body).await;
        assert_eq!(reply.headers["content-type"], "text/event-stream");
        assert!(reply.text.ends_with("data: [DONE]\n\n"), "{}", reply.text);
        let events = reply.events();
        assert_eq!(streamed(&events, "content"), content(&whole));
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        let (usage, chunks) = events.split_last().unwrap();
        assert_eq!(usage["choices"], json!([]));
        for count in ["prompt_tokens", "completion_tokens"] {
            assert_eq!(usage["usage"][count], whole["usage"][count]);
        }
        assert!(chunks.iter().all(|chunk| chunk["usage"].is_null() && chunk["id"] == usage["id"]));
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
        let tokens = |chunk: &Value| {
            chunk
                .pointer("/choices/0/logprobs/content")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        };
        let streamed_tokens: Vec<Value> = chunks.iter().flat_map(tokens).collect();
        assert_eq!(streamed_tokens, tokens(&whole));
        assert_eq!(streamed_tokens.is_empty(), !logprobs);
        assert!(streamed_tokens.iter().all(|t| t["logprob"].as_f64().is_some_and(|l| l <= 0.0)));
        if logprobs {
            let text: String = streamed_tokens.iter().map(|t| t["token"].as_str().unwrap()).collect();
            assert_eq!(text, content(&whole));
        }
    }
}

#[tokio::test]
async fn passes_can_be_watched() {
    let api = api();
    let body = with(ask("What is 3 + 4?"), json!({ "stream": true, "shamrock": { "events": true } }));
    let events = api.post("/v1/chat/completions", body).await.events();
    let passes: Vec<&Value> = events.iter().filter_map(|event| event.get("shamrock")).collect();
    let denoise: Vec<&&Value> = passes.iter().filter(|pass| pass["work"] == "denoise").collect();
    assert!(!denoise.is_empty(), "{events:?}");
    let text: String =
        denoise.iter().flat_map(|p| p["text"].as_array().unwrap()).map(|t| t.as_str().unwrap()).collect();
    assert!(text.contains('7'), "{text}");
    let count = |key: &str| denoise[0][key].as_array().unwrap().len();
    assert_eq!(count("rows") + count("open"), 32, "{}", denoise[0]);
    for pass in denoise {
        let open = pass["open"].as_array().unwrap();
        assert!(pass["rows"].as_array().unwrap().iter().all(|row| !open.contains(row)), "{pass}");
        assert_eq!(pass["rows"].as_array().unwrap().len(), pass["confidence"].as_array().unwrap().len());
        assert_eq!(pass["width"], 32);
    }
}

#[tokio::test]
async fn texts_are_continued() {
    let api = api();
    let prompt = "<|im_start|>user\nWhat is 3 + 4?<|im_end|>\n<|im_start|>assistant\n";
    let body = json!({ "prompt": [prompt, prompt], "max_tokens": 40, "logprobs": 0 });
    let reply = api.post("/v1/completions", body.clone()).await.json();
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    assert_eq!(choices[0]["text"], choices[1]["text"]);
    assert!(choices[0]["text"].as_str().unwrap().contains('7'), "{reply}");
    let events = api.post("/v1/completions", with(body, json!({ "stream": true }))).await.events();
    let text: String = events
        .iter()
        .filter(|e| e["choices"][0]["index"] == 1)
        .map(|e| e["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, choices[1]["text"]);
}

#[tokio::test]
async fn seeds_repeat_and_choices_differ() {
    let api = api();
    let body = |seed: u64| {
        let options = json!({ "temperature": 2.0, "seed": seed, "n": 3, "max_tokens": 24,
            "shamrock": { "mode": "causal" } });
        with(ask("Write a short story with the words fox, lantern and river."), options)
    };
    let texts = |reply: Value| -> Vec<String> {
        let choices = reply["choices"].as_array().unwrap().clone();
        choices.iter().map(|c| c["message"]["content"].to_string()).collect()
    };
    let first = texts(api.chat(body(1)).await);
    assert_eq!(first, texts(api.chat(body(1)).await));
    assert_ne!(first, texts(api.chat(body(2)).await));
    assert!(first[0] != first[1] && first[1] != first[2], "{first:?}");
}

/// Body, status, field at fault.
#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_name() {
    let api = api();
    let cases = [
        (json!({ "top_kk": 3 }), "top_kk"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (json!({ "functions": [{ "name": "f" }] }), "functions"),
        (json!({ "top_logprobs": 3 }), "top_logprobs"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "top_p": 1.5 }), "top_p"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "n": 17 }), "n"),
        (json!({ "stop": ["a", ""] }), "stop[1]"),
        (json!({ "stop": 3 }), "stop"),
        (json!({ "reasoning_effort": "huge" }), "reasoning_effort"),
        (json!({ "chat_template_kwargs": { "messages": [] } }), "chat_template_kwargs.messages"),
        (json!({ "shamrock": { "threshold": 2 } }), "shamrock.threshold"),
        (json!({ "shamrock": { "mode": "magic" } }), "shamrock.mode"),
        (json!({ "shamrock": { "blocksize": 3 } }), "shamrock.blocksize"),
        (json!({ "shamrock": { "rule": "entropy:0.3", "threshold": 0.5 } }), "shamrock.rule"),
        (json!({ "shamrock": { "mode": "causal", "threshold": 0.5 } }), "shamrock.threshold"),
        (json!({ "shamrock": { "mode": "draft", "block_size": 8 } }), "shamrock.block_size"),
        (json!({ "shamrock": { "draft_width": 8 } }), "shamrock.draft_width"),
        (json!({ "shamrock": { "accept": "exact" } }), "shamrock.accept"),
        (json!({ "chat_template_kwargs": { "colour": "red" } }), "chat_template_kwargs.colour"),
        (json!({ "max_tokens": 5, "max_completion_tokens": 6 }), "max_tokens"),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "x", "size": 1 }] }] }),
            "messages[0].content[0].size",
        ),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "robot", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user", "content": 3 }] }), "messages[0].content"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages[0].content[0].type",
        ),
        (json!({ "messages": [{ "role": "user", "content": "x", "weight": 1 }] }), "messages[0].weight"),
    ];
    for (change, field) in cases {
        let reply = api.post("/v1/chat/completions", with(ask("Hello"), change)).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{field}: {}", reply.text);
        let error = &reply.json()["error"];
        assert_eq!(error["param"], field, "{error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(field), "{error}");
    }
    let neutral = json!({ "tools": [], "tool_choice": "none", "response_format": { "type": "text" },
        "user": "me", "metadata": { "a": "b" }, "store": false, "logit_bias": null });
    api.chat(with(ask("Hello"), with(neutral, json!({ "max_tokens": 1 })))).await;
}

/// Messages are about what was sent, not about this program.
#[tokio::test]
async fn errors_are_in_the_words_of_the_request() {
    let api = api();
    for body in [
        json!(null),
        with(ask("Hello"), json!({ "tools": 3 })),
        with(ask("Hello"), json!({ "tools": [3] })),
        with(ask("Hello"), json!({ "tools": [{ "type": "function", "function": 3 }] })),
        with(ask("Hello"), json!({ "stream_options": 3 })),
        with(ask("Hello"), json!({ "response_format": 3 })),
        with(ask("Hello"), json!({ "messages": [3] })),
        with(ask("Hello"), json!({ "shamrock": 3 })),
        with(ask("Hello"), json!({ "shamrock": { "mode": 3 } })),
    ] {
        let reply = api.post("/v1/chat/completions", body.clone()).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{body}: {}", reply.text);
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        let ours = ["struct", "enum", "Chat", "variant", "Vec"];
        assert!(!ours.iter().any(|word| message.contains(word)), "{body}: {message}");
    }
}

#[tokio::test]
async fn more_answers_than_there_is_room_for_are_refused_for_good() {
    let options = EngineOptions { parallel: 2, queue: 1, ..EngineOptions::default() };
    let api = api_with(options, |_| {});
    api.chat(with(ask("Hello"), json!({ "n": 3, "max_tokens": 1 }))).await;
    for (path, body) in [
        ("/v1/chat/completions", with(ask("Hello"), json!({ "n": 4 }))),
        ("/v1/completions", json!({ "prompt": ["a", "b"], "n": 2 })),
    ] {
        let reply = api.post(path, body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.text);
        assert_eq!(reply.json()["error"]["param"], "n");
    }
}

#[tokio::test]
async fn a_page_whose_name_was_made_to_lead_here_is_turned_away() {
    let api = api_with(EngineOptions::default(), |options| options.hosts = Some(vec!["ours.example".into()]));
    let get = |host: &'static str| Request::get("/health").header("host", host).body(Body::empty()).unwrap();
    for host in
        ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:8080", "ours.example:443", "ours.example."]
    {
        assert_eq!(api.send(get(host)).await.status, StatusCode::OK, "{host}");
    }
    for host in
        ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b"]
    {
        let reply = api.send(get(host)).await;
        assert_eq!(reply.status, StatusCode::MISDIRECTED_REQUEST, "{host}");
        assert_eq!(reply.json()["error"]["code"], "unknown_host");
    }
    let absolute = Request::get("http://evil.example/health").body(Body::empty()).unwrap();
    assert_eq!(api.send(absolute).await.status, StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test]
async fn only_known_models_and_places_answer() {
    let api = api();
    let other = api.post("/v1/chat/completions", with(ask("Hello"), json!({ "model": "gpt-4" }))).await;
    assert_eq!(other.status, StatusCode::NOT_FOUND);
    assert_eq!(other.json()["error"]["code"], "model_not_found");
    let models = api.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "clover-nano");
    assert_eq!(models["data"][0]["shamrock"]["threshold"], 0.9, "as it is written in the model's file");
    assert_eq!(api.get("/v1/models/clover-nano").await.status, StatusCode::OK);
    assert_eq!(api.get("/v1/models/x").await.status, StatusCode::NOT_FOUND);
    let nowhere = api.get("/v1/nothing").await;
    assert_eq!(
        (nowhere.status, nowhere.json()["error"]["type"].as_str()),
        (StatusCode::NOT_FOUND, Some("invalid_request_error"))
    );
    assert_eq!(api.get("/v1/chat/completions").await.status, StatusCode::METHOD_NOT_ALLOWED);
    let health = api.get("/health").await;
    assert_eq!((health.status, health.json()["status"].as_str()), (StatusCode::OK, Some("ok")));
}

#[tokio::test]
async fn a_key_is_asked_for_and_pages_of_named_origins_may_ask() {
    let api = api_with(EngineOptions::default(), |options| {
        options.api_key = Some("sesame".into());
        options.cors = vec!["https://friend.example".into()];
    });
    let get = |name: &'static str, value: &'static str| {
        Request::get("/v1/models").header(name, value).body(Body::empty()).unwrap()
    };
    for (name, value, status) in [
        ("authorization", "Bearer sesame", StatusCode::OK),
        ("x-api-key", "sesame", StatusCode::OK),
        ("authorization", "Bearer sesam", StatusCode::UNAUTHORIZED),
        ("authorization", "Bearer sesame1", StatusCode::UNAUTHORIZED),
        ("authorization", "sesame", StatusCode::UNAUTHORIZED),
        ("accept", "*/*", StatusCode::UNAUTHORIZED),
    ] {
        assert_eq!(api.send(get(name, value)).await.status, status, "{name}: {value}");
    }
    assert_eq!(api.get("/health").await.status, StatusCode::OK, "probes need no key");
    for (origin, allowed) in [("https://friend.example", true), ("https://foe.example", false)] {
        let preflight = Request::builder()
            .method(Method::OPTIONS)
            .uri("/v1/chat/completions")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .body(Body::empty())
            .unwrap();
        let headers = api.send(preflight).await.headers;
        assert_eq!(headers.contains_key("access-control-allow-origin"), allowed, "{origin}");
    }
}

#[tokio::test]
async fn hostile_bodies_get_an_error_and_nothing_else() {
    let api = api_with(EngineOptions::default(), |options| options.max_body = 2000);
    let valid = ask("Hello").to_string();
    let many = format!("{{\"messages\":{}1{}}}", "[".repeat(500), "]".repeat(500));
    let mut bodies: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"null".to_vec(),
        b"[]".to_vec(),
        b"{\"messages\": 1e999}".to_vec(),
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}".to_vec(),
        b"{\"n\": 1, \"n\": 1, \"messages\": []}".to_vec(),
        b"{\"max_tokens\": -1, \"messages\": []}".to_vec(),
        b"{\"max_tokens\": 99999999999999999999, \"messages\": []}".to_vec(),
        many.into_bytes(),
        format!("{valid}x").into_bytes(),
    ];
    bodies.extend((0..valid.len()).map(|end| valid.as_bytes()[..end].to_vec()));
    for body in bodies {
        let reply = api.send(post("/v1/chat/completions", body.clone())).await;
        let text = String::from_utf8_lossy(&body);
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{text}: {}", reply.text);
        assert!(reply.json()["error"]["message"].is_string());
    }
    let large = api.post("/v1/chat/completions", ask(&"x".repeat(3000))).await;
    assert_eq!(large.status, StatusCode::PAYLOAD_TOO_LARGE);
    // The size is not announced either.
    let chunks = futures_util::stream::iter((0..100).map(|_| Ok::<_, std::io::Error>("x".repeat(100))));
    let endless = api.send(post("/v1/chat/completions", Body::from_stream(chunks))).await;
    assert_eq!(endless.status, StatusCode::PAYLOAD_TOO_LARGE);
    let form = Request::post("/v1/chat/completions").body(Body::from(valid)).unwrap();
    assert_eq!(api.send(form).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    api.chat(with(ask("Hello"), json!({ "max_tokens": 1 }))).await;
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let api = api_with(EngineOptions::default(), |options| options.timeout = Duration::from_millis(20));
    let begun =
        futures_util::stream::iter([Ok::<_, std::io::Error>("{")]).chain(futures_util::stream::pending());
    let reply = api.send(post("/v1/chat/completions", Body::from_stream(begun))).await;
    assert_eq!(reply.status, StatusCode::REQUEST_TIMEOUT, "{}", reply.text);
}
