//! What the tensor-core variants of `linear` and `fused_mlp` share: tiles, parameters, and how a product is started.

use std::ops::Range;

use super::jit::Arch;
use super::kernel::{Launch, Plan, Target, address, address_of, blocks, range};
use super::linear::activation_code;
use super::params::params;
use super::tma::TensorMap;
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{Activation, Op};

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
        /// The same for the kernels of `tile/wgmma_gemm.cuh`, see there.
        floor: f32,
        sigmoid_a: f32,
        sigmoid_b: f32,
        /// Whether what is in y comes on top of the sums. Then the kernels of Hopper wait for the launch before only when they read it.
        adds: u32,
        /// Whether bias, residual and y can be moved 16 bytes at a time.
        vector: u32,
        /// Columns of wide tiles, where `tile/wgmma_widths.cuh` has tiles of two widths.
        wide: u32,
        /// Whether those kernels may read W before the launch before has ended.
        weights_early: u32,
    }
}

/// The header that the kernels' tiles include.
pub(super) fn gemm_header() -> (&'static str, String) {
    ("tile/gemm_params.cuh", GemmParams::cuda())
}

/// A block's tile in `kernels/tile/mma_gemm.cuh`, and how its warps share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MmaTile {
    /// In the names of units.
    name: &'static str,
    /// Rows of X, rows of W, elements of K a stage.
    sides: [u64; 3],
    /// Warps along rows, columns, K.
    warps: [u64; 3],
    stages: u64,
}

impl MmaTile {
    /// Four warps of 64 × 64 sums: 16 products for 8 loads from shared memory.
    const WIDE: Self = Self { name: "wide", sides: [128, 128, 32], warps: [2, 2, 1], stages: 4 };
    /// The same with half as many barriers, where two blocks still fit on a multiprocessor.
    const DEEP: Self = Self { name: "deep", sides: [128, 128, 64], warps: [2, 2, 1], stages: 3 };
    /// A fourth of that, for products that would leave multiprocessors idle.
    pub(super) const MIDDLE: Self = Self { name: "middle", sides: [64, 64, 64], warps: [2, 2, 1], stages: 4 };
    /// For up to 64 rows: narrow, so that there are many blocks to read W.
    pub(super) const SLIM: Self = Self { name: "slim", sides: [64, 32, 128], warps: [2, 1, 2], stages: 3 };
    /// For a few rows, where the time goes into reading W: many small blocks, much in flight, the warps along K.
    const FEW_ROWS: Self = Self { name: "few rows", sides: [16, 32, 128], warps: [1, 1, 4], stages: 6 };
    /// All of them.
    #[cfg(test)]
    const ALL: [Self; 5] = [Self::WIDE, Self::DEEP, Self::MIDDLE, Self::SLIM, Self::FEW_ROWS];

    /// The widest, by an architecture's shared memory; where that is not known, as on one with little.
    fn widest(arch: Arch) -> Self {
        let shared_bytes = arch.shared_bytes().unwrap_or(0);
        // The driver keeps 1 KiB a block for itself.
        if shared_bytes >= 2 * (Self::DEEP.shared_bytes() + 1024) { Self::DEEP } else { Self::WIDE }
    }

    /// Those that are used on an architecture.
    pub(super) fn on(arch: Arch) -> [Self; 4] {
        [Self::widest(arch), Self::MIDDLE, Self::SLIM, Self::FEW_ROWS]
    }

    /// The tile for a product of that size. A gated product has twice its outputs in sums.
    pub(super) fn choose(rows: u64, columns: u64, gated: bool, target: &Target) -> Self {
        let fill = |tile: &Self| rows.div_ceil(tile.sides[0]).saturating_mul(tile.columns(columns, gated)) >= u64::from(target.units);
        match rows {
            0..=16 => Self::FEW_ROWS,
            17..=64 => Self::SLIM,
            65.. if fill(&Self::WIDE) => Self::widest(target.arch),
            _ => Self::MIDDLE,
        }
    }

    /// Tiles across that many outputs.
    fn columns(&self, outputs: u64, gated: bool) -> u64 {
        outputs.div_ceil(if gated { self.sides[1] / 2 } else { self.sides[1] })
    }

    fn threads(&self) -> u32 {
        self.warps.iter().product::<u64>() as u32 * 32
    }

    /// Of the stages, or of the sums that take their place.
    pub(super) const fn shared_bytes(&self) -> u32 {
        let [rows, columns, depth] = self.sides;
        let (stages, sums) = (self.stages * (rows + columns) * depth * 2, rows * (columns + 8) * 4);
        if stages > sums { stages as u32 } else { sums as u32 }
    }

    pub(super) fn defines(&self) -> Vec<(&'static str, String)> {
        let names = ["TILE_ROWS", "TILE_COLUMNS", "TILE_DEPTH", "WARPS_DOWN", "WARPS_ACROSS", "WARPS_ALONG"];
        let values = self.sides.into_iter().chain(self.warps);
        names.into_iter().zip(values.map(|value| value.to_string())).chain([("STAGES", self.stages.to_string())]).collect()
    }

    /// For the names of units.
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }
}

