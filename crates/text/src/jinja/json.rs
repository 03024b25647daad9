//! The `tojson` filter as transformers defines it: Python's `json.dumps`, without the HTML escapes
//! of Jinja's own.

use super::args::Args;
use super::budget::{Budget, Fault};
use super::print::float;
use super::value::{Key, Value};

/// Deepest nesting that is written, the limit that `serde_json` has for reading.
const MAX_DEPTH: usize = 128;

/// Widest indent that is written.
const MAX_INDENT: i128 = 16;

/// `value|tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(budget: &Budget, value: &Value, args: &mut Args) -> Result<Value, Fault> {
    budget.spend_walk(value)?;
    let ascii = args.named("ensure_ascii").is_some_and(|flag| flag.is_true());
    let indent = match args.named("indent") {
        None | Some(Value::None) => None,
        Some(indent) => match indent.as_int() {
            Some(indent @ 0..=MAX_INDENT) => Some(indent as usize),
            _ => return Err(Fault::new(format!("tojson: indent is not a number from 0 to {MAX_INDENT}"))),
        },
    };
    let item_end = if indent.is_some() { "," } else { ", " };
    let separators = match args.named("separators") {
        None | Some(Value::None) => None,
        Some(pair) => Some(pair),
    };
    let (item, key) = match &separators {
        None => (item_end, ": "),
        Some(Value::List(pair)) => match pair.items.as_slice() {
            [Value::Text(item), Value::Text(key)] => (&**item, &**key),
            _ => return Err(Fault::new("tojson: separators must be two strings")),
        },
        Some(_) => return Err(Fault::new("tojson: separators must be two strings")),
    };
    let sort = args.named("sort_keys").is_some_and(|flag| flag.is_true());
    let mut writer = Writer { budget, out: String::new(), indent, item, key, ascii, sort };
    writer.value(value, 0)?;
    // Paid for while it was written.
    Ok(Value::Text(writer.out.into()))
}

struct Writer<'a> {
    budget: &'a Budget,
    out: String,
    indent: Option<usize>,
    /// Separator of items.
    item: &'a str,
    /// Separator of key and value.
    key: &'a str,
    ascii: bool,
    sort: bool,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Fault> {
        if depth > MAX_DEPTH {
            return Err(Fault::new(format!("tojson: nested deeper than {MAX_DEPTH}")));
        }
        match value {
            Value::None => self.push("null"),
            Value::Bool(true) => self.push("true"),
            Value::Bool(false) => self.push("false"),
            Value::Int(i) => self.push(&i.to_string()),
            Value::Float(x) => self.push(&number(*x)),
            Value::Text(text) => self.string(text),
            Value::List(list) => self.container(['[', ']'], list.items.iter(), depth, |writer, item| {
                writer.value(item, depth + 1)
            }),
            Value::Dict(dict) => {
                let mut entries: Vec<(String, &Value)> =
                    dict.entries.iter().map(|(key, value)| (object_key(key), value)).collect();
                if self.sort {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.container(['{', '}'], entries.into_iter(), depth, |writer, (key, value)| {
                    writer.string(&key)?;
                    writer.push(writer.key)?;
                    writer.value(value, depth + 1)
                })
            }
            other => {
                Err(Fault::new(format!("tojson: a value of type {} has no JSON form", other.type_name())))
            }
        }
    }

    fn container<T>(
        &mut self,
        [open, close]: [char; 2],
        items: impl Iterator<Item = T>,
        depth: usize,
        mut write: impl FnMut(&mut Self, T) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.out.push(open);
        let mut empty = true;
        for item in items {
            if !empty {
                self.push(self.item)?;
            }
            empty = false;
            self.line_break(depth + 1)?;
            write(self, item)?;
        }
        if !empty {
            self.line_break(depth)?;
        }
        self.out.push(close);
        Ok(())
    }

    fn line_break(&mut self, depth: usize) -> Result<(), Fault> {
        match self.indent {
            Some(indent) => self.push(&format!("\n{:1$}", "", indent * depth)),
            None => Ok(()),
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Fault> {
        let mut quoted = String::with_capacity(text.len() + 2);
        quoted.push('"');
        for c in text.chars() {
            match c {
                '"' => quoted.push_str("\\\""),
                '\\' => quoted.push_str("\\\\"),
                '\n' => quoted.push_str("\\n"),
                '\r' => quoted.push_str("\\r"),
                '\t' => quoted.push_str("\\t"),
                '\u{8}' => quoted.push_str("\\b"),
                '\u{c}' => quoted.push_str("\\f"),
                c if c < ' ' || (self.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        quoted.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => quoted.push(c),
            }
        }
        quoted.push('"');
        self.push(&quoted)
    }

    fn push(&mut self, text: &str) -> Result<(), Fault> {
        self.budget.spend(text.len() as u64)?;
        self.out.push_str(text);
        Ok(())
    }
}

/// Python writes keys that are not strings as strings.
fn object_key(key: &Key) -> String {
    match key {
        Key::Text(text) => text.as_ref().to_owned(),
        Key::None => "null".to_owned(),
        Key::Bool(b) => b.to_string(),
        Key::Int(i) => i.to_string(),
    }
}

fn number(x: f64) -> String {
    match x {
        x if x.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        x => float(x),
    }
}
