//! A request for an answer, out of its message.

use bytes::{Buf, Bytes};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};
use trifuse::{Error, Result};

use super::contents::given;
use super::messages::{Choice, Input, ModelInfer, Parameters as Written, Wanted as Asked};
use crate::kserve::datatype::Datatype;
use crate::kserve::message::{Delivery, MOST, Request, Wanted};
use crate::kserve::parameters::{self, Parameter, Parameters};
use crate::kserve::tensor::{Given, Tensor};

/// A request and the model that it names.
#[derive(Debug)]
pub struct Named {
    /// The model's name.
    pub model: String,
    /// The version that is asked for.
    pub version: Option<String>,
    /// What is asked.
    pub request: Request,
}

impl Named {
    /// Reads a request. Its bytes stay where they are.
    ///
    /// # Errors
    /// What is no request; more of something than it may have; a tensor without elements, or with another number of them.
    pub fn read(message: Bytes) -> Result<Self> {
        let unsound = |error: DecodeError| Error::invalid("message", "a ModelInferRequest", error);
        bounded(&message)?;
        let ModelInfer { model_name, model_version, id, parameters, inputs, outputs, raw_input_contents } = ModelInfer::decode(message).map_err(unsound)?;
        let mut raw = Raw { given: !raw_input_contents.is_empty(), left: raw_input_contents.into_iter() };
        let inputs = inputs.into_iter().map(|input| tensor(input, &mut raw)).collect::<Result<Vec<Tensor>>>()?;
        if raw.left.next().is_some() {
            return Err(Error::invalid("raw_input_contents", "one for each input that lies in no region", "more"));
        }
        let outputs = outputs.into_iter().map(|Asked { name, parameters }| Wanted::read(name, read(parameters)?, Delivery::Binary));
        let outputs = outputs.collect::<Result<Vec<Wanted>>>()?;
        let given = |text: String| (!text.is_empty()).then_some(text);
        let request = Request::new(given(id), read(parameters)?, inputs, outputs, Delivery::Binary)?;
        Ok(Self { model: model_name, version: given(model_version), request })
    }
}

/// Calls for every field of a message, with its bytes where it has a length of its own.
fn fields(mut message: &[u8], mut each: impl FnMut(u32, &[u8]) -> Result<()>) -> Result<()> {
    let unsound = |error: DecodeError| Error::invalid("message", "a ModelInferRequest", error);
    while message.has_remaining() {
        let (field, wire) = decode_key(&mut message).map_err(unsound)?;
        if wire != WireType::LengthDelimited {
            skip_field(wire, field, &mut message, DecodeContext::default()).map_err(unsound)?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut message).map_err(unsound)?).unwrap_or(usize::MAX);
        let Some((own, rest)) = message.split_at_checked(length) else {
            return Err(Error::invalid("message", "a ModelInferRequest", "a field that is longer than what is left"));
        };
        each(field, own)?;
        message = rest;
    }
    Ok(())
}

/// Refuses more inputs, outputs or parameters than a request may have. A field of two bytes becomes hundreds of them once it is read, so that this comes first.
fn bounded(message: &[u8]) -> Result<()> {
    let more = |what: &str, most: usize| Error::invalid(what, format!("at most {most}"), "more");
    let within = |count: &mut usize, what: &str, most: usize| {
        *count += 1;
        if *count > most { Err(more(what, most)) } else { Ok(()) }
    };
    let (mut inputs, mut outputs, mut raw, mut parameters) = (0, 0, 0, 0);
    fields(message, |field, own| {
        let (what, count, inner) = match field {
            4 => return within(&mut parameters, "parameters", parameters::MOST),
            5 => ("inputs", &mut inputs, 4),
            6 => ("outputs", &mut outputs, 2),
            7 => return within(&mut raw, "raw_input_contents", MOST),
            _ => return Ok(()),
        };
        within(count, what, MOST)?;
        let mut parameters = 0;
        fields(own, |field, _| if field == inner { within(&mut parameters, "parameters", parameters::MOST) } else { Ok(()) })
    })
}

/// What follows the inputs as bytes: one for each of them that lies in no region, where there are any.
struct Raw {
    given: bool,
    left: std::vec::IntoIter<Bytes>,
}