/// A product with its operands.
pub(super) struct Product<'a> {
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
    pub(super) fn params(&self) -> GemmParams {
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
    pub(super) fn writes_whole(&self) -> bool {
        self.params().vector == 1
    }

    /// Where weights and bias lie, which a kernel may read before the launch before has ended.
    pub(super) fn constants(&self) -> Vec<Range<u64>> {
        [Some(&self.w), self.gate.as_ref(), self.bias].into_iter().flatten().map(range).collect()
    }

    /// Whether every row of X and of the weights starts on a multiple of that many bytes.
    fn starts_on(&self, width: u64) -> bool {
        let starts = [address(&self.x), address(&self.w), address_of(self.gate.as_ref()), self.x_stride * 2, self.w_stride * 2];
        starts.iter().all(|place| place.is_multiple_of(width))
    }

    /// Whether TMA can read X and the weights: every row starts on a multiple of 16 bytes, wherever it ends.
    pub(super) fn aligned(&self) -> bool {
        self.starts_on(16)
    }

    /// The most bytes, of 16, 4 and 2, that every row of X and of the weights starts on a multiple of, and is whole in.
    pub(super) fn width(&self) -> u64 {
        [16, 4].into_iter().find(|&width| self.starts_on(width) && (self.depth * 2).is_multiple_of(width)).unwrap_or(2)
    }

    /// How the kernels of `tile/mma_gemm.cuh` are started.
    pub(super) fn mma_launch(&self, tile: &MmaTile) -> Launch {
        let tiles = self.rows.div_ceil(tile.sides[0]).saturating_mul(tile.columns(self.columns, self.gate.is_some()));
        Launch { shared_bytes: tile.shared_bytes(), ..Launch::new(blocks(tiles), tile.threads()) }
    }

    /// Puts a kernel of `tile/mma_gemm.cuh` into the queue: the one of `entries` for 16 bytes at once, for 16 of rows whose last piece is
    /// shorter (where there is such a kernel), for 4 or 2.
    ///
    /// # Safety
    /// As [`Plan::launch`].
    pub(super) unsafe fn launch_mma<O: Op>(&self, queue: &mut Queue, plan: &Plan<O>, tile: &MmaTile, entries: [&str; 4]) -> Result<()> {
        let [whole, ragged, four, two] = entries;
        let entry = match self.width() {
            16 => whole,
            _ if self.aligned() && !ragged.is_empty() => ragged,
            4 => four,
            _ => two,
        };
        // SAFETY: the caller's promise.
        unsafe { plan.launch(queue, entry, &self.mma_launch(tile), &self.params()) }
    }
}

/// `count` elements from number `first` of `slice`.
pub(super) fn elements(slice: &Slice<Cuda>, dtype: DType, first: u64, count: u64) -> Result<Slice<Cuda>> {
    let part = slice.part(first * dtype.size(), count * dtype.size());
    part.ok_or_else(|| Error::invalid("operand", format!("at least {} elements", first + count), format!("{} bytes", slice.len)))
}

/// How the kernels of `tile/wgmma_gemm.cuh` compute an activation: each form is compiled by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActivationForm {
    /// None, relu.
    Floor,
    /// silu, gelu with tanh.
    Sigmoid,
    /// gelu with the error function.
    ExactGelu,
}

impl ActivationForm {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Floor, Self::Sigmoid, Self::ExactGelu];

    pub(super) const fn of(activation: Option<Activation>) -> Self {
        match activation {
            None | Some(Activation::Relu) => Self::Floor,
            Some(Activation::Silu | Activation::GeluTanh) => Self::Sigmoid,
            Some(Activation::GeluErf) => Self::ExactGelu,
        }
    }

    /// The name that the kernels know it by.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Floor => "FLOOR",
            Self::Sigmoid => "SIGMOID",
            Self::ExactGelu => "EXACT_GELU",
        }
    }
}

/// The dtypes that the tensor cores take as they are.
pub(super) const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// Whether the tensor cores take operands of that type as they are, or why not.
pub(super) fn half(dtype: DType) -> std::result::Result<(), String> {
    if HALVES.contains(&dtype) { Ok(()) } else { Err(format!("{dtype}: the tensor cores would round it")) }
}

/// Whether a block of the target may use that much shared memory, or why not.
pub(super) fn fits(shared_bytes: u32, target: &Target) -> std::result::Result<(), String> {
    let Arch(arch) = target.arch;
    if shared_bytes <= target.shared_bytes {
        return Ok(());
    }
    Err(format!("{shared_bytes} bytes of shared memory, {} on this device (compute capability {arch})", target.shared_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    #[test]
    fn tiles_fit_the_smallest_of_the_chips() {
        for tile in MmaTile::ALL {
            assert!(tile.shared_bytes() <= if tile == MmaTile::DEEP { 227 << 10 } else { 90 << 10 }, "{tile:?}: beside what is not dynamic");
        }
    }

    #[test]
    fn a_tile_is_as_small_as_the_work_asks_for() {
        assert_eq!(MmaTile::choose(1, 4096, false, &H200), MmaTile::FEW_ROWS);
        assert_eq!(MmaTile::choose(128, 4096, false, &H200), MmaTile::MIDDLE, "32 wide tiles for 132 multiprocessors");
        assert_eq!(MmaTile::choose(4096, 4096, false, &H200), MmaTile::DEEP);
        let rtx3090 = Target { arch: Arch(86), units: 82, shared_bytes: 99 << 10 };
        assert_eq!(MmaTile::choose(4096, 4096, false, &rtx3090), MmaTile::WIDE);
    }
}
