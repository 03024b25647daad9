//! Any body sent to any API is answered or refused: never with an error of the server, always in the
//! shape of the API, and a stream always comes to an end that its reader can tell from a broken one.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use shamrock_fuzz::let_the_library_panic;
use shamrock_generate::Options;
use shamrock_model::ModelFile;
use shamrock_model::reference::{ReferenceExecutor, ReferenceOptions};
use shamrock_server::{App, Engine, EngineOptions, ServerOptions};
use shamrock_text::{ChatTemplate, Prompter, Tokenizer};
use tokio::runtime::{Builder, Runtime};
use tower::ServiceExt;

const PATHS: [&str; 5] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
];

/// The API over a model of a few hundred kilobytes, with a context that no answer takes long to fill.
static API: LazyLock<(Runtime, Router)> = LazyLock::new(|| {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/small/model.f16.cmf");
    let model = ModelFile::open(model).unwrap();
    let template = ChatTemplate::new(include_str!("../seeds/template/thinking.jinja"), []).unwrap();
    let prompter = Prompter::new(Tokenizer::from_bytes(model.tokenizer_json()).unwrap(), Some(template));
    let options = ReferenceOptions { max_context: Some(256), threads: Some(1) };
    let executor = ReferenceExecutor::new(model, options).unwrap();
    let defaults = Options { max_tokens: 24, ..Options::for_model(shamrock_model::Executor::config(&executor)) };
    let engine = EngineOptions { parallel: 4, queue: 12, prefix_bytes: 1 << 20, ..EngineOptions::default() };
    let engine = Engine::start(Box::new(executor), engine).unwrap();
    let options = ServerOptions { max_body: 1 << 16, ..ServerOptions::new("m", defaults) };
    let router = Arc::new(App::new(engine, prompter, options)).router();
    (Builder::new_current_thread().enable_all().build().unwrap(), router)
});

fuzz_target!(init: let_the_library_panic(), |data: &[u8]| {
    let Some((which, body)) = data.split_first() else { return };
    let path = PATHS[usize::from(which.wrapping_sub(b'0')) % PATHS.len()];
    let request = Request::post(path)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_vec()))
        .unwrap();
    let (runtime, router) = &*API;
    let (status, streamed, reply) = runtime.block_on(async {
        let reply = router.clone().oneshot(request).await.unwrap();
        let streamed = reply.headers()[header::CONTENT_TYPE] == "text/event-stream";
        let (status, body) = (reply.status(), reply.into_body());
        (status, streamed, body.collect().await.unwrap().to_bytes())
    });
    let reply = std::str::from_utf8(&reply).unwrap();
    match status {
        StatusCode::OK if streamed => check_stream(path, reply),
        StatusCode::OK => assert!(serde_json::from_str::<Value>(reply).unwrap().is_object()),
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::PAYLOAD_TOO_LARGE => {
            check_error(&serde_json::from_str(reply).unwrap());
        }
        _ => panic!("{status}: {reply}"),
    }
});

fn check_error(reply: &Value) {
    let message = reply["error"]["message"].as_str().unwrap();
    assert!(!message.is_empty() && reply["error"]["type"].is_string(), "{reply}");
}

/// The last event says that it is the last. An answer that its own grammar led beyond a budget ends in an
/// error.
fn check_stream(path: &str, reply: &str) {
    let data: Vec<&str> = reply.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let (last, before) = data.split_last().unwrap();
    before.iter().for_each(|event| assert!(serde_json::from_str::<Value>(event).unwrap().is_object()));
    if *last == "[DONE]" {
        return assert!(PATHS[..2].contains(&path));
    }
    let last: Value = serde_json::from_str(last).unwrap();
    match last["type"].as_str() {
        Some("message_stop" | "response.completed" | "response.incomplete") => {}
        Some("error") => assert!(reply.contains("grammar"), "{reply}"),
        _ => assert_eq!(last["error"]["code"], "grammar_failed", "{reply}"),
    }
}
