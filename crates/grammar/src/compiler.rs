//! Sources to grammars.

use std::fmt;
use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value, json};
use shamrock_generate::Grammar;
use shamrock_text::{Spelling, TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Tokenizer};

use crate::calls::{Calls, lark};
use crate::error::{Error, Result, one_line};
use crate::matcher::Compiled;

/// Most bytes of a source.
const LONGEST: usize = 64 << 10;
/// Bytes of stack for compiling. Schemas are walked recursively, and a chain of references can be as
/// long as the source allows; pages that are not used cost nothing.
const STACK: usize = 256 << 20;

/// Budgets of one grammar. The library says what a unit takes: compiling some 20 ms, a mask some
/// 10 ms, a lexer state 1 to 2 KB.
const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2_000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 100_000,
    step_max_items: 50_000,
    max_lexer_states: 20_000,
    max_grammar_size: 100_000,
    precompute_large_lexemes: false,
    verbose_errors: false,
};

/// White space between the parts of a JSON text: a space, or a line break with an indentation.
/// Boundless white space would let a model that has nothing to say go on for ever.
const WHITE_SPACE: &str = r" |\n[ \t]{0,32}";

/// Name of the end of text that no model has.
const END: &[u8] = b"<|the end that no model has|>";

/// What an answer may be.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A JSON object.
    JsonObject,
    /// A JSON value that a schema describes.
    JsonSchema(Value),
    /// Calls of tools.
    Calls(Calls),
    /// A text of a grammar in llguidance's dialect of Lark. Not for sources of unknown origin: its
    /// parser's depth is bounded by the size of the source alone.
    Lark(String),
}

/// Makes grammars for one model's vocabulary. Clones share it.
#[derive(Clone)]
pub struct Compiler(Arc<ParserFactory>);

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").field("vocab", &self.0.tok_env().tok_trie().vocab_size()).finish()
    }
}

impl Compiler {
    /// Prepares the vocabulary of a model with `vocab` ids, which takes some hundred milliseconds
    /// where there are hundreds of thousands.
    ///
    /// # Errors
    /// [`Error::Vocabulary`].
    pub fn new(tokenizer: &Tokenizer, vocab: usize) -> Result<Compiler> {
        if !tokenizer.is_byte_level() {
            return Err(Error::Vocabulary);
        }
        let mut seen = std::collections::HashSet::new();
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
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| Error::Source(one_line(e)))?;
        factory.quiet();
        *factory.limits_mut() = LIMITS;
        Ok(Compiler(Arc::new(factory)))
    }

    /// Compiles a source.
    ///
    /// # Errors
    /// [`Error::TooLong`], or [`Error::Source`] with the library's word on what is wrong, not
    /// supported or too costly.
    pub fn compile(&self, source: &Source) -> Result<Arc<dyn Grammar>> {
        match source {
            Source::JsonObject => self.compile_schema(&json!({ "type": "object" })),
            Source::JsonSchema(schema) => self.compile_schema(schema),
            Source::Lark(text) => self.build(text.clone(), TopLevelGrammar::from_lark(text.clone())),
            Source::Calls(calls) => {
                let exact = self.compile_calls(calls, false);
                let bendable = calls.tools.iter().any(|tool| !tool.strict);
                if exact.is_err() && bendable { self.compile_calls(calls, true) } else { exact }
            }
        }
    }

    fn compile_schema(&self, schema: &Value) -> Result<Arc<dyn Grammar>> {
        let grammar = TopLevelGrammar::from_json_schema(with_options(schema)?);
        self.build(schema.to_string(), grammar)
    }

    fn compile_calls(&self, calls: &Calls, lenient: bool) -> Result<Arc<dyn Grammar>> {
        let tags = [TOOL_CALL_OPEN, TOOL_CALL_CLOSE]
            .iter()
            .all(|tag| self.0.tok_env().tok_trie().get_special_token(tag).is_some());
        let text = lark(calls, tags, lenient)?;
        self.build(text.clone(), TopLevelGrammar::from_lark(text))
    }

    /// Compiles a grammar that was made of `source`.
    fn build(&self, source: String, grammar: TopLevelGrammar) -> Result<Arc<dyn Grammar>> {
        if source.len() > LONGEST {
            return Err(Error::TooLong { bytes: source.len(), limit: LONGEST });
        }
        let matcher = self.on_a_deep_stack(|| {
            let mut matcher = Matcher::new(self.0.create_parser(grammar));
            // A grammar without a first token has no text.
            if !matcher.is_error() && !matcher.is_stopped() {
                matcher.compute_mask().map_err(one_line)?;
            }
            match matcher.get_error() {
                None => Ok(matcher),
                Some(error) => Err(one_line(error)),
            }
        });
        Ok(Arc::new(Compiled::new(matcher.map_err(Error::Source)?, source)))
    }

    fn on_a_deep_stack<T: Send>(
        &self,
        work: impl FnOnce() -> std::result::Result<T, String> + Send,
    ) -> std::result::Result<T, String> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, work).map_err(one_line)?;
            thread.join().unwrap_or_else(|_| Err("the grammar library panicked on it".to_owned()))
        })
    }
}

/// A schema with this crate's options for the library, whatever the source says of them.
pub(crate) fn with_options(schema: &Value) -> Result<Value> {
    let mut schema = match schema {
        Value::Object(schema) => schema.clone(),
        Value::Bool(true) => Map::new(),
        _ => return Err(Error::Source("a schema must be an object or `true`".into())),
    };
    schema.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITE_SPACE }));
    Ok(Value::Object(schema))
}
