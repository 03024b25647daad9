//! Python's methods on strings, lists and dicts.

use super::args::Args;
use super::budget::{Budget, Fault};
use super::format::{Style, format};
use super::operators::equal;
use super::value::{Dict, Key, List, Value};

/// Calls a method.
pub(super) fn call(budget: &Budget, value: &Value, method: &str, args: &mut Args) -> Result<Value, Fault> {
    let result = match value {
        Value::Text(text) => text_method(budget, text, method, args)?,
        Value::List(list) => list_method(budget, list, method, args)?,
        Value::Dict(dict) => dict_method(budget, dict, method, args)?,
        Value::Undefined => {
            return Err(Fault::new(format!("method `{method}` of a value that is undefined")));
        }
        _ => None,
    };
    let result = result.ok_or_else(|| {
        Fault::new(format!("a value of type {} has no method `{method}`", value.type_name()))
    })?;
    args.finish()?;
    Ok(result)
}

fn text_method(budget: &Budget, text: &str, method: &str, args: &mut Args) -> Result<Option<Value>, Fault> {
    budget.spend(text.len() as u64)?;
    let every = |what: fn(char) -> bool| Value::Bool(!text.is_empty() && text.chars().all(what));
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let chars = args.text("chars")?;
            budget.text(strip(budget, text, chars.as_deref(), method != "rstrip", method != "lstrip")?)?
        }
        "startswith" | "endswith" => {
            let affix = args.required("prefix")?;
            let matches = |affix: &Value| match affix {
                Value::Text(affix) if method == "startswith" => Ok(text.starts_with(&**affix)),
                Value::Text(affix) => Ok(text.ends_with(&**affix)),
                other => Err(Fault::new(format!("`{method}` of {}", other.type_name()))),
            };
            match &affix {
                Value::List(affixes) => {
                    budget.spend_walk(&affix)?;
                    let found: Result<Vec<bool>, Fault> = affixes.items.iter().map(matches).collect();
                    Value::Bool(found?.contains(&true))
                }
                affix => Value::Bool(matches(affix)?),
            }
        }
        "removeprefix" => {
            let prefix = args.required_text("prefix")?;
            budget.text(text.strip_prefix(&*prefix).unwrap_or(text))?
        }
        "removesuffix" => {
            let suffix = args.required_text("suffix")?;
            budget.text(text.strip_suffix(&*suffix).unwrap_or(text))?
        }
        "upper" => budget.text(text.to_uppercase())?,
        "lower" => budget.text(text.to_lowercase())?,
        "capitalize" => budget.text(capitalize(text))?,
        "title" => budget.text(title(text))?,
        "replace" => {
            let (old, new) = (args.required_text("old")?, args.required_text("new")?);
            replace(budget, text, &old, &new, args.int("count")?)?
        }
        "split" | "rsplit" => {
            let separator = args.text("sep")?;
            let limit = args.int("maxsplit")?.and_then(|limit| usize::try_from(limit).ok());
            split(budget, text, separator.as_deref(), limit, method == "rsplit")?
        }
        "splitlines" => {
            let keep = args.next("keepends").is_some_and(|keep| keep.is_true());
            budget.spend_slots(text.matches('\n').count() + 1)?;
            let line = |line: &str| {
                let end = line.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
                Value::Text(if keep { line } else { end.unwrap_or(line) }.into())
            };
            budget.list(text.split_inclusive('\n').map(line).collect())?
        }
        "join" => {
            let items = args.required("iterable")?.items(budget)?;
            join(budget, &items.items, text)?
        }
        "count" => Value::Int(text.matches(&*args.required_text("sub")?).count() as i128),
        "find" | "rfind" | "index" | "rindex" => {
            let part = args.required_text("sub")?;
            let at = if method.starts_with('r') { text.rfind(&*part) } else { text.find(&*part) };
            match at {
                Some(at) => Value::Int(text[..at].chars().count() as i128),
                None if method.ends_with("find") => Value::Int(-1),
                None => return Err(Fault::new("substring not found")),
            }
        }
        "format" => {
            let args = std::mem::take(args);
            format(budget, Style::Braces, text, args)?
        }
        "isspace" => every(char::is_whitespace),
        "isdigit" | "isnumeric" => every(char::is_numeric),
        "isalnum" => every(char::is_alphanumeric),
        "isalpha" => every(char::is_alphabetic),
        "isascii" => Value::Bool(text.is_ascii()),
        "islower" => {
            Value::Bool(text.chars().any(char::is_lowercase) && !text.chars().any(char::is_uppercase))
        }
        "isupper" => {
            Value::Bool(text.chars().any(char::is_uppercase) && !text.chars().any(char::is_lowercase))
        }
        _ => return Ok(None),
    }))
}

