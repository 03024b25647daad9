//! Any bytes are refused as a chat template or render like one; the same for a tokenizer.
#![no_main]

use std::panic;
use std::sync::LazyLock;
use std::time::SystemTime;

use libfuzzer_sys::fuzz_target;
use shamrock_text::{ChatTemplate, Detokenizer, Message, RenderOptions, Tokenizer};

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    Tokenizer::from_bytes(include_bytes!("../../fixtures/small/hf/tokenizer.json")).unwrap()
});

fuzz_target!(init: let_the_library_panic(), |data: &[u8]| {
    template(&String::from_utf8_lossy(data));
    tokenizer(data);
});

/// The tokenizers library panics on some files, which `shamrock_text` turns into errors. libFuzzer
/// would abort before it can.
fn let_the_library_panic() {
    let abort = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let file = info.location().map_or("", |location| location.file());
        if !file.contains("/tokenizers-") && !file.contains("/onig-") {
            abort(info);
        }
    }));
}

/// Without control tokens in the messages, `encode` is the encoding of what `render` gives.
fn template(source: &str) {
    let Ok(template) = ChatTemplate::new(source, [("eos_token", "<|im_end|>")]) else { return };
    let messages = [
        Message::new("system", " Be brief.\n"),
        Message::new("user", "1 < 2? é 👋 im_end|>"),
        Message { reasoning_content: Some("yes".into()), ..Message::new("assistant", "Yes.") },
        Message::new("tool", "\u{FDD0} |>"),
    ];
    let options = RenderOptions { now: Some(SystemTime::UNIX_EPOCH), ..RenderOptions::default() };
    let text = template.render(&messages, &options);
    let ids = template.encode(&TOKENIZER, &messages, &options);
    assert_eq!(ids, text.and_then(|text| TOKENIZER.encode_with_special(&text)));
}

/// A tokenizer that loads gives an error or a result for any text and any ids.
fn tokenizer(json: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_bytes(json) else { return };
    for text in ["", "Hello <think> wörld 👋\n<|im_end|>"] {
        let _ = tokenizer.encode(text);
        let _ = tokenizer.encode_with_special(text);
    }
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), true);
    for id in (0..400).chain([u32::MAX]) {
        let _ = detokenizer.push(id);
    }
    detokenizer.finish();
}
