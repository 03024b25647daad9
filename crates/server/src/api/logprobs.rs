//! Tokens of an answer with their probabilities, in the shapes of the APIs.

use serde_json::{Map, Value, json};
use shamrock_generate::Alternative;
use shamrock_text::{Spelling, Tokenizer};

/// What stands for the logarithm of 0, which JSON does not have.
const NEVER: f32 = -9999.0;

/// A token with its probability.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// What it adds to the text, which may end in the midst of a character.
    bytes: Vec<u8>,
    /// Natural logarithm of the probability in the shaped row at temperature 1.
    pub(crate) logprob: f32,
}

/// A token of an answer's text.
#[derive(Clone, Debug)]
pub(crate) struct TokenProb {
    pub(crate) token: Token,
    /// The likeliest tokens in its place, if they were asked for.
    top: Vec<Token>,
}

impl Token {
    /// `name_special` gives special tokens their names; else they have no text.
    fn new(tokenizer: &Tokenizer, id: u32, probability: f32, name_special: bool) -> Token {
        let text = tokenizer.decode(&[id], !name_special).unwrap_or_default();
        let bytes = match tokenizer.spelling(id) {
            Some(Spelling::Bytes(bytes)) if tokenizer.is_byte_level() => bytes,
            _ => text.clone().into_bytes(),
        };
        Token { text, bytes, logprob: probability.ln().max(NEVER) }
    }

    fn entry(&self) -> Value {
        json!({ "token": self.text, "logprob": self.logprob, "bytes": self.bytes })
    }
}

impl TokenProb {
    pub(crate) fn new(
        tokenizer: &Tokenizer,
        id: u32,
        probability: f32,
        alternatives: &[Alternative],
    ) -> TokenProb {
        let other = |other: &Alternative| Token::new(tokenizer, other.id, other.probability, true);
        TokenProb {
            token: Token::new(tokenizer, id, probability, false),
            top: alternatives.iter().map(other).collect(),
        }
    }
}

/// As chat completions and responses have them: a list.
pub(crate) fn entries(tokens: &[TokenProb]) -> Value {
    let entry = |token: &TokenProb| {
        let mut entry = token.token.entry();
        entry["top_logprobs"] = token.top.iter().map(Token::entry).collect();
        entry
    };
    tokens.iter().map(entry).collect()
}

/// The `logprobs` of a chat choice.
pub(crate) fn chat(tokens: &[TokenProb]) -> Value {
    json!({ "content": entries(tokens), "refusal": null })
}

/// As text completions have them: lists side by side. `offset` is the place of the first token in
/// the text, in characters.
pub(crate) fn completion(tokens: &[TokenProb], mut offset: usize, alternatives: bool) -> Value {
    let mut offsets = Vec::new();
    for token in tokens {
        offsets.push(offset);
        offset += token.token.text.chars().count();
    }
    let top = |token: &TokenProb| -> Value {
        let pairs = token.top.iter().map(|token| (token.text.clone(), json!(token.logprob)));
        Value::Object(pairs.collect::<Map<String, Value>>())
    };
    json!({
        "tokens": tokens.iter().map(|t| &t.token.text).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|t| t.token.logprob).collect::<Vec<_>>(),
        "top_logprobs": alternatives.then(|| tokens.iter().map(top).collect::<Vec<_>>()),
        "text_offset": offsets,
    })
}
