//! The template engine, set up to behave as transformers sets up Jinja2, and bounded.
//!
//! The bounds stop loops, recursion and strings that explode. They are not a sandbox: minijinja
//! 3.1 leaves a template some ways to hang or abort the process that nothing outside of it can
//! close. Known are
//!
//! - `+` on lists, which is not charged: doubling a list 33 times fills the memory;
//! - printing or joining (`{{ x }}`, `~`, `string`) a list that holds one list twice, and so on
//!   thirty levels deep, which is charged after the fact: it runs without end;
//! - doing that to a namespace that holds itself: it overflows the stack;
//! - thousands of slices of slices, whose cost is not charged: minutes.
//!
//! A service that loads model files from strangers should render in a process it can lose.

use std::thread;
use std::time::SystemTime;

use jiff::ZonedDateTime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, ErrorKind, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Map;

use crate::error::{Error, one_line};
use crate::python_json::tojson;

const NAME: &str = "chat";

/// Steps that any rendering may cost, where a step is an instruction or 64 bytes of data: an
/// upper bound of 64 MiB and of a fraction of a second. Templates in use take about a hundred
/// steps a message.
///
const BASE_FUEL: u64 = 1_000_000;

/// Bytes of conversation that buy one more step, so that a template can pass over each message
/// thirty times.
const BYTES_PER_FUEL: u64 = 2;

/// Stack for each step, in bytes. A template can nest lists once in about eight steps, and the
/// engine prints, compares and drops nested values by recursion. The stack is reserved as address
/// space; what a rendering does not touch takes no memory.
const STACK_PER_FUEL: u64 = 256;

/// Nesting of blocks, macros and recursive loops.
const RECURSION_LIMIT: usize = 200;

/// Longest source that is compiled, in bytes. Templates in use have up to thirty thousand.
const MAX_SOURCE: usize = 256 << 10;

/// Stack for compiling each byte of the source, in bytes: the engine parses a chain of unary
/// operators by recursion.
const STACK_PER_BYTE: u64 = 1024;

/// Stack that any work on a template gets, in bytes.
const BASE_STACK: u64 = 2 << 20;

/// Longest number, in digits, in a format string.
const MAX_FORMAT_DIGITS: usize = 4;

/// A compiled template.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    environment: Environment<'static>,
    source: String,
}

impl Template {
    pub(crate) fn compile(source: &str) -> Result<Self, Error> {
        if source.len() > MAX_SOURCE {
            let reason = format!("{} bytes of source, over {MAX_SOURCE}", source.len());
            return Err(Error::Template { line: 0, reason });
        }
        let source = without_generation_tags(source);
        let environment = with_stack(source.len() as u64 * STACK_PER_BYTE, || {
            environment(source.clone()).map_err(|error| template_error(&error))
        })?;
        Ok(Self { environment, source })
    }

    /// The source as compiled.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    pub(crate) fn render(
        &self,
        variables: Map<String, serde_json::Value>,
        now: Option<SystemTime>,
    ) -> Result<String, Error> {
        let bytes: u64 = variables.values().map(text_bytes).sum();
        let fuel = BASE_FUEL + bytes / BYTES_PER_FUEL;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        environment.add_function("strftime_now", move |format: &str| {
            strftime(format, now.unwrap_or_else(SystemTime::now))
        });
        with_stack(fuel.saturating_mul(STACK_PER_FUEL), || {
            environment
                .get_template(NAME)
                .and_then(|template| template.render(Value::from(Serde(variables))))
                .map_err(|error| match error.kind() {
                    ErrorKind::OutOfFuel => {
                        Error::TemplateTooCostly { line: error.line().unwrap_or(0), fuel }
                    }
                    _ => template_error(&error),
                })
        })
    }
}

/// The engine with this template, as transformers sets up Jinja2.
fn environment(source: String) -> Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    let syntax =
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false).build()?;
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_unknown_method_callback(python_method);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_template_owned(NAME, source)?;
    Ok(environment)
}

/// Python's methods on strings, lists and dicts. `str.format` does not charge for padding, so
/// wide padding is refused.
fn python_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, minijinja::Error> {
    if let (Some(text), "format") = (value.as_str(), method) {
        let wide = text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > MAX_FORMAT_DIGITS);
        // `{:{}}` takes the width from an argument.
        let nested = text.split('}').any(|field| field.matches('{').count() > 1);
        if wide || nested {
            let detail = format!("format string with a width over {MAX_FORMAT_DIGITS} digits");
            return Err(minijinja::Error::new(ErrorKind::InvalidOperation, detail));
        }
    }
    unknown_method_callback(state, value, method, args)
}

/// Runs `work` on a thread with a stack of this many bytes and a base.
fn with_stack<T: Send>(bytes: u64, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    let failed = |reason: String| Error::Template { line: 0, reason };
    let bytes = bytes.saturating_add(BASE_STACK);
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    thread::scope(|scope| {
        thread::Builder::new()
            .name("chat template".to_owned())
            .stack_size(size)
            .spawn_scoped(scope, work)
            .map_err(|error| failed(format!("no thread with a stack of {bytes} bytes: {error}")))?
            .join()
            .unwrap_or_else(|_| Err(failed("the template engine panicked".to_owned())))
    })
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

/// The message of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    let error = minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception");
    Err(error.with_source(Raised(message)))
}

/// The time in the system's zone, formatted as Python's `strftime` does.
fn strftime(format: &str, now: SystemTime) -> Result<String, minijinja::Error> {
    let failed = |error: jiff::Error| {
        let detail = format!("strftime_now({format:?}): {error}");
        minijinja::Error::new(ErrorKind::InvalidOperation, detail)
    };
    let now = ZonedDateTime::try_from(now).map_err(failed)?;
    jiff::fmt::strtime::format(format, &now).map_err(failed)
}

fn template_error(error: &minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Error::Refused(one_line(message));
        }
        cause = error.source();
    }
    let reason = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    Error::Template { line: error.line().unwrap_or(0), reason: one_line(reason) }
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, which mark assistant text for training
/// and which the engine does not know, by a block of the same scope that does nothing.
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
