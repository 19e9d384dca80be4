//! How an sm90 product is launched: tensor maps, parameters, grid.

use super::cost::Shape;
use super::tile::WgmmaTile;
use super::units::WgmmaKernel;
use crate::backends::cuda::gemm::lora::{AdaptedParams, AdapterSums};
use crate::backends::cuda::gemm::problem::{GemmParams, Product};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::tensor_map::{Layout, Swizzle};
use crate::backends::cuda::variant::{Cuda, Launch, Plan, Target, address};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::Op;

/// How a product's kernel is launched.
pub(crate) struct WgmmaLaunch {
    pub tile: WgmmaTile,
    /// The first unit of the plan in which the kernel is looked for: see [`Plan::launch_of`].
    pub unit: usize,
    /// Whether the kernel may start while the one before still runs (PDL). It does so where it is short (see [`Shape::starts_early`]) or
    /// adds to what that kernel writes.
    pub overlap: bool,
    /// Whether the kernel then reads the weights before the PDL wait: no launch that may still run writes them.
    pub weights_early: bool,
}

/// The kernel for a product's outputs, by whether they can be moved 16 bytes at a time.
pub(crate) const fn kernel_of(params: &GemmParams) -> WgmmaKernel {
    if params.vector == 0 { WgmmaKernel::Unaligned } else { WgmmaKernel::Whole }
}

impl Product<'_> {
    /// The parameters of a kernel of `gemm/sm90/mainloop.cuh`, with tensor maps of X and the weights.
    fn wgmma_params(&self, tile: &WgmmaTile) -> Result<GemmParams> {
        let mut params = self.params();
        let rows = |slice: &Slice<Cuda>, rows: u64, stride: u64, count: u64| WgmmaTile::rows_map(self.dtype, slice, [rows, self.depth], stride, count);
        // Rows 8q + 2i + e, e first, then q, then i: see `Places` in the kernel. Kernels that read so have outputs in multiples of 8.
        let (stride, eights) = (self.w_stride, self.columns / 8);
        let runs = |slice: &Slice<Cuda>, count: u32| {
            let (dims, box_dims) = ([self.depth, 2, eights, 4], [WgmmaTile::DEPTH as u32, 2, count, 4]);
            Layout {
                dtype: self.dtype,
                dims: &dims,
                strides: &[stride, 8 * stride, 2 * stride],
                box_dims: &box_dims,
                swizzle: Swizzle::B128,
                promotion: WgmmaTile::promotion(self.dtype, stride),
            }
            .encode(slice)
        };
        params.x_map = rows(&self.x, self.rows, self.x_stride, tile.rows)?;
        params.x_last_map = rows(&self.x, self.rows, self.x_stride, tile.last_rows(self.rows))?;
        if params.vector == 0 || tile.is_split_k_cluster() {
            // Blocks that share W's tile load half of it each, where a half is a multiple of 8 columns.
            let halves = !tile.is_split_k_cluster() && tile.cluster() == 2 && (tile.columns / 2).is_multiple_of(8);
            params.w_map = rows(&self.w, self.columns, stride, if halves { tile.columns / 2 } else { tile.columns })?;
            return Ok(params);
        }
        params.w_map = runs(&self.w, 4)?;
        params.rest_map = runs(&self.w, 1)?;
        if let Some(gate) = &self.gate {
            params.gate_map = runs(gate, 4)?;
        }
        Ok(params)
    }

    /// The parameters of a kernel of `gemm/sm90/mainloop.cuh`, and its launch. Every row of X and of the weights starts at a multiple of 16
    /// bytes. A gated product's outputs can be moved 16 bytes at a time.
    pub(crate) fn wgmma_start(&self, how: &WgmmaLaunch, target: &Target) -> Result<(GemmParams, Launch)> {
        let tile = &kernel_of(&self.params()).tile(&how.tile);
        let mut params = self.wgmma_params(tile)?;
        let outputs = if self.gate.is_some() { 2 * self.columns } else { self.columns };
        let shape = Shape { rows: self.rows, outputs, depth: self.depth, ..Shape::default() };
        let overlap = how.overlap && (self.adds || shape.starts_early(tile, target));
        params.weights_early = (how.weights_early && overlap).into();
        params.wide = shape.wide(tile, target) as u32;
        let shared_bytes = if params.vector == 0 { tile.unaligned_shared_bytes() } else { tile.shared_bytes() };
        Ok((params, Launch { shared_bytes, overlap, ..tile.launch(self.rows, self.columns, self.gate.is_some(), target) }))
    }

    /// Enqueues the product.
    ///
    /// # Safety
    /// The conditions of [`Plan::launch`] hold.
    pub(crate) unsafe fn launch_wgmma<O: Op>(&self, queue: &mut Queue, plan: &Plan<O>, how: &WgmmaLaunch) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let (params, launch) = self.wgmma_start(how, &plan.target)?;
        // SAFETY: the caller's promise.
        unsafe { plan.launch_of(queue, how.unit, kernel_of(&params).name(), &launch, &params) }
    }

    /// Enqueues the product with the part of adapters, whose basis comes as further rows of W. Nothing of that part is in Y yet.
    ///
    /// # Safety
    /// The conditions of [`Plan::launch`] hold.
    pub(crate) unsafe fn launch_with_lora<O: Op>(&self, queue: &mut Queue, plan: &Plan<O>, tile: &WgmmaTile, sums: AdapterSums) -> Result<()> {
        let (k, run, stride) = (self.depth, WgmmaTile::RUN, self.w_stride);
        let x_box = [WgmmaTile::DEPTH as u32, WgmmaTile::ROWS as u32];
        let w = Layout {
            dtype: self.dtype,
            dims: &[k, 2, 4, 4, self.columns / run],
            strides: &[stride, 8 * stride, 2 * stride, run * stride],
            box_dims: &[WgmmaTile::DEPTH as u32, 2, 4, 4, (tile.columns / 2 / run) as u32],
            swizzle: Swizzle::B128,
            promotion: WgmmaTile::promotion(self.dtype, stride),
        };
        let gemm = GemmParams {
            x_map: WgmmaTile::layout(self.dtype, &[k, self.rows], &[self.x_stride], &x_box).encode(&self.x)?,
            w_map: w.encode_at(address(&self.w))?,
            adds: 0,
            ..self.params()
        };
        let launch = Launch {
            shared_bytes: tile.lora_shared_bytes(),
            // The kernel's PDL wait stands before its first read.
            overlap: true,
            ..tile.launch(self.rows, self.columns, false, &plan.target)
        };
        // SAFETY: the caller's promise.
        unsafe { plan.launch(queue, WgmmaKernel::Lora.name(), &launch, &AdaptedParams { gemm, sums }) }
    }
}
