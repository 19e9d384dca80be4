//! The elements of a tensor that a message has as numbers.

use trifuse::{Error, Result};

use super::messages::Contents;
use crate::kserve::datatype::Datatype;
use crate::kserve::tensor::Given;
use crate::kserve::values::Values;

fn whole<T: Into<i64>>(values: Vec<T>) -> Given {
    Given::Numbers(Values::Whole(values.into_iter().map(Into::into).collect()))
}

fn bytes<T, const N: usize>(values: &[T], le: impl Fn(&T) -> [u8; N]) -> Given {
    Given::Bytes(values.iter().flat_map(le).collect::<Vec<u8>>().into())
}

/// The elements of a type, of which a message has a field: the others must be empty.
///
/// # Errors
/// Elements in the field of another type; a type without a field.
pub fn given(datatype: Datatype, contents: Contents) -> Result<Given> {
    let Contents { bool_contents, int_contents, int64_contents, uint_contents, uint64_contents, fp32_contents, fp64_contents } = contents;
    let fields = [
        ("bool_contents", bool_contents.len()),
        ("int_contents", int_contents.len()),
        ("int64_contents", int64_contents.len()),
        ("uint_contents", uint_contents.len()),
        ("uint64_contents", uint64_contents.len()),
        ("fp32_contents", fp32_contents.len()),
        ("fp64_contents", fp64_contents.len()),
    ];
    let (field, given) = match datatype {
        Datatype::Bool => ("bool_contents", whole(bool_contents)),
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => ("int_contents", whole(int_contents)),
        Datatype::Int64 => ("int64_contents", whole(int64_contents)),
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => ("uint_contents", whole(uint_contents)),
        // Bits are kept: not all of these are among numbers of 63 bits, or among the finite ones.
        Datatype::Uint64 => ("uint64_contents", bytes(&uint64_contents, |value| value.to_le_bytes())),
        Datatype::Fp32 => ("fp32_contents", bytes(&fp32_contents, |value| value.to_le_bytes())),
        Datatype::Fp64 => ("fp64_contents", bytes(&fp64_contents, |value| value.to_le_bytes())),
        Datatype::Fp16 | Datatype::Bf16 => return Err(Error::invalid("contents", format!("raw_input_contents for {}", datatype.name()), "numbers")),
    };
    match fields.iter().find(|(name, count)| *name != field && *count > 0) {
        Some((name, _)) => Err(Error::invalid("contents", format!("{field} for {}", datatype.name()), name)),
        None => Ok(given),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_its_field_and_no_other() {
        let bytes = |datatype, contents| match given(datatype, contents)? {
            Given::Numbers(values) => values.encode(datatype),
            Given::Bytes(bytes) => Ok(bytes.to_vec()),
        };
        let none = Contents::default;
        assert_eq!(bytes(Datatype::Bool, Contents { bool_contents: vec![true, false], ..none() }).unwrap(), [1, 0]);
        assert_eq!(bytes(Datatype::Int8, Contents { int_contents: vec![-1, 127], ..none() }).unwrap(), [255, 127]);
        assert_eq!(bytes(Datatype::Int64, Contents { int64_contents: vec![i64::MIN], ..none() }).unwrap(), i64::MIN.to_le_bytes());
        assert_eq!(bytes(Datatype::Uint16, Contents { uint_contents: vec![65_535], ..none() }).unwrap(), [255, 255]);
        assert_eq!(bytes(Datatype::Uint64, Contents { uint64_contents: vec![u64::MAX], ..none() }).unwrap(), [255; 8]);
        assert_eq!(bytes(Datatype::Fp32, Contents { fp32_contents: vec![f32::INFINITY], ..none() }).unwrap(), f32::INFINITY.to_le_bytes());
        assert_eq!(bytes(Datatype::Fp64, Contents { fp64_contents: vec![0.1], ..none() }).unwrap(), 0.1f64.to_le_bytes());
        for (datatype, contents) in [
            (Datatype::Int8, Contents { int_contents: vec![128], ..none() }),
            (Datatype::Uint16, Contents { uint_contents: vec![65_536], ..none() }),
            (Datatype::Int32, Contents { int64_contents: vec![1], ..none() }),
            (Datatype::Fp32, Contents { fp32_contents: vec![1.0], fp64_contents: vec![1.0], ..none() }),
            (Datatype::Fp16, Contents { fp32_contents: vec![1.0], ..none() }),
        ] {
            assert!(bytes(datatype, contents.clone()).is_err(), "{contents:?} as {}", datatype.name());
        }
    }
}
