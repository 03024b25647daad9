//! What form an answer must have.

use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use serde_json::Value;
use shamrock_generate::{Constraint, Grammar};
use shamrock_grammar::{Compiler, Source};
use shamrock_text::{Prompt, Tokenizer};
use tokio::sync::Semaphore;
use utoipa::ToSchema;

use crate::api::App;
use crate::api::error::{ApiError, Result};

/// Grammars compiled at once, on threads of their own.
const COMPILING: usize = 2;

/// Form of a chat completion. (A variant in braces has no other fields; without, serde passes them over.)
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields, expecting = "an object")]
pub(crate) enum ResponseFormat {
    /// Whatever the model writes.
    Text {},
    /// A JSON object.
    JsonObject {},
    /// A JSON value that a schema describes.
    JsonSchema {
        /// The schema.
        json_schema: NamedSchema,
    },
}

/// A schema with what it is called.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, expecting = "an object")]
pub(crate) struct NamedSchema {
    #[serde(rename = "name")]
    _name: String,
    #[serde(rename = "description")]
    _description: Option<String>,
    /// The JSON schema; any object if there is none.
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
    /// Schemas are kept either way.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

impl ResponseFormat {
    pub(crate) fn source(self) -> Option<Source> {
        match self {
            ResponseFormat::Text {} => None,
            ResponseFormat::JsonObject {} => Some(Source::JsonObject),
            ResponseFormat::JsonSchema { json_schema } => Some(schema(json_schema.schema)),
        }
    }
}

/// Form of a response's text; the schema lies one level higher there.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields, expecting = "an object")]
pub(crate) enum TextFormat {
    /// Whatever the model writes.
    Text {},
    /// A JSON object.
    JsonObject {},
    /// A JSON value that a schema describes.
    JsonSchema {
        /// What the schema is called.
        name: Option<String>,
        /// What it is for.
        description: Option<String>,
        /// The JSON schema; any object if there is none.
        #[schema(value_type = Option<Object>)]
        schema: Option<Value>,
        /// Schemas are kept either way.
        #[serde(rename = "strict")]
        _strict: Option<bool>,
    },
}

impl TextFormat {
    pub(crate) fn source(self) -> Option<Source> {
        match self {
            TextFormat::Text {} => None,
            TextFormat::JsonObject {} => Some(Source::JsonObject),
            TextFormat::JsonSchema { schema: given, .. } => Some(schema(given)),
        }
    }
}

fn schema(given: Option<Value>) -> Source {
    given.map_or(Source::JsonObject, Source::JsonSchema)
}

/// Makes grammars for the served model; its vocabulary is prepared when it is first needed.
pub(crate) struct Grammars {
    compiler: Arc<OnceLock<shamrock_grammar::Result<Compiler>>>,
    permits: Semaphore,
}

impl Grammars {
    pub(crate) fn new() -> Grammars {
        Grammars { compiler: Arc::default(), permits: Semaphore::new(COMPILING) }
    }

    async fn compile(
        &self,
        tokenizer: Tokenizer,
        vocab: usize,
        source: Source,
    ) -> Option<shamrock_grammar::Result<Arc<dyn Grammar>>> {
        let _permit = self.permits.acquire().await.ok()?;
        let compiler = self.compiler.clone();
        let work = move || {
            let compiler = compiler.get_or_init(|| Compiler::new(&tokenizer, vocab));
            compiler.as_ref().map_err(Clone::clone)?.compile(&source)
        };
        tokio::task::spawn_blocking(work).await.ok()
    }
}

impl App {
    /// Compiles what a request asks for in a field.
    pub(crate) async fn grammar(&self, field: &str, source: Source) -> Result<Arc<dyn Grammar>> {
        let tokenizer = self.prompter.tokenizer().clone();
        let compiled = self.grammars.compile(tokenizer, self.engine.config().vocab_size, source).await;
        let compiled = compiled.ok_or_else(|| ApiError::field(field, "could not be compiled"))?;
        compiled.map_err(|error| ApiError::field(field, error.to_string()).code("invalid_schema"))
    }

    /// Holds the answer to a prompt to a grammar that a field asks for, from the end of its reasoning on.
    pub(crate) fn constraint(
        &self,
        grammar: &Arc<dyn Grammar>,
        field: &str,
        prompt: &Prompt,
    ) -> Result<Constraint> {
        let after = if prompt.in_reasoning {
            let problem = "this model's reasoning ends with no token of its own; ask for none";
            let end = self.prompter.reasoning_end();
            Some(end.ok_or_else(|| ApiError::field(field, problem))?)
        } else {
            None
        };
        Ok(Constraint { grammar: grammar.clone(), after })
    }
}
