//! Types of elements by the names of the protocol.

use trifuse::DType;

/// The type of a tensor's elements. `BYTES`, whose elements have lengths of their own, is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datatype {
    /// Truth values, a byte each.
    Bool,
    /// Whole numbers without a sign, of 8 bits.
    Uint8,
    /// Whole numbers without a sign, of 16 bits.
    Uint16,
    /// Whole numbers without a sign, of 32 bits.
    Uint32,
    /// Whole numbers without a sign, of 64 bits.
    Uint64,
    /// Whole numbers with a sign, of 8 bits.
    Int8,
    /// Whole numbers with a sign, of 16 bits.
    Int16,
    /// Whole numbers with a sign, of 32 bits.
    Int32,
    /// Whole numbers with a sign, of 64 bits.
    Int64,
    /// IEEE 754 binary16.
    Fp16,
    /// The upper half of a binary32.
    Bf16,
    /// IEEE 754 binary32.
    Fp32,
    /// IEEE 754 binary64.
    Fp64,
}

/// Every type with its name and the bytes of an element.
const ALL: [(Datatype, &str, u64); 13] = [
    (Datatype::Bool, "BOOL", 1),
    (Datatype::Uint8, "UINT8", 1),
    (Datatype::Uint16, "UINT16", 2),
    (Datatype::Uint32, "UINT32", 4),
    (Datatype::Uint64, "UINT64", 8),
    (Datatype::Int8, "INT8", 1),
    (Datatype::Int16, "INT16", 2),
    (Datatype::Int32, "INT32", 4),
    (Datatype::Int64, "INT64", 8),
    (Datatype::Fp16, "FP16", 2),
    (Datatype::Bf16, "BF16", 2),
    (Datatype::Fp32, "FP32", 4),
    (Datatype::Fp64, "FP64", 8),
];

impl Datatype {
    /// The type of that name.
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|(_, known, _)| *known == name).map(|(datatype, ..)| *datatype)
    }

    /// The type's name.
    pub const fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// Bytes of an element.
    pub const fn size(self) -> u64 {
        ALL[self as usize].2
    }

    /// The type that operations know it as.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Self::Fp16 => Some(DType::F16),
            Self::Bf16 => Some(DType::BF16),
            Self::Fp32 => Some(DType::F32),
            _ => None,
        }
    }
}

impl From<DType> for Datatype {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F16 => Self::Fp16,
            DType::BF16 => Self::Bf16,
            DType::F32 => Self::Fp32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lies_in_the_order_of_the_types() {
        for (at, (datatype, name, size)) in ALL.into_iter().enumerate() {
            assert_eq!((datatype as usize, Datatype::named(name), datatype.name(), datatype.size()), (at, Some(datatype), name, size));
        }
        assert_eq!((Datatype::named("BYTES"), Datatype::named("fp32")), (None, None));
    }
}
