//! An answer as it is written.

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use trifuse::{DType, Error, Result};

use super::datatype::Datatype;
use super::message::Delivery;

/// An output of an answer.
#[derive(Debug)]
pub struct Output {
    /// The output's name.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// How it is given.
    pub delivery: Delivery,
    /// Its elements, little-endian; those in a region are left out.
    pub bytes: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    /// The model's name, as the request has it.
    pub model: String,
    /// The request's id.
    pub id: Option<String>,
    /// What else is told.
    pub parameters: Vec<(&'static str, String)>,
    /// The outputs.
    pub outputs: Vec<Output>,
}

/// The version of every model.
pub const VERSION: &str = "1";

impl Reply {
    /// The body of the answer in JSON, and the bytes of its JSON where binary data follows.
    ///
    /// # Errors
    /// A number that JSON does not have.
    pub fn body(&self) -> Result<(Vec<u8>, Option<usize>)> {
        for output in self.outputs.iter().filter(|output| output.delivery == Delivery::Json) {
            if output.datatype.dtype().is_some_and(|dtype| !dtype.all_finite(&output.bytes)) {
                let expected = "finite numbers, as JSON has no others; ask for binary data";
                return Err(Error::invalid(format!("output {:?}", output.name), expected, "an infinite one or none"));
            }
        }
        let mut body = serde_json::to_vec(self).map_err(|error| Error::invalid("answer", "JSON", error))?;
        let length = body.len();
        let binary = || self.outputs.iter().filter(|output| output.delivery == Delivery::Binary);
        binary().for_each(|output| body.extend_from_slice(&output.bytes));
        Ok((body, binary().next().map(|_| length)))
    }
}

impl Serialize for Reply {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("model_name", &self.model)?;
        map.serialize_entry("model_version", VERSION)?;
        if let Some(id) = &self.id {
            map.serialize_entry("id", id)?;
        }
        if !self.parameters.is_empty() {
            map.serialize_entry("parameters", &Pairs(&self.parameters))?;
        }
        map.serialize_entry("outputs", &self.outputs)?;
        map.end()
    }
}

struct Pairs<'a, V>(&'a [(&'static str, V)]);

impl<V: Serialize> Serialize for Pairs<'_, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[derive(Serialize)]
struct InRegion<'a> {
    shared_memory_region: &'a str,
    shared_memory_offset: u64,
    shared_memory_byte_size: u64,
}

impl Serialize for Output {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("datatype", self.datatype.name())?;
        map.serialize_entry("shape", &self.shape)?;
        match &self.delivery {
            Delivery::Json => map.serialize_entry("data", &Numbers(self.datatype, &self.bytes))?,
            Delivery::Binary => map.serialize_entry("parameters", &Pairs(&[("binary_data_size", self.bytes.len())]))?,
            Delivery::Region(place) => map.serialize_entry(
                "parameters",
                &InRegion { shared_memory_region: &place.name, shared_memory_offset: place.offset, shared_memory_byte_size: place.bytes },
            )?,
        }
        map.end()
    }
}

/// Elements as numbers in JSON.
struct Numbers<'a>(Datatype, &'a [u8]);

impl Serialize for Numbers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self(datatype, bytes) = *self;
        let mut list = serializer.serialize_seq(None)?;
        match datatype.dtype() {
            Some(DType::F32) => {
                // As f32 they have the fewest digits that say which number it is.
                bytes.chunks_exact(4).try_for_each(|bytes| list.serialize_element(&f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))?;
            }
            Some(dtype) => dtype.decode(bytes).iter().try_for_each(|value| list.serialize_element(&(*value as f32)))?,
            None => {
                let size = datatype.size() as usize;
                for element in bytes.chunks_exact(size) {
                    // The outputs are whole numbers without a sign.
                    let mut all = [0; 8];
                    all[..size].copy_from_slice(element);
                    list.serialize_element(&u64::from_le_bytes(all))?;
                }
            }
        }
        list.end()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kserve::tensor::Place;

    #[test]
    fn each_way_of_giving_an_output_is_written() {
        let floats = [1.0f32.to_le_bytes(), 0.1f32.to_le_bytes()].concat();
        let place = Place { name: "r".into(), offset: 8, bytes: 4 };
        let output = |name: &str, datatype, delivery, bytes: &[u8], count: u64| Output {
            name: name.into(),
            datatype,
            shape: vec![count],
            delivery,
            bytes: bytes.to_vec(),
        };
        let outputs = vec![
            output("a", Datatype::Fp32, Delivery::Json, &floats, 2),
            output("b", Datatype::Fp16, Delivery::Binary, &[0, 0x3c], 1),
            output("c", Datatype::Bf16, Delivery::Region(place), &[], 2),
            output("d", Datatype::Uint64, Delivery::Json, &u64::MAX.to_le_bytes(), 1),
            output("e", Datatype::Fp16, Delivery::Json, &[0, 0x3c], 1),
        ];
        let reply = Reply { model: "m".into(), id: Some("7".into()), parameters: vec![("adapter_generation", "x".into())], outputs };
        let (body, length) = reply.body().unwrap();
        let length = length.unwrap();
        let written: Value = serde_json::from_slice(&body[..length]).unwrap();
        let expected = json!({"model_name": "m", "model_version": "1", "id": "7", "parameters": {"adapter_generation": "x"}, "outputs": [
            {"name": "a", "datatype": "FP32", "shape": [2], "data": [1.0, 0.1]},
            {"name": "b", "datatype": "FP16", "shape": [1], "parameters": {"binary_data_size": 2}},
            {"name": "c", "datatype": "BF16", "shape": [2],
                "parameters": {"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 4}},
            {"name": "d", "datatype": "UINT64", "shape": [1], "data": [u64::MAX]},
            {"name": "e", "datatype": "FP16", "shape": [1], "data": [1.0]},
        ]});
        assert_eq!((written, &body[length..]), (expected, &[0, 0x3c][..]));
    }

    #[test]
    fn json_has_no_infinite_numbers() {
        let bytes = f32::INFINITY.to_le_bytes();
        let body = |delivery| {
            let output = Output { name: "a".into(), datatype: Datatype::Fp32, shape: vec![1], delivery, bytes: bytes.to_vec() };
            Reply { model: "m".into(), id: None, parameters: Vec::new(), outputs: vec![output] }.body()
        };
        assert!(body(Delivery::Json).unwrap_err().to_string().contains("binary"));
        assert!(body(Delivery::Binary).is_ok());
    }
}
