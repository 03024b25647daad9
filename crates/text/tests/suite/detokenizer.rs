use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;
use shamrock_text::{Detokenizer, Tokenizer};

use crate::fixture_tokenizer;

/// Pieces as they come, the last from `finish`.
fn stream(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), skip_special);
    let mut pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
    pieces.push(detokenizer.finish());
    pieces
}

/// A word-level vocabulary in the order of `tokens` under the given decoder; `</s>` is special.
fn tokenizer_with(tokens: &[&str], decoder: serde_json::Value) -> Tokenizer {
    let vocab: serde_json::Map<_, _> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect();
    let special: Vec<_> = tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| **token == "</s>")
        .map(|(id, token)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    let file = json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": special, "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "</s>"}});
    Tokenizer::from_bytes(file.to_string().as_bytes()).unwrap()
}

const SENTENCEPIECE: &[&str] = &[
    "</s>", "▁Hello", "▁world", "▁", "▁▁", "ly", "é", ".", "<0xE2>", "<0x82>", "<0xAC>", "<0x41>", "<0xFF>",
    "�",
];

/// SentencePiece vocabularies as Llama and Gemma ship them, and with the plain decoder.
fn sentencepiece() -> [Tokenizer; 2] {
    let llama = json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
        "split": true});
    [llama, metaspace].map(|decoder| tokenizer_with(SENTENCEPIECE, decoder))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Random ids are mostly broken UTF-8, the hard case; the last few are unknown.
    #[test]
    fn byte_level_pieces_make_up_the_text(
        ids in prop::collection::vec(0u32..320, 0..60),
        skip_special: bool,
    ) {
        let tokenizer = fixture_tokenizer();
        let text = tokenizer.decode(&ids, skip_special).unwrap();
        prop_assert_eq!(stream(&tokenizer, &ids, skip_special).concat(), text);
    }

    #[test]
    fn sentencepiece_pieces_make_up_the_text(
        ids in prop::collection::vec(0..SENTENCEPIECE.len() as u32 + 1, 0..30),
        skip_special: bool,
    ) {
        for tokenizer in sentencepiece() {
            let text = tokenizer.decode(&ids, skip_special).unwrap();
            prop_assert_eq!(stream(&tokenizer, &ids, skip_special).concat(), text);
        }
    }

    /// Real text never shows a replacement character, whatever the cuts.
    #[test]
    fn no_replacement_characters_in_valid_text(text in "(\\PC|[👋🏽👩‍🚀漢é]){0,20}") {
        prop_assume!(!text.contains('\u{FFFD}'));
        let tokenizer = fixture_tokenizer();
        let pieces = stream(&tokenizer, &tokenizer.encode(&text).unwrap(), false);
        prop_assert!(pieces.iter().all(|piece| !piece.contains('\u{FFFD}')), "{:?}", pieces);
        prop_assert_eq!(pieces.concat(), text);
    }
}

#[test]
fn a_character_comes_with_its_last_byte() {
    let tokenizer = fixture_tokenizer();
    let ids = tokenizer.encode("👋é").unwrap();
    let pieces = stream(&tokenizer, &ids, false);
    assert_eq!(pieces, ["", "", "", "👋", "", "é", ""]);

    // Cut off in the middle, and followed by something else.
    assert_eq!(stream(&tokenizer, &ids[..2], false), ["", "", "\u{FFFD}"]);
    let a = tokenizer.id("a").unwrap();
    assert_eq!(stream(&tokenizer, &[ids[0], a], false), ["", "\u{FFFD}a", ""]);
}

#[test]
fn only_the_first_word_loses_its_space() {
    for tokenizer in sentencepiece() {
        let pieces = stream(&tokenizer, &[0, 1, 2, 0, 5, 2, 7], true);
        assert_eq!(pieces, ["", "Hello", " world", "", "ly", " world", ".", ""]);
    }
    let [llama, _] = sentencepiece();
    assert_eq!(stream(&llama, &[1, 8, 9, 10, 2], false), ["Hello", "", "", "", "€ world", ""]);
}

/// Broken bytes without end must neither be held back without end nor slow the stream down.
#[test]
fn cost_does_not_grow_with_the_text() {
    let start = Instant::now();
    let byte_level = fixture_tokenizer();
    let lone_byte = byte_level.encode("👋").unwrap()[0];
    let [llama, _] = sentencepiece();
    for (tokenizer, id) in [(&byte_level, lone_byte), (&llama, 2), (&llama, 8), (&llama, 13)] {
        let pieces = stream(tokenizer, &vec![id; 50_000], false);
        assert!(pieces.concat().len() >= 50_000);
    }
    // A second would be 5 µs a token; quadratic cost is minutes.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
