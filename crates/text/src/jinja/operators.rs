//! Operators, as Python defines them.

use std::cmp::Ordering;

use super::budget::{Budget, Fault};
use super::value::{Key, List, Value};

/// The arithmetic operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

impl Arithmetic {
    fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::FloorDiv => "//",
            Self::Rem => "%",
            Self::Pow => "**",
        }
    }

    /// Applies the operator to numbers, strings and lists.
    pub(super) fn apply(self, left: &Value, right: &Value, budget: &Budget) -> Result<Value, Fault> {
        match (self, left, right) {
            (Self::Add, Value::Text(a), Value::Text(b)) => {
                budget.spend((a.len() + b.len()) as u64)?;
                Ok(Value::Text([&**a, &**b].concat().into()))
            }
            (Self::Add, Value::List(a), Value::List(b)) if a.is_tuple == b.is_tuple => {
                budget.spend_slots(a.items.len() + b.items.len())?;
                let items = [&a.items[..], &b.items[..]].concat();
                budget.sequence(items, a.is_tuple).map(Value::List)
            }
            (Self::Mul, Value::Text(_) | Value::List(_), _) => repeat(left, right, budget),
            (Self::Mul, _, Value::Text(_) | Value::List(_)) => repeat(right, left, budget),
            _ => match (left.as_int(), right.as_int(), left.as_float(), right.as_float()) {
                (Some(a), Some(b), ..) => self.integers(a, b),
                (_, _, Some(a), Some(b)) => self.floats(a, b).map(Value::Float),
                _ => Err(unsupported(self.symbol(), left, right)),
            },
        }
    }

    fn integers(self, a: i128, b: i128) -> Result<Value, Fault> {
        let result = match self {
            Self::Add => a.checked_add(b),
            Self::Sub => a.checked_sub(b),
            Self::Mul => a.checked_mul(b),
            Self::Div => return self.floats(a as f64, b as f64).map(Value::Float),
            Self::FloorDiv | Self::Rem if b == 0 => return Err(Fault::new("division by zero")),
            Self::FloorDiv => a.checked_div(b).map(|q| q - i128::from(a % b != 0 && (a < 0) != (b < 0))),
            Self::Rem => {
                a.checked_rem(b).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
            }
            Self::Pow if b < 0 => return self.floats(a as f64, b as f64).map(Value::Float),
            Self::Pow => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        };
        result
            .map(Value::Int)
            .ok_or_else(|| Fault::new(format!("{a} {} {b} is outside of 128-bit integers", self.symbol())))
    }

    fn floats(self, a: f64, b: f64) -> Result<f64, Fault> {
        if b == 0.0 && matches!(self, Self::Div | Self::FloorDiv | Self::Rem) {
            return Err(Fault::new("division by zero"));
        }
        Ok(match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
            Self::Div => a / b,
            Self::FloorDiv => (a / b).floor(),
            Self::Rem => a - b * (a / b).floor(),
            Self::Pow => a.powf(b),
        })
    }
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Fault {
    Fault::new(format!("`{operator}` between {} and {}", left.type_name(), right.type_name()))
}

fn repeat(value: &Value, times: &Value, budget: &Budget) -> Result<Value, Fault> {
    let Some(times) = times.as_int() else { return Err(unsupported("*", value, times)) };
    let times = usize::try_from(times).unwrap_or(0);
    match value {
        Value::Text(text) => {
            budget.spend((text.len() as u64).saturating_mul(times as u64))?;
            Ok(Value::Text(text.repeat(times).into()))
        }
        Value::List(list) => {
            budget.spend_slots(list.items.len().saturating_mul(times))?;
            let items = std::iter::repeat_n(&list.items, times).flatten().cloned().collect();
            budget.sequence(items, list.is_tuple).map(Value::List)
        }
        _ => Err(Fault::new(format!("`*` of {}", value.type_name()))),
    }
}

/// `-value`.
pub(super) fn negate(value: &Value) -> Result<Value, Fault> {
    match value.as_int().map(i128::checked_neg) {
        Some(Some(i)) => Ok(Value::Int(i)),
        None => match value.as_float() {
            Some(x) => Ok(Value::Float(-x)),
            None => Err(Fault::new(format!("`-` of {}", value.type_name()))),
        },
        Some(None) => Err(Fault::new("the negative is outside of 128-bit integers")),
    }
}

/// `left == right`.
pub(super) fn equal(left: &Value, right: &Value, budget: &Budget) -> Result<bool, Fault> {
    budget.spend(left.weight().min(right.weight()))?;
    Ok(is_equal(left, right))
}

/// Equality, whose walk is paid by the caller.
fn is_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
        (Value::Text(a), Value::Text(b)) => a == b,
        (Value::List(a), Value::List(b)) => {
            a.is_tuple == b.is_tuple
                && a.items.len() == b.items.len()
                && a.items.iter().zip(&b.items).all(|(a, b)| is_equal(a, b))
        }
        (Value::Dict(a), Value::Dict(b)) => {
            a.entries.len() == b.entries.len()
                && a.entries
                    .iter()
                    .all(|(key, item)| b.entries.get(key).is_some_and(|other| is_equal(item, other)))
        }
        (Value::Namespace(a), Value::Namespace(b)) | (Value::Macro(a), Value::Macro(b)) => a == b,
        (Value::Function(a), Value::Function(b)) => a == b,
        _ => match (left.as_int(), right.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => matches!((left.as_float(), right.as_float()), (Some(a), Some(b)) if a == b),
        },
    }
}

