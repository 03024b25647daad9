//! Formats of dates as patterns of the Gregorian calendar, where the library takes 29 February in every year.

use serde_json::{Map, Value, json};

use crate::schema::{NAMED, is_literal};

/// A day of a year of four digits: one that every year has, or 29 February of a leap year.
const DATE: &str = concat!(
    "(?:[0-9]{4}-(?:",
    "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "|02-(?:0[1-9]|1[0-9]|2[0-8])",
    // Divisible by 4 but not by 100, or by 400.
    ")|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);

/// A time of day with its offset. A leap second comes at the end of a day of UTC and is written as such:
/// with another offset an automaton would have to remember every minute.
const TIME: &str = concat!(
    "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
    "|23:59:60(?:[.][0-9]+)?(?:[zZ]|[+-]00:00))",
);

/// A format of RFC 3339 (5.6) as a pattern.
fn pattern(format: &str) -> Option<String> {
    match format {
        "date" => Some(format!("^{DATE}$")),
        "time" => Some(format!("^{TIME}$")),
        "date-time" => Some(format!("^{DATE}[tT]{TIME}$")),
        _ => None,
    }
}

/// Puts patterns in the place of these formats, wherever in a schema they bind a value. `keywords` says that the
/// keys of an object are keywords rather than names. Whatever else the schema says of the text holds too.
pub(crate) fn spell_out(value: &mut Value, keywords: bool) {
    match value {
        Value::Object(fields) => {
            if keywords {
                spell_out_format(fields);
            }
            for (key, value) in fields.iter_mut().filter(|(key, value)| !is_literal(key, value, keywords)) {
                spell_out(value, !(keywords && NAMED.contains(&key.as_str())));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| spell_out(item, true)),
        _ => {}
    }
}

fn spell_out_format(fields: &mut Map<String, Value>) {
    let Some(pattern) = fields.get("format").and_then(Value::as_str).and_then(pattern) else { return };
    fields.remove("format");
    let all = fields.entry("allOf").or_insert_with(|| json!([]));
    // What is no list the library refuses.
    if let Value::Array(all) = all {
        all.push(json!({ "pattern": pattern }));
    }
}