fn tensor(input: Input, raw: &mut Raw) -> Result<Tensor> {
    let Input { name, datatype, shape, parameters, contents } = input;
    let subject = |what: &str| format!("input {:?}: {what}", name.chars().take(80).collect::<String>());
    let sizes: Option<Vec<u64>> = shape.iter().map(|size| u64::try_from(*size).ok()).collect();
    let sizes = sizes.ok_or_else(|| Error::invalid(subject("shape"), "sizes of at least 0", "one below"))?;
    let in_region = parameters.contains_key("shared_memory_region");
    let given = match (contents, Datatype::named(&datatype)) {
        (Some(_), _) if raw.given => return Err(Error::invalid(subject("contents"), "none beside raw_input_contents", "some")),
        (Some(contents), Some(datatype)) => Some(given(datatype, contents).map_err(|error| of(&name, error))?),
        (None, Some(_)) if raw.given && !in_region => match raw.left.next() {
            Some(bytes) => Some(Given::Bytes(bytes)),
            None => return Err(Error::invalid(subject("raw_input_contents"), "one for each input that lies in no region", "fewer")),
        },
        // The type is refused where it is none.
        _ => None,
    };
    Tensor::read(name, &datatype, sizes, read(parameters)?, given)
}

/// The fault of an input of that name.
fn of(name: &str, error: Error) -> Error {
    match error {
        Error::Invalid { subject, expected, found } => {
            Error::invalid(format!("input {:?}: {subject}", name.chars().take(80).collect::<String>()), expected, found)
        }
        other => other,
    }
}

