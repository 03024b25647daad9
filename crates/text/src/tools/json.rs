//! A call as a JSON object with a name and arguments, read while it comes.

use crate::Piece;

/// The object so far. Looks at each byte once, and at the structure of the outer object only: what
/// the arguments are worth is for whoever reads them.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonCall {
    at: At,
    /// The string of a key or a name, with its quotes.
    text: String,
    /// Arguments that came before the name.
    early: String,
    named: bool,
    /// The last character was a line break.
    broken: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum At {
    /// Before the brace.
    #[default]
    Start,
    /// Between members.
    Member,
    /// Inside a key.
    Key { escaped: bool },
    /// Behind a key.
    Colon(Field),
    /// Before or in the value of a member.
    Value(Field, Value),
    /// Behind the closing brace.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

/// Where in a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Value {
    begun: bool,
    depth: usize,
    string: bool,
    escaped: bool,
}

impl JsonCall {
    pub(super) fn push(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        let mut arguments = String::new();
        for c in text.chars() {
            self.step(c, &mut arguments, pieces);
            self.broken = c == '\n';
        }
        self.send(&arguments, pieces);
    }

    /// Whether the next character belongs to a string. Behind a line break it does not: no JSON string
    /// has one, so the model has forgotten a quote.
    pub(super) fn in_string(&self) -> bool {
        !self.broken && matches!(self.at, At::Key { .. } | At::Value(_, Value { string: true, .. }))
    }

    fn step(&mut self, c: char, arguments: &mut String, pieces: &mut Vec<Piece>) {
        self.at = match self.at {
            At::Start => {
                if c == '{' {
                    At::Member
                } else {
                    At::Start
                }
            }
            At::Member => match c {
                '"' => {
                    self.text = c.into();
                    At::Key { escaped: false }
                }
                '}' => At::End,
                _ => At::Member,
            },
            At::Key { escaped } => {
                self.text.push(c);
                match c {
                    '"' if !escaped => At::Colon(self.field()),
                    _ => At::Key { escaped: c == '\\' && !escaped },
                }
            }
            At::Colon(field) => {
                self.text.clear();
                if c == ':' { At::Value(field, Value::default()) } else { At::Colon(field) }
            }
            At::Value(_, value) if !value.begun && c.is_ascii_whitespace() => self.at,
            At::Value(field, value) => {
                let (value, ended) = value.step(c);
                match (field, ended) {
                    // The comma or brace behind a number is no part of it.
                    (_, Ended::Before) => {}
                    (Field::Name, _) => self.text.push(c),
                    (Field::Arguments, _) => arguments.push(c),
                    (Field::Other, _) => {}
                }
                match ended {
                    Ended::Not => At::Value(field, value),
                    Ended::With | Ended::Before => {
                        if field == Field::Name {
                            self.name(pieces);
                        }
                        if ended == Ended::Before && c == '}' { At::End } else { At::Member }
                    }
                }
            }
            At::End => At::End,
        };
    }

    fn field(&self) -> Field {
        match serde_json::from_str::<String>(&self.text).as_deref() {
            Ok("name") if !self.named => Field::Name,
            Ok("arguments" | "parameters") => Field::Arguments,
            _ => Field::Other,
        }
    }

    fn name(&mut self, pieces: &mut Vec<Piece>) {
        match serde_json::from_str::<String>(&std::mem::take(&mut self.text)) {
            Ok(name) if !name.is_empty() => {
                self.named = true;
                pieces.push(Piece::CallStart { name });
            }
            _ => {}
        }
    }

    fn send(&mut self, arguments: &str, pieces: &mut Vec<Piece>) {
        if !self.named {
            self.early.push_str(arguments);
            return;
        }
        let mut all = std::mem::take(&mut self.early);
        all.push_str(arguments);
        if !all.is_empty() {
            pieces.push(Piece::CallArguments(all));
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Not,
    /// The character is the last of the value.
    With,
    /// The character is the first behind the value.
    Before,
}

impl Value {
    fn step(self, c: char) -> (Value, Ended) {
        let Value { depth, string, escaped, .. } = self;
        let value = Value { begun: true, ..self };
        if string {
            let ends = c == '"' && !escaped;
            let next = Value { string: !ends, escaped: c == '\\' && !escaped, ..value };
            return (next, if ends && depth == 0 { Ended::With } else { Ended::Not });
        }
        match c {
            '"' => (Value { string: true, ..value }, Ended::Not),
            '{' | '[' => (Value { depth: depth + 1, ..value }, Ended::Not),
            '}' | ']' if depth == 0 => (value, Ended::Before),
            '}' | ']' => {
                (Value { depth: depth - 1, ..value }, if depth == 1 { Ended::With } else { Ended::Not })
            }
            ',' if depth == 0 => (value, Ended::Before),
            _ => (value, Ended::Not),
        }
    }
}
