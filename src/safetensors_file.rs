//! The one reader of safetensors files, which come from outside and are not trusted.
//!
//! The format: eight bytes of header length, a JSON header that gives each tensor's type, shape and place, then the
//! tensors. The `safetensors` crate reads the header and checks that the tensors cover the data with no hole and no
//! overlap; sizes against the file, and values, are checked here.

mod bytes;

use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use half::{bf16, f16};
use rayon::prelude::*;
pub use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::read::open_file;

/// Longest header, in bytes: of some 200,000 tensors. In memory it takes twenty times that.
pub const MAX_HEADER_BYTES: u64 = 24 << 20;

const LENGTH_BYTES: usize = 8;

/// The first bytes of a file that Git LFS has not fetched.
const POINTER: &[u8] = b"version https://git-lfs";

/// Bytes of a tensor that a thread takes at a time: whole elements of every type. Fewer where they are made of others, which stay near the processor.
const PIECE: usize = 1 << 20;
const CONVERTED: usize = 1 << 17;

/// An open file whose header is sound. Tensors are read when asked for.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    bytes: Bytes,
    header: Vec<u8>,
    metadata: Metadata,
}

/// One tensor of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Element type, as the file names it.
    pub dtype: Dtype,
    /// Sizes, slowest dimension first.
    pub shape: Vec<usize>,
    /// The place of the tensor's bytes in the file.
    pub range: Range<usize>,
}

