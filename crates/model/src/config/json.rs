//! Typed reads from a JSON object that remember where they are, for error messages.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A JSON object together with the name of its source and its dotted path.
#[derive(Clone, Copy)]
pub(super) struct Object<'a> {
    map: &'a Map<String, Value>,
    source: &'a str,
    path: &'a str,
}

impl<'a> Object<'a> {
    pub(super) fn new(value: &'a Value, source: &'a str, path: &'a str) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Object { map, source, path }),
            other => Err(Error::Config {
                source_name: source.into(),
                field: if path.is_empty() { "top level".into() } else { path.into() },
                problem: format!("must be an object, found {}", kind(other)),
            }),
        }
    }

    pub(super) fn error(&self, key: &str, problem: impl Into<String>) -> Error {
        let field = if self.path.is_empty() { key.into() } else { format!("{}.{key}", self.path) };
        Error::Config { source_name: self.source.into(), field, problem: problem.into() }
    }

    /// The value of a key; JSON null counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// A nested object, `path` being its dotted path.
    pub(super) fn object(&self, key: &str, path: &'a str) -> Result<Option<Object<'a>>> {
        self.get(key).map(|v| Object::new(v, self.source, path)).transpose()
    }

    fn typed<T>(&self, key: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        self.get(key)
            .map(|v| read(v).ok_or_else(|| self.error(key, format!("must be {what}, found {}", kind(v)))))
            .transpose()
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.error(key, "is missing"))
    }

    pub(super) fn usize_opt(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a non-negative integer", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    pub(super) fn usize(&self, key: &str) -> Result<usize> {
        self.required(key, self.usize_opt(key)?)
    }

    pub(super) fn u32_or(&self, key: &str, default: u32) -> Result<u32> {
        let value = self.typed(key, "a non-negative integer", Value::as_u64)?;
        value.map_or(Ok(default), |value| {
            u32::try_from(value).map_err(|_| self.error(key, format!("{value} is too large")))
        })
    }

    pub(super) fn id_opt(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "a token id", id)
    }

    pub(super) fn f64_opt(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite number", |v| v.as_f64().filter(|x| x.is_finite()))
    }

    pub(super) fn f64(&self, key: &str) -> Result<f64> {
        self.required(key, self.f64_opt(key)?)
    }

    fn f32_opt(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a number within single precision", |v| {
            v.as_f64().map(|x| x as f32).filter(|x| x.is_finite())
        })
    }

    pub(super) fn f32(&self, key: &str) -> Result<f32> {
        self.required(key, self.f32_opt(key)?)
    }

    pub(super) fn f32_or(&self, key: &str, default: f32) -> Result<f32> {
        Ok(self.f32_opt(key)?.unwrap_or(default))
    }

    pub(super) fn bool_opt(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub(super) fn str_opt(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", Value::as_str)
    }

    pub(super) fn array_opt(&self, key: &str) -> Result<Option<&'a [Value]>> {
        self.typed(key, "a list", |v| v.as_array().map(Vec::as_slice))
    }

    /// One id or a list of ids; absent is an empty list.
    pub(super) fn ids(&self, key: &str) -> Result<Vec<u32>> {
        let ids = self.typed(key, "a token id or a list of token ids", |v| match v {
            Value::Array(list) => list.iter().map(id).collect(),
            single => Some(vec![id(single)?]),
        })?;
        Ok(ids.unwrap_or_default())
    }
}

fn id(v: &Value) -> Option<u32> {
    v.as_u64().and_then(|n| u32::try_from(n).ok())
}

fn kind(v: &Value) -> String {
    match v {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}
