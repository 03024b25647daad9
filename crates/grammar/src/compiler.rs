//! Sources to grammars.

use std::fmt;
use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::TokEnv;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use shamrock_generate::Grammar;
use shamrock_text::{TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Tokenizer, Tool, Tools};

use crate::calls::{Calls, Otherwise, lark};
use crate::error::{BEYOND, Error, Result, in_plain_words};
use crate::matcher::Compiled;
use crate::schema;
use crate::vocabulary::Vocabulary;

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
        let env: TokEnv = Arc::new(Vocabulary::new(tokenizer.clone(), vocab));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| Error::Source(in_plain_words(e)))?;
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
                let compiled =
                    if exact.is_err() && bendable { self.compile_calls(calls, true) } else { exact };
                compiled.map_err(|error| self.blame(calls, error))
            }
        }
    }

    fn compile_schema(&self, schema: &Value) -> Result<Arc<dyn Grammar>> {
        let grammar = TopLevelGrammar::from_json_schema(schema::prepare(schema)?);
        self.build(schema.to_string(), grammar)
    }

    fn compile_calls(&self, calls: &Calls, lenient: bool) -> Result<Arc<dyn Grammar>> {
        let tags = [TOOL_CALL_OPEN, TOOL_CALL_CLOSE]
            .iter()
            .all(|tag| self.0.tok_env().tok_trie().get_special_token(tag).is_some());
        let text = lark(calls, tags, lenient)?;
        self.build(text.clone(), TopLevelGrammar::from_lark(text))
    }

    /// Of an error in the grammar of several tools: which of them it is in, without its place in the grammar.
    fn blame(&self, calls: &Calls, error: Error) -> Error {
        let alone = |tool: &Tool| {
            let tools = Tools::new(vec![tool.clone()]);
            let calls = Calls { tools, otherwise: Otherwise::Nothing, ..calls.clone() };
            Some((format!("{}: ", tool.name), self.compile_calls(&calls, false).err()?))
        };
        let found = calls.tools.iter().filter(|tool| tool.strict).find_map(alone);
        let (name, error) = found.unwrap_or((String::new(), error));
        match error {
            Error::Source(message) => {
                let inner = message.strip_prefix("at ").and_then(|rest| Some(rest.split_once("): ")?.1));
                let inner = inner.unwrap_or(&message);
                let inner = inner.strip_prefix("failed to compile JSON schema: ").unwrap_or(inner);
                Error::Source(name + inner)
            }
            other => other,
        }
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
                matcher.compute_mask().map_err(in_plain_words)?;
            }
            match matcher.get_error() {
                None => Ok(matcher),
                Some(error) => Err(in_plain_words(error)),
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
            let thread = thread.spawn_scoped(scope, work).map_err(in_plain_words)?;
            thread.join().unwrap_or_else(|_| Err(BEYOND.to_owned()))
        })
    }
}