fn read(written: Written) -> Result<Parameters> {
    let one = |(name, written): (String, super::messages::Parameter)| {
        let value = match written.choice {
            Some(Choice::Flag(value)) => Parameter::Flag(value),
            Some(Choice::Whole(value)) => Parameter::Whole(value),
            Some(Choice::Text(value)) => Parameter::Text(value),
            Some(Choice::Real(value)) => Parameter::Real(value),
            Some(Choice::Unsigned(value)) => Parameter::of_unsigned(value),
            None => return Err(Error::invalid(format!("parameter {:?}", name.chars().take(80).collect::<String>()), "a value", "none")),
        };
        Ok((name.into(), value))
    };
    Parameters::new(written.into_iter().map(one).collect::<Result<Vec<_>>>()?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::super::messages::{Contents, Parameter as Value};
    use super::*;
    use crate::kserve::tensor::{Data, Place};

    fn input(name: &str, contents: Option<Contents>, parameters: &[(&str, Choice)]) -> Input {
        Input { name: name.into(), datatype: "INT32".into(), shape: vec![2], parameters: values(parameters), contents }
    }

    fn values(parameters: &[(&str, Choice)]) -> Written {
        parameters.iter().map(|(name, choice)| ((*name).to_owned(), Value { choice: Some(choice.clone()) })).collect()
    }

    fn numbers() -> Option<Contents> {
        Some(Contents { int_contents: vec![1, 2], ..Contents::default() })
    }

    const NAMED: [(&str, Choice); 2] = [("shared_memory_byte_size", Choice::Whole(8)), ("shared_memory_offset", Choice::Unsigned(4))];

    fn in_region(name: &str) -> Input {
        let region = ("shared_memory_region", Choice::Text("r".into()));
        input(name, None, &[NAMED[0].clone(), NAMED[1].clone(), region])
    }

    fn reads(message: &ModelInfer) -> Result<Named> {
        Named::read(message.encode_to_vec().into())
    }

    #[test]
    fn elements_come_as_numbers_as_bytes_or_in_a_region() {
        let raw = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        let whole = ModelInfer {
            model_name: "m".into(),
            model_version: "1".into(),
            id: "7".into(),
            parameters: values(&[("timeout", Choice::Whole(5)), ("causal", Choice::Flag(true)), ("scale", Choice::Real(0.5))]),
            inputs: vec![input("a", None, &[]), in_region("b"), input("c", None, &[])],
            outputs: vec![Asked { name: "o".into(), parameters: Written::new() }, Asked { name: "p".into(), parameters: in_region("").parameters }],
            raw_input_contents: vec![raw(&[1, 0, 0, 0, 2, 0, 0, 0]), raw(&[3; 8])],
        };
        let Named { model, version, mut request } = reads(&whole).unwrap();
        assert_eq!((model.as_str(), version.as_deref(), request.id.as_deref(), request.timeout), ("m", Some("1"), Some("7"), Some(5)));
        let place = || Place { name: "r".into(), offset: 4, bytes: 8 };
        let data: Vec<Data> = ["a", "b", "c"].iter().map(|name| request.input(name).unwrap().data).collect();
        assert_eq!(data, [Data::Bytes(raw(&[1, 0, 0, 0, 2, 0, 0, 0])), Data::Region(place()), Data::Bytes(raw(&[3; 8]))]);
        assert_eq!((request.output("o").unwrap().delivery, request.output("p").unwrap().delivery), (Delivery::Binary, Delivery::Region(place())));
        assert_eq!((request.parameters.flag("causal").unwrap(), request.parameters.number("scale").unwrap()), (Some(true), Some(0.5)));
        request.end().unwrap();
        let numbers = ModelInfer { inputs: vec![input("a", numbers(), &[]), in_region("b")], raw_input_contents: Vec::new(), ..whole.clone() };
        assert_eq!(reads(&numbers).unwrap().request.input("a").unwrap().data, data[0]);
    }

    #[test]
    fn what_is_not_sound_is_refused() {
        let own = Bytes::from_static(&[0; 8]);
        let with = |inputs: Vec<Input>, raw: usize| ModelInfer { inputs, raw_input_contents: vec![own.clone(); raw], ..ModelInfer::default() };
        let many: Vec<Input> = (0..=MOST).map(|at| input(&at.to_string(), numbers(), &[])).collect();
        let crowd: Vec<(String, Value)> = (0..=parameters::MOST).map(|at| (at.to_string(), Value { choice: Some(Choice::Flag(true)) })).collect();
        let crowded = || Written::from_iter(crowd.clone());
        for (what, message) in [
            ("no elements", with(vec![input("a", None, &[])], 0)),
            ("bytes for one of two", with(vec![input("a", None, &[]), input("b", None, &[])], 1)),
            ("bytes for nobody", with(vec![in_region("a")], 1)),
            ("both forms", with(vec![input("a", numbers(), &[]), input("b", None, &[])], 1)),
            ("numbers and a region", with(vec![Input { contents: numbers(), ..in_region("a") }], 0)),
            ("a size below 0", with(vec![Input { shape: vec![-1], ..input("a", numbers(), &[]) }], 0)),
            ("another count", with(vec![Input { shape: vec![3], ..input("a", numbers(), &[]) }], 0)),
            ("strings", with(vec![Input { datatype: "BYTES".into(), ..input("a", None, &[]) }], 1)),
            ("another parameter", with(vec![input("a", numbers(), &[("binary_data", Choice::Flag(true))])], 0)),
            ("two of one name", with(vec![input("a", numbers(), &[]), input("a", numbers(), &[])], 0)),
            ("too many inputs", with(many, 0)),
            ("too much raw", with(Vec::new(), MOST + 1)),
            ("too many parameters", ModelInfer { parameters: crowded(), ..ModelInfer::default() }),
            ("too many parameters of one", with(vec![Input { parameters: crowded(), ..input("a", numbers(), &[]) }], 0)),
            ("a parameter of nothing", ModelInfer { parameters: Written::from([("a".to_owned(), Value::default())]), ..ModelInfer::default() }),
        ] {
            assert!(reads(&message).is_err(), "{what}");
        }
        assert!(Named::read(Bytes::from_static(b"\x0a\xff\xff\xff\x7f")).is_err(), "a length that is not there");
    }

    proptest! {
        /// What is read has exactly the bytes that its shapes say, whatever is sent; all else is refused.
        #[test]
        fn no_bytes_are_read_as_another_size(at: usize, byte: u8, cut: usize, shape in prop::collection::vec(any::<i64>(), 0..4)) {
            let inputs = vec![input("a", None, &[]), in_region("b"), Input { shape, ..input("c", None, &[]) }];
            let message = ModelInfer { inputs, raw_input_contents: vec![Bytes::from_static(&[5; 8]); 2], ..ModelInfer::default() };
            let mut bytes = message.encode_to_vec();
            let place = at % bytes.len();
            bytes[place] = byte;
            bytes.truncate(bytes.len() - (cut % 4) / 3);
            if let Ok(Named { request, .. }) = Named::read(bytes.into()) {
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
