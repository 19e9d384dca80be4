//! Values of options that help and completions list, and that are read by their type's own `FromStr`.

use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use trifuse::backends::{Choice, NAMES};
use trifuse::ops::layer::Model;
use trifuse::{DType, Error, Result};

/// Any text, of which some is listed.
#[derive(Clone)]
struct Listed(Vec<&'static str>);

impl TypedValueParser for Listed {
    type Value = String;

    fn parse_ref(&self, command: &clap::Command, argument: Option<&clap::Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

fn listed<T>(values: Vec<&'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = Error> + Clone + Send + Sync + 'static,
{
    Listed(values).try_map(|text| text.parse::<T>())
}

/// Where to run: one device, or several of one backend, with commas between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices(Vec<Choice>);

impl FromStr for Devices {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let choices = text.split(',').map(str::parse).collect::<Result<Vec<Choice>>>()?;
        let backend = |choice: &Choice| if let Choice::Named(name, _) = choice { Some(*name) } else { None };
        let same = choices.iter().all(|choice| backend(choice).is_some() && choices.first().map(backend) == Some(backend(choice)));
        match choices.len() == 1 || same {
            true => Ok(Self(choices)),
            // Answers are to be the same whichever device gives them.
            false => Err(Error::invalid("backend", "several devices of one backend, as cuda:0,cuda:1", format!("{text:?}"))),
        }
    }
}

impl Devices {
    /// All of them, of which there is at least one.
    #[cfg(any(test, feature = "serve"))]
    pub fn all(&self) -> &[Choice] {
        &self.0
    }

    /// The only one.
    ///
    /// # Errors
    /// There are several.
    pub fn only(&self) -> Result<&Choice> {
        match self.0.as_slice() {
            [only] => Ok(only),
            several => Err(Error::invalid("--backend", "one device, as only serve takes several", several.len())),
        }
    }
}

/// The name of a device, as `--backend` takes it.
///
/// # Errors
/// No device works.
#[cfg(feature = "serve")]
pub fn device_name(device: &Choice) -> Result<String> {
    device.resolve().map(|(backend, number, _)| format!("{backend}:{number}"))
}

/// Devices by the name of their backend; their numbers may follow, which no list can show.
pub fn backend() -> impl TypedValueParser<Value = Devices> {
    listed([&["auto"], NAMES].concat())
}

/// An element type.
pub fn dtype() -> impl TypedValueParser<Value = DType> {
    listed(DType::ALL.map(DType::name).to_vec())
}

/// A model whose sizes are known.
pub fn model() -> impl TypedValueParser<Value = Model> {
    listed(Model::ALL.map(Model::name).to_vec())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn several_devices_are_of_one_backend_and_not_for_every_command() {
        let devices = |text: &str| text.parse::<Devices>();
        assert_eq!(devices("wgpu:1").unwrap().only().unwrap(), &Choice::Named("wgpu", 1));
        assert_eq!(devices("auto").unwrap().only().unwrap(), &Choice::Auto);
        let two = devices("cuda:0,cuda:3").unwrap();
        assert_eq!(two.all(), [Choice::Named("cuda", 0), Choice::Named("cuda", 3)]);
        assert!(two.only().unwrap_err().to_string().contains("only serve takes several"));
        assert!(["cuda:0,wgpu:0", "auto,auto", "cpu,", ",", "cpu:0,nothing"].into_iter().all(|text| devices(text).is_err()));
    }
}
