//! A request in JSON, with binary data behind it.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use trifuse::{Error, Result};

use super::message::{Delivery, Request, Wanted};
use super::parameters::Parameters;
use super::tensor::{Given, Tensor};
use super::values::Values;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<'a> {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    parameters: Parameters,
    #[serde(borrow)]
    inputs: Vec<Input<'a>>,
    #[serde(default)]
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input<'a> {
    name: String,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
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

/// Reads a request; `binary` is what follows its JSON.
///
/// # Errors
/// What is no request; binary data of another length; a tensor without data, with data of another size, or of a size that no memory has.
pub fn read(json: &[u8], binary: Bytes) -> Result<Request> {
    let expected = "a request of the open inference protocol";
    let Written { id, mut parameters, inputs, outputs } = serde_json::from_slice(json).map_err(|error| Error::invalid("JSON", expected, error))?;
    let delivery = if parameters.flag("binary_data_output")?.unwrap_or(false) { Delivery::Binary } else { Delivery::Json };
    let mut rest = binary;
    let inputs = inputs.into_iter().map(|input| tensor(input, &mut rest)).collect::<Result<Vec<Tensor>>>()?;
    if !rest.is_empty() {
        return Err(Error::invalid("body", "binary data of the inputs alone", format_args!("{} bytes more", rest.len())));
    }
    let outputs = outputs.into_iter().map(|output| wanted(output, &delivery)).collect::<Result<Vec<Wanted>>>()?;
    Request::new(id, parameters, inputs, outputs, delivery)
}

/// An input, whose binary data is cut off the start of `rest`.
fn tensor(input: Input<'_>, rest: &mut Bytes) -> Result<Tensor> {
    let Input { name, datatype, shape, mut parameters, data } = input;
    let subject = || format!("input {:?}: binary_data_size", name.chars().take(80).collect::<String>());
    let given = match (data, parameters.count("binary_data_size")?) {
        (None, None) => None,
        (Some(values), None) => Some(Given::Numbers(values)),
        (None, Some(size)) => match usize::try_from(size).ok().filter(|size| *size <= rest.len()) {
            Some(size) => Some(Given::Bytes(rest.split_to(size))),
            None => return Err(Error::invalid(subject(), format!("at most the {} bytes that are left of the body", rest.len()), size)),
        },
        (Some(_), Some(_)) => return Err(Error::invalid(subject(), "none, as there is data", "a number")),
    };
    Tensor::read(name, &datatype, shape, parameters, given)
}

fn wanted(output: Output, delivery: &Delivery) -> Result<Wanted> {
    let Output { name, mut parameters } = output;
    let binary = parameters.flag("binary_data")?;
    let delivery = match binary {
        Some(true) => Delivery::Binary,
        Some(false) => Delivery::Json,
        None => delivery.clone(),
    };
    let wanted = Wanted::read(name, parameters, delivery)?;
    match (&wanted.delivery, binary) {
        (Delivery::Region(_), Some(true)) => Err(Error::invalid(format!("output {:?}", wanted.name), "one place", "a region and binary data")),
        _ => Ok(wanted),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::kserve::datatype::Datatype;
    use crate::kserve::tensor::{Data, Place};

    fn read(value: &Value, binary: &'static [u8]) -> Result<Request> {
        super::read(value.to_string().as_bytes(), Bytes::from_static(binary))
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
                if let Ok(request) = super::read(&json, Bytes::from(vec![0; extra])) {
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
