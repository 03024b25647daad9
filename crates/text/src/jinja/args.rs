//! Arguments of a call.

use std::collections::VecDeque;
use std::rc::Rc;

use super::budget::{Budget, Fault};
use super::value::Value;

/// Arguments of a call, taken one by one in the order of the parameters.
#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: VecDeque<Value>,
    pub(super) named: Vec<(Rc<str>, Value)>,
}

impl Args {
    /// The next parameter, given by position or by this name.
    pub(super) fn next(&mut self, name: &str) -> Option<Value> {
        self.positional.pop_front().or_else(|| self.named(name))
    }

    /// The next parameter, which must be there.
    pub(super) fn required(&mut self, name: &str) -> Result<Value, Fault> {
        self.next(name).ok_or_else(|| Fault::new(format!("argument `{name}` is missing")))
    }

    /// The next parameter, a string if it is there.
    pub(super) fn text(&mut self, name: &str) -> Result<Option<Rc<str>>, Fault> {
        match self.next(name) {
            None | Some(Value::None) => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => {
                Err(Fault::new(format!("argument `{name}` is not a string but {}", other.type_name())))
            }
        }
    }

    /// The next parameter, a string.
    pub(super) fn required_text(&mut self, name: &str) -> Result<Rc<str>, Fault> {
        self.text(name)?.ok_or_else(|| Fault::new(format!("argument `{name}` is missing")))
    }

    /// The next parameter, an integer if it is there.
    pub(super) fn int(&mut self, name: &str) -> Result<Option<i64>, Fault> {
        match self.next(name) {
            None | Some(Value::None) => Ok(None),
            Some(value) => match value.as_int().and_then(|i| i64::try_from(i).ok()) {
                Some(i) => Ok(Some(i)),
                None => Err(Fault::new(format!(
                    "argument `{name}` is not a 64-bit integer but {}",
                    value.type_name()
                ))),
            },
        }
    }

    /// A parameter that is given by name only.
    pub(super) fn named(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(given, _)| &**given == name)?;
        Some(self.named.remove(at).1)
    }

    /// The same arguments for one more call.
    pub(super) fn share(&self, budget: &Budget) -> Result<Self, Fault> {
        budget.spend_slots(1 + self.positional.len() + self.named.len())?;
        Ok(Self { positional: self.positional.clone(), named: self.named.clone() })
    }

    /// All arguments were taken.
    pub(super) fn finish(&self) -> Result<(), Fault> {
        if let Some((name, _)) = self.named.first() {
            return Err(Fault::new(format!("unknown argument `{name}`")));
        }
        if !self.positional.is_empty() {
            return Err(Fault::new("too many arguments"));
        }
        Ok(())
    }
}
