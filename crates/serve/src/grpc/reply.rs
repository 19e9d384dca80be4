//! An answer as a message.

use bytes::Bytes;

use super::messages::{Choice, ModelInferred, Output as Written, Parameter, Parameters};
use crate::kserve::message::Delivery;
use crate::kserve::reply::{Output, Reply, VERSION};

fn parameter(name: &str, choice: Choice) -> (String, Parameter) {
    (name.to_owned(), Parameter { choice: Some(choice) })
}

fn whole(number: u64) -> Choice {
    i64::try_from(number).map_or(Choice::Unsigned(number), Choice::Whole)
}

/// The message of an answer. Its outputs are bytes, or lie in regions.
pub fn message(reply: Reply) -> ModelInferred {
    let Reply { model, id, parameters, outputs } = reply;
    let (outputs, raw_output_contents) = outputs.into_iter().map(output).unzip();
    ModelInferred {
        model_name: model,
        model_version: VERSION.to_owned(),
        id: id.unwrap_or_default(),
        parameters: parameters.into_iter().map(|(name, value)| parameter(name, Choice::Text(value))).collect(),
        outputs,
        raw_output_contents,
    }
}

fn output(output: Output) -> (Written, Bytes) {
    let Output { name, datatype, shape, delivery, bytes } = output;
    let parameters = match delivery {
        Delivery::Region(place) => Parameters::from([
            parameter("shared_memory_region", Choice::Text(place.name)),
            parameter("shared_memory_offset", whole(place.offset)),
            parameter("shared_memory_byte_size", whole(place.bytes)),
        ]),
        Delivery::Json | Delivery::Binary => Parameters::new(),
    };
    let shape = shape.into_iter().map(|size| i64::try_from(size).unwrap_or(i64::MAX)).collect();
    (Written { name, datatype: datatype.name().to_owned(), shape, parameters }, bytes.into())
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;
    use crate::kserve::datatype::Datatype;
    use crate::kserve::tensor::Place;

    #[test]
    fn every_output_has_bytes_and_those_in_regions_have_none() {
        let output =
            |name: &str, delivery, bytes: &[u8]| Output { name: name.into(), datatype: Datatype::Fp16, shape: vec![1], delivery, bytes: bytes.to_vec() };
        let place = Place { name: "r".into(), offset: 8, bytes: 2 };
        let outputs = vec![output("a", Delivery::Region(place), &[]), output("b", Delivery::Binary, &[0, 0x3c])];
        let written = message(Reply { model: "m".into(), id: None, parameters: vec![("adapter_generation", "x".into())], outputs });
        assert_eq!((written.model_name.as_str(), written.model_version.as_str(), written.id.as_str()), ("m", "1", ""));
        assert_eq!(written.parameters, Parameters::from([parameter("adapter_generation", Choice::Text("x".into()))]));
        assert_eq!(written.raw_output_contents, [Bytes::new(), Bytes::from_static(&[0, 0x3c])]);
        let [a, b] = &written.outputs[..] else { panic!("{:?}", written.outputs) };
        assert_eq!((a.parameters["shared_memory_offset"].choice.clone(), b.parameters.len()), (Some(Choice::Whole(8)), 0));
        assert_eq!((b.name.as_str(), b.datatype.as_str(), &b.shape), ("b", "FP16", &vec![1]));
    }
}
