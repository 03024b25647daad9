//! Text to token ids and back.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::de::IgnoredAny;
use tokenizers::{
    AddedToken, AddedVocabulary, DecoderWrapper, Model, NormalizedString, Normalizer, NormalizerWrapper,
    OffsetType, PreTokenizedString, PreTokenizer,
};

use crate::control::{ControlTokens, Sentinels};
use crate::detokenizer::push_token_bytes;
use crate::error::{Error, one_line};

/// A tokenizer loaded from the `tokenizer.json` that comes with a model. Clones are cheap and
/// share the vocabulary.
///
/// # Control tokens
///
/// Some added tokens steer the model rather than spell text: `<|im_end|>` closes a turn, `<think>`
/// opens reasoning. Here an added token is a *control token* when it is marked special, or when
/// its text has the form `<…>` (the Qwen family leaves `<think>` and `<tool_call>` unmarked).
/// Other added tokens, such as runs of spaces, are text.
///
/// [`encode`](Self::encode) is for text of unknown origin: what looks like a control token is
/// spelled out with ordinary tokens. [`encode_with_special`](Self::encode_with_special) is for
/// text that this program or its operator composed. To get conversations into a model use
/// [`ChatTemplate::encode`](crate::ChatTemplate::encode), which knows which part is which.
///
/// With a BPE vocabulary, as Clover models have, `encode` never returns a control token. A model
/// kind that looks up whole words (WordLevel, Unigram) can return one that its own vocabulary
/// lists as a word.
///
/// The post-processor of the file is not applied: a beginning-of-sequence token is the template's
/// business. Neither are its truncation and padding.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

/// What a token of a byte-level vocabulary spells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spelling {
    /// Bytes of a text, perhaps in the midst of a character.
    Bytes(Vec<u8>),
    /// A control token with its name.
    Control(String),
}

struct Inner {
    library: tokenizers::Tokenizer,
    /// The added tokens with control tokens switched off.
    text_vocabulary: AddedVocabulary,
    /// The added tokens with control tokens matched before normalisation only.
    marked_vocabulary: AddedVocabulary,
    control: ControlTokens,
    vocab_size: usize,
}

impl Tokenizer {
    /// Loads the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`Error::InvalidTokenizer`] if it is malformed or truncated.
    pub fn from_bytes(json: &[u8]) -> Result<Self, Error> {
        contain(|| Inner::load(json)).map(|inner| Self(Arc::new(inner))).map_err(Error::InvalidTokenizer)
    }

