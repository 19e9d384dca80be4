//! The fields of a request in JSON: each is asked for by name, and one that nobody asks for is refused, since it may change what is meant.

use serde_json::{Map, Value};

use super::fault::Fault;

/// The fields that nobody has asked for yet.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

/// A value in a few words.
fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl Fields {
    /// The fields of an object.
    ///
    /// # Errors
    /// What is no JSON, or no object.
    pub fn read(body: &[u8]) -> Result<Self, Fault> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(other) => Err(Fault::invalid("invalid_json", format!("expected an object in JSON, found {}", brief(&other)))),
            Err(error) => Err(Fault::invalid("invalid_json", format!("expected an object in JSON, found: {error}"))),
        }
    }

    /// The fields of an object inside the request.
    ///
    /// # Errors
    /// Another value.
    pub fn within(param: &str, value: Value) -> Result<Self, Fault> {
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            other => Err(Fault::expected(param, "an object", brief(&other))),
        }
    }

    /// The field, unless it is absent or null.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|value| !value.is_null())
    }

    /// The field, which must be there.
    ///
    /// # Errors
    /// It is absent or null.
    pub fn needed(&mut self, name: &str, expected: &str) -> Result<Value, Fault> {
        self.take(name).ok_or_else(|| Fault::expected(name, expected, "nothing"))
    }

    fn typed<T>(&mut self, name: &str, expected: &str, of: impl FnOnce(&Value) -> Option<T>) -> Result<Option<T>, Fault> {
        let value = self.take(name);
        value.map(|value| of(&value).ok_or_else(|| Fault::expected(name, expected, brief(&value)))).transpose()
    }

    /// A string.
    ///
    /// # Errors
    /// Another value.
    pub fn string(&mut self, name: &str) -> Result<Option<String>, Fault> {
        self.typed(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// A truth value; false where it is absent.
    ///
    /// # Errors
    /// Another value.
    pub fn flag(&mut self, name: &str) -> Result<bool, Fault> {
        Ok(self.typed(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// A whole number of `least` or more.
    ///
    /// # Errors
    /// Another value.
    pub fn count(&mut self, name: &str, least: u64) -> Result<Option<u64>, Fault> {
        self.typed(name, &format!("a whole number of at least {least}"), |value| value.as_u64().filter(|number| *number >= least))
    }

    /// A number within bounds.
    ///
    /// # Errors
    /// Another value.
    pub fn number(&mut self, name: &str, [least, most]: [f64; 2]) -> Result<Option<f64>, Fault> {
        self.typed(name, &format!("a number from {least} to {most}"), |value| value.as_f64().filter(|number| (least..=most).contains(number)))
    }

    /// Takes a field that changes no answer.
    pub fn ignore(&mut self, name: &str) {
        self.0.shift_remove(name);
    }

    /// Refuses a field that is here something other than `only`.
    ///
    /// # Errors
    /// Another value.
    pub fn only(&mut self, name: &str, only: &Value) -> Result<(), Fault> {
        match self.take(name) {
            Some(value) if value != *only => {
                Err(Fault::param(name, "unsupported_parameter", format!("{name}: only {only} is supported, found {}", brief(&value))))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what is left.
    ///
    /// # Errors
    /// A field that nobody asked for.
    pub fn end(self) -> Result<(), Fault> {
        match self.0.into_iter().find(|(_, value)| !value.is_null()) {
            Some((name, _)) => {
                let name: String = name.chars().take(80).collect();
                let message = format!("{name}: this field is not supported here; leave it out");
                Err(Fault::param(name, "unsupported_parameter", message))
            }
            None => Ok(()),
        }
    }
}