impl TensorFile {
    /// Opens the file and checks its header; reads nothing else.
    ///
    /// # Errors
    /// [`Error::Io`] where the system refuses; [`Error::Input`] for what is not a whole safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = open_file(path)?;
        let len = file.metadata().map_err(Error::io(path, "read"))?.len();
        Self::parse(path.into(), Bytes::of(file, len))
    }

    /// Checks the header of a file that is already in memory. Errors name `path`.
    ///
    /// # Errors
    /// [`Error::Input`] for what is not a whole safetensors file.
    pub fn from_bytes(path: impl AsRef<Path>, bytes: Vec<u8>) -> Result<Self> {
        Self::parse(path.as_ref().into(), Bytes::Memory(bytes))
    }

    fn parse(path: PathBuf, bytes: Bytes) -> Result<Self> {
        let fault = |problem: String| Error::input(&path, problem);
        let (size, start) = (bytes.len(), LENGTH_BYTES as u64);
        if size < start {
            let found = if size == 0 { "an empty file".into() } else { format!("{size} bytes, fewer than its header length takes") };
            return Err(fault(format!("expected a safetensors file, found {found}")));
        }
        let read = |range| bytes.read(range).map_err(Error::io(&path, "read"));
        if read(0..size.min(POINTER.len() as u64))? == POINTER {
            return Err(fault("expected a safetensors file, found what Git LFS keeps in its place; `git lfs pull` in its repository fetches it".into()));
        }
        let length = read(0..start)?.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        if length > MAX_HEADER_BYTES {
            return Err(fault(format!("expected a header of at most {MAX_HEADER_BYTES} bytes, found {length}: not a safetensors file, or a damaged one")));
        }
        if start + length > size {
            return Err(fault(format!("the header says {length} bytes, but the file has {size}: it was cut short")));
        }
        let header = read(0..start + length)?;
        // Not by the crate's own entry for whole files, whose sum of sizes can overflow.
        let metadata: Metadata = serde_json::from_slice(&header[LENGTH_BYTES..]).map_err(|error| fault(format!("the header is not sound: {error}")))?;
        if let Some(name) = twice(&header[LENGTH_BYTES..]) {
            return Err(Error::input_item(&path, name, "expected every name once in the header, found this one twice"));
        }
        let expected = (header.len() as u64).checked_add(metadata.data_len() as u64);
        if expected != Some(size) {
            let expected = expected.map_or_else(|| "more bytes than can be".to_owned(), |sum| format!("{sum} bytes"));
            return Err(fault(format!("the header describes {expected}, but the file has {size}: cut short, or something was added")));
        }
        Ok(Self { path, bytes, header, metadata })
    }

    /// The path by which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.bytes.len()
    }

    /// Whether the file is empty, which it never is: such a file is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The header's bytes with its length in front, as they were when the file was opened.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// One entry of the header's `__metadata__`.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// The tensors' names, in the order of their bytes.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Type, shape and place of a tensor.
    pub fn info(&self, name: &str) -> Option<TensorInfo> {
        let info = self.metadata.info(name)?;
        let (start, end) = info.data_offsets;
        Some(TensorInfo { dtype: info.dtype, shape: info.shape.clone(), range: self.header.len() + start..self.header.len() + end })
    }

    /// A copy of a tensor's bytes.
    ///
    /// # Errors
    /// A tensor that is not there; a file that cannot be read, as one that was cut short since it was opened.
    pub fn bytes(&self, name: &str) -> Result<(TensorInfo, Vec<u8>)> {
        let info = self.info(name).ok_or_else(|| Error::input_item(&self.path, name, "expected this tensor, found none of that name"))?;
        let bytes = self.bytes.read(info.range.start as u64..info.range.end as u64).map_err(Error::io(&self.path, "read"))?;
        Ok((info, bytes))
    }

    /// Writes the elements of a tensor of f32, f16 or bf16 from number `from` on, each rounded once to `dtype`, over all of `to`, by all threads.
    ///
    /// # Errors
    /// Those of [`floats`](Self::floats); more elements than there are; a value that `dtype` cannot hold.
    pub fn elements_into(&self, name: &str, dtype: DType, from: u64, to: &mut [u8]) -> Result<()> {
        let fault = |problem: String| Error::input_item(&self.path, name, problem);
        let info = self.info(name).ok_or_else(|| fault("expected this tensor, found none of that name".into()))?;
        let stored = float_type(info.dtype).ok_or_else(|| fault(format!("expected F32, F16 or BF16, found {:?}", info.dtype)))?;
        let [own, size] = [stored, dtype].map(DType::size);
        let (start, count, all) = (info.range.start as u64, to.len() as u64 / size, info.range.len() as u64 / own);
        if from.checked_add(count).is_none_or(|end| end > all) {
            return Err(fault(format!("expected at most {all} elements, found {count} from {from} on")));
        }
        let piece = if stored == dtype { PIECE } else { CONVERTED };
        let one = |(stored_bytes, values): &mut (Vec<u8>, Vec<f32>), number: usize, to: &mut [u8]| {
            let at = start + (from + (number * piece) as u64 / size) * own;
            if stored == dtype {
                self.bytes.read_into(at, to)?;
            } else {
                let count = to.len() / size as usize;
                stored_bytes.resize(count * own as usize, 0);
                values.resize(count, 0.0);
                self.bytes.read_into(at, stored_bytes)?;
                stored.decode_f32_into(stored_bytes, values);
                dtype.encode_f32_into(values, to);
            }
            Ok(dtype.all_finite(to))
        };
        let pieces = to.par_chunks_mut(piece).enumerate().map_init(Default::default, |memory, (number, to)| one(memory, number, to));
        if pieces.try_reduce(|| true, |one, other| Ok(one & other)).map_err(Error::io(&self.path, "read"))? {
            return Ok(());
        }
        // Which element it is, where it is not the rounding that made it.
        self.floats(name)?;
        Err(Error::invalid(name, format!("values that {dtype} can hold"), "one that it cannot; take bf16 or f32"))
    }

    /// A tensor of f32, f16 or bf16, widened exactly.
    ///
    /// # Errors
    /// Another type; a dimension of size 0; a value that is not finite.
    pub fn floats(&self, name: &str) -> Result<(DType, Vec<usize>, Vec<f32>)> {
        let (info, bytes) = self.bytes(name)?;
        let fault = |problem: String| Error::input_item(&self.path, name, problem);
        let Some(dtype) = float_type(info.dtype) else {
            return Err(fault(format!("expected F32, F16 or BF16, found {:?}", info.dtype)));
        };
        if info.shape.contains(&0) {
            return Err(fault(format!("expected sizes of at least 1, found {:?}", info.shape)));
        }
        let room = || Error::OutOfMemory { requested: 4 * bytes.len() as u64 / dtype.size(), purpose: format!("{name} of {}", self.path.display()) };
        let values = widen(dtype, &bytes).ok_or_else(room)?;
        if let Some((element, value)) = values.iter().enumerate().find(|(_, value)| !value.is_finite()) {
            return Err(fault(format!("expected finite numbers, found {value} at element {element} of {:?}", info.shape)));
        }
        Ok((dtype, info.shape, values))
    }
}

