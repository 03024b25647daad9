//! Chat templates: Jinja as transformers runs it, at a bounded cost.
//!
//! A template comes in a model file, so it is a stranger's program. minijinja parses it; the
//! evaluation is ours, because its cost must be known before it arises. A general engine shares
//! values and makes lists as late as it can, and so has operations whose cost nothing bounds: to
//! print a list that holds one list twice, and so on thirty levels deep, or to compare two lists of
//! `[0] * 10**9`. Here
//!
//! - every list and dict knows what walking it costs, counting what it shares as often as it occurs
//!   (`value`), and every step, walk and allocation is paid from a budget before it is done
//!   (`budget`);
//! - nesting is bounded: of values when they are made, of evaluation when it descends, of the
//!   source by the parser, which runs on a stack in proportion to the source;
//! - values hold no cycles: what can change, namespaces and scopes, belongs to the interpreter and
//!   ends with it.
//!
//! So a rendering ends soon, in bounded memory, whatever the template says.

mod args;
mod budget;
mod expression;
mod filters;
mod format;
mod functions;
mod interpreter;
mod json;
mod methods;
mod operators;
mod print;
mod tests;
mod value;

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::SystemTime;

use minijinja::Environment;
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use serde_json::Map;

use self::budget::{Budget, Fault, FaultKind, STEP};
use self::interpreter::Interpreter;
use self::value::Value;
use crate::error::{Error, one_line};

const NAME: &str = "chat";

/// Budget of any rendering: 64 MiB made or walked, or four million steps, which take a fraction of
/// a second. Templates in use take about two hundred steps a message.
const BASE_BUDGET: u64 = 64 << 20;

/// What each byte of the conversation adds to that, so that a template can pass over each message
/// thirty times.
const BUDGET_PER_BYTE: u64 = 32;

/// Longest source that is compiled, in bytes. Templates in use have up to thirty thousand.
const MAX_SOURCE: usize = 256 << 10;

/// Stack for parsing each byte of the source, in bytes: the parser goes through chains of operators
/// by recursion. The stack is reserved as address space; what is not touched takes no memory.
const STACK_PER_BYTE: usize = 1024;

/// Stack for evaluation, which nests to a fixed depth.
const BASE_STACK: usize = 32 << 20;

/// A template that parses.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    source: String,
    /// Names that it looks up and does not set itself.
    variables: HashSet<String>,
}

impl Template {
    pub(crate) fn compile(source: &str) -> Result<Self, Error> {
        if source.len() > MAX_SOURCE {
            let reason = format!("{} bytes of source, over {MAX_SOURCE}", source.len());
            return Err(Error::Template { line: 0, reason });
        }
        let mut template = Self { source: without_generation_tags(source), variables: HashSet::new() };
        template.variables = template.on_a_stack(|source| {
            parse(source, NAME, syntax()?).map_err(|error| syntax_error(&error))?;
            let mut environment = Environment::new();
            environment.set_syntax(syntax()?);
            // What the library parses but cannot compile is run here all the same.
            let compiled = environment.template_from_named_str(NAME, source);
            Ok(compiled.map(|template| template.undeclared_variables(false)).unwrap_or_default())
        })?;
        Ok(template)
    }

    /// Whether it looks up a variable of this name.
    pub(crate) fn uses(&self, variable: &str) -> bool {
        self.variables.contains(variable)
    }

    /// The source as compiled.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    pub(crate) fn render(
        &self,
        variables: &Map<String, serde_json::Value>,
        now: Option<SystemTime>,
    ) -> Result<String, Error> {
        let bytes: u64 = variables.values().map(text_bytes).sum();
        let units = BASE_BUDGET.saturating_add(bytes.saturating_mul(BUDGET_PER_BYTE));
        self.on_a_stack(|source| {
            let tree = &parse(source, NAME, syntax()?).map_err(|error| syntax_error(&error))?;
            let run = || {
                let budget = Budget::new(units);
                let mut values = HashMap::new();
                for (name, json) in variables {
                    values.insert(name.as_str(), Value::from_json(json, &budget)?);
                }
                Interpreter::new(budget, values, now).run(tree)
            };
            run().map_err(|Fault { kind, line }| match kind {
                FaultKind::Failed(reason) => Error::Template { line, reason: one_line(reason) },
                FaultKind::Refused(message) => Error::Refused(one_line(message)),
                FaultKind::TooCostly => Error::TemplateTooCostly { line, steps: units / STEP },
            })
        })
    }

    /// Works on the source on a thread with enough stack to parse and evaluate it. Parsing takes less
    /// than a millisecond, and its result borrows from the source.
    fn on_a_stack<T: Send>(&self, work: impl FnOnce(&str) -> Result<T, Error> + Send) -> Result<T, Error> {
        let failed = |reason: String| Error::Template { line: 0, reason };
        let size = BASE_STACK + self.source.len() * STACK_PER_BYTE;
        thread::scope(|scope| {
            thread::Builder::new()
                .name("chat template".to_owned())
                .stack_size(size)
                .spawn_scoped(scope, || work(&self.source))
                .map_err(|error| failed(format!("no thread with a stack of {size} bytes: {error}")))?
                .join()
                .unwrap_or_else(|_| Err(failed("the template engine panicked".to_owned())))
        })
    }
}

/// Jinja's syntax as transformers sets it up.
fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .keep_trailing_newline(false)
        .build()
        .map_err(|error| syntax_error(&error))
}

fn syntax_error(error: &minijinja::Error) -> Error {
    let reason = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    Error::Template { line: error.line().unwrap_or(0), reason: one_line(reason) }
}

/// Bytes of text in a JSON value, and one for each of its nodes.
fn text_bytes(value: &serde_json::Value) -> u64 {
    use serde_json::Value;
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        Value::String(text) => 1 + text.len() as u64,
        Value::Array(items) => 1 + items.iter().map(text_bytes).sum::<u64>(),
        Value::Object(map) => {
            map.iter().map(|(key, value)| key.len() as u64 + text_bytes(value)).sum::<u64>()
        }
    }
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, which mark assistant text for training
/// and which the parser does not know, by a block of the same scope that does nothing.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let tag = &tag[..end];
        let replacement = match tag.trim_matches(['-', '+']).trim() {
            "generation" => tag.replace("generation", "with"),
            "endgeneration" => tag.replace("endgeneration", "endwith"),
            _ => continue,
        };
        out.push_str(&replacement);
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}
