//! What a rendering may cost, and how it fails.

use std::cell::Cell;
use std::rc::Rc;

use indexmap::IndexMap;

use super::value::{Dict, Key, List, Value};

/// Cost of a node of the template, in the units of a [`Budget`].
pub(super) const STEP: u64 = 16;

/// Cost of a place in a list, and of each value on the way through one.
pub(super) const SLOT: u64 = 32;

/// Deepest nesting of lists and dicts. Values are walked and dropped by recursion. Conversations
/// have less: it is twice what `serde_json` reads.
const MAX_NESTING: u32 = 256;

/// Why a rendering ended early.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    /// Line of the template, from 1; 0 where it is not known yet.
    pub(super) line: usize,
}

#[derive(Debug)]
pub(super) enum FaultKind {
    /// The template does something wrong.
    Failed(String),
    /// It called `raise_exception`.
    Refused(String),
    /// The budget is used up.
    TooCostly,
}

impl Fault {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { kind: FaultKind::Failed(message.into()), line: 0 }
    }

    /// The same fault, at this line unless its line is known.
    pub(super) fn at(mut self, line: usize) -> Self {
        if self.line == 0 {
            self.line = line;
        }
        self
    }
}

/// Work that is left. One unit is a byte of data made or walked. It is spent *before* the work is
/// done, and never given back, so that it bounds time and memory alike.
#[derive(Debug)]
pub(super) struct Budget {
    left: Cell<u64>,
}

impl Budget {
    pub(super) fn new(units: u64) -> Self {
        Self { left: Cell::new(units) }
    }

    pub(super) fn spend(&self, units: u64) -> Result<(), Fault> {
        match self.left.get().checked_sub(units) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.left.set(0);
                Err(Fault { kind: FaultKind::TooCostly, line: 0 })
            }
        }
    }

    /// Pays for `count` values of a list that is about to be made.
    pub(super) fn spend_slots(&self, count: usize) -> Result<(), Fault> {
        self.spend((count as u64).saturating_mul(SLOT))
    }

    /// Pays for walking a value with everything in it.
    pub(super) fn spend_walk(&self, value: &Value) -> Result<(), Fault> {
        self.spend(value.weight())
    }

    pub(super) fn text(&self, text: impl Into<Rc<str>>) -> Result<Value, Fault> {
        let text = text.into();
        self.spend(SLOT + text.len() as u64)?;
        Ok(Value::Text(text))
    }

    pub(super) fn list(&self, items: Vec<Value>) -> Result<Value, Fault> {
        self.sequence(items, false).map(Value::List)
    }

    pub(super) fn tuple(&self, items: Vec<Value>) -> Result<Value, Fault> {
        self.sequence(items, true).map(Value::List)
    }

    pub(super) fn sequence(&self, items: Vec<Value>, is_tuple: bool) -> Result<Rc<List>, Fault> {
        self.spend_slots(2 + items.len())?;
        let list = List::new(items, is_tuple);
        nested(list.depth)?;
        Ok(Rc::new(list))
    }

    pub(super) fn dict(&self, entries: IndexMap<Key, Value>) -> Result<Value, Fault> {
        self.spend_slots(4 + 2 * entries.len())?;
        let dict = Dict::new(entries);
        nested(dict.depth)?;
        Ok(Value::Dict(Rc::new(dict)))
    }
}

fn nested(depth: u32) -> Result<(), Fault> {
    if depth > MAX_NESTING {
        return Err(Fault::new(format!("values nested deeper than {MAX_NESTING}")));
    }
    Ok(())
}
