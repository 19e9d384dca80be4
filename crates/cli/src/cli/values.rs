//! Values of options that help and completions list, and that are read by their type's own `FromStr`.

use std::ffi::OsStr;
use std::str::FromStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use trifuse::backends::{Choice, NAMES};
use trifuse::ops::layer::Model;
use trifuse::{DType, Error};

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

/// A backend by its name; the number of a device may follow, which no list can show.
pub fn backend() -> impl TypedValueParser<Value = Choice> {
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
