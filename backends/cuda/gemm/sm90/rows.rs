//! Tensor maps over the rows of a product's operands, for the tiles of `tile.rs`.

use crate::backends::cuda::device::Cuda;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::variant::tensor_map::{Layout, Promotion, Swizzle, TensorMap};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;

impl WgmmaTile {
    pub(crate) fn layout<'a>(dtype: DType, dims: &'a [u64; 2], strides: &'a [u64; 1], box_dims: &'a [u32; 2]) -> Layout<'a> {
        Layout { dtype, dims, strides, box_dims, swizzle: Swizzle::B128, promotion: Self::promotion(dtype, strides[0]) }
    }

    /// The tensor map of a matrix of [rows, depth] elements, in boxes of `count` rows of a stage.
    pub(crate) fn rows_map(dtype: DType, slice: &Slice<Cuda>, [rows, depth]: [u64; 2], stride: u64, count: u64) -> Result<TensorMap> {
        Self::layout(dtype, &[depth, rows], &[stride], &[Self::DEPTH as u32, count as u32]).encode(slice)
    }

    /// How much of a row L2 fetches at once: the lines of two k-blocks, where a k-block has whole lines.
    pub(crate) const fn promotion(dtype: DType, stride: u64) -> Promotion {
        if (stride * dtype.size()).is_multiple_of(256) { Promotion::B256 } else { Promotion::B128 }
    }

    /// Whether TMA can read [rows, depth] elements with this stride, wherever they start, or why not.
    pub(crate) fn reads(dtype: DType, rows: u64, depth: u64, stride: u64) -> std::result::Result<(), String> {
        if rows > i32::MAX as u64 - 512 || depth > i32::MAX as u64 - 512 {
            return Err(format!("places in [{rows}, {depth}] do not fit into 32 bits"));
        }
        Self::layout(dtype, &[depth, rows.max(1)], &[stride], &[64, 128]).validate().map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tma_cannot_read_is_refused() {
        assert!(WgmmaTile::reads(DType::F16, 100, 4096, 4096).is_ok());
        assert!(WgmmaTile::reads(DType::F16, 100, 4095, 4095).is_err() && WgmmaTile::reads(DType::BF16, 1 << 31, 64, 64).is_err());
    }
}
