//! Memory of a session's device, empty and with values.

use super::Session;
use super::room::zeroed;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};

impl<D: Device> Session<D> {
    /// Allocates `bytes` of device memory, contents unspecified.
    pub fn alloc(&self, bytes: u64) -> Result<Slice<D>> {
        let most = self.caps().max_buffer_bytes;
        if bytes > most {
            return Err(Error::OutOfMemory { requested: bytes, purpose: format!("one buffer (the device allows {most})") });
        }
        let buffer = self.counted.alloc_time.on(|| self.device.alloc(bytes))?;
        self.counted.buffer(bytes);
        Ok(Slice::new(buffer, 0, bytes))
    }

    /// Allocates `count` elements of a type, to which operations and [`download`](Self::download) hold the slice; contents unspecified.
    pub fn alloc_elements(&self, dtype: DType, count: u64) -> Result<Slice<D>> {
        let bytes = count.checked_mul(dtype.size()).ok_or_else(|| Error::invalid("alloc_elements", "a size below 2^64 bytes", count))?;
        Ok(self.alloc(bytes)?.with_dtype(dtype))
    }

    /// Allocates `bytes` of host memory that [`copy`](Self::copy) reads and writes at the speed of the bus, where the device has such memory; else
    /// ordinary memory. Contents are unspecified. [`read_after`](Self::read_after) reads what was copied there.
    pub fn alloc_host(&self, bytes: u64) -> Result<Slice<D>> {
        let buffer = self.counted.alloc_time.on(|| self.device.alloc_host(bytes))?;
        self.counted.buffer(bytes);
        Ok(Slice::new(buffer, 0, bytes))
    }

    /// Allocates device memory and copies `values` to it. Values of a [`DType`] give a slice that knows its type ([`Slice::dtype`]).
    pub fn upload<T: bytemuck::NoUninit>(&mut self, values: &[T]) -> Result<Slice<D>> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let slice = self.alloc(bytes.len() as u64)?;
        self.write(&slice, bytes)?;
        Ok(slice.with_dtype(DType::of::<T>()))
    }

    /// Allocates device memory and copies `values` to it as rows of `columns`, a row every `stride` values, with zeros between. Weights are
    /// loaded so where their rows are to start at multiples of 16 bytes ([`DType::row_stride`](crate::DType::row_stride)).
    ///
    /// # Errors
    /// Values that are no whole rows; a stride below `columns`; no device memory.
    pub fn upload_rows<T: bytemuck::NoUninit>(&mut self, values: &[T], columns: u64, stride: u64) -> Result<Slice<D>> {
        ensure(size_of::<T>() > 0, "upload_rows", "values of at least one byte", "a type of none")?;
        let rows = (values.len() as u64).checked_div(columns).unwrap_or(0);
        ensure(rows * columns == values.len() as u64, "upload_rows", format_args!("whole rows of {columns} values"), format_args!("{} values", values.len()))?;
        ensure(stride >= columns, "upload_rows: stride", format_args!("at least {columns}, the values of a row"), stride)?;
        if stride == columns || rows == 0 {
            return self.upload(values);
        }
        let [row, pitch] = [columns, stride].map(|count| count.saturating_mul(size_of::<T>() as u64));
        let slice = self.alloc(rows.saturating_mul(pitch))?;
        let mut bytes = zeroed(slice.len)?;
        for (to, from) in bytes.chunks_exact_mut(pitch as usize).zip(values.chunks_exact(columns as usize)) {
            to[..row as usize].copy_from_slice(bytemuck::cast_slice(from));
        }
        self.write(&slice, &bytes)?;
        Ok(slice.with_dtype(DType::of::<T>()))
    }
}
