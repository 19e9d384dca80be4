//! What the tensor-core variants of `linear` and `fused_mlp` share: a product, its parameters, and checks of its operands.

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
    /// One product: Y = act(X·Wᵀ + bias) + residual, or act(X·Gᵀ) ⊙ (X·Wᵀ + bias) + residual. Strides are in elements.
    /// With `adds`, Y = act(X·Wᵀ + bias + Y) + residual. The Y on the right is what another kernel left there, rounded once.
    GemmParams {
        /// Tensor map of X, where the kernel reads X by TMA. `w_map` and `gate_map` are those of W and G.
        x_map: map,
        w_map: map,
        gate_map: map,
        /// Tensor map of the rows of X in a last tile that is not whole, or of a gate's own rows.
        x_last_map: map,
        /// Tensor map of the rows of W that are not whole in the boxes of `w_map`.
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
        /// Elements from a row of Y to the next, and from a row of the residual to the next.
        y_stride: u64,
        activation: u32,
        /// The activation's constants for the kernels of `gemm/sm90/mainloop.cuh`, which says how they are used.
        floor: f32,
        sigmoid_a: f32,
        sigmoid_b: f32,
        /// Whether the sums are added to what is in Y. If so, the sm90 kernels wait for the launch before (PDL) only when they read Y.
        adds: u32,
        /// Whether bias, residual and Y can be moved 16 bytes at a time.
        vector: u32,
        /// Columns that wide tiles cover, where `gemm/sm90/mixed_width.cuh` has tiles of two widths.
        wide: u32,
        /// Whether the kernels of `gemm/sm90/mixed_width.cuh` may read W before the launch before has ended (PDL).
        weights_early: u32,
    }
}

/// Rows, and columns, of a thread block's tile in `kernels/gemm/gemm.cuh`.
pub(crate) const SIMT_TILE: u64 = 64;

/// The header that declares [`GemmParams`], which the kernels' tiles include.
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
    /// Elements from a row of X to the next.
    pub x_stride: u64,
    /// Elements from a row of W, and of the gate's weight, to the next.
    pub w_stride: u64,
    pub y_stride: u64,
    pub activation: Option<Activation>,
    /// Whether the sums are added to what is in Y.
    pub adds: bool,
    /// Whether outputs are f32 where operands are not.
    pub wide: bool,
}

impl Product<'_> {
    /// The kernel's parameters, without tensor maps.
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

    /// Whether bias, residual and Y can be moved 16 bytes at a time.
    pub(crate) fn writes_whole(&self) -> bool {
        self.params().vector == 1
    }

    /// Address ranges of weights and bias. A kernel may read these before the launch before has ended (PDL).
    pub(crate) fn constants(&self) -> Vec<Range<u64>> {
        [Some(&self.w), self.gate.as_ref(), self.bias].into_iter().flatten().map(range).collect()
    }

    /// Whether every row of X and of the weights starts at a multiple of `width` bytes.
    fn starts_on(&self, width: u64) -> bool {
        let starts = [address(&self.x), address(&self.w), address_of(self.gate.as_ref()), self.x_stride * 2, self.w_stride * 2];
        starts.iter().all(|place| place.is_multiple_of(width))
    }

    /// Whether TMA can read X and the weights: every row starts at a multiple of 16 bytes, wherever the row ends.
    pub(crate) fn aligned(&self) -> bool {
        self.starts_on(16)
    }

    /// The widest load, of 16, 4 and 2 bytes, that divides the start and the length of every row of X and of the weights.
    pub(crate) fn width(&self) -> u64 {
        [16, 4].into_iter().find(|&width| self.starts_on(width) && (self.depth * 2).is_multiple_of(width)).unwrap_or(2)
    }
}

/// The slice of `count` elements from element `first` of `slice`.
pub(crate) fn elements(slice: &Slice<Cuda>, dtype: DType, first: u64, count: u64) -> Result<Slice<Cuda>> {
    let part = slice.sub_slice(first * dtype.size(), count * dtype.size());
    part.ok_or_else(|| Error::invalid("operand", format!("at least {} elements", first + count), format!("{} bytes", slice.len)))
}

/// The dtypes that the tensor cores take as they are.
pub(crate) const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// Whether the tensor cores take operands of this dtype as they are, or why not.
pub(crate) fn half(dtype: DType) -> std::result::Result<(), String> {
    if HALVES.contains(&dtype) { Ok(()) } else { Err(format!("{dtype}: the tensor cores would round it")) }
}

/// Whether a thread block of the target may use this much shared memory, or why not.
pub(crate) fn fits(shared_bytes: u32, target: &Target) -> std::result::Result<(), String> {
    let Arch(arch) = target.arch;
    if shared_bytes <= target.shared_bytes {
        return Ok(());
    }
    Err(format!("{shared_bytes} bytes of shared memory, {} on this device (compute capability {arch})", target.shared_bytes))
}