/// A key that a JSON object has twice: readers differ in which they take.
fn twice(object: &[u8]) -> Option<String> {
    struct Keys(Option<String>);
    impl<'de> serde::de::Visitor<'de> for Keys {
        type Value = Self;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
            let (mut seen, mut again) = (std::collections::HashSet::new(), None);
            while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                map.next_value::<serde::de::IgnoredAny>()?;
                if let Some(key) = seen.replace(key) {
                    again.get_or_insert(key.into_owned());
                }
            }
            Ok(Self(again))
        }
    }
    impl<'de> serde::Deserialize<'de> for Keys {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(Self(None))
        }
    }
    serde_json::from_slice::<Keys>(object).ok()?.0
}

/// The crate's own name of an element type, where it computes with it.
pub fn float_type(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        _ => None,
    }
}

/// The values of some bytes in f32; nothing where the system has no memory for them.
fn widen(dtype: DType, bytes: &[u8]) -> Option<Vec<f32>> {
    let mut values = Vec::new();
    values.try_reserve_exact(bytes.len() / dtype.size() as usize).ok()?;
    match dtype {
        DType::F32 => values.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
        DType::F16 => values.extend(bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32())),
        DType::BF16 => values.extend(bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())),
    }
    Some(values)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Result<TensorFile> {
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
        TensorFile::from_bytes("test.safetensors", bytes)
    }

    #[test]
    fn sound_files_open() {
        let header = r#"{"__metadata__":{"format":"pt"},"x":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}}"#;
        let file = file(header, &[0, 0x3c, 0, 0xc0]).unwrap();
        assert_eq!(file.floats("x").unwrap(), (DType::F16, vec![1, 2], vec![1.0, -2.0]));
        assert_eq!(file.metadata("format"), Some("pt"));
        assert_eq!(file.names(), ["x"]);
    }

    #[test]
    fn faults_are_typed_and_named() {
        let tensor = |dtype: &str, shape: &str, offsets: &str| format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
        let opens = [
            ("not JSON", "{".to_owned(), 0, "header"),
            ("the header is a list", "[]".to_owned(), 0, "header"),
            ("cut short", tensor("F32", "[2]", "[0,8]"), 7, "69"),
            ("too long", tensor("F32", "[2]", "[0,8]"), 9, "71"),
            ("shape and offsets differ", tensor("F32", "[3]", "[0,8]"), 8, "header"),
            ("offsets backwards", tensor("F32", "[2]", "[8,0]"), 8, "header"),
            ("a hole", tensor("F32", "[1]", "[4,8]"), 8, "header"),
            ("sizes overflow", tensor("F32", "[4294967296,4294967296]", "[0,0]"), 0, "header"),
            ("negative size", tensor("F32", "[-1]", "[0,4]"), 4, "header"),
            ("unknown type", tensor("F13", "[1]", "[0,4]"), 4, "header"),
        ];
        for (name, header, bytes, word) in opens {
            let error = file(&header, &vec![0; bytes]).unwrap_err();
            assert!(matches!(error, Error::Input { .. }) && error.to_string().contains(word), "{name}: {error}");
        }
        let overlap = r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}"#;
        assert!(file(overlap, &[0; 6]).is_err());
        let twice = r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}"#;
        assert!(file(twice, &[0; 4]).unwrap_err().to_string().contains("x: expected every name once"));
        // Eight tensors of 2^61 bytes: the sum of sizes is beyond 64 bits with the header added.
        let part = 1u64 << 61;
        let vast: Vec<String> = (0..8u64)
            .map(|i| (i, i * part, (i + 1).saturating_mul(part)))
            .map(|(i, start, end)| format!(r#""t{i}":{{"dtype":"U8","shape":[{}],"data_offsets":[{start},{end}]}}"#, end - start))
            .collect();
        assert!(file(&format!("{{{}}}", vast.join(",")), &[]).is_err());
        for (name, header, data) in [
            ("whole numbers", tensor("I32", "[1]", "[0,4]"), vec![0; 4]),
            ("doubles", tensor("F64", "[1]", "[0,8]"), vec![0; 8]),
            ("NaN", tensor("F32", "[1]", "[0,4]"), f32::NAN.to_le_bytes().to_vec()),
            ("an infinity", tensor("BF16", "[1]", "[0,2]"), bf16::INFINITY.to_le_bytes().to_vec()),
            ("a size of zero", tensor("F32", "[0,4]", "[0,0]"), vec![]),
        ] {
            let error = file(&header, &data).unwrap().floats("x").unwrap_err().to_string();
            assert!(error.contains("test.safetensors") && error.contains("x:"), "{name}: {error}");
        }
    }

    #[test]
    fn elements_are_given_in_any_type_from_any_place_on() {
        // More than a thread takes at a time, in memory and on disk.
        let values: Vec<f32> = (0..300_000).map(|at| at as f32 / 7.0 - 20_000.0).collect();
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        for (stored, name) in [(DType::F32, "F32"), (DType::F16, "F16"), (DType::BF16, "BF16")] {
            let data = stored.encode_f32(&values);
            let header = format!(r#"{{"x":{{"dtype":"{name}","shape":[300000],"data_offsets":[0,{}]}}}}"#, data.len());
            let whole = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
            std::fs::write(&path, &whole).unwrap();
            for open in [TensorFile::open(&path).unwrap(), TensorFile::from_bytes("t", whole).unwrap()] {
                for dtype in DType::ALL {
                    let (all, size) = (dtype.encode_f32(&stored.decode_f32(&data)), dtype.size() as usize);
                    for (from, count) in [(0, 300_000), (123_457, 150_001), (299_999, 1), (300_000, 0)] {
                        let mut to = vec![0xff; count * size];
                        open.elements_into("x", dtype, from as u64, &mut to).unwrap();
                        assert!(to == all[from * size..][..count * size], "{count} of {stored} in {dtype} from {from}");
                    }
                    assert!(open.elements_into("x", dtype, 299_999, &mut vec![0; 2 * size]).is_err(), "beyond the end");
                }
            }
        }
    }

    #[test]
    fn elements_that_are_no_finite_numbers_are_refused() {
        let header = r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let refused = |value: f32, dtype: DType| {
            let open = file(header, &[1f32, value].map(f32::to_le_bytes).concat()).unwrap();
            open.elements_into("x", dtype, 0, &mut vec![0; 2 * dtype.size() as usize]).unwrap_err().to_string()
        };
        assert!(refused(f32::NAN, DType::F32).contains("NaN at element 1") && refused(f32::INFINITY, DType::BF16).contains("inf at element 1"));
        assert!(refused(1e6, DType::F16).contains("values that f16 can hold"));
    }

    #[test]
    fn a_file_that_is_cut_short_while_it_is_open_is_an_error() {
        let header = r#"{"x":{"dtype":"F16","shape":[4096],"data_offsets":[0,8192]}}"#;
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 8192]].concat()).unwrap();
        let open = TensorFile::open(&path).unwrap();
        assert_eq!(open.floats("x").unwrap().2.len(), 4096);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        assert!(matches!(open.floats("x"), Err(Error::Io { .. })));
    }

    #[test]
    fn huge_and_missing_headers_ask_for_no_memory() {
        for length in [u64::MAX, 1 << 62, MAX_HEADER_BYTES + 1, MAX_HEADER_BYTES] {
            assert!(TensorFile::from_bytes("t", length.to_le_bytes().to_vec()).is_err());
        }
        assert!(TensorFile::from_bytes("t", vec![]).is_err());
        let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n".to_vec();
        assert!(TensorFile::from_bytes("t", pointer).unwrap_err().to_string().contains("git lfs pull"));
        assert!(TensorFile::open("/dev/null").is_err());
        assert!(TensorFile::open(std::env::temp_dir()).is_err());
    }
}
