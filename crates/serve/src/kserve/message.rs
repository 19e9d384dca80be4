//! A request, however it is written.

use trifuse::{Error, Result};

use super::parameters::Parameters;
use super::tensor::{Place, Tensor, take};

/// Inputs or outputs of a request, at most.
pub const MOST: usize = 16;
/// The longest id of a request.
const MAX_ID: usize = 256;

/// How an output is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Numbers in JSON.
    Json,
    /// Bytes behind the JSON, or in a message of their own form.
    Binary,
    /// Memory that has a name.
    Region(Place),
}

/// An output that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The output's name.
    pub name: String,
    /// How it is to be given.
    pub delivery: Delivery,
}

impl Wanted {
    /// The output of that name: in the memory that its parameters name, else as `delivery` says.
    ///
    /// # Errors
    /// A place that is none; a parameter that an output does not have.
    pub fn read(name: String, mut parameters: Parameters, delivery: Delivery) -> Result<Self> {
        let delivery = Place::read(&mut parameters)?.map_or(delivery, Delivery::Region);
        parameters.end(|| format!("output {name:?}"))?;
        Ok(Self { name, delivery })
    }
}

/// A request that is sound as far as can be told without its model.
#[derive(Debug)]
pub struct Request {
    /// The request's own id, which its answer has too.
    pub id: Option<String>,
    /// The parameters that are not the protocol's.
    pub parameters: Parameters,
    /// Its tensors.
    pub inputs: Vec<Tensor>,
    /// What is asked for; all outputs where it is empty.
    pub outputs: Vec<Wanted>,
    /// How outputs are given that are not named.
    pub delivery: Delivery,
    /// The most microseconds until the request reaches the device.
    pub timeout: Option<u64>,
}

impl Request {
    /// A request of these parts.
    ///
    /// # Errors
    /// More of them than a request may have; two of one name; a timeout that is no number.
    pub fn new(id: Option<String>, mut parameters: Parameters, inputs: Vec<Tensor>, outputs: Vec<Wanted>, delivery: Delivery) -> Result<Self> {
        if id.as_ref().is_some_and(|id| id.len() > MAX_ID) {
            return Err(Error::invalid("id", format!("at most {MAX_ID} bytes"), "more"));
        }
        each_once("inputs", &inputs, |tensor| &tensor.name)?;
        each_once("outputs", &outputs, |wanted| &wanted.name)?;
        let timeout = parameters.count("timeout")?.filter(|timeout| *timeout > 0);
        Ok(Self { id, parameters, inputs, outputs, delivery, timeout })
    }

    /// Takes the input of that name.
    pub fn input(&mut self, name: &str) -> Option<Tensor> {
        take(&mut self.inputs, |tensor| tensor.name == name)
    }

    /// Takes the output of that name.
    pub fn output(&mut self, name: &str) -> Option<Wanted> {
        take(&mut self.outputs, |wanted| wanted.name == name)
    }

    /// Refuses what nobody asked for.
    ///
    /// # Errors
    /// A parameter, an input or an output that the model does not have.
    pub fn end(self) -> Result<()> {
        self.parameters.end(|| "the request".into())?;
        let fault = |what: &str, name: &str| Error::invalid(what, "those of the model", format_args!("{:?}", name.chars().take(80).collect::<String>()));
        match (self.inputs.first(), self.outputs.first()) {
            (Some(input), _) => Err(fault("inputs", &input.name)),
            (_, Some(output)) => Err(fault("outputs", &output.name)),
            (None, None) => Ok(()),
        }
    }
}

/// Refuses more than [`MOST`] items, and two of one name.
fn each_once<T>(what: &str, items: &[T], name: impl Fn(&T) -> &str) -> Result<()> {
    if items.len() > MOST {
        return Err(Error::invalid(what, format!("at most {MOST}"), items.len()));
    }
    for (at, item) in items.iter().enumerate() {
        if items[..at].iter().any(|before| name(before) == name(item)) {
            let name: String = name(item).chars().take(80).collect();
            return Err(Error::invalid(what, "names of their own", format_args!("{name:?} twice")));
        }
    }
    Ok(())
}
