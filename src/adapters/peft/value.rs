//! Values of `adapter_config.json`, checked one by one.

use serde_json::Value;

use super::MAX_RANK;
use super::pattern::{Suffix, Targets};

/// The most keys of the pattern tables that are real regular expressions, each of which takes memory.
const MAX_EXPRESSIONS: usize = 512;
/// Keys of a pattern table: each module is compared with them one after another, as PEFT takes the first that matches.
const MAX_PATTERNS: usize = 4096;

/// Whether a value says anything. Null, false, 0 and empty values do not.
pub(super) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(set) => *set,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// A value in one short line.
pub(super) fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

pub(super) fn rank(value: &Value) -> Result<u64, String> {
    let fits = value.as_u64().filter(|rank| (1..=MAX_RANK).contains(rank));
    fits.ok_or_else(|| format!("expected a whole number from 1 to {MAX_RANK}, found {}", brief(value)))
}

pub(super) fn number(value: &Value) -> Result<f64, String> {
    let fits = value.as_f64().filter(|number| number.is_finite() && number.abs() <= 1e9);
    fits.ok_or_else(|| format!("expected a number of at most 1e9, found {}", brief(value)))
}

pub(super) fn flag(value: &Value) -> Result<bool, String> {
    match value {
        Value::Null => Ok(false),
        Value::Bool(set) => Ok(*set),
        other => Err(format!("expected true or false, found {}", brief(other))),
    }
}

pub(super) fn table<T>(value: &Value, read: impl Fn(&Value) -> Result<T, String>) -> Result<Vec<(Suffix, T)>, String> {
    let map = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Object(map) => map,
        other => return Err(format!("expected an object of modules, found {}", brief(other))),
    };
    if map.len() > MAX_PATTERNS {
        return Err(format!("expected at most {MAX_PATTERNS} modules, found {}; an expression stands for many", map.len()));
    }
    let expressions = map.keys().filter(|key| !Suffix::is_literal(key)).count();
    if expressions > MAX_EXPRESSIONS {
        return Err(format!("expected at most {MAX_EXPRESSIONS} regular expressions, found {expressions}"));
    }
    map.iter()
        .map(|(key, value)| {
            let named = |problem: String| format!("{key:?}: {problem}");
            Ok((Suffix::new(key).map_err(named)?, read(value).map_err(named)?))
        })
        .collect()
}

pub(super) fn targets(value: &Value) -> Result<Targets, String> {
    match value {
        Value::Null => Ok(Targets::Any),
        Value::String(text) if text == "all-linear" => Ok(Targets::Any),
        Value::String(text) => Targets::regex(text),
        Value::Array(items) => {
            let names = items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(|| format!("expected names, found {}", brief(item))));
            names.collect::<Result<_, _>>().map(Targets::Names)
        }
        other => Err(format!("expected a list of names or an expression, found {}", brief(other))),
    }
}
