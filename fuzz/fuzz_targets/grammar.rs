//! Any JSON is refused as a schema or gives a grammar that can be followed: from every place some
//! token leads on, or the text may end there. Any text is read for tool calls, the same however it is
//! cut.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use shamrock_fuzz::let_the_library_panic;
use shamrock_grammar::{Compiler, Source};
use shamrock_text::{Piece, Tokenizer, ToolCallSplitter, ToolFormat, Tools};

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    Tokenizer::from_bytes(include_bytes!("../../fixtures/small/hf/tokenizer.json")).unwrap()
});
static COMPILER: LazyLock<Compiler> =
    LazyLock::new(|| Compiler::new(&TOKENIZER, TOKENIZER.vocab_size()).unwrap());

fuzz_target!(init: let_the_library_panic(), |data: &[u8]| {
    if let Ok(schema) = serde_json::from_slice(data) {
        follow(schema);
    }
    let text = String::from_utf8_lossy(data);
    for format in [ToolFormat::Json, ToolFormat::Xml] {
        let whole = read(format, [&*text]);
        let single: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(read(format, single.iter().map(String::as_str)), whole);
    }
});

/// Walks along what a schema allows. A budget that is used up is an error, too.
fn follow(schema: serde_json::Value) {
    let Ok(grammar) = COMPILER.compile(&Source::JsonSchema(schema)) else { return };
    let mut matcher = grammar.matcher().unwrap();
    for step in 0..48u32 {
        let mut logits = vec![0.0; TOKENIZER.vocab_size()];
        if matcher.mask(&mut logits).is_err() {
            return;
        }
        let allowed: Vec<u32> = (0..).zip(&logits).filter(|(_, l)| **l == 0.0).map(|(id, _)| id).collect();
        let Ok(may_end) = matcher.may_end() else { return };
        let Ok(forced) = matcher.forced() else { return };
        assert!(forced.is_none_or(|id| allowed == [id] && !may_end), "{forced:?} is not all there is");
        let Some(&id) = allowed.get(step.wrapping_mul(0x9e37_79b9) as usize % allowed.len().max(1)) else {
            assert!(may_end, "nothing leads on and nothing ends");
            return;
        };
        match matcher.advance(id) {
            Ok(went) => assert!(went, "{id} is allowed and is not taken"),
            Err(_) => return,
        }
    }
}

/// Content, then names and arguments of calls.
fn read<'a>(format: ToolFormat, parts: impl IntoIterator<Item = &'a str>) -> (String, Vec<(String, String)>) {
    let mut splitter = ToolCallSplitter::new(format, Tools::default());
    let mut pieces: Vec<Piece> = parts.into_iter().flat_map(|part| splitter.push(part)).collect();
    pieces.extend(splitter.finish());
    let (mut content, mut calls) = (String::new(), Vec::new());
    for piece in pieces {
        match piece {
            Piece::Content(text) => content.push_str(&text),
            Piece::CallStart { name } => calls.push((name, String::new())),
            Piece::CallArguments(text) => calls.last_mut().unwrap().1.push_str(&text),
            _ => {}
        }
    }
    (content, calls)
}
