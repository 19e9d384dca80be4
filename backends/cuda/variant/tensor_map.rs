//! Tensor maps for TMA, the copy engine of Hopper and later.

use cudarc::driver::sys::{self, CUtensorMap, CUtensorMapDataType};

use crate::backends::cuda::device::Cuda;
use crate::backends::cuda::runtime::library::ok;
use crate::backends::cuda::variant::address;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Result, ensure};

/// A tensor map, as a kernel takes it by `__grid_constant__ tensor_map`.
///
/// It prints, and it has 64-byte alignment. cudarc's type is 128-byte aligned, which a kernel's parameter need not be.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub struct TensorMap {
    opaque: [u64; 16],
}

impl TensorMap {
    /// The map of a kernel that does not read it.
    pub const NONE: Self = Self { opaque: [0; 16] };
}

impl std::fmt::Debug for TensorMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TensorMap")
    }
}

/// How 16-byte pieces of a row are permuted in shared memory, so that a column is spread over the banks. A pattern is 8 rows of that many
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swizzle {
    /// No permutation.
    None,
    /// A permutation inside 64 bytes.
    B64,
    /// A permutation inside 128 bytes.
    B128,
}

impl Swizzle {
    /// The longest row of a box, in bytes; `None` has no limit of its own.
    fn row_bytes(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::B64 => Some(64),
            Self::B128 => Some(128),
        }
    }
}

/// How many bytes L2 fetches from device memory at once, when a line of a copy is missing there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// 128 bytes: for data that is read once and at the rate of memory.
    B128,
    /// 256 bytes: for tiles, whose next k-block begins where this one ends, so that each wait for memory brings two.
    B256,
}

/// A tensor in device memory, and the box that one copy moves. The first axis is the contiguous one.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// The type of an element.
    pub dtype: DType,
    /// Elements along each axis, 1 to 5 axes.
    pub dims: &'a [u64],
    /// Elements from one index to the next along each axis but the first, a multiple of 16 bytes.
    pub strides: &'a [u64],
    /// Elements of the box along each axis.
    pub box_dims: &'a [u32],
    /// How the box lies in shared memory.
    pub swizzle: Swizzle,
    /// How much L2 fetches from memory at once.
    pub promotion: Promotion,
}

impl Layout<'_> {
    /// Checks every rule of the hardware that does not depend on where the tensor lies.
    ///
    /// # Errors
    /// [`Invalid`](crate::Error::Invalid); a variant's `supports` turns it into its reason.
    pub fn validate(&self) -> Result<()> {
        let (size, axes) = (self.dtype.size(), self.dims.len());
        ensure((1..=5).contains(&axes), "tensor map", "1 to 5 axes", axes)?;
        ensure(self.strides.len() == axes - 1 && self.box_dims.len() == axes, "tensor map", "a stride and a box side an axis", format_args!("{self:?}"))?;
        ensure(self.dims.iter().all(|&dim| dim > 0 && dim <= 1 << 32), "tensor map: dims", "1 to 2^32", format_args!("{self:?}"))?;
        let aligned = self.strides.iter().all(|&stride| stride.saturating_mul(size) % 16 == 0 && stride.saturating_mul(size) < 1 << 40);
        ensure(aligned, "tensor map: strides", "multiples of 16 bytes below 2^40", format_args!("{self:?}"))?;
        ensure(self.box_dims.iter().all(|side| (1..=256).contains(side)), "tensor map: box", "sides of 1 to 256", format_args!("{self:?}"))?;
        let row = u64::from(self.box_dims[0]) * size;
        ensure(row.is_multiple_of(16), "tensor map: box", "rows of a multiple of 16 bytes", format_args!("{row} bytes"))?;
        ensure(
            self.swizzle.row_bytes().is_none_or(|most| row <= most),
            "tensor map: box",
            format_args!("rows that {:?} allows", self.swizzle),
            format_args!("{row} bytes"),
        )
    }

    /// The tensor map of the tensor that starts where `slice` does, at a multiple of 16 bytes.
    pub fn encode(&self, slice: &Slice<Cuda>) -> Result<TensorMap> {
        self.encode_at(address(slice))
    }

    /// The tensor map of the tensor that starts at this device address, a multiple of 16 bytes.
    pub fn encode_at(&self, start: u64) -> Result<TensorMap> {
        self.validate()?;
        ensure(start.is_multiple_of(16), "tensor map", "a start on a multiple of 16 bytes", format_args!("{start:#x}"))?;
        let strides: Vec<u64> = self.strides.iter().map(|stride| stride * self.dtype.size()).collect();
        let steps = [1u32; 5];
        let dtype = match self.dtype {
            DType::F16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::BF16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            DType::F32 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        };
        let swizzle = match self.swizzle {
            Swizzle::None => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            Swizzle::B64 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            Swizzle::B128 => sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        let promotion = match self.promotion {
            Promotion::B128 => sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            Promotion::B256 => sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        };
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: every array is as long as the count of axes says, as `validate` has seen; stores one map.
        let made = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                dtype,
                self.dims.len() as u32,
                start as *mut std::ffi::c_void,
                self.dims.as_ptr(),
                strides.as_ptr(),
                self.box_dims.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                promotion,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        ok(made, "describing a tensor for TMA")?;
        Ok(TensorMap { opaque: map.opaque })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout<'a>(dims: &'a [u64], strides: &'a [u64], box_dims: &'a [u32]) -> Layout<'a> {
        Layout { dtype: DType::F16, dims, strides, box_dims, swizzle: Swizzle::B128, promotion: Promotion::B128 }
    }

    #[test]
    fn what_the_hardware_cannot_do_is_refused() {
        assert!(layout(&[4096, 100], &[4096], &[64, 128]).validate().is_ok());
        assert!(layout(&[4095, 100], &[4095], &[64, 128]).validate().is_err(), "a stride of 8,190 bytes");
        assert!(layout(&[4096, 100], &[4096], &[128, 128]).validate().is_err(), "a row of 256 bytes under a 128-byte swizzle");
        assert!(layout(&[4096, 100], &[4096], &[64, 257]).validate().is_err());
        assert!(layout(&[4096, 0], &[4096], &[64, 64]).validate().is_err());
        assert!(layout(&[4096, 100], &[], &[64, 64]).validate().is_err());
        assert!(layout(&[1; 6], &[8; 5], &[8; 6]).validate().is_err());
    }
}
