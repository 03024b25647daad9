//! How Python prints values: `str` and `repr`.

use std::fmt::Write;

use super::budget::{Budget, Fault};
use super::value::Value;

impl Value {
    /// Python's `str`. What is undefined prints nothing.
    pub(super) fn print(&self, budget: &Budget) -> Result<String, Fault> {
        budget.spend_walk(self)?;
        let mut out = String::new();
        match self {
            Self::Undefined => {}
            Self::Text(text) => out.push_str(text),
            other => repr(other, &mut out),
        }
        Ok(out)
    }
}

/// Appends Python's `repr`. The walk is paid by the caller.
fn repr(value: &Value, out: &mut String) {
    match value {
        Value::Undefined => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Int(i) => out.push_str(&i.to_string()),
        Value::Float(x) => out.push_str(&float(*x)),
        Value::Text(text) => quoted(text, out),
        Value::List(list) => {
            out.push(if list.is_tuple { '(' } else { '[' });
            for (at, item) in list.items.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                repr(item, out);
            }
            out.push_str(match (list.is_tuple, list.items.len()) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        Value::Dict(dict) => {
            out.push('{');
            for (at, (key, item)) in dict.entries.iter().enumerate() {
                if at > 0 {
                    out.push_str(", ");
                }
                repr(&key.to_value(), out);
                out.push_str(": ");
                repr(item, out);
            }
            out.push('}');
        }
        other => {
            out.push('<');
            out.push_str(other.type_name());
            out.push('>');
        }
    }
}

fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c != ' ' && (c.is_control() || c.is_whitespace()) => {
                let escaped = match u32::from(c) {
                    code @ 0..=0xff => write!(out, "\\x{code:02x}"),
                    code => write!(out, "\\u{code:04x}"),
                };
                escaped.expect("writing to a string does not fail");
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Python's `repr` of a float: the shortest digits that read back, in positional notation from
/// 1e-4 up to 1e16.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..16 => {
            let positional = x.to_string();
            if positional.contains('.') { positional } else { positional + ".0" }
        }
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
    }
}
