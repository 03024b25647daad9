//! A call in tags, read while it comes, its arguments written as JSON.

use crate::Piece;
use crate::scan::partial_marker;
use crate::tools::Tools;

const PARAMETER_CLOSE: &str = "</parameter>";

/// The call so far.
#[derive(Debug, Clone, Default)]
pub(super) struct XmlCall {
    /// Text that is not used yet.
    held: String,
    name: Option<String>,
    at: At,
    /// Arguments so far.
    arguments: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum At {
    /// Between arguments.
    #[default]
    Between,
    /// In an argument that streams as a string.
    String {
        /// The line break behind the tag has been dropped.
        begun: bool,
    },
    /// In an argument that is collected, as its type must be seen.
    Other,
    /// Behind the last argument.
    End,
}

impl XmlCall {
    pub(super) fn push(&mut self, text: &str, tools: &Tools, pieces: &mut Vec<Piece>) {
        self.held.push_str(text);
        let mut arguments = String::new();
        if self.name.is_none() {
            let Some(name) = self.tag("<function=") else { return };
            if name.is_empty() {
                self.at = At::End;
            } else {
                pieces.push(Piece::CallStart { name: name.clone() });
                arguments.push('{');
            }
            self.name = Some(name);
        }
        while self.step(tools, &mut arguments) {}
        if !arguments.is_empty() {
            pieces.push(Piece::CallArguments(arguments));
        }
    }

    /// The call's closing tag has come: closes what the model left open.
    pub(super) fn finish(&mut self, tools: &Tools, pieces: &mut Vec<Piece>) {
        if self.name.is_none() || self.at == At::End {
            return;
        }
        if self.at != At::Between {
            self.push(PARAMETER_CLOSE, tools, pieces);
        }
        self.at = At::End;
        pieces.push(Piece::CallArguments("}".to_owned()));
    }

    /// Uses some of the text; false if it takes more text to go on.
    fn step(&mut self, tools: &Tools, arguments: &mut String) -> bool {
        match self.at {
            At::Between => self.between(tools, arguments),
            At::String { begun } => self.string(begun, arguments),
            At::Other => {
                let Some(end) = self.held.find(PARAMETER_CLOSE) else { return false };
                let value = trimmed(&self.held[..end]);
                // What is no JSON reaches the reader as a string, whatever it should have been.
                let quoted = serde_json::Value::from(value).to_string();
                arguments.push_str(if is_json(value) { value } else { &quoted });
                self.held.drain(..end + PARAMETER_CLOSE.len());
                self.at = At::Between;
                true
            }
            At::End => {
                self.held.clear();
                false
            }
        }
    }

    fn between(&mut self, tools: &Tools, arguments: &mut String) -> bool {
        let close = self.held.find("</function>");
        let open = self.held.find("<parameter=");
        if close.is_some_and(|close| open.is_none_or(|open| close < open)) {
            arguments.push('}');
            self.at = At::End;
            return true;
        }
        let Some(name) = self.tag("<parameter=") else { return false };
        arguments.push_str(if self.arguments == 0 { "" } else { ", " });
        arguments.push_str(&serde_json::Value::from(name.as_str()).to_string());
        arguments.push_str(": ");
        self.arguments += 1;
        let tool = self.name.as_deref().unwrap_or_default();
        self.at = match tools.is_string(tool, &name) {
            Some(true) => {
                arguments.push('"');
                At::String { begun: false }
            }
            _ => At::Other,
        };
        true
    }

    fn string(&mut self, begun: bool, arguments: &mut String) -> bool {
        if !begun {
            if self.held.is_empty() {
                return false;
            }
            if self.held.starts_with('\n') {
                self.held.remove(0);
            }
            self.at = At::String { begun: true };
        }
        let end = self.held.find(PARAMETER_CLOSE);
        let certain = match end {
            Some(end) => self.held[..end].strip_suffix('\n').map_or(end, str::len),
            None => {
                let open = &self.held[..self.held.len() - partial_marker(&self.held, &[PARAMETER_CLOSE])];
                open.strip_suffix('\n').unwrap_or(open).len()
            }
        };
        let quoted = serde_json::Value::from(&self.held[..certain]).to_string();
        arguments.push_str(&quoted[1..quoted.len() - 1]);
        self.held.drain(..end.map_or(certain, |end| end + PARAMETER_CLOSE.len()));
        if end.is_some() {
            arguments.push('"');
            self.at = At::Between;
        }
        end.is_some()
    }

    /// Takes the text up to the end of an opening tag, and returns the tag's value.
    fn tag(&mut self, open: &str) -> Option<String> {
        let start = self.held.find(open)? + open.len();
        let end = start + self.held[start..].find('>')?;
        let value = self.held[start..end].trim().to_owned();
        self.held.drain(..=end);
        Some(value)
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(text).is_ok()
}

/// Without the line breaks next to the tags.
fn trimmed(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}
