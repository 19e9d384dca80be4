//! The parameters of a request, an input or an output: each is asked for by name, and one that nobody asks for is refused, since it may change what is meant.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use trifuse::{Error, Result};

/// Parameters of one place, at most.
pub const MOST: usize = 64;

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    /// True or false.
    Flag(bool),
    /// A whole number.
    Whole(i64),
    /// Another number.
    Real(f64),
    /// A text.
    Text(String),
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(value) => write!(f, "{value}"),
            Self::Whole(value) => write!(f, "{value}"),
            Self::Real(value) => write!(f, "{value}"),
            Self::Text(value) => write!(f, "{:?}", value.chars().take(80).collect::<String>()),
        }
    }
}

/// The names that nearly every request has, which are kept as they are here and not as they came.
const USUAL: [&str; 8] =
    ["shared_memory_region", "shared_memory_offset", "shared_memory_byte_size", "binary_data", "binary_data_size", "binary_data_output", "block", "causal"];

/// The name of a parameter.
type Name = Cow<'static, str>;

fn kept(name: &str) -> Name {
    USUAL.iter().find(|usual| **usual == name).map_or_else(|| Cow::Owned(name.to_owned()), |usual| Cow::Borrowed(*usual))
}

/// The parameters that nobody has asked for yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(Vec<(Name, Parameter)>);

impl Parameter {
    /// The parameter of a number that may be larger than a whole one.
    pub fn of_unsigned(value: u64) -> Self {
        i64::try_from(value).map_or(Self::Real(value as f64), Self::Whole)
    }
}

impl Parameters {
    /// Parameters of these names.
    ///
    /// # Errors
    /// More of them than one place may have; two of one name.
    pub fn new(all: Vec<(Name, Parameter)>) -> Result<Self> {
        let twice = |(at, (name, _)): (usize, &(Name, Parameter))| all[..at].iter().any(|(before, _)| before == name);
        if all.len() > MOST || all.iter().enumerate().any(twice) {
            return Err(Error::invalid("parameters", format!("at most {MOST}, each once"), format_args!("{} of them", all.len())));
        }
        Ok(Self(all))
    }

    fn take<T>(&mut self, name: &str, expected: &str, of: impl FnOnce(Parameter) -> std::result::Result<T, Parameter>) -> Result<Option<T>> {
        let Some(at) = self.0.iter().position(|(known, _)| known == name) else { return Ok(None) };
        let (_, value) = self.0.swap_remove(at);
        of(value).map(Some).map_err(|value| Error::invalid(name, expected, value))
    }

    /// True or false.
    ///
    /// # Errors
    /// Another value.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>> {
        self.take(name, "true or false", |value| if let Parameter::Flag(flag) = value { Ok(flag) } else { Err(value) })
    }

    /// A whole number of 0 or more.
    ///
    /// # Errors
    /// Another value.
    pub fn count(&mut self, name: &str) -> Result<Option<u64>> {
        self.take(name, "a whole number of at least 0", |value| match value {
            Parameter::Whole(count) => u64::try_from(count).map_err(|_| value),
            other => Err(other),
        })
    }

    /// A number.
    ///
    /// # Errors
    /// Another value.
    pub fn number(&mut self, name: &str) -> Result<Option<f64>> {
        self.take(name, "a number", |value| match value {
            Parameter::Whole(number) => Ok(number as f64),
            Parameter::Real(number) => Ok(number),
            other => Err(other),
        })
    }

    /// A text.
    ///
    /// # Errors
    /// Another value.
    pub fn text(&mut self, name: &str) -> Result<Option<String>> {
        self.take(name, "a text", |value| if let Parameter::Text(text) = value { Ok(text) } else { Err(value) })
    }

    /// Refuses what is left; `of` names whose parameters they are.
    ///
    /// # Errors
    /// A parameter that nobody asked for.
    pub fn end(self, of: impl FnOnce() -> String) -> Result<()> {
        match self.0.first() {
            Some((name, _)) => Err(Error::invalid(format!("parameters of {}", of()), "those that it has", format_args!("{name:?}, which is not among them"))),
            None => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for Parameter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Scalar;
        impl Visitor<'_> for Scalar {
            type Value = Parameter;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, a text, true or false")
            }

            fn visit_bool<E>(self, value: bool) -> std::result::Result<Parameter, E> {
                Ok(Parameter::Flag(value))
            }

            fn visit_i64<E>(self, value: i64) -> std::result::Result<Parameter, E> {
                Ok(Parameter::Whole(value))
            }

            fn visit_u64<E>(self, value: u64) -> std::result::Result<Parameter, E> {
                Ok(Parameter::of_unsigned(value))
            }

            fn visit_f64<E>(self, value: f64) -> std::result::Result<Parameter, E> {
                Ok(Parameter::Real(value))
            }

            fn visit_str<E>(self, value: &str) -> std::result::Result<Parameter, E> {
                Ok(Parameter::Text(value.into()))
            }
        }
        deserializer.deserialize_any(Scalar)
    }
}

/// A name as it is kept.
struct Known(Name);

impl<'de> Deserialize<'de> for Known {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Known;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_str<E>(self, name: &str) -> std::result::Result<Known, E> {
                Ok(Known(kept(name)))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

impl<'de> Deserialize<'de> for Parameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Parameters;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of parameters")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Parameters, A::Error> {
                let mut found: Vec<(Name, Parameter)> = Vec::new();
                while let Some((Known(name), value)) = map.next_entry::<Known, Parameter>()? {
                    if found.len() == MOST {
                        return Err(A::Error::custom(format_args!("expected at most {MOST} parameters")));
                    }
                    found.push((name, value));
                }
                Parameters::new(found).map_err(A::Error::custom)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_by_its_type_and_what_is_left_is_refused() {
        let mut read: Parameters = serde_json::from_str(r#"{"a": 1, "b": true, "c": "x", "d": 1.5, "e": -1}"#).unwrap();
        assert_eq!((read.count("a").unwrap(), read.count("a").unwrap()), (Some(1), None));
        assert_eq!((read.flag("b").unwrap(), read.text("c").unwrap().as_deref(), read.number("d").unwrap()), (Some(true), Some("x"), Some(1.5)));
        assert!(read.clone().end(|| "the request".into()).unwrap_err().to_string().contains("\"e\""));
        assert!(read.count("e").is_err() && read.end(|| "the request".into()).is_ok());
    }

    #[test]
    fn one_that_is_there_twice_or_is_no_scalar_is_refused() {
        for bad in [r#"{"a": 1, "a": 2}"#, r#"{"a": []}"#, r#"{"a": null}"#, "[]"] {
            assert!(serde_json::from_str::<Parameters>(bad).is_err(), "{bad}");
        }
        let many: String = (0..=MOST).map(|at| format!("\"p{at}\": 1")).collect::<Vec<_>>().join(",");
        assert!(serde_json::from_str::<Parameters>(&format!("{{{many}}}")).is_err());
    }
}
