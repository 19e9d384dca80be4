use std::collections::BTreeSet;

use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::safetensors_file::{Dtype, TensorFile, TensorInfo};

/// The tensors of one file, each taken by name; what is not taken is an error in the end.
pub(super) struct Tensors {
    file: TensorFile,
    left: BTreeSet<String>,
}

impl Tensors {
    pub(super) fn new(file: TensorFile) -> Self {
        Self { left: file.names().into_iter().collect(), file }
    }

    /// A fault in one tensor or key.
    pub(super) fn fault(&self, item: &str, problem: impl Into<String>) -> Error {
        Error::input_item(self.file.path(), item, problem)
    }

    /// `Err` with that problem unless `condition` holds.
    pub(super) fn ensure(&self, condition: bool, item: &str, expected: &str, found: impl std::fmt::Display) -> Result<()> {
        if condition { Ok(()) } else { Err(self.fault(item, format!("expected {expected}, found {found}"))) }
    }

    /// Another error as a fault of that item.
    pub(super) fn at<T>(&self, item: &str, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.fault(item, error.to_string()))
    }

    fn key(&self, name: &str) -> Result<&str> {
        self.file.metadata(name).ok_or_else(|| self.fault("__metadata__", format!("expected the key {name:?}, found none of that name")))
    }

    /// The operation's name.
    pub(super) fn op(&self) -> Result<&str> {
        self.key("op")
    }

    /// The parameters.
    pub(super) fn params<P: serde::de::DeserializeOwned>(&self) -> Result<P> {
        serde_json::from_str(self.key("params")?).map_err(|error| self.fault("params", error.to_string()))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.file.info(name).is_some()
    }

    /// `Err` unless all of `names` are there, or none; whether they are.
    pub(super) fn together(&self, names: &[&str]) -> Result<bool> {
        let there = names.iter().filter(|name| self.has(name)).count();
        self.ensure(there == 0 || there == names.len(), names[0], &format!("all of {names:?} or none"), format!("{there}"))?;
        Ok(there > 0)
    }

    fn take(&mut self, name: &str) -> Result<TensorInfo> {
        let info = self.file.info(name);
        let info = info.ok_or_else(|| self.fault(name, format!("expected a tensor of that name, found none (there are {:?})", self.file.names())))?;
        self.left.remove(name);
        Ok(info)
    }

    /// The shape of a tensor with that many axes.
    pub(super) fn shape<const N: usize>(&mut self, name: &str) -> Result<[u64; N]> {
        let shape: Vec<u64> = self.take(name)?.shape.iter().map(|&dim| dim as u64).collect();
        <[u64; N]>::try_from(shape.as_slice()).map_err(|_| self.fault(name, format!("expected {N} axes, found the shape {shape:?}")))
    }

    /// The bytes of a tensor of that type and shape.
    fn typed(&mut self, name: &str, dtype: Dtype, shape: &[u64]) -> Result<Vec<u8>> {
        let info = self.take(name)?;
        self.ensure(info.dtype == dtype, name, &format!("{dtype:?}"), format!("{:?}", info.dtype))?;
        let same = info.shape.iter().map(|&dim| dim as u64).eq(shape.iter().copied());
        self.ensure(same, name, &format!("the shape {shape:?}"), format!("{:?}", info.shape))?;
        Ok(self.file.bytes(name)?.1)
    }

    /// An operand.
    pub(super) fn float(&mut self, name: &str, dtype: DType, shape: &[u64]) -> Result<Vec<f64>> {
        let stored = match dtype {
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::BF16,
            DType::F32 => Dtype::F32,
        };
        Ok(dtype.decode(&self.typed(name, stored, shape)?))
    }

    /// An operand that may be absent.
    pub(super) fn optional(&mut self, name: &str, dtype: DType, shape: &[u64]) -> Result<Option<Vec<f64>>> {
        if self.has(name) { self.float(name, dtype, shape).map(Some) } else { Ok(None) }
    }

    /// 32-bit indices.
    pub(super) fn integers(&mut self, name: &str, shape: &[u64]) -> Result<Vec<i32>> {
        let data = self.typed(name, Dtype::I32, shape)?;
        Ok(data.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// Codes, each below `limit`.
    pub(super) fn codes(&mut self, name: &str, shape: &[u64], limit: u8) -> Result<Vec<u8>> {
        let codes = self.typed(name, Dtype::U8, shape)?;
        match codes.iter().position(|&code| code >= limit) {
            Some(at) => Err(self.fault(name, format!("expected codes below {limit}, found {} at element {at}", codes[at]))),
            None => Ok(codes),
        }
    }

    /// An expected output.
    pub(super) fn expected(&mut self, name: &str, shape: &[u64]) -> Result<Vec<f64>> {
        let data = self.typed(name, Dtype::F64, shape)?;
        let values: Vec<f64> = data.chunks_exact(8).map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]])).collect();
        match values.iter().position(|value| value.is_nan()) {
            Some(at) => Err(self.fault(name, format!("expected numbers, found NaN at element {at}"))),
            None => Ok(values),
        }
    }

    /// `Err` where a tensor was not asked for.
    pub(super) fn finish(self) -> Result<()> {
        match self.left.first() {
            Some(name) => Err(self.fault(name, "expected no such tensor: the operation with these parameters has no operand of that name")),
            None => Ok(()),
        }
    }
}

/// The dtype of the operands, as in `params`.
pub fn dtype_named(tensors: &Tensors, name: &str) -> Result<DType> {
    name.parse().map_err(|_| tensors.fault("params", format!("dtype: expected f16, bf16 or f32, found {name:?}")))
}

/// Whether an f32 is near: `value` is finite, and rounds to what is.
pub fn in_f32(value: f64) -> bool {
    (value as f32).is_finite()
}
