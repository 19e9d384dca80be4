//! The keys of a JSON object from outside, each checked as it is read.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// The largest size that a configuration may give.
const MOST: u64 = 1 << 24;

/// The keys of a configuration, and the file that they are from.
pub struct Keys<'a> {
    pub path: &'a Path,
    pub map: &'a Map<String, Value>,
}

impl Keys<'_> {
    /// The error for a key.
    pub fn refuse<T>(&self, key: &str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Result<T> {
        Err(Error::input_item(self.path, key, format!("expected {expected}, found {found}")))
    }

    /// The value of a key that is there and not null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A size from 1 on, where the key is there.
    pub fn size(&self, key: &str) -> Result<Option<u64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().filter(|size| (1..=MOST).contains(size)) {
            Some(size) => Ok(Some(size)),
            None => self.refuse(key, format_args!("1 to {MOST}"), value),
        }
    }

    /// A size that has to be there.
    pub fn wanted(&self, key: &str) -> Result<u64> {
        self.size(key)?.map_or_else(|| self.refuse(key, "a size", "no such key"), Ok)
    }

    /// A truth, where the key is there.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map_or_else(|| self.refuse(key, "true or false", value), |flag| Ok(Some(flag)))
    }

    /// A finite number above 0.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|number| number.is_finite() && *number > 0.0) {
            Some(number) => Ok(Some(number)),
            None => self.refuse(key, "a number above 0", value),
        }
    }

    /// Refuses a key unless it is absent, null or one of `fine`.
    pub fn only(&self, key: &str, fine: &[Value], why: &str) -> Result<()> {
        match self.get(key).filter(|value| !fine.contains(value)) {
            Some(found) => self.refuse(key, why, found),
            None => Ok(()),
        }
    }
}

/// The ids in a value that is one, or a list of them.
pub fn ids(value: Option<&Value>) -> Vec<u32> {
    let one = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(one).collect(),
        Some(value) => one(value).into_iter().collect(),
        None => Vec::new(),
    }
}
