//! JSON schemas before the library sees them: numbers that it could not hold to are refused, dates are spelled
//! out, and it is told how to space the text.

use serde_json::{Map, Number, Value, json};

use crate::dates;
use crate::error::{Error, Result};

/// The library keeps numbers as f64, in which every integer up to this one is exact. It is also as far
/// as JSON's numbers mean the same everywhere (RFC 7493).
const EXACT: u64 = (1 << 53) - 1;

/// Numbers closer to 0 than this are none that anybody writes down, digit by digit, as the library does.
const TINY: f64 = 1e-12;

/// Keywords with numbers that bound a value.
const BOUNDS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// Keywords with numbers that bound how many there are, characters or items.
const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

/// Keywords with values that are no schemas, and bind nobody.
const NOTES: [&str; 3] = ["default", "example", "examples"];

/// Keywords with schemas by name: a name among them is no keyword.
pub(crate) const NAMED: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// A schema with this crate's options for the library, whatever the source says of them.
///
/// # Errors
/// [`Error::Source`] with the place of what cannot be held to.
pub(crate) fn prepare(schema: &Value) -> Result<Value> {
    check(schema, true, &mut Vec::new())?;
    let mut schema = match schema {
        Value::Object(_) => schema.clone(),
        Value::Bool(true) => json!({}),
        _ => return Err(Error::Source("a schema must be an object or `true`".into())),
    };
    dates::spell_out(&mut schema, true);
    schema["x-guidance"] = one_line();
    Ok(schema)
}

/// Whether a value that stands under a key is data rather than a schema.
pub(crate) fn is_literal(key: &str, value: &Value, keywords: bool) -> bool {
    matches!(key, "const" | "enum") && (keywords || !value.is_object())
}

/// How a JSON text is spaced: on one line, with a space behind each comma and colon, as most JSON in
/// training data is. With the spacing free, every place between two parts is a choice that takes passes,
/// and one that a model which was never taught to write JSON spends on indentation.
fn one_line() -> Value {
    json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " })
}

/// Refuses numbers that are too great or too small to be held to wherever they would bind a value. `keywords` says that the keys of
/// an object are keywords rather than names; `place` is the way to it.
fn check<'a>(value: &'a Value, keywords: bool, place: &mut Vec<&'a str>) -> Result<()> {
    match value {
        Value::Object(fields) => {
            if keywords {
                repeated_names(fields, place)?;
                narrow_range(fields, place)?;
            }
            for (key, value) in fields {
                place.push(key);
                match (key.as_str(), value) {
                    (bound, Value::Number(number)) if BOUNDS.contains(&bound) => {
                        let size = number.as_f64().map_or(f64::INFINITY, f64::abs);
                        if size > EXACT as f64 {
                            return Err(beyond(number, &format!("±{EXACT}"), place));
                        }
                        if size > 0.0 && size < TINY {
                            let problem = format!("{number} is closer to 0 than {TINY:e}");
                            return Err(Error::Source(at(place, &problem)));
                        }
                    }
                    (count, Value::Number(number)) if COUNTS.contains(&count) => {
                        if number.as_f64().is_none_or(|number| number > f64::from(u32::MAX)) {
                            return Err(beyond(number, &u32::MAX.to_string(), place));
                        }
                    }
                    (key, value) if is_literal(key, value, keywords) => literals(value, place)?,
                    (note, _) if keywords && NOTES.contains(&note) => {}
                    (name, value) => check(value, !(keywords && NAMED.contains(&name)), place)?,
                }
                place.pop();
            }
            Ok(())
        }
        Value::Array(items) => items.iter().try_for_each(|item| check(item, true, place)),
        _ => Ok(()),
    }
}

/// Refuses a least number of properties where the library lets their names repeat: where names are free, it counts
/// one twice that is there twice.
fn repeated_names(fields: &Map<String, Value>, place: &[&str]) -> Result<()> {
    let least = fields.get("minProperties").and_then(Value::as_f64).unwrap_or(0.0);
    let required = fields.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    let free = fields.contains_key("patternProperties")
        || fields.get("additionalProperties").is_none_or(|more| *more != Value::Bool(false));
    if least > required as f64 && free {
        let problem = "minProperties beyond the required ones cannot be held to where names are free";
        return Err(Error::Source(at(place, problem)));
    }
    Ok(())
}

/// Refuses bounds that numbers must not reach where they are less than 1 apart: the library takes the bound itself
/// where all numbers between have its integer part.
fn narrow_range(fields: &Map<String, Value>, place: &[&str]) -> Result<()> {
    let bound = |key| fields.get(key).and_then(Value::as_f64);
    let (above, below) = (bound("exclusiveMinimum"), bound("exclusiveMaximum"));
    let integers = fields.get("type").is_some_and(|kind| kind == "integer");
    if integers || above.is_none() && below.is_none() {
        return Ok(());
    }
    let least = above.into_iter().chain(bound("minimum")).fold(f64::NEG_INFINITY, f64::max);
    let most = below.into_iter().chain(bound("maximum")).fold(f64::INFINITY, f64::min);
    if most - least < 1.0 {
        let problem =
            "an exclusive bound less than 1 from the other one cannot be held to; minimum and maximum can";
        return Err(Error::Source(at(place, problem)));
    }
    Ok(())
}

/// Refuses integers beyond [`EXACT`] in values that a schema spells out.
fn literals(value: &Value, place: &[&str]) -> Result<()> {
    match value {
        Value::Number(number) => {
            let exact = number.as_i64().map(i64::unsigned_abs).or(number.as_u64()).is_none_or(|n| n <= EXACT);
            if exact { Ok(()) } else { Err(beyond(number, &format!("±{EXACT}"), place)) }
        }
        Value::Array(items) => items.iter().try_for_each(|item| literals(item, place)),
        Value::Object(fields) => fields.values().try_for_each(|field| literals(field, place)),
        _ => Ok(()),
    }
}

fn beyond(number: &Number, limit: &str, place: &[&str]) -> Error {
    Error::Source(at(place, &format!("{number} is beyond {limit}, up to which numbers can be held to")))
}

/// A problem with its place as a JSON pointer, without the numbers of list items, which nobody needs to
/// find a keyword.
fn at(place: &[&str], problem: &str) -> String {
    let place: String =
        place.iter().map(|key| format!("/{}", key.replace('~', "~0").replace('/', "~1"))).collect();
    format!("#{place}: {problem}")
}
