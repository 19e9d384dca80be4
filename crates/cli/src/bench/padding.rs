//! How a product's operands lie in memory, where the length of a row is odd.

use serde::{Deserialize, Serialize};

use trifuse::ops::Linear;

/// Where the rows of a product's operands start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Padding {
    /// All packed: rows of an odd length start anywhere, and what a kernel cannot read so is copied in each call.
    #[default]
    None,
    /// Rows of w start on multiples of 16 bytes, as weights are packed once, when they are loaded.
    Weights,
    /// Rows of w and rows of x start on multiples of 16 bytes.
    Both,
}

impl Padding {
    pub(super) const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// What it adds to a shape's name.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Weights => ", w padded",
            Self::Both => ", x and w padded",
        }
    }

    /// The operation in that form.
    pub(super) fn of(self, op: Linear) -> Linear {
        let x_stride = if self == Self::Both { op.dtype.row_stride(op.d_in) } else { op.x_stride };
        let op = op.with_x_stride(x_stride);
        if self == Self::None { op } else { op.with_padded_weights() }
    }
}
