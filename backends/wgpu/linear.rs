//! `linear`: one tiled shader with everything in its epilogue, see [`super::product`]. For adapters, the codebook kernels first write the
//! delta of the same rows to the workspace, in f32, and the epilogue adds it.

use super::codebook_gemm::{MAX_WORKSPACE, SlicePlan};
use super::codebook_gemm_stage::{Rows, Target};
use super::product::{Epilogue, Operands, Product, Sizes, VARIANTS};
use super::queue::part;
use super::{Queue, Wgpu};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{Linear, LinearArgs};

/// A plan of `linear`.
pub struct Plan {
    op: Linear,
    variant: &'static str,
    product: Product,
    delta: Option<SlicePlan>,
    /// Rows of a part.
    rows: u64,
}

impl Plan {
    /// Bytes of the delta of a part.
    fn delta_bytes(&self) -> u64 {
        if self.delta.is_some() { self.rows * self.op.d_out * 4 } else { 0 }
    }
}

impl Wgpu {
    /// The plan with this variant, or why there is none here.
    fn plan_linear(&self, op: &Linear, variant: &'static str) -> Result<std::result::Result<Plan, String>> {
        if let Err(reason) = op.no_norm() {
            return Ok(Err(reason));
        }
        let epilogue = Epilogue {
            activation: op.activation,
            bias: op.bias,
            residual: op.residual,
            delta: op.delta.is_some(),
            gate: false,
            wide: op.y_dtype() != op.dtype,
        };
        let sizes = Sizes { d_out: op.d_out, d_in: op.d_in, x_stride: op.x_stride, w_stride: op.w_stride };
        let product = match self.product(variant, op.dtype, sizes, epilogue)? {
            Ok(product) => product,
            Err(reason) => return Ok(Err(reason)),
        };
        let Some(delta) = &op.delta else {
            let rows = product.rows;
            return Ok(Ok(Plan { op: op.clone(), variant, product, delta: None, rows }));
        };
        if let Err(reason) = op.one_slice() {
            return Ok(Err(reason));
        }
        let target = Target { dtype: DType::F32, stride: op.d_out, accumulate: false };
        let slice = match self.plan_slice(delta, 0, target)? {
            Ok(slice) => slice,
            Err(reason) => return Ok(Err(reason)),
        };
        let room = (MAX_WORKSPACE / (op.d_out * 4)).max(1);
        let rows = product.rows.min(slice.rows).min(room);
        Ok(Ok(Plan { op: op.clone(), variant, product, delta: Some(slice), rows }))
    }
}

impl Kernel<Linear> for Wgpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        VARIANTS
    }

    fn plan(&self, op: &Linear, only: Option<&str>) -> Result<Plan> {
        let mut reasons = Vec::new();
        for &variant in VARIANTS.iter().filter(|&&variant| only.is_none_or(|only| only == variant)) {
            match self.plan_linear(op, variant)? {
                Ok(plan) => return Ok(plan),
                Err(reason) => reasons.push(format!("{variant}: {reason}")),
            }
        }
        Err(Error::unsupported(format!("linear on {}", Self::NAME), reasons.join("; ")))
    }

    fn workspace_bytes(plan: &Plan) -> u64 {
        plan.delta_bytes() + plan.delta.as_ref().map_or(0, |delta| delta.workspace_bytes(plan.rows))
    }

    fn variant(plan: &Plan) -> &'static str {
        plan.variant
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, workspace: &Slice<Self>, args: &LinearArgs<Self>) -> Result<()> {
        let (op, size) = (&plan.op, plan.op.dtype.size());
        let mut row = 0;
        while row < op.tokens {
            let rows = plan.rows.min(op.tokens - row);
            let of = |slice: &Slice<Self>, columns: u64| part(slice, row * columns * size, rows * columns * size);
            let x = part(&args.x, row * op.x_stride * size, ((rows - 1) * op.x_stride + op.d_in) * size);
            let y_size = op.y_dtype().size();
            let y = part(&args.y, row * op.d_out * y_size, rows * op.d_out * y_size);
            let residual = args.residual.as_ref().map(|slice| of(slice, op.d_out));
            let mut delta = None;
            if let (Some(slice), Some(op), Some(args)) = (&plan.delta, &op.delta, &args.delta) {
                let filled = part(workspace, 0, rows * plan.op.d_out * 4);
                let rest = part(workspace, plan.delta_bytes(), slice.workspace_bytes(rows));
                slice.run(self, queue, (op, args), &args.slices[0], Rows { first: row, count: rows }, (&rest, &filled))?;
                delta = Some(filled);
            }
            let bias = args.bias.as_ref();
            let operands = Operands { x: &x, w: &args.w, bias, delta: delta.as_ref(), gate: None, residual: residual.as_ref(), y: &y };
            plan.product.run(self, queue, rows, &operands)?;
            row += rows;
        }
        Ok(())
    }
}
