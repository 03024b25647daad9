//! Tests of the public interface, against vectors from the reference libraries and against
//! properties. `../vectors/make.py` makes the vectors.

mod chat;
mod detokenizer;
mod injection;
mod stream;
mod tokenizer;
mod tools;

use std::path::PathBuf;

use shamrock_text::{ChatTemplate, Tokenizer};

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl Into<PathBuf>) -> String {
    let path = repository().join(path.into());
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn json(path: impl Into<PathBuf>) -> serde_json::Value {
    serde_json::from_str(&read(path)).unwrap()
}

fn fixture_tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(read("fixtures/small/hf/tokenizer.json").as_bytes()).unwrap()
}

fn fixture_template() -> ChatTemplate {
    let config = json("fixtures/small/hf/tokenizer_config.json");
    ChatTemplate::new(config["chat_template"].as_str().unwrap(), []).unwrap()
}

fn thinking_template() -> ChatTemplate {
    let source = read("crates/text/tests/vectors/thinking.jinja");
    ChatTemplate::new(&source, []).unwrap()
}
