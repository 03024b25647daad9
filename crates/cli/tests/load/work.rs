//! What the clients ask.

use std::time::Duration;

use serde_json::{Value, json};
use shamrock_testkit::root;

/// One request, in one of the API's dialects.
pub struct Job {
    pub id: usize,
    pub path: &'static str,
    pub body: Value,
    /// Its answer does not depend on chance.
    pub repeatable: bool,
}

impl Job {
    pub fn streams(&self) -> bool {
        self.body["stream"] == true
    }
}

/// Greedy and sampled, streamed and not, short, long, and with prompts of many passes.
pub fn jobs() -> Vec<Job> {
    let tasks = std::fs::read_to_string(root().join("models/clover-nano.eval.jsonl")).expect("tasks");
    let tasks: Vec<Value> = tasks.lines().map(|line| serde_json::from_str(line).expect("a task")).collect();
    let stride = tasks.len() / 28;
    let mut jobs: Vec<Job> = Vec::new();
    for (n, task) in tasks.iter().step_by(stride).enumerate() {
        let messages = &task["messages"];
        let most = [4, 24, 96][n % 3];
        let (path, mut body) = match n % 4 {
            3 => ("/v1/messages", json!({"model": "clover-nano", "messages": messages, "max_tokens": most})),
            2 => {
                // Long prompts that begin alike, and part somewhere.
                let story = "Once upon a time a fox and an owl went to the market. ".repeat(4 + n);
                let prompt = format!("{story}{}", messages[0]["content"].as_str().unwrap_or_default());
                ("/v1/completions", json!({"prompt": prompt, "max_tokens": most}))
            }
            _ => ("/v1/chat/completions", json!({"messages": messages, "max_tokens": most})),
        };
        let streams = n % 5 != 0;
        body["stream"] = json!(streams);
        if streams && path != "/v1/messages" {
            body["stream_options"] = json!({"include_usage": true});
        }
        let sampled = n % 7 == 6;
        body["temperature"] = json!(if sampled { 0.8 } else { 0.0 });
        if path != "/v1/messages" {
            let mode = ["denoise", "denoise", "draft", "causal"][n / 4 % 4];
            body["shamrock"] = json!({ "mode": mode });
        }
        jobs.push(Job { id: n, path, body, repeatable: !sampled });
    }
    jobs
}

/// How long a client waits that will give up: some milliseconds, or some events of the stream.
#[derive(Clone, Copy)]
pub enum Patience {
    Time(Duration),
    Events(u64),
}

/// A small generator, so that a run can be repeated.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66_D1CE_4E5B)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    pub fn patience(&mut self) -> Patience {
        match self.below(2) {
            0 => Patience::Time(Duration::from_millis(self.below(400))),
            _ => Patience::Events(1 + self.below(4)),
        }
    }
}
