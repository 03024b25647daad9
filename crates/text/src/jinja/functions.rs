//! Functions that every template has.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::SystemTime;

use indexmap::IndexMap;
use jiff::ZonedDateTime;

use super::args::Args;
use super::budget::{Fault, FaultKind};
use super::interpreter::Interpreter;
use super::value::{Function, Key, Value};

/// Longest format of `strftime_now`, in bytes.
const MAX_TIME_FORMAT: usize = 1024;

/// Calls a function.
pub(super) fn call(
    interpreter: &mut Interpreter<'_>,
    function: Function,
    args: &mut Args,
) -> Result<Value, Fault> {
    let result = match function {
        Function::Range => range(interpreter, args)?,
        Function::Dict => {
            let entries = entries(interpreter, args)?;
            interpreter.budget.dict(entries)?
        }
        Function::Namespace => {
            let mut attributes = HashMap::new();
            for (key, value) in entries(interpreter, args)? {
                let Key::Text(name) = key else { return Err(Fault::new("namespace: a name is no string")) };
                attributes.insert(name, value);
            }
            interpreter.budget.spend_slots(4 + 4 * attributes.len())?;
            interpreter.namespaces.push(attributes);
            Value::Namespace(interpreter.namespaces.len() - 1)
        }
        Function::RaiseException => {
            let message = args.required("message")?.print(&interpreter.budget)?;
            return Err(Fault { kind: FaultKind::Refused(message), line: 0 });
        }
        Function::StrftimeNow => {
            let format = args.required_text("format")?;
            let now = interpreter.now.unwrap_or_else(SystemTime::now);
            interpreter.budget.text(strftime(&format, now)?)?
        }
    };
    args.finish()?;
    Ok(result)
}

fn range(interpreter: &Interpreter<'_>, args: &mut Args) -> Result<Value, Fault> {
    let first = args.int("start")?.ok_or_else(|| Fault::new("range: no bound"))?;
    let (start, stop) = args.int("stop")?.map_or((0, first), |stop| (first, stop));
    let step = args.int("step")?.unwrap_or(1);
    let distance =
        if step > 0 { i128::from(stop) - i128::from(start) } else { i128::from(start) - i128::from(stop) };
    let count = match step {
        0 => return Err(Fault::new("range: the step is zero")),
        _ if distance <= 0 => 0,
        step => distance.unsigned_abs().div_ceil(step.unsigned_abs().into()),
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    interpreter.budget.spend_slots(count)?;
    interpreter
        .budget
        .list((0..count).map(|i| Value::Int(i128::from(start) + i as i128 * i128::from(step))).collect())
}

/// The entries that `dict` and `namespace` are given: a dict or a list of pairs, and names.
fn entries(interpreter: &Interpreter<'_>, args: &mut Args) -> Result<IndexMap<Key, Value>, Fault> {
    let budget = &interpreter.budget;
    let mut entries = IndexMap::new();
    match args.positional.pop_front() {
        None => {}
        Some(Value::Dict(dict)) => {
            budget.spend(dict.weight)?;
            entries.extend(dict.entries.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        Some(pairs) => {
            for pair in &pairs.items(budget)?.items {
                budget.spend_walk(pair)?;
                match pair.items(budget)?.items.as_slice() {
                    [key, value] if key.as_key().is_some() => {
                        entries.extend(key.as_key().map(|key| (key, value.clone())));
                    }
                    _ => return Err(Fault::new("dict: an item is not a pair of key and value")),
                }
            }
        }
    }
    let named: Vec<(Rc<str>, Value)> = std::mem::take(&mut args.named);
    entries.extend(named.into_iter().map(|(name, value)| (Key::Text(name), value)));
    Ok(entries)
}

/// The time in the system's zone, formatted as Python's `strftime` does.
fn strftime(format: &str, now: SystemTime) -> Result<String, Fault> {
    if format.len() > MAX_TIME_FORMAT {
        return Err(Fault::new(format!("strftime_now: a format over {MAX_TIME_FORMAT} bytes")));
    }
    let failed = |error: jiff::Error| Fault::new(format!("strftime_now({format:?}): {error}"));
    let now = ZonedDateTime::try_from(now).map_err(failed)?;
    jiff::fmt::strtime::format(format, &now).map_err(failed)
}