/// The order of two values, where they have one.
pub(super) fn compare(left: &Value, right: &Value, budget: &Budget) -> Result<Ordering, Fault> {
    budget.spend(left.weight().min(right.weight()))?;
    order(left, right)
}

/// The order, whose walk is paid by the caller.
pub(super) fn order(left: &Value, right: &Value) -> Result<Ordering, Fault> {
    match (left, right) {
        (Value::Text(a), Value::Text(b)) => Ok(a.cmp(b)),
        (Value::List(a), Value::List(b)) if a.is_tuple == b.is_tuple => {
            for (a, b) in a.items.iter().zip(&b.items) {
                if !is_equal(a, b) {
                    return order(a, b);
                }
            }
            Ok(a.items.len().cmp(&b.items.len()))
        }
        _ => match (left.as_int(), right.as_int(), left.as_float(), right.as_float()) {
            (Some(a), Some(b), ..) => Ok(a.cmp(&b)),
            // What is not a number is less than nothing and more than nothing; call it equal.
            (_, _, Some(a), Some(b)) => Ok(a.partial_cmp(&b).unwrap_or(Ordering::Equal)),
            _ => Err(unsupported("<", left, right)),
        },
    }
}

/// `item in container`.
pub(super) fn contains(container: &Value, item: &Value, budget: &Budget) -> Result<bool, Fault> {
    match (container, item) {
        (Value::Undefined, _) => Ok(false),
        (Value::Text(text), Value::Text(part)) => {
            budget.spend(text.len() as u64)?;
            Ok(text.contains(&**part))
        }
        (Value::List(list), _) => {
            for candidate in &list.items {
                if equal(candidate, item, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Dict(dict), _) => {
            budget.spend_walk(item)?;
            Ok(item.as_key().is_some_and(|key| dict.entries.contains_key(&key)))
        }
        _ => Err(unsupported("in", item, container)),
    }
}

/// `container[key]`; what is not there is undefined.
pub(super) fn item(container: &Value, key: &Value, budget: &Budget) -> Result<Value, Fault> {
    let place = |len: usize| {
        let index = key.as_int()?;
        let index = if index < 0 { index.checked_add(len as i128)? } else { index };
        usize::try_from(index).ok()
    };
    match (container, key) {
        (Value::List(list), _) => {
            Ok(place(list.items.len()).and_then(|at| list.items.get(at)).cloned().unwrap_or(Value::Undefined))
        }
        (Value::Text(text), Value::Int(_)) => {
            let len = container.len(budget)?;
            Ok(match place(len).and_then(|at| text.chars().nth(at)) {
                Some(c) => Value::Text(c.encode_utf8(&mut [0; 4]).into()),
                None => Value::Undefined,
            })
        }
        (Value::Dict(dict), _) => {
            budget.spend_walk(key)?;
            let found = key.as_key().and_then(|key: Key| dict.entries.get(&key).cloned());
            Ok(found.unwrap_or(Value::Undefined))
        }
        (_, Value::Text(name)) => container.attribute(name, budget),
        (Value::Undefined, _) => Err(Fault::new("an item of a value that is undefined")),
        _ => Ok(Value::Undefined),
    }
}

/// `container[start:stop:step]`.
pub(super) fn slice(
    container: &Value,
    [start, stop, step]: [Option<i64>; 3],
    budget: &Budget,
) -> Result<Value, Fault> {
    match container {
        Value::Undefined => budget.list(Vec::new()),
        Value::Text(text) => {
            // Room for its characters beside it.
            budget.spend(5 * text.len() as u64)?;
            let chars: Vec<char> = text.chars().collect();
            let places = places(chars.len(), start, stop, step.unwrap_or(1))?;
            budget.text(places.map(|at| chars[at]).collect::<String>())
        }
        Value::List(list) => {
            let List { items, is_tuple, .. } = &**list;
            let places = places(items.len(), start, stop, step.unwrap_or(1))?;
            budget.spend_slots(places.size_hint().0)?;
            budget.sequence(places.map(|at| items[at].clone()).collect(), *is_tuple).map(Value::List)
        }
        other => Err(Fault::new(format!("a slice of {}", other.type_name()))),
    }
}

/// The places that a slice of `len` items takes.
fn places(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> Result<impl ExactSizeIterator<Item = usize>, Fault> {
    if step == 0 {
        return Err(Fault::new("slice step is zero"));
    }
    let len = len as i64;
    // Python: bounds count from the end where negative, and are cut to what the walk can reach.
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let bound = |given: Option<i64>, default: i64| match given {
        None => default,
        Some(at) if at < 0 => at.saturating_add(len).clamp(low, high),
        Some(at) => at.clamp(low, high),
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (start, stop) = (bound(start, first), bound(stop, last));
    let distance = if step > 0 { stop - start } else { start - stop };
    let count = if distance > 0 { (distance as u64).div_ceil(step.unsigned_abs()) } else { 0 };
    // At most `len` places, and each within it.
    Ok((0..count as usize).map(move |i| (start + i as i64 * step) as usize))
}
