//! Filters: `value|name(arguments)`.

use std::cmp::Ordering;
use std::rc::Rc;

use super::args::Args;
use super::budget::{Budget, Fault};
use super::format::{Style, format};
use super::json::tojson;
use super::methods::{self, capitalize, join, replace, strip, title};
use super::operators::{Arithmetic, compare, equal, item, order};
use super::tests;
use super::value::{List, Value};

/// Applies a filter.
pub(super) fn apply(budget: &Budget, name: &str, value: &Value, args: &mut Args) -> Result<Value, Fault> {
    let result = match name {
        "length" | "count" => Value::Int(value.len(budget)? as i128),
        "default" | "d" => {
            let default = args.next("default_value").unwrap_or_else(|| Value::Text("".into()));
            let also_false = args.next("boolean").is_some_and(|flag| flag.is_true());
            let absent = matches!(value, Value::Undefined) || (also_false && !value.is_true());
            if absent { default } else { value.clone() }
        }
        "safe" => value.clone(),
        "tojson" => tojson(budget, value, args)?,
        "string" | "trim" | "upper" | "lower" | "title" | "capitalize" | "replace" | "indent" | "escape"
        | "e" | "wordcount" => text_filter(budget, name, &value.print(budget)?, args)?,
        "format" => {
            let text = value.print(budget)?;
            format(budget, Style::Percent, &text, std::mem::take(args))?
        }
        "int" | "float" | "abs" | "round" => number_filter(name, value, args)?,
        "attr" => value.attribute(&args.required_text("name")?, budget)?,
        "items" => match value {
            Value::Undefined => budget.list(Vec::new())?,
            Value::Dict(dict) => methods::items(budget, dict)?,
            other => return Err(Fault::new(format!("items of {}", other.type_name()))),
        },
        "dictsort" => dictsort(budget, value, args)?,
        "reverse" if value.as_text().is_some() => {
            budget.text(value.print(budget)?.chars().rev().collect::<String>())?
        }
        _ => list_filter(budget, name, value.items(budget), args)?,
    };
    args.finish()?;
    Ok(result)
}

fn text_filter(budget: &Budget, name: &str, text: &str, args: &mut Args) -> Result<Value, Fault> {
    match name {
        "trim" => {
            let chars = args.text("chars")?;
            budget.text(strip(budget, text, chars.as_deref(), true, true)?)
        }
        "upper" => budget.text(text.to_uppercase()),
        "lower" => budget.text(text.to_lowercase()),
        "title" => budget.text(title(text)),
        "capitalize" => budget.text(capitalize(text)),
        "replace" => {
            let (old, new) = (args.required_text("old")?, args.required_text("new")?);
            replace(budget, text, &old, &new, args.int("count")?)
        }
        "indent" => indent(budget, text, args),
        "escape" | "e" => {
            // The longest of them has five characters.
            budget.spend(5 * text.len() as u64)?;
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            budget.text(text.replace('"', "&#34;").replace('\'', "&#39;"))
        }
        "wordcount" => Ok(Value::Int(text.split_whitespace().count() as i128)),
        _ => budget.text(text),
    }
}

