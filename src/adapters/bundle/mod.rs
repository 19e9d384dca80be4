//! The bundle: a compressed population in one file, `.s2lc`.
//!
//! It is a safetensors file, so any reader of such files opens it. Its tensors:
//!
//! | tensor | type and shape | what |
//! |---|---|---|
//! | `shared.MODULE.input` | F16 or I8 `[bases, d_in, R]` | the input bases of that projection; I8 counts steps of 1/128 |
//! | `shared.MODULE.output` | F16 or I8 `[bases, d_out, R]` | the output bases |
//! | `adapters.NAME.codes` | U32 | packed columns ([`crate::ops::codes`]), projection by projection |
//! | `adapters.NAME.values` | F16 | codebooks, cores and plain factors that f16 holds exactly |
//! | `adapters.NAME.values32` | F32 | the other codebooks and cores |
//! | `adapters.NAME.index` | U8, JSON | the PEFT configuration, and how the above make each projection |
//!
//! An empty tensor is left out. In the index, `projections` lists for each projection: its number in the header's order; the scale; the
//! input factor; the core as `[bits, rows, columns]` of its leading block, or null; the output factor; the certificate (see
//! [`Certificate`](super::certificate::Certificate), in the order of its fields, the rung by number). A factor is the number of a shared
//! basis, or `{"plain": columns}`, or `[bits of the codebook's numbers, [[bits of a code, columns], …]]`. Its numbers follow one another in
//! the streams in that order. A codebook has only the entries in use.
//!
//! `__metadata__` holds `header_sha256`, `format`, `version` and, under `s2lc`, a [`Header`] in JSON. That has a SHA-256 for each adapter
//! and for the bases of each projection. The header's own checksum covers all its bytes, with the length, and with zeros for its digits. So
//! a flipped or missing byte anywhere is found: in the header by [`Bundle::open`], in an adapter by [`Bundle::adapter`], anywhere by
//! [`Bundle::verify`]. Checksums find damage, not forgery, so what is read is also checked for sense.

mod header;
mod held;
mod index;
#[cfg(feature = "compress")]
pub(crate) mod size;
mod stored;
mod write;

pub use header::{AdapterEntry, Header, ProjectionEntry};
pub use write::{file_bytes, to_bytes, write};

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use half::f16;
use sha2::{Digest, Sha256};

use super::encoded::{EncodedAdapter, Matrix, Population, SharedProjection, SharedShape};
use super::whole::check_name;
use crate::error::{Error, Result};
use crate::safetensors_file::{Dtype, TensorFile};
use stored::Streams;

/// An open bundle. The header is in memory, and the rest is read when asked for.
#[derive(Debug)]
pub struct Bundle {
    file: TensorFile,
    header: Header,
    /// The projections' shapes, by module path.
    shapes: BTreeMap<String, SharedShape>,
}

/// The parts of an adapter's group, in the order of its checksum.
const PARTS: [(&str, Dtype); 4] = [("values32", Dtype::F32), ("codes", Dtype::U32), ("values", Dtype::F16), ("index", Dtype::U8)];
const SIDES: [&str; 2] = ["input", "output"];

