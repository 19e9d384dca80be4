//! What the tensor-core variants of `linear` and `fused_mlp` share: tiles, parameters, and how a product is started.

use std::ops::Range;

use super::activation::activation_code;
use crate::backends::cuda::jit::unit::Arch;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::tensor_map::TensorMap;
use crate::backends::cuda::variant::{Cuda, Target, address, address_of, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::Activation;

params! {
    /// One product: Y = act(X·Wᵀ + bias) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) + residual. Strides in elements.
    /// Where it `adds`, Y = act(X·Wᵀ + bias + Y) + residual: what another kernel left in Y, rounded once.
    GemmParams {
        /// Of X, W and G, where the kernel reads them by TMA.
        x_map: map,
        w_map: map,
        gate_map: map,
        /// Of the rows of X of a last tile that is not whole.
        x_last_map: map,
        /// Of the rows of W that are not whole in the runs that `w_map` brings.
        rest_map: map,
        x: [const element],
        w: [const element],
        gate: [const element],
        bias: [const element],
        residual: [const element],
        y: [element],
        rows: u64,
        columns: u64,
        depth: u64,
        x_stride: u64,
        w_stride: u64,
        /// Of the residual too.
        y_stride: u64,
        activation: u32,
        /// The same for the kernels of `gemm/sm90/mainloop.cuh`, see there.
        floor: f32,
        sigmoid_a: f32,
        sigmoid_b: f32,
        /// Whether what is in y comes on top of the sums. Then the kernels of Hopper wait for the launch before only when they read it.
        adds: u32,
        /// Whether bias, residual and y can be moved 16 bytes at a time.
        vector: u32,
        /// Columns of wide tiles, where `gemm/sm90/mixed_width.cuh` has tiles of two widths.
        wide: u32,
        /// Whether those kernels may read W before the launch before has ended.
        weights_early: u32,
    }
}

/// Rows, and columns, of a block's tile in `kernels/gemm/gemm.cuh`.
pub(crate) const SIMT_TILE: u64 = 64;

/// The header that the kernels' tiles include.
pub(crate) fn gemm_header() -> (&'static str, String) {
    ("gemm/gemm_params.cuh", GemmParams::cuda())
}

/// A product with its operands.
pub(crate) struct Product<'a> {
    pub dtype: DType,
    pub x: Slice<Cuda>,
    pub w: Slice<Cuda>,
    pub gate: Option<Slice<Cuda>>,
    pub bias: Option<&'a Slice<Cuda>>,
    pub residual: Option<Slice<Cuda>>,
    pub y: Slice<Cuda>,
    pub rows: u64,
    pub columns: u64,
    pub depth: u64,
    /// Elements from a row to the next.
    pub x_stride: u64,
    /// Of both weights.
    pub w_stride: u64,
    pub y_stride: u64,
    pub activation: Option<Activation>,
    /// Whether what is in y comes on top of the sums.
    pub adds: bool,
}

impl Product<'_> {
    /// Without tensor maps.
    pub(crate) fn params(&self) -> GemmParams {
        let addresses = [address(&self.y), address_of(self.bias), address_of(self.residual.as_ref())];
        // gelu with tanh is x·σ(2u), u = √(2/π)·(x + 0.044715·x³).
        let twice = 2.0 * std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
        let (sigmoid_a, sigmoid_b) = if self.activation == Some(Activation::GeluTanh) { (twice, twice * 0.044_715) } else { (1.0, 0.0) };
        let whole = self.columns.is_multiple_of(8) && self.y_stride.is_multiple_of(8);
        GemmParams {
            x_map: TensorMap::NONE,
            w_map: TensorMap::NONE,
            gate_map: TensorMap::NONE,
            x_last_map: TensorMap::NONE,
            rest_map: TensorMap::NONE,
            x: address(&self.x),
            w: address(&self.w),
            gate: address_of(self.gate.as_ref()),
            bias: address_of(self.bias),
            residual: address_of(self.residual.as_ref()),
            y: address(&self.y),
            rows: self.rows,
            columns: self.columns,
            depth: self.depth,
            x_stride: self.x_stride,
            w_stride: self.w_stride,
            y_stride: self.y_stride,
            activation: activation_code(self.activation),
            floor: if self.activation == Some(Activation::Relu) { 0.0 } else { f32::NEG_INFINITY },
            sigmoid_a,
            sigmoid_b,
            adds: u32::from(self.adds),
            vector: u32::from(whole && addresses.iter().all(|address| address.is_multiple_of(16))),
            wide: 0,
            weights_early: 0,
        }
    }

    /// Whether bias, residual and y can be moved 16 bytes at a time.
    pub(crate) fn writes_whole(&self) -> bool {
        self.params().vector == 1
    }

    /// Where weights and bias lie, which a kernel may read before the launch before has ended.
    pub(crate) fn constants(&self) -> Vec<Range<u64>> {
        [Some(&self.w), self.gate.as_ref(), self.bias].into_iter().flatten().map(range).collect()
    }

    /// Whether every row of X and of the weights starts on a multiple of that many bytes.
    fn starts_on(&self, width: u64) -> bool {
        let starts = [address(&self.x), address(&self.w), address_of(self.gate.as_ref()), self.x_stride * 2, self.w_stride * 2];
        starts.iter().all(|place| place.is_multiple_of(width))
    }

    /// Whether TMA can read X and the weights: every row starts on a multiple of 16 bytes, wherever it ends.
    pub(crate) fn aligned(&self) -> bool {
        self.starts_on(16)
    }

    /// The most bytes, of 16, 4 and 2, that every row of X and of the weights starts on a multiple of, and is whole in.
    pub(crate) fn width(&self) -> u64 {
        [16, 4].into_iter().find(|&width| self.starts_on(width) && (self.depth * 2).is_multiple_of(width)).unwrap_or(2)
    }
}

/// `count` elements from number `first` of `slice`.
pub(crate) fn elements(slice: &Slice<Cuda>, dtype: DType, first: u64, count: u64) -> Result<Slice<Cuda>> {
    let part = slice.sub_slice(first * dtype.size(), count * dtype.size());
    part.ok_or_else(|| Error::invalid("operand", format!("at least {} elements", first + count), format!("{} bytes", slice.len)))
}

/// The dtypes that the tensor cores take as they are.
pub(crate) const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// Whether the tensor cores take operands of that type as they are, or why not.
pub(crate) fn half(dtype: DType) -> std::result::Result<(), String> {
    if HALVES.contains(&dtype) { Ok(()) } else { Err(format!("{dtype}: the tensor cores would round it")) }
}

/// Whether a block of the target may use that much shared memory, or why not.
pub(crate) fn fits(shared_bytes: u32, target: &Target) -> std::result::Result<(), String> {
    let Arch(arch) = target.arch;
    if shared_bytes <= target.shared_bytes {
        return Ok(());
    }
    Err(format!("{shared_bytes} bytes of shared memory, {} on this device (compute capability {arch})", target.shared_bytes))
}
