//! An input of a request: its type, its shape, and where its elements are.

use bytes::Bytes;
use trifuse::{Error, Result};

use super::datatype::Datatype;
use super::parameters::Parameters;
use super::values::Values;

/// Dimensions of a tensor, at most.
const MAX_RANK: usize = 8;

/// A part of memory that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name of the memory.
    pub name: String,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes of the part.
    pub bytes: u64,
}

impl Place {
    /// The place that parameters name, if they do.
    ///
    /// # Errors
    /// A place without a size, or a size without a place; an end that no memory has.
    pub fn read(parameters: &mut Parameters) -> Result<Option<Self>> {
        let (name, offset) = (parameters.text("shared_memory_region")?, parameters.count("shared_memory_offset")?);
        let bytes = parameters.count("shared_memory_byte_size")?;
        match (name, bytes) {
            (None, None) if offset.is_none() => Ok(None),
            (Some(name), Some(bytes)) => {
                let offset = offset.unwrap_or(0);
                let end = offset.checked_add(bytes).filter(|end| *end <= i64::MAX as u64);
                end.ok_or_else(|| Error::invalid("shared_memory_offset", "an end below 2^63", offset))?;
                Ok(Some(Self { name, offset, bytes }))
            }
            _ => Err(Error::invalid("shared memory", "shared_memory_region and shared_memory_byte_size", "one of them alone, or an offset alone")),
        }
    }
}

/// The elements of a tensor as a request has them in itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// Numbers.
    Numbers(Values),
    /// Bytes, little-endian.
    Bytes(Bytes),
}

/// Where the elements of a tensor are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Here, little-endian.
    Bytes(Bytes),
    /// In memory that has a name.
    Region(Place),
}

/// An input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The input's name.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Its elements.
    pub count: u64,
    /// Where they are: as many bytes as they have.
    pub data: Data,
}

impl Tensor {
    /// A tensor of what is written.
    ///
    /// # Errors
    /// Another type; no elements, or another number of them.
    pub fn read(name: String, datatype: &str, shape: Vec<u64>, mut parameters: Parameters, given: Option<Given>) -> Result<Self> {
        let subject = |what: &str| format!("input {:?}: {what}", name.chars().take(80).collect::<String>());
        let datatype = Datatype::named(datatype).ok_or_else(|| {
            Error::invalid(subject("datatype"), "a type of numbers, such as FP32", format_args!("{:?}", datatype.chars().take(20).collect::<String>()))
        })?;
        if shape.len() > MAX_RANK {
            return Err(Error::invalid(subject("shape"), format!("at most {MAX_RANK} dimensions"), shape.len()));
        }
        let count = shape.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
        let bytes = count.and_then(|count| count.checked_mul(datatype.size())).filter(|bytes| *bytes <= i64::MAX as u64);
        let (Some(count), Some(bytes)) = (count, bytes) else {
            return Err(Error::invalid(subject("shape"), "fewer than 2^63 bytes", "more"));
        };
        let sized = |what: &str, found: u64| match found == bytes {
            true => Ok(()),
            false => Err(Error::invalid(subject(what), format!("{bytes} bytes, as datatype and shape say"), found)),
        };
        let place = Place::read(&mut parameters)?;
        parameters.end(|| format!("input {name:?}"))?;
        let data = match (given, place) {
            (Some(Given::Numbers(values)), None) => {
                if values.len() as u64 != count {
                    return Err(Error::invalid(subject("data"), format!("{count} numbers, as the shape says"), values.len()));
                }
                let encoded = values.encode(datatype).map_err(|error| match error {
                    Error::Invalid { subject: what, expected, found } => Error::invalid(subject(&what), expected, found),
                    other => other,
                });
                Data::Bytes(encoded?.into())
            }
            (Some(Given::Bytes(binary)), None) => {
                sized("binary data", binary.len() as u64)?;
                Data::Bytes(binary)
            }
            (None, Some(place)) => {
                sized("shared_memory_byte_size", place.bytes)?;
                Data::Region(place)
            }
            (None, None) => return Err(Error::invalid(subject("data"), "numbers, binary data, or shared_memory_region", "none of them")),
            (Some(_), Some(_)) => return Err(Error::invalid(subject("data"), "one of numbers, binary data and shared_memory_region", "more than one")),
        };
        Ok(Self { name, datatype, shape, count, data })
    }

    /// The bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.datatype.size())
    }

    /// Refuses elements of other types.
    ///
    /// # Errors
    /// It has another type.
    pub fn must_be(&self, datatypes: &[Datatype]) -> Result<()> {
        if datatypes.contains(&self.datatype) {
            return Ok(());
        }
        let names: Vec<&str> = datatypes.iter().map(|datatype| datatype.name()).collect();
        Err(Error::invalid(format!("input {:?}: datatype", self.name), names.join(" or "), self.datatype.name()))
    }
}

/// Takes the first item that is meant.
pub(super) fn take<T>(items: &mut Vec<T>, is: impl Fn(&T) -> bool) -> Option<T> {
    items.iter().position(is).map(|at| items.remove(at))
}

/// Whole numbers of 32 bits as they lie in memory.
pub fn int32(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|bytes| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}
