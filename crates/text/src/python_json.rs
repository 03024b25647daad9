//! The `tojson` filter as transformers defines it: Python's `json.dumps`, without the HTML escapes
//! of Jinja's own.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Deepest nesting that is written, the limit that `serde_json` has for reading.
const MAX_DEPTH: usize = 128;

/// Widest indent that is written.
const MAX_INDENT: usize = 16;

/// `value|tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(crate) fn tojson(state: &State, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        return Err(invalid(format!("tojson: indent is over {MAX_INDENT}")));
    }
    let item_end = if indent.is_some() { "," } else { ", " };
    let (item, key): (String, String) = match kwargs.get::<Option<Vec<String>>>("separators")? {
        None => (item_end.to_owned(), ": ".to_owned()),
        Some(pair) => <[String; 2]>::try_from(pair)
            .map(|[item, key]| (item, key))
            .map_err(|_| invalid("tojson: separators must be two strings"))?,
    };
    let mut writer = Writer {
        state,
        out: String::new(),
        indent,
        item: &item,
        key: &key,
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

struct Writer<'a, 't, 'e> {
    state: &'a State<'t, 'e>,
    out: String,
    indent: Option<usize>,
    /// Separator of items.
    item: &'a str,
    /// Separator of key and value.
    key: &'a str,
    ascii: bool,
    sort: bool,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!("tojson: nested deeper than {MAX_DEPTH}")));
        }
        match value.kind() {
            ValueKind::None => self.push("null"),
            ValueKind::Bool => self.push(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.push(&number(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.container(['[', ']'], value.try_iter()?, depth, |writer, item| {
                    writer.value(&item, depth + 1)
                })
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort();
                }
                self.container(['{', '}'], keys.into_iter(), depth, |writer, key| {
                    writer.object_key(&key)?;
                    writer.push(writer.key)?;
                    writer.value(&value.get_item(&key)?, depth + 1)
                })
            }
            kind => Err(invalid(format!("tojson: a value of type {kind} has no JSON form"))),
        }
    }

    fn container(
        &mut self,
        [open, close]: [char; 2],
        items: impl Iterator<Item = Value>,
        depth: usize,
        mut write: impl FnMut(&mut Self, Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
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

    fn line_break(&mut self, depth: usize) -> Result<(), Error> {
        match self.indent {
            Some(indent) => self.push(&format!("\n{:1$}", "", indent * depth)),
            None => Ok(()),
        }
    }

    /// Python writes keys that are not strings as strings.
    fn object_key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None => self.push("\"null\""),
            ValueKind::Bool => self.push(if key.is_true() { "\"true\"" } else { "\"false\"" }),
            ValueKind::Number => self.push(&format!("\"{}\"", number(key)?)),
            kind => Err(invalid(format!("tojson: a key of type {kind} has no JSON form"))),
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
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

    /// Appends, at the cost of a step and one for each 64 bytes.
    fn push(&mut self, text: &str) -> Result<(), Error> {
        self.state.consume_fuel(1 + text.len() as u64 / 64)?;
        self.out.push_str(text);
        Ok(())
    }
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() { Ok(value.to_string()) } else { f64::try_from(value.clone()).map(float) }
}

/// Python's `repr` of a float: the shortest digits that read back, in positional notation from
/// 1e-4 up to 1e16.
fn float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
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