    /// Encodes text of unknown origin: control tokens in it are spelled out, not recognised.
    ///
    /// # Errors
    /// [`Error::Encode`] if the tokenizer's own rules fail on the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.encode_by(&self.0.text_vocabulary, self.normalizer(), text)
    }

    /// Encodes a rendered template or a raw prompt: control tokens in it are recognised. The ids
    /// are those of the tokenizers library with `add_special_tokens` off.
    ///
    /// # Errors
    /// [`Error::Encode`] if the tokenizer's own rules fail on the text.
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<u32>, Error> {
        self.encode_by(self.0.library.get_added_vocabulary(), self.normalizer(), text)
    }

    /// Encodes text in which sentinels stand for characters that must not be part of a control
    /// token: control tokens are found around them, then the characters are put back.
    pub(crate) fn encode_marked(&self, text: &str, sentinels: &Sentinels) -> Result<Vec<u32>, Error> {
        let restore = Restore { sentinels, then: self.normalizer() };
        self.encode_by(&self.0.marked_vocabulary, Some(&restore), text)
    }

    fn encode_by<N: Normalizer>(
        &self,
        vocabulary: &AddedVocabulary,
        normalizer: Option<&N>,
        text: &str,
    ) -> Result<Vec<u32>, Error> {
        let library = &self.0.library;
        contain(|| {
            let mut pieces: PreTokenizedString = vocabulary.extract_and_normalize(normalizer, text);
            if let Some(pre_tokenizer) = library.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut pieces)?;
            }
            library.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
            let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
            Ok(encoding.get_ids().to_vec())
        })
        .map_err(|reason| Error::Encode { bytes: text.len(), reason })
    }

    /// Decodes ids to text. Ids outside the vocabulary decode to nothing; bytes that are not
    /// UTF-8 become U+FFFD. For text that is still being generated see [`Detokenizer`].
    ///
    /// [`Detokenizer`]: crate::Detokenizer
    ///
    /// # Errors
    /// [`Error::Decode`] if the tokenizer's decoder fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, Error> {
        contain(|| self.0.library.decode(ids, skip_special))
            .map_err(|reason| Error::Decode { tokens: ids.len(), reason })
    }

    /// The token with this id, as the vocabulary spells it (byte-level vocabularies write a space
    /// as `Ġ`).
    pub fn token(&self, id: u32) -> Option<String> {
        self.0.library.id_to_token(id)
    }

    /// The id of a token, spelled as the vocabulary spells it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.0.library.token_to_id(token)
    }

    /// What a token spells; `None` for an id outside of the vocabulary.
    pub fn spelling(&self, id: u32) -> Option<Spelling> {
        let token = self.token(id)?;
        let added = self.0.library.get_added_vocabulary().get_added_tokens_decoder().get(&id);
        if added.is_some_and(is_control) {
            return Some(Spelling::Control(token));
        }
        let mut bytes = Vec::new();
        push_token_bytes(&token, &mut bytes);
        Some(Spelling::Bytes(bytes))
    }

    /// How many tokens the tokenizer knows, added tokens included. The model's own vocabulary is
    /// often padded beyond this.
    pub fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    /// Whether the file marks this token as special, so that
    /// [`decode`](Self::decode) can leave it out.
    pub fn is_special(&self, id: u32) -> bool {
        self.token(id).is_some_and(|token| self.is_special_token(&token))
    }

    /// [`is_special`](Self::is_special) by spelling, the test that the library's decoder makes.
    pub(crate) fn is_special_token(&self, token: &str) -> bool {
        self.0.library.get_added_vocabulary().is_special_token(token)
    }

    pub(crate) fn control(&self) -> &ControlTokens {
        &self.0.control
    }

    /// Whether decoding is byte concatenation in the GPT-2 byte alphabet: only then do tokens spell
    /// the [bytes](Spelling::Bytes) that they are said to.
    pub fn is_byte_level(&self) -> bool {
        match self.0.library.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => true,
            Some(DecoderWrapper::Sequence(sequence)) => {
                matches!(sequence.get_decoders(), [DecoderWrapper::ByteLevel(_)])
            }
            _ => false,
        }
    }

    /// `text` after the file's normaliser, with its alignment to the original.
    pub(crate) fn normalize(&self, text: &str) -> Result<NormalizedString, Error> {
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = self.normalizer() {
            contain(|| normalizer.normalize(&mut normalized))
                .map_err(|reason| Error::Encode { bytes: text.len(), reason })?;
        }
        Ok(normalized)
    }

    fn normalizer(&self) -> Option<&NormalizerWrapper> {
        self.0.library.get_normalizer()
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.0.vocab_size).finish_non_exhaustive()
    }
}

impl Inner {
    fn load(json: &[u8]) -> tokenizers::Result<Self> {
        // The library panics on some damage to the syntax.
        serde_json::from_slice::<IgnoredAny>(json)?;
        let library = tokenizers::Tokenizer::from_bytes(json)?;
        let added = library.get_added_vocabulary();
        let mut control: Vec<AddedToken> =
            added.get_added_tokens_decoder().values().filter(|token| is_control(token)).cloned().collect();
        control.sort_by(|a, b| a.content.cmp(&b.content));

        let with = |change: fn(&mut AddedToken)| -> tokenizers::Result<AddedVocabulary> {
            let mut vocabulary = added.clone();
            let mut tokens = control.clone();
            tokens.iter_mut().for_each(change);
            vocabulary.add_tokens(tokens, library.get_model(), library.get_normalizer())?;
            Ok(vocabulary)
        };
        // The library can ignore special tokens in a text, so there every control token is one.
        let mut text_vocabulary = with(|token| token.special = true)?;
        text_vocabulary.set_encode_special_tokens(true);
        let marked_vocabulary = with(|token| token.normalized = false)?;

        let control = ControlTokens::new(&control, |token| {
            // The form that the library looks for after normalisation.
            added.get_vocab().get(token).and_then(|&id| added.simple_id_to_token(id))
        })?;
        Ok(Self {
            vocab_size: library.get_vocab_size(true),
            text_vocabulary,
            marked_vocabulary,
            control,
            library,
        })
    }
}

/// Whether an added token steers the model.
fn is_control(token: &AddedToken) -> bool {
    token.special || is_markup(&token.content)
}

fn is_markup(token: &str) -> bool {
    token.starts_with('<') && token.ends_with('>')
}

/// Puts the characters behind sentinels back, then normalises.
struct Restore<'a> {
    sentinels: &'a Sentinels,
    then: Option<&'a NormalizerWrapper>,
}

impl Normalizer for Restore<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        text.map(|c| self.sentinels.original(c));
        match self.then {
            Some(normalizer) => normalizer.normalize(text),
            None => Ok(()),
        }
    }
}

/// Runs library code on untrusted data. The library panics where a regular expression of the file
/// exceeds its back-tracking limit, and on some malformed files; that is an error of the data.
fn contain<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(one_line),
        Err(panic) => {
            let said = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Err(format!("the tokenizers library panicked: {}", one_line(said)))
        }
    }
}
