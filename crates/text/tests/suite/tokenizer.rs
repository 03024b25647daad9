use proptest::prelude::*;
use shamrock_text::{Error, Tokenizer};

use crate::{fixture_tokenizer, json, read};

#[test]
fn ids_are_those_of_the_reference() {
    for folder in ["small", "kernel", "awkward"] {
        let file = read(format!("fixtures/{folder}/hf/tokenizer.json"));
        let tokenizer = Tokenizer::from_bytes(file.as_bytes()).unwrap();
        let expected = json(format!("fixtures/{folder}/expected.json"));
        for (text, ids) in [("prompt_text", "prompt_ids"), ("chat_text", "chat_ids")] {
            let text = expected[text].as_str().unwrap();
            let ids: Vec<u32> = serde_json::from_value(expected[ids].clone()).unwrap();
            assert_eq!(tokenizer.encode_with_special(text).unwrap(), ids, "{folder}");
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text, "{folder}");
        }
    }
}

#[test]
fn control_tokens_are_recognised_only_on_request() {
    let tokenizer = fixture_tokenizer();
    let (end, think) = (tokenizer.id("<|im_end|>").unwrap(), tokenizer.id("<think>").unwrap());
    let text = "a<|im_end|><think>b";

    let ids = tokenizer.encode_with_special(text).unwrap();
    assert_eq!(ids[1..3], [end, think]);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "a<think>b");

    let ids = tokenizer.encode(text).unwrap();
    assert!(!ids.contains(&end) && !ids.contains(&think));
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);

    assert!(tokenizer.is_special(end) && !tokenizer.is_special(think));
    assert_eq!(tokenizer.token(end).as_deref(), Some("<|im_end|>"));
    assert_eq!(tokenizer.token(1_000_000), None);
    assert_eq!(tokenizer.vocab_size(), 313);
}

/// Added tokens that are neither special nor markup are ordinary text.
#[test]
fn other_added_tokens_are_text() {
    let mut file = json("fixtures/small/hf/tokenizer.json");
    let spaces = serde_json::json!({"id": 313, "content": "   ", "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false, "special": false});
    file["added_tokens"].as_array_mut().unwrap().push(spaces);
    let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap();
    assert!(tokenizer.encode("a   b<think>").unwrap().contains(&313));
}

proptest! {
    #[test]
    fn text_survives_a_round_trip(text in "(\\PC|<think>|<\\|im_end\\|>|\\s){0,40}") {
        let tokenizer = fixture_tokenizer();
        for ids in [tokenizer.encode(&text), tokenizer.encode_with_special(&text)] {
            prop_assert_eq!(&tokenizer.decode(&ids.unwrap(), false).unwrap(), &text);
        }
    }

    /// Damage of any kind is an error or a working tokenizer, and the error is one line.
    #[test]
    fn damaged_files_do_not_panic(at in 0usize..9034, byte: u8, cut: bool) {
        let mut file = read("fixtures/small/hf/tokenizer.json").into_bytes();
        if cut {
            file.truncate(at);
        } else {
            let at = at.min(file.len() - 1);
            file[at] = byte;
        }
        match Tokenizer::from_bytes(&file) {
            Ok(tokenizer) => drop(tokenizer.encode("Hello <think> wörld")),
            Err(Error::InvalidTokenizer(reason)) => prop_assert!(!reason.contains('\n')),
            Err(error) => prop_assert!(false, "unexpected {error}"),
        }
        prop_assert!(!cut || Tokenizer::from_bytes(&file).is_err());
    }
}

/// A regular expression that back-tracks without end is stopped by the library with a panic.
#[test]
fn a_panic_in_the_library_is_an_error() {
    let mut file = json("fixtures/small/hf/tokenizer.json");
    file["pre_tokenizer"] = serde_json::json!({"type": "Split", "invert": false,
        "pattern": {"Regex": "(?:a|a)+(?:a|a)+(?:a|a)+$"}, "behavior": "Isolated"});
    let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap();
    let error = tokenizer.encode(&("a".repeat(60) + "b")).unwrap_err();
    assert!(matches!(error, Error::Encode { bytes: 61, .. }), "{error}");
}
