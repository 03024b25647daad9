//! Tool calls as a grammar.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use shamrock_text::{TOOL_CALL_CLOSE, TOOL_CALL_OPEN, Tool, ToolFormat, Tools};

use crate::error::{Error, Result};
use crate::schema::prepare;

/// Answers that call tools.
#[derive(Clone, Debug, PartialEq)]
pub struct Calls {
    /// How the model writes calls.
    pub format: ToolFormat,
    /// What can be called, with arguments of its schema. Tools that are not [strict](Tool::strict) take any
    /// object if a schema cannot be enforced; where arguments stand in tags, any text in each, and in those
    /// that are texts whatever else the schema says of them.
    pub tools: Tools,
    /// What the answer may be instead of a call.
    pub otherwise: Otherwise,
    /// There may be several calls.
    pub parallel: bool,
}

/// What an answer may be instead of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Otherwise {
    /// Nothing: a tool must be called.
    Nothing,
    /// Text, with calls in it or not.
    Text,
    /// A JSON value of a schema.
    Json(Value),
}

/// The grammar in Lark. `tags` says that the tags around calls are control tokens; `lenient` lets
/// tools that are not strict take any object.
pub(crate) fn lark(calls: &Calls, tags: bool, lenient: bool) -> Result<String> {
    let mut rules = Rules { text: String::new(), open: String::new(), close: String::new() };
    rules.open = if tags { TOOL_CALL_OPEN.to_owned() } else { literal(TOOL_CALL_OPEN) };
    rules.close = if tags { TOOL_CALL_CLOSE.to_owned() } else { literal(TOOL_CALL_CLOSE) };
    let mut names = Vec::new();
    for (i, tool) in calls.tools.iter().enumerate() {
        let lenient = lenient && !tool.strict;
        match calls.format {
            ToolFormat::Json if lenient => rules.json(i, tool, &json!({ "type": "object" }))?,
            ToolFormat::Json => rules.json(i, tool, &tool.parameters)?,
            ToolFormat::Xml => rules.xml(i, tool, lenient)?,
        }
        names.push(format!("call{i}"));
    }
    let body = names.join(" | ");
    let Rules { mut text, open, .. } = rules;
    let _ = writeln!(text, "call: {open} ({body})");
    let _ = match (&calls.otherwise, calls.parallel) {
        (Otherwise::Nothing, true) => writeln!(text, "start: call (\"\\n\" call)*"),
        (Otherwise::Nothing, false) => writeln!(text, "start: call"),
        // The text in front of a call ends where a tag first stands.
        (Otherwise::Text, parallel) => {
            let many = if parallel { "*" } else { "?" };
            if tags {
                writeln!(text, "start: (TEXT call){many} TEXT\nTEXT: /(.|\\n)*/")
            } else {
                writeln!(text, "start: (head ({body})){many} TEXT\nTEXT: /(.|\\n)*/\nhead[lazy]: TEXT {open}")
            }
        }
        (Otherwise::Json(schema), parallel) => {
            let more = if parallel { " (\"\\n\" call)*" } else { "" };
            writeln!(text, "start: call{more} | other\nother: %json {}", prepare(schema)?)
        }
    };
    Ok(text)
}

struct Rules {
    text: String,
    open: String,
    close: String,
}

impl Rules {
    /// The rule of one tool's call behind the opening tag, as JSON.
    fn json(&mut self, i: usize, tool: &Tool, schema: &Value) -> Result<()> {
        let name = Value::from(tool.name.as_str());
        let head = literal(&format!("\n{{\"name\": {name}, \"arguments\": "));
        let close = &self.close;
        let schema = prepare(schema)?;
        let _ = writeln!(self.text, "call{i}: {head} args{i} \"}}\\n\" {close}\nargs{i}: %json {schema}");
        Ok(())
    }

    /// The same in tags: arguments in the order of the schema, those not required may be left out.
    fn xml(&mut self, i: usize, tool: &Tool, lenient: bool) -> Result<()> {
        let schema = &tool.parameters;
        if tool.strict {
            only(schema, &OBJECT, "the arguments")?;
        }
        let nothing = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&nothing);
        let required = |name: &String| {
            let names = schema.get("required").and_then(Value::as_array);
            names.is_some_and(|names| names.iter().any(|other| other.as_str() == Some(name)))
        };
        let mut arguments = String::new();
        for (j, (name, property)) in properties.iter().enumerate() {
            let may_lack = if required(name) { "" } else { "?" };
            let _ = write!(arguments, " arg{i}x{j}{may_lack}");
            let open = literal(&format!("<parameter={name}>\n"));
            let close = literal("\n</parameter>\n");
            let words = property.get("enum").and_then(Value::as_array);
            let words = words.filter(|words| words.iter().all(Value::is_string));
            let text = property.get("type").is_some_and(|kind| kind == "string");
            if text && tool.strict {
                only(property, &TEXT, name)?;
            }
            let _ = if let Some(words) = words {
                let words: Vec<String> = words.iter().filter_map(Value::as_str).map(literal).collect();
                writeln!(self.text, "arg{i}x{j}: {open} ({}) {close}", words.join(" | "))
            } else if text || lenient {
                writeln!(self.text, "arg{i}x{j}: {open} text{i}x{j}\ntext{i}x{j}[lazy]: /(.|\\n)*/ {close}")
            } else {
                let value = prepare(&with_definitions(property, schema))?;
                writeln!(self.text, "arg{i}x{j}: {open} value{i}x{j} {close}\nvalue{i}x{j}: %json {value}")
            };
        }
        let head = literal(&format!("\n<function={}>\n", tool.name));
        let close = &self.close;
        let _ = writeln!(self.text, "call{i}: {head}{arguments} \"</function>\\n\" {close}");
        Ok(())
    }
}

/// Keywords of arguments in tags, and of a text among them, that are held to or say nothing of a value.
const OBJECT: [&str; 6] = ["type", "properties", "required", "additionalProperties", "$defs", "definitions"];
const TEXT: [&str; 2] = ["type", "enum"];
const NOTES: [&str; 8] =
    ["title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"];

/// Refuses keywords that calls in tags cannot be held to.
fn only(schema: &Value, known: &[&str], what: &str) -> Result<()> {
    let mut fields = schema.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    match fields.find(|key| !known.contains(key) && !NOTES.contains(key)) {
        None => Ok(()),
        Some(key) => {
            let problem =
                format!("{what}: `{key}` cannot be held to in the form in which this model calls tools");
            Err(Error::Source(problem))
        }
    }
}

/// A part of a schema with the definitions of the whole, to which it may refer.
fn with_definitions(part: &Value, whole: &Value) -> Value {
    let mut part = part.clone();
    if let Value::Object(fields) = &mut part {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = whole.get(name) {
                fields.entry(name).or_insert_with(|| definitions.clone());
            }
        }
    }
    part
}

/// A string in Lark, which has the escapes of JSON.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
