//! A model's vocabulary as the library sees it.

use std::collections::HashSet;

use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use shamrock_text::{Spelling, Tokenizer};

/// Name of the end of text that no model has.
const END: &[u8] = b"<|the end that no model has|>";

/// The tokens by their bytes, and how a text is cut into them: as the model's tokenizer cuts it, so that
/// a text that a grammar forces has one form, the one that the model has seen.
pub(crate) struct Vocabulary {
    trie: TokTrie,
    tokenizer: Tokenizer,
}

impl Vocabulary {
    /// The first `vocab` ids of a byte-level tokenizer.
    pub(crate) fn new(tokenizer: Tokenizer, vocab: usize) -> Vocabulary {
        let mut seen = HashSet::new();
        let spelling = |id| match tokenizer.spelling(id) {
            None => Vec::new(),
            Some(Spelling::Bytes(bytes)) => bytes,
            Some(Spelling::Control(name)) => [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat(),
        };
        // Of two tokens that spell the same the trie could hold only one.
        let unique = |bytes: Vec<u8>| if seen.insert(bytes.clone()) { bytes } else { Vec::new() };
        let mut words: Vec<Vec<u8>> = (0..vocab as u32).map(spelling).map(unique).collect();
        // Ends are this crate's caller's business. The library wants an id for one, and allows it wherever
        // a text may end: it gets one behind the vocabulary, which no mask here reaches.
        words.push([&[TokTrie::SPECIAL_TOKEN_MARKER], END].concat());
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, vocab as u32), &words);
        Vocabulary { trie, tokenizer }
    }

    /// The tokenizer's ids for a text, if they spell just this text: a normaliser may have changed it, and
    /// ids may lie outside of the model's vocabulary.
    fn encode(&self, text: &str) -> Option<Vec<TokenId>> {
        let ids = self.tokenizer.encode(text).ok()?;
        let known = ids.iter().all(|&id| (id as usize) < self.trie.vocab_size());
        (known && self.trie.decode_raw(&ids) == text.as_bytes()).then_some(ids)
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            self.encode(text).unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}
