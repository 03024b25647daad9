//! `str.format` and `%`, by minijinja's implementation of both.

use minijinja::formatting::{self, FormatStyle};
use minijinja::value::Kwargs;

use super::args::Args;
use super::budget::{Budget, Fault};
use super::value::Value;
use crate::error::one_line;

/// Longest number, in digits, in a format string.
const MAX_DIGITS: usize = 4;

/// Most characters that a field without a string in it can have: the width, and a float.
const MAX_FIELD: u64 = 12_000;

/// What a field looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// `{}`
    Braces,
    /// `%s`
    Percent,
}

/// Formats the arguments.
pub(super) fn format(budget: &Budget, style: Style, text: &str, args: Args) -> Result<Value, Fault> {
    budget.spend(text.len() as u64)?;
    let wide = text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > MAX_DIGITS);
    // `{:{}}` and `%*d` take the width from an argument.
    let nested = match style {
        Style::Braces => {
            let fields = text.replace("{{", "").replace("}}", "");
            fields.split('}').any(|field| field.matches('{').count() > 1)
        }
        Style::Percent => {
            let flags = |c: char| c.is_ascii_digit() || "-+# .".contains(c);
            text.split('%').skip(1).any(|field| field.trim_start_matches(flags).starts_with('*'))
        }
    };
    if wide || nested {
        return Err(Fault::new(format!("format string with a width over {MAX_DIGITS} digits")));
    }
    let values = args.positional.iter().chain(args.named.iter().map(|(_, value)| value));
    let widest = values.map(Value::weight).fold(MAX_FIELD, u64::saturating_add);
    let fields = text.matches(if style == Style::Braces { '{' } else { '%' }).count() as u64;
    budget.spend(fields.saturating_mul(widest))?;

    let mut given: Vec<minijinja::Value> =
        args.positional.iter().map(|value| scalar(value, budget)).collect::<Result<_, _>>()?;
    if !args.named.is_empty() {
        let named: Result<Vec<(String, minijinja::Value)>, Fault> =
            args.named.iter().map(|(name, value)| Ok((name.to_string(), scalar(value, budget)?))).collect();
        given.push(named?.into_iter().collect::<Kwargs>().into());
    }
    let style = match style {
        Style::Braces => FormatStyle::StrFormat,
        Style::Percent => FormatStyle::Printf,
    };
    let out = formatting::format(style, text, &given).map_err(|error| Fault::new(one_line(error)))?;
    Ok(Value::Text(out.into()))
}

/// A value for the formatter; what is neither number nor string is printed.
fn scalar(value: &Value, budget: &Budget) -> Result<minijinja::Value, Fault> {
    Ok(match value {
        Value::Bool(b) => minijinja::Value::from(*b),
        Value::Int(i) => minijinja::Value::from(*i),
        Value::Float(x) => minijinja::Value::from(*x),
        other => minijinja::Value::from(other.print(budget)?),
    })
}
