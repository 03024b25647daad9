//! The form that answers must have.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use shamrock_generate::{Constraint, Grammar};
use shamrock_grammar::{Compiler, Source};
use shamrock_text::{Prompt, Prompter};

/// Flags that hold answers to a form.
#[derive(Args)]
pub(super) struct FormArgs {
    /// The answer is a JSON value of the schema in this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["grammar", "ignore_eos"])]
    json_schema: Option<PathBuf>,
    /// The answer is a text of the Lark grammar in this file
    #[arg(long, value_name = "FILE", conflicts_with = "ignore_eos")]
    grammar: Option<PathBuf>,
}

impl FormArgs {
    /// The grammar that the flags ask for, if they do, for a model with `vocab` ids.
    pub(super) fn compile(&self, text: &Prompter, vocab: usize) -> Result<Option<Arc<dyn Grammar>>> {
        let Some(path) = self.json_schema.as_ref().or(self.grammar.as_ref()) else {
            return Ok(None);
        };
        let compile = || {
            let source = fs::read_to_string(path)?;
            let source = match self.json_schema {
                Some(_) => Source::JsonSchema(serde_json::from_str(&source)?),
                None => Source::Lark(source),
            };
            anyhow::Ok(Compiler::new(text.tokenizer(), vocab)?.compile(&source)?)
        };
        compile().map(Some).with_context(|| format!("{}", path.display()))
    }
}

/// Holds the answer to a prompt to a grammar, from the end of its reasoning on.
pub(super) fn constraint(grammar: &Arc<dyn Grammar>, prompt: &Prompt, text: &Prompter) -> Result<Constraint> {
    let end =
        || text.reasoning_end().context("this model's reasoning ends with no token; use --thinking off");
    let after = prompt.in_reasoning.then(end).transpose()?;
    Ok(Constraint { grammar: grammar.clone(), after })
}
