//! Tests: `value is name(argument)`.

use std::cmp::Ordering;

use super::args::Args;
use super::budget::{Budget, Fault};
use super::operators::{compare, contains, equal};
use super::value::Value;

/// Whether `value` passes the test.
pub(super) fn passes(budget: &Budget, name: &str, value: &Value, args: &mut Args) -> Result<bool, Fault> {
    let ordering = |args: &mut Args| compare(value, &args.required("other")?, budget);
    let integer =
        || value.as_int().ok_or_else(|| Fault::new(format!("`{name}` test of {}", value.type_name())));
    let passes = match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        // Python's strings and dicts can be indexed and counted, which is all Jinja asks for.
        "sequence" => matches!(value, Value::Text(_) | Value::List(_) | Value::Dict(_) | Value::Undefined),
        "iterable" => matches!(value, Value::Text(_) | Value::List(_) | Value::Dict(_) | Value::Undefined),
        "callable" => matches!(value, Value::Macro(_) | Value::Function(_) | Value::Loop(_)),
        "eq" | "equalto" | "==" => equal(value, &args.required("other")?, budget)?,
        "ne" | "!=" => !equal(value, &args.required("other")?, budget)?,
        "sameas" => {
            let other = args.required("other")?;
            value.type_name() == other.type_name() && equal(value, &other, budget)?
        }
        "lt" | "lessthan" | "<" => ordering(args)? == Ordering::Less,
        "le" | "<=" => ordering(args)? != Ordering::Greater,
        "gt" | "greaterthan" | ">" => ordering(args)? == Ordering::Greater,
        "ge" | ">=" => ordering(args)? != Ordering::Less,
        "in" => contains(&args.required("seq")?, value, budget)?,
        "odd" => integer()?.rem_euclid(2) == 1,
        "even" => integer()?.rem_euclid(2) == 0,
        "divisibleby" => match args.required("num")?.as_int() {
            Some(divisor) if divisor != 0 => integer()?.checked_rem(divisor).unwrap_or(0) == 0,
            _ => return Err(Fault::new("`divisibleby` needs an integer that is not zero")),
        },
        "lower" | "upper" => {
            let text = value.print(budget)?;
            let cased = text.chars().any(char::is_alphabetic);
            let wrong = if name == "lower" { char::is_uppercase } else { char::is_lowercase };
            cased && !text.chars().any(wrong)
        }
        _ => return Err(Fault::new(format!("unknown test `{name}`"))),
    };
    args.finish()?;
    Ok(passes)
}