fn list_method(budget: &Budget, list: &List, method: &str, args: &mut Args) -> Result<Option<Value>, Fault> {
    let item = match method {
        "count" | "index" => args.required("value")?,
        _ => return Ok(None),
    };
    let mut count = 0;
    for (at, candidate) in list.items.iter().enumerate() {
        if equal(candidate, &item, budget)? {
            if method == "index" {
                return Ok(Some(Value::Int(at as i128)));
            }
            count += 1;
        }
    }
    if method == "index" { Err(Fault::new("value is not in the list")) } else { Ok(Some(Value::Int(count))) }
}

fn dict_method(budget: &Budget, dict: &Dict, method: &str, args: &mut Args) -> Result<Option<Value>, Fault> {
    Ok(Some(match method {
        "get" => {
            let key = args.required("key")?;
            let default = args.next("default").unwrap_or(Value::None);
            budget.spend_walk(&key)?;
            key.as_key().and_then(|key| dict.entries.get(&key).cloned()).unwrap_or(default)
        }
        "keys" => {
            budget.spend_slots(dict.entries.len())?;
            budget.list(dict.entries.keys().map(Key::to_value).collect())?
        }
        "values" => {
            budget.spend_slots(dict.entries.len())?;
            budget.list(dict.entries.values().cloned().collect())?
        }
        "items" => items(budget, dict)?,
        _ => return Ok(None),
    }))
}

/// A list of pairs of key and value.
pub(super) fn items(budget: &Budget, dict: &Dict) -> Result<Value, Fault> {
    budget.spend_slots(dict.entries.len())?;
    let pairs: Result<Vec<Value>, Fault> =
        dict.entries.iter().map(|(key, value)| budget.tuple(vec![key.to_value(), value.clone()])).collect();
    budget.list(pairs?)
}

/// Cuts white space, or these characters, off the ends of a text.
pub(super) fn strip<'t>(
    budget: &Budget,
    text: &'t str,
    chars: Option<&str>,
    start: bool,
    end: bool,
) -> Result<&'t str, Fault> {
    let chars: Option<Vec<char>> = match chars {
        Some(chars) => {
            budget.spend((chars.len() as u64).saturating_mul(4 + text.len() as u64))?;
            Some(chars.chars().collect())
        }
        None => None,
    };
    let cut = |c: char| chars.as_ref().map_or_else(|| c.is_whitespace(), |chars| chars.contains(&c));
    let text = if start { text.trim_start_matches(cut) } else { text };
    Ok(if end { text.trim_end_matches(cut) } else { text })
}

pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().collect::<String>() + &chars.as_str().to_lowercase(),
        None => String::new(),
    }
}

pub(super) fn title(text: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        inside = c.is_alphabetic();
    }
    out
}

/// Replaces `old` by `new`, at most `count` times unless that is negative.
pub(super) fn replace(
    budget: &Budget,
    text: &str,
    old: &str,
    new: &str,
    count: Option<i64>,
) -> Result<Value, Fault> {
    let limit = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    budget.spend(text.len() as u64)?;
    let found = text.matches(old).take(limit).count() as u64;
    budget.spend(found.saturating_mul(new.len() as u64))?;
    budget.text(text.replacen(old, new, limit))
}

fn split(
    budget: &Budget,
    text: &str,
    separator: Option<&str>,
    limit: Option<usize>,
    from_end: bool,
) -> Result<Value, Fault> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = Vec::new();
    match separator {
        Some("") => return Err(Fault::new("split: the separator is empty")),
        Some(separator) => {
            budget.spend_slots(text.matches(separator).take(limit).count())?;
            let limit = limit.saturating_add(1);
            if from_end {
                parts.extend(text.rsplitn(limit, separator));
                parts.reverse();
            } else {
                parts.extend(text.splitn(limit, separator));
            }
        }
        None => {
            budget.spend_slots(text.split_whitespace().take(limit).count())?;
            let mut rest = if from_end { text.trim_end() } else { text.trim_start() };
            while !rest.is_empty() && parts.len() < limit {
                let cut =
                    if from_end { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
                let Some(at) = cut else { break };
                if from_end {
                    let part = rest[at..].trim_start();
                    parts.push(part);
                    rest = rest[..at].trim_end();
                } else {
                    parts.push(&rest[..at]);
                    rest = rest[at..].trim_start();
                }
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
            if from_end {
                parts.reverse();
            }
        }
    }
    budget.spend(text.len() as u64)?;
    budget.list(parts.into_iter().map(|part| Value::Text(part.into())).collect())
}

/// The printed items with `separator` between them.
pub(super) fn join(budget: &Budget, items: &[Value], separator: &str) -> Result<Value, Fault> {
    let mut out = String::new();
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            budget.spend(separator.len() as u64)?;
            out.push_str(separator);
        }
        match item {
            Value::Text(text) => {
                budget.spend(text.len() as u64 + 1)?;
                out.push_str(text);
            }
            item => out.push_str(&item.print(budget)?),
        }
    }
    budget.text(out)
}
