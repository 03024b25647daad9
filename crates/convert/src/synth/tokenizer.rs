//! A tokenizer for random models: bytes in, pseudo-words out.
//!
//! Ids 0..256 are the bytes; a prompt encodes to these. The last six are the special tokens. All
//! ids between are distinct pronounceable words that no text encodes to, so that whatever a random
//! model picks prints as something.

use serde_json::{Map, Value, json};

/// ChatML, without thinking: a random model would never close it.
pub(super) const CHAT_TEMPLATE: &str = "{%- for message in messages -%}\
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}\
    {%- endfor -%}\
    {%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

const BYTES: usize = 256;

/// The smallest vocabulary that holds bytes and special tokens.
pub(super) const MIN_VOCAB: usize = BYTES + Special::ALL.len();

/// Tokens with a meaning of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Special {
    EndOfText,
    ImStart,
    ImEnd,
    Mask,
    ThinkStart,
    ThinkEnd,
}

impl Special {
    /// In the order of their ids.
    const ALL: [Special; 6] = [
        Special::EndOfText,
        Special::ImStart,
        Special::ImEnd,
        Special::Mask,
        Special::ThinkStart,
        Special::ThinkEnd,
    ];

    /// The id in a vocabulary of `vocab` tokens.
    pub(super) fn id(self, vocab: usize) -> u32 {
        (vocab - Special::ALL.len() + self as usize) as u32
    }

    fn text(self) -> &'static str {
        match self {
            Special::EndOfText => "<|endoftext|>",
            Special::ImStart => "<|im_start|>",
            Special::ImEnd => "<|im_end|>",
            Special::Mask => "<|mask|>",
            Special::ThinkStart => "<think>",
            Special::ThinkEnd => "</think>",
        }
    }

    /// Whether the token is left out of printed text.
    fn hidden(self) -> bool {
        !matches!(self, Special::ThinkStart | Special::ThinkEnd)
    }
}

/// A `tokenizer.json` (byte-level BPE) of exactly `vocab` ids, at least [`MIN_VOCAB`].
pub(super) fn tokenizer_json(vocab: usize) -> Vec<u8> {
    let words = vocab - MIN_VOCAB;
    let tokens = (0..=255).map(|byte| byte_char(byte).to_string()).chain((0..words).map(word));
    let ids: Map<String, Value> = tokens.zip(0u32..).map(|(token, id)| (token, id.into())).collect();
    let added: Vec<Value> = Special::ALL
        .iter()
        .map(|special| {
            json!({
                "id": special.id(vocab),
                "content": special.text(),
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": special.hidden(),
            })
        })
        .collect();
    let byte_level = |prefix: bool| json!({ "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true });
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": byte_level(false),
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": ids,
            "merges": [],
        },
    });
    tokenizer.to_string().into_bytes()
}

/// The character that stands for a byte in a byte-level vocabulary: itself where it is printable
/// in Latin-1, else one from U+0100 on, in order.
fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let earlier = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(0x100 + earlier).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Pseudo-word number `n`: a space and syllables, the digits of `n` in base 100 without a zero.
fn word(mut n: usize) -> String {
    const CONSONANTS: &[u8; 20] = b"bcdfghjklmnpqrstvwxz";
    const VOWELS: &[u8; 5] = b"aeiou";
    let mut syllables = Vec::new();
    loop {
        syllables.push(n % 100);
        match n / 100 {
            0 => break,
            rest => n = rest - 1,
        }
    }
    let letters = syllables.iter().rev().flat_map(|s| [CONSONANTS[s / 5], VOWELS[s % 5]]);
    std::iter::once(byte_char(b' ')).chain(letters.map(char::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::Tokenizer;

    #[test]
    fn every_id_prints_and_every_text_survives() {
        let vocab = 30_000;
        let tokenizer = Tokenizer::from_bytes(tokenizer_json(vocab)).unwrap();
        assert_eq!(tokenizer.get_vocab_size(true), vocab);
        for special in Special::ALL {
            assert_eq!(tokenizer.token_to_id(special.text()), Some(special.id(vocab)));
        }
        let text = "<|im_start|>user\nKäse & 茶 \u{1F375}\t\u{7f}!<|im_end|>";
        let encoded = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(encoded.get_ids(), false).unwrap(), text);
        for id in [256, 355, 356, 10_355, 10_356, 29_993] {
            let printed = tokenizer.decode(&[id], true).unwrap();
            assert!(printed.starts_with(' ') && printed.len() >= 3, "{id}: {printed:?}");
        }
    }
}
