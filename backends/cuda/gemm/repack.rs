//! Repacking (`kernels/gemm/repack_operands.cu`): rows that start where neither TMA nor 16-byte loads reach are copied to aligned rows.

use crate::backends::cuda::gemm::problem::{Product, elements};
use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, address, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{FusedMlp, Linear, Op};

params! {
    /// Parameters of the kernel that copies rows of both operands to multiples of 16 bytes. An operand with no rows is not copied.
    RepackParams {
        x: [const element],
        x_to: [element],
        x_rows: u64,
        w: [const element],
        w_to: [element],
        w_rows: u64,
        depth: u64,
        x_stride: u64,
        w_stride: u64,
        /// Elements from a row to the next in both copies.
        stride: u64,
    }
}

/// The kernel's name.
const REPACK: &str = "repack_operands";

/// The unit of the kernel that copies.
pub(crate) fn repack_unit(dtype: DType) -> Unit {
    Unit {
        headers: vec![("gemm/repack_params.cuh", RepackParams::cuda())],
        defines: vec![("ELEMENT", dtype.name().into())],
        entries: &[REPACK],
        ..Unit::new(format!("{REPACK} {dtype}"), source!("gemm/repack_operands.cu"))
    }
}

/// The stride in elements at which every row starts at a multiple of 16 bytes.
pub(crate) const fn padded(depth: u64) -> u64 {
    depth.next_multiple_of(8)
}

/// The fewest rows of X for which copying W pays as well. The copy reads W once more, and no tile then reads W two bytes at a time.
const REPACK_ROWS: u64 = 17;

/// Which operands of a product are copied before it. W is never copied where the caller's rows already start at multiples of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copies {
    pub x: bool,
    pub w: bool,
}

impl Copies {
    /// No copy.
    pub const NONE: Self = Self { x: false, w: false };

    /// The copies for this many rows of X and these strides of X and W.
    const fn new(rows: u64, [x_stride, w_stride]: [u64; 2]) -> Self {
        // The stride of a single row means nothing.
        let (x, w) = (!x_stride.is_multiple_of(8) && rows > 1, !w_stride.is_multiple_of(8));
        if w && rows < REPACK_ROWS { Self::NONE } else { Self { x, w } }
    }

    /// The copies before a `linear` operation.
    pub const fn of(op: &Linear) -> Self {
        Self::new(op.tokens, [op.x_stride, op.w_stride])
    }

    /// The copies before the first product of `fused_mlp`. Its weights are too large for its workspace.
    pub const fn of_mlp(op: &FusedMlp) -> Self {
        Self { w: false, x: !op.x_stride.is_multiple_of(8) && op.tokens > 1 && op.w1_stride.is_multiple_of(8) }
    }

    /// The unit of the kernel that makes the copies, if there are any.
    pub fn unit(self, dtype: DType) -> Option<Unit> {
        (self != Self::NONE).then(|| repack_unit(dtype))
    }

    /// Bytes of the copies, a multiple of 16, for `rows` rows of X and `outputs` rows of W.
    pub fn bytes(self, [rows, outputs]: [u64; 2], depth: u64) -> u64 {
        let count = |copied: bool, rows: u64| if copied { rows } else { 0 };
        (count(self.x, rows).saturating_add(count(self.w, outputs))).saturating_mul(padded(depth).saturating_mul(2))
    }

    /// The strides of X and W after the copies.
    pub const fn strides(self, [x_stride, w_stride]: [u64; 2], depth: u64) -> [u64; 2] {
        [if self.x { padded(depth) } else { x_stride }, if self.w { padded(depth) } else { w_stride }]
    }

    /// Enqueues the copies into `workspace`, and makes `product` read them.
    ///
    /// # Safety
    /// The conditions of [`Plan::launch`] hold, and the plan has the kernel.
    pub unsafe fn launch<O: Op>(self, queue: &mut Queue, plan: &Plan<O>, workspace: &Slice<Cuda>, product: &mut Product<'_>) -> Result<()> {
        if self == Self::NONE || product.rows == 0 {
            return Ok(());
        }
        let stride = padded(product.depth);
        let (x_rows, w_rows) = (if self.x { product.rows } else { 0 }, if self.w { product.columns } else { 0 });
        let x = elements(workspace, product.dtype, 0, x_rows * stride)?;
        let w = elements(workspace, product.dtype, x_rows * stride, w_rows * stride)?;
        let params = RepackParams {
            x: address(&product.x),
            x_to: address(&x),
            x_rows,
            w: address(&product.w),
            w_to: address(&w),
            w_rows,
            depth: product.depth,
            x_stride: product.x_stride,
            w_stride: product.w_stride,
            stride,
        };
        // A block's 256 threads take four rows at once, or whole groups of four where a row is short.
        let rows = 256 / (stride / 8).min(256) * 4;
        let how = Launch::new(blocks(x_rows.div_ceil(rows) + w_rows.div_ceil(rows)), 256);
        // SAFETY: the caller's promise; the workspace holds the copies.
        unsafe { plan.launch(queue, REPACK, &how, &params)? };
        [product.x_stride, product.w_stride] = self.strides([product.x_stride, product.w_stride], product.depth);
        if self.x {
            product.x = x;
        }
        if self.w {
            product.w = w;
        }
        if self.x && self.w {
            // Both copies have zeros up to the stride, so 16-byte pieces are whole.
            product.depth = stride;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Activation;

    #[test]
    fn weights_in_padded_rows_are_never_copied() {
        for tokens in [0, 1, 2, 16, 17, 128, 4096] {
            for d_in in [1, 4090, 4095, 4096] {
                let op = Linear::new(DType::F16, [tokens, d_in, 4096]).with_padded_weights();
                let odd = !d_in.is_multiple_of(8) && tokens > 1;
                assert_eq!(Copies::of(&op), Copies { x: odd, w: false }, "{tokens} × {d_in}");
                let op = Linear { x_stride: padded(d_in), ..op };
                assert_eq!(Copies::of(&op), Copies::NONE, "{tokens} × {d_in}: rows of x too");
                assert_eq!(Copies::of(&op).bytes([tokens, 4096], d_in), 0);
            }
        }
        let mlp = FusedMlp::new(DType::F16, [300, 4095, 11007, 4095], Activation::Silu).with_padded_weights();
        assert_eq!(Copies::of_mlp(&mlp), Copies { x: true, w: false });
        assert_eq!(Copies::of_mlp(&FusedMlp { x_stride: 4096, ..mlp }), Copies::NONE);
    }

    #[test]
    fn packed_rows_of_an_odd_length_are_copied_from_seventeen_on() {
        let packed = |tokens, d_in| Copies::of(&Linear::new(DType::F16, [tokens, d_in, 4096]));
        assert_eq!([1, 2, 16].map(|tokens| packed(tokens, 4095)), [Copies::NONE; 3]);
        assert_eq!(packed(17, 4095), Copies { x: true, w: true });
        assert_eq!(packed(17, 4096), Copies::NONE);
        assert_eq!(packed(17, 4095).bytes([17, 4096], 4095), (17 + 4096) * 8192);
        let mlp = FusedMlp::new(DType::F16, [300, 4095, 11008, 4095], Activation::Silu);
        assert_eq!(Copies::of_mlp(&mlp), Copies::NONE, "what its weights allow is two bytes at a time in any case");
    }
}
