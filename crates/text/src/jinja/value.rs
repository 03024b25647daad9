//! Values of a template.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use indexmap::IndexMap;

use super::budget::{Budget, Fault, SLOT};

/// A value, as Python has it.
///
/// Lists and dicts never change once made, so a value holds no cycle. What does change, a
/// namespace, belongs to the interpreter, and values hold its number.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Undefined,
    None,
    Bool(bool),
    /// Python's have no bounds; these hold every number of 64 bits, with or without a sign.
    Int(i128),
    Float(f64),
    Text(Rc<str>),
    List(Rc<List>),
    Dict(Rc<Dict>),
    Loop(Rc<Loop>),
    Namespace(usize),
    Macro(usize),
    Function(Function),
}

/// A list or a tuple.
#[derive(Debug)]
pub(super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) is_tuple: bool,
    /// See [`Value::weight`].
    pub(super) weight: u64,
    pub(super) depth: u32,
}

/// A dict.
#[derive(Debug)]
pub(super) struct Dict {
    pub(super) entries: IndexMap<Key, Value>,
    /// See [`Value::weight`].
    pub(super) weight: u64,
    pub(super) depth: u32,
}

/// The variable `loop`, in one round.
#[derive(Debug)]
pub(super) struct Loop {
    pub(super) items: Rc<List>,
    pub(super) index: usize,
    /// Loops of the same recursion around this one.
    pub(super) depth: usize,
    /// The loop that calling this value runs again.
    pub(super) recursion: Option<usize>,
}

/// Functions that every template has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
}

impl Function {
    pub(super) fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "range" => Self::Range,
            "dict" => Self::Dict,
            "namespace" => Self::Namespace,
            "raise_exception" => Self::RaiseException,
            "strftime_now" => Self::StrftimeNow,
            _ => return None,
        })
    }
}

/// Key of a dict. As in Python, `True` is the same key as `1`.
#[derive(Debug, Clone)]
pub(super) enum Key {
    None,
    Bool(bool),
    Int(i128),
    Text(Rc<str>),
}

impl Key {
    fn number(&self) -> Option<i128> {
        match *self {
            Self::Bool(b) => Some(i128::from(b)),
            Self::Int(i) => Some(i),
            _ => None,
        }
    }

    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::None => Value::None,
            Self::Bool(b) => Value::Bool(*b),
            Self::Int(i) => Value::Int(*i),
            Self::Text(text) => Value::Text(text.clone()),
        }
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Text(a), Self::Text(b)) => a == b,
            _ => self.number().is_some_and(|number| other.number() == Some(number)),
        }
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Text(text) => text.hash(state),
            _ => self.number().hash(state),
        }
    }
}

impl List {
    /// Use [`Budget::list`], which bounds the nesting.
    pub(super) fn new(items: Vec<Value>, is_tuple: bool) -> Self {
        let weight = items.iter().fold(SLOT, |sum, item| sum.saturating_add(item.weight()));
        let depth = 1 + items.iter().map(Value::depth).max().unwrap_or(0);
        Self { items, is_tuple, weight, depth }
    }
}

impl Dict {
    /// Use [`Budget::dict`], which bounds the nesting.
    pub(super) fn new(entries: IndexMap<Key, Value>) -> Self {
        let weight = entries.iter().fold(SLOT, |sum, (key, value)| {
            let key = if let Key::Text(text) = key { SLOT + text.len() as u64 } else { SLOT };
            sum.saturating_add(key).saturating_add(value.weight())
        });
        let depth = 1 + entries.values().map(Value::depth).max().unwrap_or(0);
        Self { entries, weight, depth }
    }
}

impl Value {
    /// Cost of a walk through everything in this value, as often as it is in there: a list that
    /// holds one list twice weighs it twice. Known without a walk, so it can be paid in advance.
    pub(super) fn weight(&self) -> u64 {
        match self {
            Self::Text(text) => SLOT + text.len() as u64,
            Self::List(list) => list.weight,
            Self::Dict(dict) => dict.weight,
            _ => SLOT,
        }
    }

    fn depth(&self) -> u32 {
        match self {
            Self::List(list) => list.depth,
            Self::Dict(dict) => dict.depth,
            Self::Loop(state) => 1 + state.items.depth,
            _ => 0,
        }
    }

