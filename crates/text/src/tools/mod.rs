//! Tool calls in a model's output.
//!
//! Models of the Qwen family write a call between `<tool_call>` and `</tool_call>`, in one of two
//! forms, see [`ToolFormat`]. [`ToolCallSplitter`] takes them out of a stream of text as it comes.

mod json;
mod spelled;
mod xml;

use serde_json::Value;

use crate::Piece;
use crate::scan::partial_marker;
use json::JsonCall;
pub(crate) use spelled::spell_out;
use xml::XmlCall;

/// Opens a call.
pub const TOOL_CALL_OPEN: &str = "<tool_call>";
/// Closes a call.
pub const TOOL_CALL_CLOSE: &str = "</tool_call>";

/// How a model writes what it calls with what, between the tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `{"name": "f", "arguments": {"x": 1}}`
    Json,
    /// `<function=f>`, for each argument `<parameter=x>`, its value and `</parameter>`, and
    /// `</function>`, all on lines of their own. Strings stand there as they are, other values as
    /// JSON.
    Xml,
}

impl ToolFormat {
    /// The form that a chat template teaches.
    pub fn taught_by(template: &str) -> ToolFormat {
        if template.contains("<function=") { ToolFormat::Xml } else { ToolFormat::Json }
    }
}

/// The tools of a conversation: each has a name and a JSON schema of its arguments.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tools(Vec<Tool>);

/// A function that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of the arguments.
    pub parameters: Value,
    /// Calls must keep to the schema.
    pub strict: bool,
}

impl Tools {
    /// Tools in the order in which a model is told of them.
    pub fn new(tools: Vec<Tool>) -> Tools {
        Tools(tools)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.0.iter()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As templates take them: the array of the OpenAI API.
    pub fn to_json(&self) -> Value {
        let tool = |tool: &Tool| {
            let mut function = serde_json::json!({ "name": tool.name });
            if let Some(description) = &tool.description {
                function["description"] = description.as_str().into();
            }
            function["parameters"] = tool.parameters.clone();
            serde_json::json!({ "type": "function", "function": function })
        };
        self.iter().map(tool).collect()
    }

    /// Whether an argument is a string, as far as the schema tells; unknown ones are taken for one
    /// if they are no JSON.
    fn is_string(&self, tool: &str, argument: &str) -> Option<bool> {
        let tool = self.iter().find(|known| known.name == tool)?;
        let schema = tool.parameters.get("properties")?.get(argument)?;
        match schema.get("type") {
            Some(Value::String(kind)) => Some(kind == "string"),
            Some(_) => None,
            None => {
                let words = schema.get("enum")?.as_array()?;
                words.iter().all(Value::is_string).then_some(true)
            }
        }
    }
}

/// Takes tool calls out of the content of a model's output, wherever the stream cuts them.
///
/// Calls come as [`Piece::CallStart`] and the text of their arguments as [`Piece::CallArguments`],
/// which together are a JSON object, unless the output was cut or the model wrote none. Neither the
/// tags nor anything between them become content; white space next to them does not either. A call
/// whose name cannot be made out is none.
///
/// Pieces, joined by kind, do not depend on how the text is cut into pushes.
#[derive(Debug, Clone)]
pub struct ToolCallSplitter {
    format: ToolFormat,
    tools: Tools,
    state: State,
    /// What waits for more: white space that a tag may follow, then perhaps the beginning of a tag.
    held: String,
    /// A call was the last thing seen, white space aside.
    after_call: bool,
}

#[derive(Debug, Clone)]
enum State {
    Content,
    Json(JsonCall),
    Xml(XmlCall),
}

impl ToolCallSplitter {
    /// A splitter at the start of an answer.
    pub fn new(format: ToolFormat, tools: Tools) -> Self {
        Self { format, tools, state: State::Content, held: String::new(), after_call: false }
    }

    /// Takes the next piece of content and returns what became certain, in order.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.held.push_str(text);
        loop {
            let inside = !matches!(self.state, State::Content);
            let tag = if inside { TOOL_CALL_CLOSE } else { TOOL_CALL_OPEN };
            let found = self.held.find(tag);
            let certain = match found {
                Some(at) => at,
                None => self.held.len() - partial_marker(&self.held, &[tag]),
            };
            let rest = self.held.split_off(certain);
            let text = std::mem::replace(&mut self.held, rest);
            self.take(&text, found.is_some(), &mut pieces);
            if found.is_none() {
                return pieces;
            }
            if let State::Json(call) = &mut self.state
                && call.in_string()
            {
                // The tag is quoted.
                call.push("<", &mut pieces);
                self.held.remove(0);
                continue;
            }
            self.held.drain(..tag.len());
            self.turn(&mut pieces);
        }
    }

    /// The stream has ended: returns the text held back. A call that was cut stays cut; the
    /// beginning of a tag is no content.
    pub fn finish(&mut self) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        let mut pieces = Vec::new();
        if matches!(self.state, State::Content) {
            // White space, and what could have become a tag.
            let tag = partial_marker(&held, &[TOOL_CALL_OPEN]);
            let certain = &held[..held.len() - tag];
            if tag == 0 || !certain.trim().is_empty() {
                self.content(certain, &mut pieces);
            }
        }
        pieces
    }

    /// Takes text of the present kind, which a tag follows or not.
    fn take(&mut self, text: &str, before_tag: bool, pieces: &mut Vec<Piece>) {
        match &mut self.state {
            State::Content => {
                let certain = text.trim_end().len();
                self.content(&text[..certain], pieces);
                if !before_tag {
                    self.held.insert_str(0, &text[certain..]);
                }
            }
            State::Json(call) => call.push(text, pieces),
            State::Xml(call) => call.push(text, &self.tools, pieces),
        }
    }

    /// Goes over a tag.
    fn turn(&mut self, pieces: &mut Vec<Piece>) {
        let state = match (&mut self.state, self.format) {
            (State::Content, ToolFormat::Json) => State::Json(JsonCall::default()),
            (State::Content, ToolFormat::Xml) => State::Xml(XmlCall::default()),
            (State::Json(_), _) => State::Content,
            (State::Xml(call), _) => {
                call.finish(&self.tools, pieces);
                State::Content
            }
        };
        self.after_call = matches!(state, State::Content);
        self.state = state;
    }

    fn content(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        let text = if self.after_call { text.trim_start() } else { text };
        if !text.is_empty() {
            self.after_call = false;
            pieces.push(Piece::Content(text.to_owned()));
        }
    }
}