fn indent(budget: &Budget, text: &str, args: &mut Args) -> Result<Value, Fault> {
    let margin = match args.next("width") {
        None => "    ".to_owned(),
        Some(Value::Text(margin)) => margin.to_string(),
        Some(width) => {
            let width = width.as_int().and_then(|width| usize::try_from(width).ok());
            let width = width.ok_or_else(|| Fault::new("indent: the width is not a number"))?;
            budget.spend(width as u64)?;
            " ".repeat(width)
        }
    };
    let first = args.next("first").is_some_and(|flag| flag.is_true());
    let blank = args.next("blank").is_some_and(|flag| flag.is_true());
    let lines = text.matches('\n').count() as u64 + 1;
    budget.spend(lines.saturating_mul(margin.len() as u64))?;
    let mut out = String::new();
    for (at, line) in text.split('\n').enumerate() {
        if at > 0 {
            out.push('\n');
        }
        if if at == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    budget.text(out)
}

fn number_filter(name: &str, value: &Value, args: &mut Args) -> Result<Value, Fault> {
    let text = value.as_text().map(str::trim);
    let number = || value.as_float().ok_or_else(|| Fault::new(format!("`{name}` of {}", value.type_name())));
    Ok(match name {
        "int" => {
            let default = args.next("default").unwrap_or(Value::Int(0));
            let base = args.int("base")?.and_then(|base| u32::try_from(base).ok()).unwrap_or(10);
            let parsed = match text {
                Some(text) if (2..=36).contains(&base) => i128::from_str_radix(text, base)
                    .ok()
                    .or_else(|| text.parse().ok().filter(|x: &f64| x.is_finite()).map(|x| x as i128)),
                _ => value.as_int().or_else(|| value.as_float().map(|x| x as i128)),
            };
            parsed.map_or(default, Value::Int)
        }
        "float" => {
            let default = args.next("default").unwrap_or(Value::Float(0.0));
            text.map_or(value.as_float(), |text| text.parse().ok()).map_or(default, Value::Float)
        }
        "abs" => match value.as_int().map(i128::checked_abs) {
            Some(Some(i)) => Value::Int(i),
            _ => Value::Float(number()?.abs()),
        },
        _ => {
            let x = number()?;
            let precision = args.int("precision")?.unwrap_or(0).clamp(-300, 300) as i32;
            let method = args.text("method")?;
            let scale = 10f64.powi(precision);
            let scaled = x * scale;
            let rounded = match method.as_deref() {
                None | Some("common") if precision >= 0 && value.as_int().is_some() => {
                    return Ok(value.clone());
                }
                None | Some("common") => scaled.round_ties_even(),
                Some("ceil") => scaled.ceil(),
                Some("floor") => scaled.floor(),
                Some(other) => return Err(Fault::new(format!("round: unknown method `{other}`"))),
            };
            Value::Float(rounded / scale)
        }
    })
}

fn list_filter(
    budget: &Budget,
    name: &str,
    items: Result<Rc<List>, Fault>,
    args: &mut Args,
) -> Result<Value, Fault> {
    let known = matches!(
        name,
        "list"
            | "first"
            | "last"
            | "reverse"
            | "join"
            | "sum"
            | "min"
            | "max"
            | "sort"
            | "unique"
            | "map"
            | "select"
            | "reject"
            | "selectattr"
            | "rejectattr"
            | "batch"
    );
    if !known {
        return Err(Fault::new(format!("unknown filter `{name}`")));
    }
    let list = items?;
    let items = &list.items[..];
    match name {
        "first" => Ok(items.first().cloned().unwrap_or(Value::Undefined)),
        "last" => Ok(items.last().cloned().unwrap_or(Value::Undefined)),
        "list" | "reverse" => {
            budget.spend_slots(items.len())?;
            let mut items = items.to_vec();
            if name == "reverse" {
                items.reverse();
            }
            budget.list(items)
        }
        "join" => {
            let separator = args.next("d").unwrap_or(Value::Undefined).print(budget)?;
            let path = args.next("attribute");
            let parts = attributes(budget, items, path.as_ref())?;
            join(budget, &parts, &separator)
        }
        "sum" => {
            let path = args.next("attribute");
            let start = args.next("start").unwrap_or(Value::Int(0));
            let parts = attributes(budget, items, path.as_ref())?;
            parts.iter().try_fold(start, |sum, part| Arithmetic::Add.apply(&sum, part, budget))
        }
        "min" | "max" => {
            let path = args.named("attribute");
            let keys = folded(budget, &attributes(budget, items, path.as_ref())?, false)?;
            let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
            let mut best = 0;
            for at in 1..keys.len() {
                if compare(&keys[at], &keys[best], budget)? == wanted {
                    best = at;
                }
            }
            Ok(items.get(best).cloned().unwrap_or(Value::Undefined))
        }
        "sort" => {
            let descending = args.next("reverse").is_some_and(|flag| flag.is_true());
            let case_sensitive = args.next("case_sensitive").is_some_and(|flag| flag.is_true());
            let path = args.next("attribute");
            let keys = attributes(budget, items, path.as_ref())?;
            sorted(budget, items, &keys, case_sensitive, descending)
        }
        "unique" => {
            let case_sensitive = args.next("case_sensitive").is_some_and(|flag| flag.is_true());
            let path = args.next("attribute");
            let keys = folded(budget, &attributes(budget, items, path.as_ref())?, case_sensitive)?;
            let mut kept: Vec<usize> = Vec::new();
            'items: for (at, key) in keys.iter().enumerate() {
                for &other in &kept {
                    if equal(key, &keys[other], budget)? {
                        continue 'items;
                    }
                }
                kept.push(at);
            }
            budget.list(kept.into_iter().map(|at| items[at].clone()).collect())
        }
        "batch" => {
            let size = args.int("linecount")?.and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
            if size == 0 {
                return Err(Fault::new("batch: the size is not a positive number"));
            }
            let fill = args.next("fill_with");
            let mut rows = Vec::new();
            for row in items.chunks(size) {
                let missing = if fill.is_some() { size - row.len() } else { 0 };
                budget.spend_slots(row.len().saturating_add(missing))?;
                let mut row = row.to_vec();
                row.extend(std::iter::repeat_n(fill.clone().unwrap_or(Value::None), missing));
                rows.push(budget.list(row)?);
            }
            budget.list(rows)
        }
        "map" => map(budget, items, args),
        _ => choose(budget, name, items, args),
    }
}

