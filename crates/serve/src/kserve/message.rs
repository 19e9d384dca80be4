//! A request as it is written.

use bytes::Bytes;
use serde::Deserialize;
use trifuse::{Error, Result};

use super::parameters::Parameters;
use super::tensor::{Place, Tensor, take};
use super::values::Values;

/// Inputs or outputs of a request, at most.
const MOST: usize = 16;
/// The longest id of a request.
const MAX_ID: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    parameters: Parameters,
    inputs: Vec<Input>,
    #[serde(default)]
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    name: String,
    datatype: String,
    shape: Vec<u64>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(default)]
    data: Option<Values>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    name: String,
    #[serde(default)]
    parameters: Parameters,
}

/// How an output is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Numbers in JSON.
    Json,
    /// Bytes behind the JSON.
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
    /// Reads a request; `binary` is what follows its JSON.
    ///
    /// # Errors
    /// What is no request; binary data of another length; a tensor without data, with data of another size, or of a size that no memory has.
    pub fn read(json: &[u8], binary: Bytes) -> Result<Self> {
        let expected = "a request of the open inference protocol";
        let Written { id, mut parameters, inputs, outputs } = serde_json::from_slice(json).map_err(|error| Error::invalid("JSON", expected, error))?;
        let counted = |what: &str, count: usize| match count > MOST {
            true => Err(Error::invalid(what, format!("at most {MOST}"), count)),
            false => Ok(()),
        };
        counted("inputs", inputs.len())?;
        counted("outputs", outputs.len())?;
        if id.as_ref().is_some_and(|id| id.len() > MAX_ID) {
            return Err(Error::invalid("id", format!("at most {MAX_ID} bytes"), "more"));
        }
        let delivery = if parameters.flag("binary_data_output")?.unwrap_or(false) { Delivery::Binary } else { Delivery::Json };
        let timeout = parameters.count("timeout")?.filter(|timeout| *timeout > 0);
        let mut rest = binary;
        let mut tensors: Vec<Tensor> = Vec::with_capacity(inputs.len());
        for Input { name, datatype, shape, parameters, data } in inputs {
            if tensors.iter().any(|tensor| tensor.name == name) {
                return Err(Error::invalid("inputs", "names of their own", format_args!("{name:?} twice")));
            }
            tensors.push(Tensor::read(name, &datatype, shape, parameters, data, &mut rest)?);
        }
        if !rest.is_empty() {
            return Err(Error::invalid("body", "binary data of the inputs alone", format_args!("{} bytes more", rest.len())));
        }
        let mut wanted: Vec<Wanted> = Vec::with_capacity(outputs.len());
        for Output { name, mut parameters } in outputs {
            if wanted.iter().any(|wanted| wanted.name == name) {
                return Err(Error::invalid("outputs", "names of their own", format_args!("{name:?} twice")));
            }
            let place = Place::read(&mut parameters)?;
            let delivery = match (place, parameters.flag("binary_data")?) {
                (Some(place), None | Some(false)) => Delivery::Region(place),
                (Some(_), Some(true)) => return Err(Error::invalid(format!("output {name:?}"), "one place", "a region and binary data")),
                (None, Some(true)) => Delivery::Binary,
                (None, Some(false)) => Delivery::Json,
                (None, None) => delivery.clone(),
            };
            parameters.end(&format!("output {name:?}"))?;
            wanted.push(Wanted { name, delivery });
        }
        Ok(Self { id, parameters, inputs: tensors, outputs: wanted, delivery, timeout })
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
        self.parameters.end("the request")?;
        let fault = |what: &str, name: &str| Error::invalid(what, "those of the model", format_args!("{:?}", name.chars().take(80).collect::<String>()));
        match (self.inputs.first(), self.outputs.first()) {
            (Some(input), _) => Err(fault("inputs", &input.name)),
            (_, Some(output)) => Err(fault("outputs", &output.name)),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::kserve::datatype::Datatype;
    use crate::kserve::tensor::Data;

    fn read(value: &Value, binary: &'static [u8]) -> Result<Request> {
        Request::read(value.to_string().as_bytes(), Bytes::from_static(binary))
    }

    fn input(parameters: Value, data: Value) -> Value {
        let mut input = json!({"name": "a", "datatype": "INT32", "shape": [2], "parameters": parameters});
        if !data.is_null() {
            input["data"] = data;
        }
        json!({"id": "7", "inputs": [input]})
    }

    #[test]
    fn each_form_of_data_is_read() {
        let data = |value: &Value, binary| read(value, binary).unwrap().input("a").unwrap().data;
        assert_eq!(data(&input(json!({}), json!([[1], [2]])), b""), Data::Bytes(Bytes::from_static(&[1, 0, 0, 0, 2, 0, 0, 0])));
        assert_eq!(data(&input(json!({"binary_data_size": 8}), Value::Null), b"12345678"), Data::Bytes(Bytes::from_static(b"12345678")));
        let named = json!({"shared_memory_region": "r", "shared_memory_offset": 4, "shared_memory_byte_size": 8});
        assert_eq!(data(&input(named, Value::Null), b""), Data::Region(Place { name: "r".into(), offset: 4, bytes: 8 }));
        let mut whole = input(json!({}), json!([1, 2]));
        whole["parameters"] = json!({"timeout": 5, "binary_data_output": true, "causal": true});
        whole["outputs"] = json!([{"name": "o"}, {"name": "p", "parameters": {"binary_data": false}}]);
        let mut request = read(&whole, b"").unwrap();
        assert_eq!((request.id.as_deref(), request.timeout, request.delivery.clone()), (Some("7"), Some(5), Delivery::Binary));
        assert_eq!(request.output("o").unwrap().delivery, Delivery::Binary);
        assert_eq!(request.output("p").unwrap().delivery, Delivery::Json);
        assert_eq!(request.parameters.flag("causal").unwrap(), Some(true));
        assert_eq!(request.input("a").unwrap().datatype, Datatype::Int32);
        request.end().unwrap();
    }

    #[test]
    fn sizes_that_differ_or_that_no_memory_has_are_refused() {
        let shaped = |shape: Value| json!({"inputs": [{"name": "a", "datatype": "FP32", "shape": shape, "parameters": {"binary_data_size": 8}}]});
        for (value, binary) in [
            (input(json!({}), json!([1])), &b""[..]),
            (input(json!({}), Value::Null), b""),
            (input(json!({"binary_data_size": 8}), json!([1, 2])), b"12345678"),
            (input(json!({"binary_data_size": 8}), Value::Null), b"1234567"),
            (input(json!({"binary_data_size": 8}), Value::Null), b"123456789"),
            (input(json!({"binary_data_size": 7}), Value::Null), b"1234567"),
            (input(json!({"binary_data_size": u64::MAX}), Value::Null), b"12345678"),
            (input(json!({"binary_data_size": -8}), Value::Null), b"12345678"),
            (input(json!({"shared_memory_region": "r"}), Value::Null), b""),
            (input(json!({"shared_memory_region": "r", "shared_memory_byte_size": 9}), Value::Null), b""),
            (input(json!({"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": i64::MAX}), Value::Null), b""),
            (input(json!({"shared_memory_byte_size": 8}), Value::Null), b""),
            (input(json!({"another": 1}), json!([1, 2])), b""),
            (shaped(json!([4294967296u64, 4294967296u64])), b"12345678"),
            (shaped(json!([1u64 << 62])), b"12345678"),
            (shaped(json!([-1])), b"12345678"),
            (shaped(json!([1, 1, 1, 1, 1, 1, 1, 1, 2])), b"12345678"),
            (json!({}), b""),
            (json!({"inputs": [], "other": 1}), b""),
            (json!({"inputs": vec![json!({"name": "a", "datatype": "INT32", "shape": [1], "data": [1]}); 2]}), b""),
            (json!({"inputs": [{"name": "a", "datatype": "BYTES", "shape": [1], "data": [1]}]}), b""),
        ] {
            assert!(read(&value, binary).is_err(), "{value}");
        }
    }

    proptest! {
        /// What is read has exactly the bytes that its shapes say, whatever is sent; all else is refused.
        #[test]
        fn no_bytes_are_read_as_another_size(cut in 0usize..400, at in 0usize..400, byte: u8, shape in prop::collection::vec(any::<u64>(), 0..4), extra in 0usize..40) {
            let mut request = input(json!({"binary_data_size": 8}), Value::Null);
            request["inputs"][0]["shape"] = json!(shape);
            let whole = json!({"inputs": [request["inputs"][0], input(json!({}), json!([1, 2]))["inputs"][0]], "outputs": [{"name": "o"}]});
            for value in [request, whole] {
                let mut json = value.to_string().into_bytes();
                json.truncate(json.len().saturating_sub(cut % 7));
                let place = at % json.len();
                json[place] = if at % 3 == 0 { byte } else { json[place] };
                if let Ok(request) = Request::read(&json, Bytes::from(vec![0; extra])) {
                    for tensor in &request.inputs {
                        let found = match &tensor.data {
                            Data::Bytes(bytes) => bytes.len() as u64,
                            Data::Region(place) => place.bytes,
                        };
                        prop_assert_eq!(Some(found), tensor.shape.iter().try_fold(tensor.datatype.size(), |all, size| all.checked_mul(*size)));
                    }
                }
            }
        }
    }
}