    pub(super) fn from_json(json: &serde_json::Value, budget: &Budget) -> Result<Self, Fault> {
        use serde_json::Value as Json;
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(b) => Self::Bool(*b),
            Json::Number(number) => match number.as_i128() {
                Some(i) => Self::Int(i),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => budget.text(text.as_str())?,
            Json::Array(items) => {
                let items: Result<_, _> = items.iter().map(|item| Self::from_json(item, budget)).collect();
                budget.list(items?)?
            }
            Json::Object(map) => {
                let entries: Result<_, Fault> = map
                    .iter()
                    .map(|(key, value)| Ok((Key::Text(key.as_str().into()), Self::from_json(value, budget)?)))
                    .collect();
                budget.dict(entries?)?
            }
        })
    }

    /// Python's name of the type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined => "undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::List(list) if list.is_tuple => "tuple",
            Self::List(_) => "list",
            Self::Dict(_) => "dict",
            Self::Loop(_) => "loop",
            Self::Namespace(_) => "namespace",
            Self::Macro(_) => "macro",
            Self::Function(_) => "function",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined | Self::None => false,
            Self::Bool(b) => *b,
            Self::Int(i) => *i != 0,
            Self::Float(x) => *x != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// An integer; booleans are some, as in Python.
    pub(super) fn as_int(&self) -> Option<i128> {
        match *self {
            Self::Int(i) => Some(i),
            Self::Bool(b) => Some(i128::from(b)),
            _ => None,
        }
    }

    /// A number, rounded to a float.
    pub(super) fn as_float(&self) -> Option<f64> {
        if let Self::Float(x) = *self { Some(x) } else { self.as_int().map(|i| i as f64) }
    }

    pub(super) fn as_key(&self) -> Option<Key> {
        Some(match self {
            Self::None => Key::None,
            Self::Bool(b) => Key::Bool(*b),
            Self::Int(i) => Key::Int(*i),
            Self::Text(text) => Key::Text(text.clone()),
            _ => return None,
        })
    }

    /// The items of an iteration over this value: a string's characters, a dict's keys.
    pub(super) fn items(&self, budget: &Budget) -> Result<Rc<List>, Fault> {
        let items = match self {
            Self::List(list) => return Ok(list.clone()),
            Self::Undefined => Vec::new(),
            Self::Dict(dict) => {
                budget.spend_slots(dict.entries.len())?;
                dict.entries.keys().map(Key::to_value).collect()
            }
            Self::Text(text) => {
                budget.spend_slots(text.len())?;
                text.chars().map(|c| Self::Text(c.encode_utf8(&mut [0; 4]).into())).collect()
            }
            other => {
                return Err(Fault::new(format!("a value of type {} is not iterable", other.type_name())));
            }
        };
        budget.sequence(items, false)
    }

    /// Number of items of a string, list or dict.
    pub(super) fn len(&self, budget: &Budget) -> Result<usize, Fault> {
        match self {
            Self::Undefined => Ok(0),
            Self::Text(text) => {
                budget.spend(text.len() as u64)?;
                Ok(text.chars().count())
            }
            Self::List(list) => Ok(list.items.len()),
            Self::Dict(dict) => Ok(dict.entries.len()),
            other => Err(Fault::new(format!("a value of type {} has no length", other.type_name()))),
        }
    }

    /// `value.name` and `value['name']` where it is not a method.
    pub(super) fn attribute(&self, name: &str, budget: &Budget) -> Result<Self, Fault> {
        budget.spend(name.len() as u64)?;
        match self {
            Self::Undefined => Err(Fault::new(format!("`{name}` of a value that is undefined"))),
            Self::Dict(dict) => {
                Ok(dict.entries.get(&Key::Text(name.into())).cloned().unwrap_or(Self::Undefined))
            }
            Self::Loop(state) => Ok(state.attribute(name)),
            _ => Ok(Self::Undefined),
        }
    }
}

impl Loop {
    fn attribute(&self, name: &str) -> Value {
        let items = &self.items.items;
        let count = |n: usize| Value::Int(n as i128);
        let neighbour =
            |at: Option<usize>| at.and_then(|at| items.get(at)).cloned().unwrap_or(Value::Undefined);
        match name {
            "index" => count(self.index + 1),
            "index0" => count(self.index),
            "revindex" => count(items.len() - self.index),
            "revindex0" => count(items.len() - self.index - 1),
            "first" => Value::Bool(self.index == 0),
            "last" => Value::Bool(self.index + 1 == items.len()),
            "length" => count(items.len()),
            "depth" => count(self.depth + 1),
            "depth0" => count(self.depth),
            "previtem" => neighbour(self.index.checked_sub(1)),
            "nextitem" => neighbour(self.index.checked_add(1)),
            _ => Value::Undefined,
        }
    }
}
