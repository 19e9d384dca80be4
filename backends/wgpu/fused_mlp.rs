//! `fused_mlp`, a chunk of rows at a time, so that the intermediate stays small and in the cache. FC1 with its activation writes to the
//! workspace (gated: gate, then up times gate), and FC2 reads it.

use super::product::{Epilogue, Operands, Product, Sizes, VARIANTS};
use super::queue::part;
use super::{Queue, Wgpu};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::error::{Error, Result};
use crate::ops::fused_mlp::MAX_WORKSPACE;
use crate::ops::{FusedMlp, FusedMlpArgs};

/// The most rows of a chunk: enough tiles to fill a large GPU, and few enough for its cache.
const MAX_ROWS: u64 = 1024;
/// The alignment of the gate's part of the workspace, in bytes.
const ALIGN: u64 = 256;

/// A plan of `fused_mlp`.
pub struct Plan {
    op: FusedMlp,
    variant: &'static str,
    gate: Option<Product>,
    up: Product,
    down: Product,
    /// Rows of a chunk.
    rows: u64,
}

impl Plan {
    /// Bytes of a chunk of the intermediate.
    fn chunk_bytes(&self) -> u64 {
        (self.rows * self.op.d_ff * self.op.dtype.size()).next_multiple_of(ALIGN)
    }
}

impl Wgpu {
    /// The plan with this variant, or why there is none here.
    fn plan_mlp(&self, op: &FusedMlp, variant: &'static str) -> Result<std::result::Result<Plan, String>> {
        let product = |sizes: Sizes, epilogue: Epilogue| self.product(variant, op.dtype, sizes, epilogue);
        let first = Sizes { d_out: op.d_ff, d_in: op.d_model, x_stride: op.x_stride, w_stride: op.w1_stride };
        let second = Sizes { d_out: op.d_out, d_in: op.d_ff, x_stride: op.d_ff, w_stride: op.w2_stride };
        let gate = if op.gated {
            match product(first, Epilogue { activation: Some(op.activation), ..Epilogue::default() })? {
                Ok(gate) => Some(gate),
                Err(reason) => return Ok(Err(reason)),
            }
        } else {
            None
        };
        let activation = (!op.gated).then_some(op.activation);
        let up = product(first, Epilogue { activation, bias: op.bias1, gate: op.gated, ..Epilogue::default() })?;
        let down = product(second, Epilogue { bias: op.bias2, residual: op.residual, ..Epilogue::default() })?;
        let (up, down) = match (up, down) {
            (Ok(up), Ok(down)) => (up, down),
            (Err(reason), _) | (_, Err(reason)) => return Ok(Err(reason)),
        };
        let buffers = if op.gated { 2 } else { 1 };
        let room = (MAX_WORKSPACE / buffers - ALIGN) / (op.d_ff * op.dtype.size());
        let rows = MAX_ROWS.min(up.rows).min(down.rows).min(room).min(op.tokens.max(1));
        if rows == 0 {
            return Ok(Err(format!("d_ff {}: not even one row of the intermediate fits {MAX_WORKSPACE} bytes", op.d_ff)));
        }
        Ok(Ok(Plan { op: op.clone(), variant, gate, up, down, rows }))
    }
}

impl Kernel<FusedMlp> for Wgpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        VARIANTS
    }

    fn plan(&self, op: &FusedMlp, only: Option<&str>) -> Result<Plan> {
        let mut reasons = Vec::new();
        for &variant in VARIANTS.iter().filter(|&&variant| only.is_none_or(|only| only == variant)) {
            match self.plan_mlp(op, variant)? {
                Ok(plan) => return Ok(plan),
                Err(reason) => reasons.push(format!("{variant}: {reason}")),
            }
        }
        Err(Error::unsupported(format!("fused_mlp on {}", Self::NAME), reasons.join("; ")))
    }

    fn workspace_bytes(plan: &Plan) -> u64 {
        plan.chunk_bytes() * if plan.op.gated { 2 } else { 1 }
    }

    fn variant(plan: &Plan) -> &'static str {
        plan.variant
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, workspace: &Slice<Self>, args: &FusedMlpArgs<Self>) -> Result<()> {
        let (op, size) = (&plan.op, plan.op.dtype.size());
        let mut row = 0;
        while row < op.tokens {
            let rows = plan.rows.min(op.tokens - row);
            let of = |slice: &Slice<Self>, columns: u64| part(slice, row * columns * size, rows * columns * size);
            let x = part(&args.x, row * op.x_stride * size, ((rows - 1) * op.x_stride + op.d_model) * size);
            let y = of(&args.y, op.d_out);
            let residual = args.residual.as_ref().map(|slice| of(slice, op.d_out));
            let h = part(workspace, 0, rows * op.d_ff * size);
            let mut gate = None;
            if let (Some(product), Some(wg)) = (&plan.gate, &args.wg) {
                let gated = part(workspace, plan.chunk_bytes(), rows * op.d_ff * size);
                product.run(self, queue, rows, &Operands { x: &x, w: wg, bias: None, delta: None, gate: None, residual: None, y: &gated })?;
                gate = Some(gated);
            }
            let up = Operands { x: &x, w: &args.w1, bias: args.b1.as_ref(), delta: None, gate: gate.as_ref(), residual: None, y: &h };
            plan.up.run(self, queue, rows, &up)?;
            let down = Operands { x: &h, w: &args.w2, bias: args.b2.as_ref(), delta: None, gate: None, residual: residual.as_ref(), y: &y };
            plan.down.run(self, queue, rows, &down)?;
            row += rows;
        }
        Ok(())
    }
}