impl Bundle {
    /// Opens a bundle and checks its header.
    ///
    /// # Errors
    /// [`Error::Io`] where the system refuses; [`Error::Input`] for what is not a bundle, or a damaged or newer one.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::from_file(TensorFile::open(path)?)
    }

    /// Opens a bundle whose file is already in memory, and checks its header. Errors name `path`.
    ///
    /// # Errors
    /// The errors of [`Bundle::open`].
    pub fn from_bytes(path: impl AsRef<Path>, bytes: Vec<u8>) -> Result<Self> {
        Self::from_file(TensorFile::from_bytes(path, bytes)?)
    }

    fn from_file(file: TensorFile) -> Result<Self> {
        let fault = |problem: String| Error::input(file.path(), problem);
        header::check(file.header()).map_err(fault)?;
        for (key, expected) in [("format", header::FORMAT), ("version", header::VERSION)] {
            let found = file.metadata(key).unwrap_or_default();
            if found != expected {
                return Err(fault(format!("expected {key} {expected:?}, found {found:?}; a newer version of this program may read it")));
            }
        }
        let text = file.metadata(header::HEADER_KEY).unwrap_or_default();
        let header: Header = serde_json::from_str(text).map_err(|error| fault(format!("the header is not sound: {error}")))?;
        let mut known = BTreeSet::new();
        let mut shapes = BTreeMap::new();
        within(&header).map_err(fault)?;
        for (name, entry) in &header.projections {
            known.extend(SIDES.map(|side| format!("shared.{name}.{side}")));
            let input = basis_shape(&file, name, "input", entry.d_in)?;
            let output = basis_shape(&file, name, "output", entry.d_out)?;
            if entry.sha256.is_none() && input[0] + output[0] > 0 {
                return Err(fault(format!("{name}: expected a checksum of its bases, found none")));
            }
            shapes.insert(name.clone(), SharedShape { d_in: entry.d_in, d_out: entry.d_out, input, output });
        }
        for name in header.adapters.keys() {
            check_name(name).map_err(fault)?;
            known.extend(PARTS.map(|(part, _)| format!("adapters.{name}.{part}")));
        }
        if let Some(odd) = file.names().into_iter().find(|name| !known.contains(name)) {
            return Err(Error::input_item(file.path(), odd, "expected tensors of the header's projections and adapters, found this one"));
        }
        Ok(Self { file, header, shapes })
    }

    /// The path by which the bundle was opened.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Bytes of the file, by which the compression is to be judged.
    pub fn file_bytes(&self) -> u64 {
        self.file.len()
    }

    /// Projections, adapters, their summaries and checksums.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The adapters' names, sorted.
    pub fn adapters(&self) -> impl ExactSizeIterator<Item = &str> {
        self.header.adapters.keys().map(String::as_str)
    }

    /// The projections' module paths, sorted, and their sizes.
    pub fn projections(&self) -> impl ExactSizeIterator<Item = (&str, SharedShape)> {
        self.shapes.iter().map(|(path, shape)| (path.as_str(), *shape))
    }

    /// Bytes of the bases that the population shares.
    pub fn shared_bytes(&self) -> u64 {
        let names = self.header.projections.keys().flat_map(|name| SIDES.map(|side| format!("shared.{name}.{side}")));
        self.tensor_bytes(names)
    }

    /// Bytes of one adapter's own tensors with its index; 0 for an adapter that the bundle does not have.
    pub fn adapter_bytes(&self, name: &str) -> u64 {
        self.tensor_bytes(PARTS.map(|(part, _)| format!("adapters.{name}.{part}")).into_iter())
    }

    fn tensor_bytes(&self, names: impl Iterator<Item = String>) -> u64 {
        names.filter_map(|name| self.file.info(&name)).map(|info| info.range.len() as u64).sum()
    }

    /// Reads and checks the bases of one projection.
    ///
    /// # Errors
    /// A projection that the bundle does not have; damage.
    pub fn shared(&self, projection: &str) -> Result<SharedProjection> {
        let Some((shape, entry)) = self.shapes.get(projection).copied().zip(self.header.projections.get(projection)) else {
            return Err(self.missing(projection, "projection", self.header.projections.keys()));
        };
        let mut digest = Sha256::new();
        let mut side = |name: &str, d: usize, [bases, rank]: [usize; 2]| -> Result<Vec<Matrix<f16>>> {
            if bases == 0 {
                return Ok(Vec::new());
            }
            let (info, bytes) = self.file.bytes(&format!("shared.{projection}.{name}"))?;
            digest.update(&bytes);
            let values: Vec<f16> = match info.dtype {
                Dtype::I8 => bytes.iter().map(|&step| f16::from_f32(f32::from(step as i8) / 128.0)).collect(),
                _ => halves(&bytes),
            };
            Ok(values.chunks_exact(d * rank).map(|basis| Matrix { rows: d, cols: rank, data: basis.to_vec() }).collect())
        };
        let (input_bases, output_bases) = (side("input", shape.d_in, shape.input)?, side("output", shape.d_out, shape.output)?);
        if let Some(expected) = &entry.sha256 {
            self.check(projection, digest, expected)?;
        }
        let shared = SharedProjection { d_in: shape.d_in, d_out: shape.d_out, input_bases, output_bases };
        shared.shape().map_err(|error| Error::input_item(self.path(), projection, error.to_string()))?;
        Ok(shared)
    }

    /// Reads and checks one adapter. Nothing else of the file is touched.
    ///
    /// # Errors
    /// An adapter that the bundle does not have; damage; codes, shapes or values that make no sense.
    pub fn adapter(&self, name: &str) -> Result<EncodedAdapter> {
        let Some(entry) = self.header.adapters.get(name) else {
            return Err(self.missing(name, "adapter", self.header.adapters.keys()));
        };
        let mut digest = Sha256::new();
        let mut parts: [Vec<u8>; 4] = Default::default();
        for (part, (suffix, dtype)) in parts.iter_mut().zip(PARTS) {
            let tensor = format!("adapters.{name}.{suffix}");
            if self.file.info(&tensor).is_none() {
                continue;
            }
            let (info, bytes) = self.file.bytes(&tensor)?;
            if suffix == "index" && bytes.len() > MAX_INDEX_BYTES {
                return Err(Error::input_item(self.path(), tensor, format!("expected at most {MAX_INDEX_BYTES} bytes, found {}", bytes.len())));
            }
            if info.dtype != dtype {
                return Err(Error::input_item(self.path(), tensor, format!("expected {dtype:?}, found {:?}", info.dtype)));
            }
            digest.update(&bytes);
            *part = bytes;
        }
        self.check(name, digest, &entry.sha256)?;
        let [singles, codes, values, index] = parts;
        let words = |bytes: &[u8]| bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<_>>();
        let singles = words(&singles).into_iter().map(f32::from_bits).collect();
        let streams = Streams { singles, codes: words(&codes), halves: halves(&values) };
        let shapes: Vec<(&str, SharedShape)> = self.projections().collect();
        index::decode(&index, &streams, &shapes).map_err(|problem| Error::input_item(self.path(), name, problem))
    }

    /// Reads and checks the whole population, where it takes no more memory than [`Bundle::most_memory`].
    ///
    /// # Errors
    /// The errors of [`Bundle::population_within`].
    pub fn population(&self) -> Result<Population> {
        self.population_within(self.most_memory())
    }

    /// What [`Bundle::population`] keeps in memory at most: 64 times the bundle and 64 MiB. A few bytes can describe columns that hold nothing.
    pub fn most_memory(&self) -> u64 {
        self.file_bytes().saturating_mul(64).saturating_add(64 << 20)
    }

    /// Reads and checks the whole population, of at most `most` bytes in memory. It reads no further than the part that passes them.
    ///
    /// # Errors
    /// The errors of [`Bundle::shared`] and [`Bundle::adapter`]; a population that takes more.
    pub fn population_within(&self, most: u64) -> Result<Population> {
        let mut bytes = 0u64;
        let mut spend = |part: &str, more: u64| {
            bytes = bytes.saturating_add(more);
            if bytes <= most {
                return Ok(());
            }
            let problem =
                format!("expected at most {most} bytes in memory in all, found {bytes} up to here: raise the limit (--max-bytes) if you trust the file");
            Err(Error::input_item(self.path(), part, problem))
        };
        let mut population = Population { projections: BTreeMap::new(), adapters: BTreeMap::new() };
        for (name, shape) in &self.shapes {
            spend(name, held::bases_bytes(shape))?;
            population.projections.insert(name.clone(), self.shared(name)?);
        }
        for name in self.header.adapters.keys() {
            let adapter = self.adapter(name)?;
            spend(name, held::adapter_bytes(&adapter))?;
            population.adapters.insert(name.clone(), adapter);
        }
        Ok(population)
    }

    /// Reads and checks every byte, keeping nothing.
    ///
    /// # Errors
    /// The first fault.
    pub fn verify(&self) -> Result<()> {
        self.header.projections.keys().try_for_each(|name| self.shared(name).map(drop))?;
        self.header.adapters.keys().try_for_each(|name| self.adapter(name).map(drop))
    }

    fn check(&self, item: &str, digest: Sha256, expected: &str) -> Result<()> {
        let found = header::hex(digest);
        match found == expected {
            true => Ok(()),
            false => Err(Error::input_item(self.path(), item, format!("its bytes are damaged: their SHA-256 is {found}, not {expected}"))),
        }
    }

    fn missing<'a>(&self, name: &str, what: &str, known: impl Iterator<Item = &'a String>) -> Error {
        let known: Vec<&str> = known.take(20).map(String::as_str).collect();
        Error::invalid(self.path().display().to_string(), format!("one of its {what}s, such as {}", known.join(", ")), format!("{name:?}"))
    }
}

