//! A LoRA adapter's update of one weight.

use super::encoded::Matrix;
use crate::dtype::DType;

/// One adapter's update of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// `[r, d_in]`.
    pub a: Matrix<f32>,
    /// `[d_out, r]`.
    pub b: Matrix<f32>,
    /// In front of the product.
    pub scaling: f32,
    /// The type both were stored in; the wider, where they differ.
    pub dtype: DType,
}

impl Lora {
    /// Rank.
    pub fn rank(&self) -> usize {
        self.a.rows
    }

    /// Bytes of the two factors in the type they were stored in.
    pub fn bytes(&self) -> u64 {
        (self.a.data.len() + self.b.data.len()) as u64 * self.dtype.size()
    }
}
