//! Finding control tokens in text that must not contain any, and defusing them.
//!
//! A message goes through a chat template before it is tokenised, and the template may cut, trim
//! and test it. So a control token in a message is defused *before* rendering, by replacing its
//! first character by a *sentinel*, a code point that occurs nowhere else in the conversation.
//! The tokenizer then finds the template's control tokens and no others, and puts the characters
//! back before it tokenises the rest, so the message reads unchanged. A string without control
//! tokens goes through untouched.
//!
//! A token could also be assembled: a message that ends in `<|im_` followed by one that starts
//! with `end|>`, in a template that writes nothing between. So the beginning of a control token
//! at the end of a string is defused as well. Not covered is a template that deletes characters
//! from the middle of a message, or that writes the first half of a control token itself.

use std::ops::Range;

use aho_corasick::AhoCorasick;
use tokenizers::AddedToken;
use tokenizers::tokenizer::normalizer::Range as NormalizedRange;

use crate::error::Error;
use crate::tokenizer::Tokenizer;

/// Which control tokens a string must not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forbid {
    /// All of them.
    All,
    /// Those marked special. What is left, `<think>` or `<tool_call>`, is the form in which a
    /// model's own turns are kept.
    Special,
}

/// The control tokens of a tokenizer.
pub(crate) struct ControlTokens {
    all: Matcher,
    special: Matcher,
    /// Whether some token is matched after normalisation.
    normalized: bool,
}

struct Matcher {
    tokens: Vec<String>,
    /// Length of the longest token in bytes.
    longest: usize,
    automaton: AhoCorasick,
}

impl ControlTokens {
    /// `normalized_form` gives the text that a token has after normalisation.
    pub(crate) fn new(
        control: &[AddedToken],
        normalized_form: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, aho_corasick::BuildError> {
        let texts = |pick: fn(&AddedToken) -> bool| {
            control
                .iter()
                .filter(|token| pick(token))
                .flat_map(|token| {
                    let form = normalized_form(&token.content).filter(|f| *f != token.content);
                    [Some(token.content.clone()), form]
                })
                .flatten()
                .filter(|text| !text.is_empty())
                .collect()
        };
        Ok(Self {
            all: Matcher::new(texts(|_| true))?,
            special: Matcher::new(texts(|token| token.special))?,
            normalized: control.iter().any(|token| token.normalized),
        })
    }

    fn matcher(&self, forbid: Forbid) -> &Matcher {
        match forbid {
            Forbid::All => &self.all,
            Forbid::Special => &self.special,
        }
    }
}

impl Matcher {
    fn new(tokens: Vec<String>) -> Result<Self, aho_corasick::BuildError> {
        Ok(Self {
            automaton: AhoCorasick::new(&tokens)?,
            longest: tokens.iter().map(String::len).max().unwrap_or(0),
            tokens,
        })
    }

    /// Byte ranges of all tokens in `text`, also where they overlap.
    fn find<'t>(&'t self, text: &'t str) -> impl Iterator<Item = Range<usize>> + 't {
        self.automaton.find_overlapping_iter(text).map(|found| found.range())
    }

    /// Byte offsets at which a token starts that the end of `text` cuts off.
    fn cut_off<'t>(&'t self, text: &'t str) -> impl Iterator<Item = usize> + 't {
        let from = text.len().saturating_sub(self.longest);
        (from..text.len()).filter(move |&at| {
            text.is_char_boundary(at)
                && self
                    .tokens
                    .iter()
                    .any(|token| token.len() > text.len() - at && token.starts_with(&text[at..]))
        })
    }
}

/// The code points that stand for characters of defused control tokens, in one conversation.
#[derive(Debug, Default)]
pub(crate) struct Sentinels(Vec<(char, char)>);

impl Sentinels {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The character that `c` stands for, which is `c` itself unless it is a sentinel.
    pub(crate) fn original(&self, c: char) -> char {
        let found = self.0.iter().find(|(_, sentinel)| *sentinel == c);
        found.map_or(c, |&(original, _)| original)
    }

    fn get_or_add(&mut self, original: char, mut is_used: impl FnMut(char) -> bool) -> Result<char, Error> {
        if let Some(&(_, sentinel)) = self.0.iter().find(|(c, _)| *c == original) {
            return Ok(sentinel);
        }
        // Code points that Unicode keeps out of interchange, then the last private plane.
        let sentinel = ('\u{FDD0}'..='\u{FDEF}')
            .chain('\u{100000}'..='\u{10FFFD}')
            .find(|&c| !self.0.iter().any(|&(_, s)| s == c) && !is_used(c))
            .ok_or(Error::NoFreeSentinel)?;
        self.0.push((original, sentinel));
        Ok(sentinel)
    }
}

/// Defuses the strings of one conversation.
pub(crate) struct Defuser<'a> {
    tokenizer: &'a Tokenizer,
    /// Everything that goes into the rendering; sentinels are chosen not to occur in it.
    context: &'a str,
    sentinels: Sentinels,
}

impl<'a> Defuser<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, context: &'a str) -> Self {
        Self { tokenizer, context, sentinels: Sentinels::default() }
    }

    /// The sentinels that were needed.
    pub(crate) fn into_sentinels(self) -> Sentinels {
        self.sentinels
    }

    /// Defuses every string of a JSON value, keys included.
    pub(crate) fn value(&mut self, value: &mut serde_json::Value, forbid: Forbid) -> Result<(), Error> {
        use serde_json::Value;
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => self.text(text, forbid)?,
            Value::Array(items) => {
                for item in items {
                    self.value(item, forbid)?;
                }
            }
            Value::Object(map) => {
                for (mut key, mut value) in std::mem::take(map) {
                    self.text(&mut key, forbid)?;
                    self.value(&mut value, forbid)?;
                    map.insert(key, value);
                }
            }
        }
        Ok(())
    }

    /// Defuses one string.
    pub(crate) fn text(&mut self, text: &mut String, forbid: Forbid) -> Result<(), Error> {
        let control = self.tokenizer.control();
        let matcher = control.matcher(forbid);
        let mut starts: Vec<usize> = matcher.find(text).map(|found| found.start).collect();
        starts.extend(matcher.cut_off(text));
        // Templates trim white space, so what stands before it may end up at the end.
        starts.extend(matcher.cut_off(text.trim_end()));
        if control.normalized {
            let normalized = self.tokenizer.normalize(text)?;
            starts.extend(matcher.find(normalized.get()).filter_map(|found| {
                let original = normalized.convert_offsets(NormalizedRange::Normalized(found))?;
                Some(original.start)
            }));
        }
        if starts.is_empty() {
            return Ok(());
        }
        starts.sort_unstable();
        starts.dedup();

        let mut defused = String::with_capacity(text.len());
        let mut done = 0;
        for start in starts {
            let Some(original) = text[start..].chars().next() else {
                continue;
            };
            let context = self.context;
            let sentinel = self.sentinels.get_or_add(original, |c| context.contains(c))?;
            defused.push_str(&text[done..start]);
            defused.push(sentinel);
            done = start + original.len_utf8();
        }
        defused.push_str(&text[done..]);
        *text = defused;
        Ok(())
    }
}
