//! Token ids to text while they arrive.

use std::sync::LazyLock;

use crate::{Error, Tokenizer};

/// Turns token ids into text as they arrive. What it returns is final: the pieces and the result
/// of [`finish`](Self::finish), put together, are [`Tokenizer::decode`] of all ids.
///
/// A character whose bytes are spread over several tokens comes out with the last of them, so
/// U+FFFD appears only where the ids do not spell UTF-8. The cost of a push does not grow with
/// the text.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    /// Byte-level vocabularies (GPT-2, Qwen, Clover): a token is a run of bytes, whatever stands
    /// before it. Holds the bytes of an incomplete character, at most three.
    Bytes(Vec<u8>),
    /// Any other decoder, where the text of a token can depend on its neighbours (a leading space
    /// that only the first token loses; a run of byte tokens).
    Window {
        ids: Vec<u32>,
        /// How many of `ids` have been returned as text. They stay as context for the next.
        returned: usize,
    },
}

/// Tokens after which a window that ends in U+FFFD is taken to spell just that: no character has
/// more bytes.
const LONGEST_CHARACTER: usize = 4;

impl Detokenizer {
    /// A detokenizer at the start of a text. With `skip_special`, special tokens give no text.
    pub fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        let state = if tokenizer.is_byte_level() {
            State::Bytes(Vec::new())
        } else {
            State::Window { ids: Vec::new(), returned: 0 }
        };
        Self { tokenizer, skip_special, state }
    }

    /// Takes the next id and returns the text that became final, often empty. An id outside the
    /// vocabulary gives no text.
    ///
    /// # Errors
    /// [`Error::Decode`] if the tokenizer's decoder fails.
    pub fn push(&mut self, id: u32) -> Result<String, Error> {
        let Some(token) = self.tokenizer.token(id) else {
            return Ok(String::new());
        };
        if self.skip_special && self.tokenizer.is_special_token(&token) {
            return Ok(String::new());
        }
        match &mut self.state {
            State::Bytes(pending) => {
                push_token_bytes(&token, pending);
                Ok(take_complete(pending))
            }
            State::Window { ids, returned } => {
                ids.push(id);
                // Byte tokens are decoded as a run, and one bad byte changes the whole run.
                if is_byte_token(&token) {
                    return Ok(String::new());
                }
                let text = window_text(&self.tokenizer, ids, *returned)?;
                let held = ids.len() - *returned;
                if text.ends_with('\u{FFFD}') && held < LONGEST_CHARACTER {
                    return Ok(String::new());
                }
                if !text.is_empty() {
                    ids.drain(..*returned);
                    *returned = ids.len();
                }
                Ok(text)
            }
        }
    }

    /// Returns the text held back, with U+FFFD for a character that never became complete, and
    /// starts afresh.
    pub fn finish(&mut self) -> String {
        match &mut self.state {
            State::Bytes(pending) => String::from_utf8_lossy(&std::mem::take(pending)).into_owned(),
            State::Window { ids, returned } => {
                let ids = std::mem::take(ids);
                let returned = std::mem::take(returned);
                window_text(&self.tokenizer, &ids, returned)
                    .unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.to_string())
            }
        }
    }
}

/// The text that `ids` add after the first `returned` of them.
fn window_text(tokenizer: &Tokenizer, ids: &[u32], returned: usize) -> Result<String, Error> {
    // Special tokens that were to be skipped are not in the window.
    let before = tokenizer.decode(&ids[..returned], false)?;
    let mut text = tokenizer.decode(ids, false)?;
    Ok(match text.strip_prefix(&before) {
        Some(new) => new.to_owned(),
        // The decoder rewrote text that is out already; go on behind it.
        None => text.split_off(floor_char_boundary(&text, before.len())),
    })
}

fn floor_char_boundary(text: &str, mut at: usize) -> usize {
    at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Whether a SentencePiece vocabulary spells a byte, as in `<0xE2>`.
fn is_byte_token(token: &str) -> bool {
    token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok())
}

/// Appends the bytes that a byte-level token stands for. A token with a character outside the
/// byte alphabet (an added token) stands for its own UTF-8.
pub(crate) fn push_token_bytes(token: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for c in token.chars() {
        match BYTE_ALPHABET.get(c as usize).copied().flatten() {
            Some(byte) => bytes.push(byte),
            None => {
                bytes.truncate(start);
                bytes.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// Takes everything from `pending` but an incomplete character at its end. Invalid bytes become
/// U+FFFD by the rule of [`String::from_utf8_lossy`].
fn take_complete(pending: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = pending.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                rest = &[];
                break;
            }
            Err(error) => {
                let (valid, invalid) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                rest = invalid;
                let Some(bad) = error.error_len() else { break };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &rest[bad..];
            }
        }
    }
    let taken = pending.len() - rest.len();
    pending.drain(..taken);
    text
}

/// Number of code points up to the last of the byte alphabet: 256 and the 68 that stand for
/// unprintable bytes.
const BYTE_ALPHABET_LEN: usize = 256 + 68;

/// The byte that a code point stands for in byte-level vocabularies: printable Latin-1 stands for
/// itself, the other bytes are numbered from U+0100 in ascending order.
static BYTE_ALPHABET: LazyLock<[Option<u8>; BYTE_ALPHABET_LEN]> = LazyLock::new(|| {
    let mut alphabet = [None; BYTE_ALPHABET_LEN];
    let mut next = 256;
    for byte in 0..=u8::MAX {
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            alphabet[usize::from(byte)] = Some(byte);
        } else {
            alphabet[next] = Some(byte);
            next += 1;
        }
    }
    alphabet
});
