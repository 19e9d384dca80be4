//! `linear`: one tiled shader with everything in its epilogue. See [`super::product`].

use super::product::{Epilogue, Operands, Product, VARIANTS};
use super::queue::part;
use super::{Queue, Wgpu};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::error::{Error, Result};
use crate::ops::{Linear, LinearArgs};

/// A plan of `linear`.
pub struct Plan {
    op: Linear,
    variant: &'static str,
    product: Product,
}

impl Kernel<Linear> for Wgpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        VARIANTS
    }

    fn plan(&self, op: &Linear, only: Option<&str>) -> Result<Plan> {
        let epilogue = Epilogue { activation: op.activation, bias: op.bias, residual: op.residual, delta: op.delta.is_some(), gate: false };
        let mut reasons = Vec::new();
        for &variant in VARIANTS.iter().filter(|&&variant| only.is_none_or(|only| only == variant)) {
            match self.product(variant, op.dtype, [op.d_out, op.d_in], epilogue)? {
                Ok(product) => return Ok(Plan { op: op.clone(), variant, product }),
                Err(reason) => reasons.push(format!("{variant}: {reason}")),
            }
        }
        Err(Error::unsupported(format!("linear on {}", Self::NAME), reasons.join("; ")))
    }

    fn workspace_bytes(_: &Plan) -> u64 {
        0
    }

    fn variant(plan: &Plan) -> &'static str {
        plan.variant
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, _: &Slice<Self>, args: &LinearArgs<Self>) -> Result<()> {
        let (op, size) = (&plan.op, plan.op.dtype.size());
        let mut row = 0;
        while row < op.tokens {
            let rows = plan.product.rows.min(op.tokens - row);
            let of = |slice: &Slice<Self>, columns: u64| part(slice, row * columns * size, rows * columns * size);
            let (x, y) = (of(&args.x, op.d_in), of(&args.y, op.d_out));
            let residual = args.residual.as_ref().map(|slice| of(slice, op.d_out));
            let bias = args.bias.as_ref();
            let operands = Operands { x: &x, w: &args.w, bias, delta: None, gate: None, residual: residual.as_ref(), y: &y };
            plan.product.run(self, queue, rows, &operands)?;
            row += rows;
        }
        Ok(())
    }
}