/// `map('filter', …)` and `map(attribute='path', default=…)`.
fn map(budget: &Budget, items: &[Value], args: &mut Args) -> Result<Value, Fault> {
    if let Some(path) = args.named("attribute") {
        let default = args.named("default");
        let mut found = attributes(budget, items, Some(&path))?;
        if let Some(default) = default {
            for value in &mut found {
                if matches!(value, Value::Undefined) {
                    *value = default.clone();
                }
            }
        }
        return budget.list(found);
    }
    let filter = args.required_text("filter")?;
    let mut mapped = Vec::new();
    for item in items {
        mapped.push(apply(budget, &filter, item, &mut args.share(budget)?)?);
    }
    *args = Args::default();
    budget.list(mapped)
}

/// `select`, `reject`, `selectattr` and `rejectattr`.
fn choose(budget: &Budget, name: &str, items: &[Value], args: &mut Args) -> Result<Value, Fault> {
    let path = if name.ends_with("attr") { Some(args.required("attribute")?) } else { None };
    let test = args.text("test")?;
    let keys = attributes(budget, items, path.as_ref())?;
    let mut chosen = Vec::new();
    for (key, item) in keys.iter().zip(items) {
        let passes = match &test {
            Some(test) => tests::passes(budget, test, key, &mut args.share(budget)?)?,
            None => key.is_true(),
        };
        if passes == name.starts_with("select") {
            chosen.push(item.clone());
        }
    }
    *args = Args::default();
    budget.list(chosen)
}

/// The values at a path such as `function.name` or `0` in each item; without a path the items.
fn attributes(budget: &Budget, items: &[Value], path: Option<&Value>) -> Result<Vec<Value>, Fault> {
    budget.spend_slots(items.len())?;
    let Some(path) = path.filter(|path| !matches!(path, Value::None)) else { return Ok(items.to_vec()) };
    let steps: Vec<Value> = match path {
        Value::Text(path) => {
            budget.spend_slots(path.len())?;
            path.split('.')
                .map(|step| step.parse().map_or_else(|_| Value::Text(step.into()), Value::Int))
                .collect()
        }
        other => vec![other.clone()],
    };
    let mut found = Vec::new();
    for start in items {
        let mut value = start.clone();
        for step in &steps {
            budget.spend_walk(step)?;
            value = if matches!(value, Value::Undefined) { value } else { item(&value, step, budget)? };
        }
        found.push(value);
    }
    Ok(found)
}

/// Keys as Jinja compares them: strings without their case, unless that matters.
fn folded(budget: &Budget, keys: &[Value], case_sensitive: bool) -> Result<Vec<Value>, Fault> {
    let fold = |key: &Value| {
        budget.spend_walk(key)?;
        Ok(match key {
            Value::Text(text) if !case_sensitive => Value::Text(text.to_lowercase().into()),
            key => key.clone(),
        })
    };
    keys.iter().map(fold).collect()
}

fn sorted(
    budget: &Budget,
    items: &[Value],
    keys: &[Value],
    case_sensitive: bool,
    descending: bool,
) -> Result<Value, Fault> {
    let keys = folded(budget, keys, case_sensitive)?;
    // Every key takes part in about log2(n) comparisons.
    let rounds = u64::from(usize::BITS - keys.len().leading_zeros());
    for key in &keys {
        budget.spend(key.weight().saturating_mul(rounds))?;
    }
    let less = |a: usize, b: usize| {
        let wanted = if descending { Ordering::Greater } else { Ordering::Less };
        Ok(order(&keys[a], &keys[b])? == wanted)
    };
    let places = merge_sort((0..items.len()).collect(), &less)?;
    budget.list(places.into_iter().map(|at| items[at].clone()).collect())
}

/// A stable sort whose comparison may fail, and need not be an order: NaN has none.
fn merge_sort(
    mut left: Vec<usize>,
    less: &impl Fn(usize, usize) -> Result<bool, Fault>,
) -> Result<Vec<usize>, Fault> {
    if left.len() < 2 {
        return Ok(left);
    }
    let right = merge_sort(left.split_off(left.len() / 2), less)?;
    let left = merge_sort(left, less)?;
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(&a), Some(&b)) = (left.peek(), right.peek()) {
        merged.extend(if less(b, a)? { right.next() } else { left.next() });
    }
    merged.extend(left.chain(right));
    Ok(merged)
}

fn dictsort(budget: &Budget, value: &Value, args: &mut Args) -> Result<Value, Fault> {
    let case_sensitive = args.next("case_sensitive").is_some_and(|flag| flag.is_true());
    let by_value = args.text("by")?.as_deref() == Some("value");
    let descending = args.next("reverse").is_some_and(|flag| flag.is_true());
    let Value::Dict(dict) = value else {
        return Err(Fault::new(format!("dictsort of {}", value.type_name())));
    };
    let pairs = methods::items(budget, dict)?.items(budget)?;
    let keys = attributes(budget, &pairs.items, Some(&Value::Int(i128::from(by_value))))?;
    sorted(budget, &pairs.items, &keys, case_sensitive, descending)
}
