//! The numbers of a tensor that is written in JSON.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use trifuse::{DType, Error, Result};

use super::datatype::Datatype;

/// Numbers in the order in which they stand, however deep they are nested: eight bytes for each, whatever is sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// All of them are whole.
    Whole(Vec<i64>),
    /// At least one has a point or an exponent.
    Real(Vec<f64>),
}

impl Values {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(values) => values.len(),
            Self::Real(values) => values.len(),
        }
    }

    fn push_whole(&mut self, value: i64) {
        match self {
            Self::Whole(values) => values.push(value),
            Self::Real(values) => values.push(value as f64),
        }
    }

    fn push_real(&mut self, value: f64) {
        if let Self::Whole(values) = self {
            *self = Self::Real(values.iter().map(|value| *value as f64).collect());
        }
        if let Self::Real(values) = self {
            values.push(value);
        }
    }

    /// The elements as they lie in memory, little-endian, each rounded once to the type.
    ///
    /// # Errors
    /// A number that the type does not hold.
    pub fn encode(&self, datatype: Datatype) -> Result<Vec<u8>> {
        if let Some(dtype) = datatype.dtype() {
            return self.floats(dtype, datatype);
        }
        if datatype == Datatype::Fp64 {
            return Ok(self.reals().iter().flat_map(|value| value.to_le_bytes()).collect());
        }
        let outside = |value: &dyn fmt::Display| Error::invalid("data", format!("numbers that {} holds", datatype.name()), value);
        let values = match self {
            Self::Whole(values) => values,
            Self::Real(values) => return Err(outside(&values.iter().find(|value| value.fract() != 0.0).copied().unwrap_or_default())),
        };
        let bits = 8 * datatype.size() as u32;
        let (least, most) = match datatype {
            Datatype::Bool => (0, 1),
            Datatype::Uint64 => (0, i64::MAX),
            Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => (0, (1i64 << bits) - 1),
            _ => (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)),
        };
        if let Some(value) = values.iter().find(|value| !(least..=most).contains(*value)) {
            return Err(outside(value));
        }
        let size = datatype.size() as usize;
        Ok(values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(size)).collect())
    }

    fn reals(&self) -> Vec<f64> {
        match self {
            Self::Whole(values) => values.iter().map(|value| *value as f64).collect(),
            Self::Real(values) => values.clone(),
        }
    }

    fn floats(&self, dtype: DType, datatype: Datatype) -> Result<Vec<u8>> {
        let bytes = dtype.encode(&self.reals());
        match dtype.all_finite(&bytes) {
            true => Ok(bytes),
            false => Err(Error::invalid("data", format!("numbers that {} holds", datatype.name()), "a greater one")),
        }
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut values = Self::Whole(Vec::new());
        Push(&mut values, false).deserialize(deserializer)?;
        Ok(values)
    }
}

/// Puts what is read into values. A number alone is no tensor.
struct Push<'a>(&'a mut Values, bool);

impl<'de> DeserializeSeed<'de> for Push<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        match self.1 {
            true => deserializer.deserialize_any(self),
            false => deserializer.deserialize_seq(self),
        }
    }
}

impl<'de> Visitor<'de> for Push<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("numbers, or arrays of them")
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<(), E> {
        self.0.push_whole(i64::from(value));
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<(), E> {
        self.0.push_whole(value);
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> std::result::Result<(), E> {
        let value = i64::try_from(value).map_err(|_| E::custom(format_args!("{value}: expected a number below 2^63; send more as binary data")))?;
        self.0.push_whole(value);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<(), E> {
        self.0.push_real(value);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<(), A::Error> {
        while list.next_element_seed(Push(self.0, true))?.is_some() {}
        if self.0.len() > u32::MAX as usize {
            return Err(A::Error::custom("expected fewer numbers"));
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> serde_json::Result<Values> {
        serde_json::from_str(text)
    }

    #[test]
    fn nested_and_flat_arrays_are_the_same_numbers() {
        assert_eq!(read("[1, [2, [3]], []]").unwrap(), Values::Whole(vec![1, 2, 3]));
        assert_eq!(read("[1, 2.5, true]").unwrap(), Values::Real(vec![1.0, 2.5, 1.0]));
        for bad in ["1", "\"a\"", "[\"a\"]", "[null]", "[{}]", "[18446744073709551615]", "[1", &"[".repeat(200)] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn elements_are_rounded_once_and_numbers_outside_a_type_are_refused() {
        let encode = |text: &str, datatype| read(text).unwrap().encode(datatype);
        assert_eq!(encode("[1, 255]", Datatype::Uint8).unwrap(), [1, 255]);
        assert_eq!(encode("[-2, 2147483647]", Datatype::Int32).unwrap(), [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        assert_eq!(encode("[0.1]", Datatype::Fp32).unwrap(), 0.1f32.to_le_bytes());
        assert_eq!(encode("[1]", Datatype::Fp16).unwrap(), [0, 0x3c]);
        assert_eq!(encode("[1]", Datatype::Bf16).unwrap(), [0x80, 0x3f]);
        assert_eq!(encode("[0.1]", Datatype::Fp64).unwrap(), 0.1f64.to_le_bytes());
        assert_eq!(encode("[true, false]", Datatype::Bool).unwrap(), [1, 0]);
        for (text, datatype) in [
            ("[256]", Datatype::Uint8),
            ("[-1]", Datatype::Uint64),
            ("[2147483648]", Datatype::Int32),
            ("[128]", Datatype::Int8),
            ("[1.5]", Datatype::Int32),
            ("[1e39]", Datatype::Fp32),
            ("[65520]", Datatype::Fp16),
            ("[2]", Datatype::Bool),
        ] {
            assert!(encode(text, datatype).is_err(), "{text} as {}", datatype.name());
        }
    }
}
