//! Writing a bundle.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use half::f16;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::header::{AdapterEntry, FORMAT, HEADER_KEY, Header, ProjectionEntry, VERSION, hex, seal};
use super::index;
use crate::adapters::encoded::{EncodedAdapter, Matrix, Population, SharedShape};
use crate::adapters::whole::{check_name, write_file};
use crate::error::{Error, Result};

/// Bytes of the file that [`write()`] would write.
///
/// # Errors
/// The errors of [`write()`].
pub fn file_bytes(population: &Population) -> Result<u64> {
    Ok(Parts::new(population)?.len())
}

/// Writes the population to `path`, whole or not at all, and returns the bytes of the file. Reading it back gives
/// [`Population::as_stored`].
///
/// # Errors
/// A population that does not fit together; a name that cannot be a folder's; what the system refused.
pub fn write(path: impl AsRef<Path>, population: &Population) -> Result<u64> {
    let parts = Parts::new(population)?;
    write_file(path.as_ref(), |out| parts.write(out))?;
    Ok(parts.len())
}

/// The bytes that [`write()`] would write.
///
/// # Errors
/// The errors of [`write()`].
pub fn to_bytes(population: &Population) -> Result<Vec<u8>> {
    let parts = Parts::new(population)?;
    let mut bytes = Vec::with_capacity(parts.len() as usize);
    parts.write(&mut bytes).map_err(Error::io("memory", "write"))?;
    Ok(bytes)
}

/// One tensor to be written.
struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// A whole file.
pub(super) struct Parts {
    header: Vec<u8>,
    tensors: Vec<Tensor>,
}

impl Parts {
    pub(super) fn new(population: &Population) -> Result<Self> {
        let mut header = Header { projections: BTreeMap::new(), adapters: BTreeMap::new() };
        let mut shapes = BTreeMap::new();
        let mut bases = Vec::new();
        for (name, shared) in &population.projections {
            let shape = shared.shape().map_err(|error| within(name, &error))?;
            shapes.insert(name.as_str(), shape);
            let tensors = [("input", &shared.input_bases), ("output", &shared.output_bases)];
            let tensors: Vec<Tensor> = tensors.into_iter().filter_map(|(side, bases)| stack(&format!("shared.{name}.{side}"), bases)).collect();
            let sha256 = (!tensors.is_empty()).then(|| checksum(&tensors));
            header.projections.insert(name.clone(), ProjectionEntry { d_in: shared.d_in, d_out: shared.d_out, sha256 });
            bases.extend(tensors);
        }
        let numbers: BTreeMap<&str, usize> = population.projections.keys().enumerate().map(|(number, name)| (name.as_str(), number)).collect();
        let mut tensors = Vec::new();
        for (name, adapter) in &population.adapters {
            let adapter = adapter.as_stored();
            validate(name, &adapter, &shapes)?;
            let group = group(name, &adapter, &numbers)?;
            header.adapters.insert(name.clone(), AdapterEntry::new(&adapter, checksum(&group)));
            tensors.extend(group);
        }
        // Each adapter's bytes are a multiple of eight, so every tensor lies at a multiple of its element; the bases, of
        // two bytes an element and then of one, come last.
        bases.sort_by_key(|tensor| tensor.dtype == "I8");
        tensors.extend(bases);
        let header = seal(&metadata(&header)?, &entries(&tensors)?);
        Ok(Self { header, tensors })
    }

    pub(super) fn len(&self) -> u64 {
        self.header.len() as u64 + self.tensors.iter().map(|tensor| tensor.bytes.len() as u64).sum::<u64>()
    }

    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        out.write_all(&self.header)?;
        self.tensors.iter().try_for_each(|tensor| out.write_all(&tensor.bytes))
    }
}

fn within(name: &str, error: &Error) -> Error {
    Error::invalid(name, "an encoded projection that fits together", error)
}

pub(super) fn json_error(error: serde_json::Error) -> Error {
    Error::invalid("bundle", "a population that JSON can describe", error)
}

fn validate(name: &str, adapter: &EncodedAdapter, shapes: &BTreeMap<&str, SharedShape>) -> Result<()> {
    check_name(name).map_err(|problem| Error::invalid("adapter", "a name for a folder", problem))?;
    for (module, projection) in &adapter.projections {
        let subject = format!("{name}: {module}");
        let Some(shape) = shapes.get(module.as_str()) else {
            return Err(Error::invalid(subject, "a projection of the population", "one that it lacks"));
        };
        projection.validate(shape).map_err(|error| within(&subject, &error))?;
        projection.certificate.validate().map_err(|error| within(&subject, &error))?;
    }
    Ok(())
}

/// Bases of one shape as one tensor `[bases, d, R]`, in a byte an element where a byte holds each exactly.
fn stack(name: &str, bases: &[Matrix<f16>]) -> Option<Tensor> {
    let first = bases.first()?;
    let (dtype, bytes) = match bases.iter().map(Matrix::as_steps).collect::<Option<Vec<_>>>() {
        Some(steps) => ("I8", steps.concat().into_iter().map(|step| step as u8).collect()),
        None => ("F16", bases.iter().flat_map(|basis| halves(&basis.data)).collect()),
    };
    Some(Tensor { name: name.into(), dtype, shape: vec![bases.len(), first.rows, first.cols], bytes })
}

fn halves(values: &[f16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// The tensors of one adapter. They are few and long, since each costs a hundred bytes of header.
fn group(name: &str, adapter: &EncodedAdapter, numbers: &BTreeMap<&str, usize>) -> Result<Vec<Tensor>> {
    let (mut index, streams) = index::encode(adapter, numbers).map_err(json_error)?;
    let tensor = |part: &str, dtype, elements: usize, bytes: Vec<u8>| Tensor { name: format!("adapters.{name}.{part}"), dtype, shape: vec![elements], bytes };
    // Spaces are white space to JSON: they keep the next adapter aligned.
    let others = streams.bytes() as usize;
    index.resize((others + index.len()).next_multiple_of(8) - others, b' ');
    let tensors = [
        tensor("values32", "F32", streams.singles.len(), streams.singles.iter().flat_map(|value| value.to_le_bytes()).collect()),
        tensor("codes", "U32", streams.codes.len(), streams.codes.iter().flat_map(|word| word.to_le_bytes()).collect()),
        tensor("values", "F16", streams.halves.len(), halves(&streams.halves)),
        tensor("index", "U8", index.len(), index),
    ];
    Ok(tensors.into_iter().filter(|tensor| !tensor.bytes.is_empty()).collect())
}

fn checksum(tensors: &[Tensor]) -> String {
    let mut digest = Sha256::new();
    tensors.iter().for_each(|tensor| digest.update(&tensor.bytes));
    hex(digest)
}

/// The JSON of `__metadata__` from its second key on, closed.
fn metadata(header: &Header) -> Result<String> {
    let header = serde_json::to_string(header).map_err(json_error)?;
    let all = json!({ "format": FORMAT, "version": VERSION, HEADER_KEY: header }).to_string();
    Ok(all[1..].to_owned())
}

/// The tensors' entries, each after a comma, closed.
fn entries(tensors: &[Tensor]) -> Result<String> {
    let mut entries = String::new();
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.bytes.len();
        let entry = json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end] });
        entries.push_str(&format!(",{}:{entry}", serde_json::to_string(&tensor.name).map_err(json_error)?));
        start = end;
    }
    Ok(entries + "}")
}