/// Projections of a bundle, at most: those of the experts of the largest models.
const MAX_PROJECTIONS: usize = 1 << 16;
/// Longest module path, in bytes.
const MAX_PATH_BYTES: usize = 1024;
/// Longest index of an adapter, in bytes: its configuration, and some 100 bytes for each projection.
const MAX_INDEX_BYTES: usize = 16 << 20;

/// Refuses a header that costs out of proportion to look at.
fn within(header: &Header) -> Result<(), String> {
    if header.projections.len() > MAX_PROJECTIONS {
        return Err(format!("expected at most {MAX_PROJECTIONS} projections, found {}", header.projections.len()));
    }
    match header.projections.keys().find(|path| path.len() > MAX_PATH_BYTES) {
        Some(path) => Err(format!("expected module paths of at most {MAX_PATH_BYTES} bytes, found one of {}", path.len())),
        None => Ok(()),
    }
}

/// How many bases a projection has on one side, and their columns.
fn basis_shape(file: &TensorFile, projection: &str, side: &str, d: usize) -> Result<[usize; 2]> {
    let name = format!("shared.{projection}.{side}");
    let Some(info) = file.info(&name) else {
        return Ok([0, 0]);
    };
    match (info.dtype, info.shape.as_slice()) {
        (Dtype::F16 | Dtype::I8, &[bases, rows, rank]) if rows == d && bases > 0 && rank > 0 && d > 0 => Ok([bases, rank]),
        (dtype, shape) => Err(Error::input_item(file.path(), name, format!("expected F16 or I8 [bases, {d}, R], found {dtype:?} {shape:?}"))),
    }
}

fn halves(bytes: &[u8]) -> Vec<f16> {
    bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]])).collect()
}
