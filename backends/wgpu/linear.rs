//! `linear`: one tiled shader with everything in its epilogue. See `shaders/linear.wgsl`.
//!
//! A delta will arrive through the shader's operand `delta`, f32 `[rows, d_out]`, which the codebook kernels fill in
//! the workspace for the same rows before each part of the work; the plan then takes no more rows a part than the
//! workspace holds.

use std::sync::Arc;

use super::pipeline::Pipeline;
use super::queue::part;
use super::source::{Constant, Element, File, Operand, Source, shader};
use super::{Queue, Wgpu};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{Activation, Linear, LinearArgs};

const VARIANTS: &[&str] = &["f16", "portable"];
const FILES: &[File] = &[shader!("activation.wgsl"), shader!("linear.wgsl")];
/// Rows and columns of a workgroup's tile, and invocations of a workgroup: as in the shader.
const TILE: u64 = 64;
const INVOCATIONS: u32 = 256;

/// A plan of `linear`.
pub struct Plan {
    op: Linear,
    variant: &'static str,
    pipeline: Arc<Pipeline>,
    /// Rows of x, y and the residual, and rows of w, that one dispatch can reach.
    rows: u64,
    columns: u64,
}

/// The shader's `Params`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    tokens: u32,
    columns: u32,
    d_in: u32,
    d_out: u32,
}

/// The value of the constant ACTIVATION of `activation.wgsl`.
pub(super) const fn activation_constant(activation: Option<Activation>) -> Constant {
    Constant::U32(match activation {
        None => 0,
        Some(Activation::GeluTanh) => 1,
        Some(Activation::GeluErf) => 2,
        Some(Activation::Silu) => 3,
        Some(Activation::Relu) => 4,
    })
}

fn source(variant: &'static str, dtype: DType, activation: Option<Activation>, [bias, residual, delta]: [bool; 3]) -> Source {
    let float = Element::Float(dtype);
    let f16 = variant == "f16";
    Source {
        kernel: format!("linear {variant} {dtype}"),
        files: FILES,
        operands: vec![
            Operand::read("x", float),
            Operand::read("w", float),
            Operand::write("y", float),
            Operand::read("bias", float).when(bias),
            Operand::read("residual", float).when(residual),
            Operand::read("delta", Element::Float(DType::F32)).when(delta),
        ],
        constants: vec![("ACTIVATION", activation_constant(activation)), ("Staged", Constant::Type(if f16 { "f16" } else { "f32" }))],
        f16,
    }
}

/// Every specialisation.
pub(super) fn sources() -> Vec<Source> {
    let activations = std::iter::once(None).chain(Activation::ALL.map(Some));
    let mut all = Vec::new();
    for activation in activations {
        for flags in 0..8 {
            let flags = [flags & 1 != 0, flags & 2 != 0, flags & 4 != 0];
            all.push(source("f16", DType::F16, activation, flags));
            all.extend(DType::ALL.map(|dtype| source("portable", dtype, activation, flags)));
        }
    }
    all
}

impl Wgpu {
    /// Why a variant cannot run `op` here.
    fn linear_obstacle(&self, variant: &str, op: &Linear) -> Option<String> {
        let invocations = self.limits.max_compute_invocations_per_workgroup;
        if op.delta.is_some() {
            return Some("adapters on top are not built in".into());
        }
        if invocations < INVOCATIONS {
            return Some(format!("needs workgroups of {INVOCATIONS}, the device allows {invocations}"));
        }
        match variant {
            "f16" if op.dtype != DType::F16 => Some("is for f16 operands".into()),
            "f16" if !self.caps.f16 => Some("the adapter has no f16 in shaders".into()),
            _ => None,
        }
    }
}

impl Kernel<Linear> for Wgpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        VARIANTS
    }

    fn plan(&self, op: &Linear, only: Option<&str>) -> Result<Plan> {
        let size = op.dtype.size();
        let mut reasons = Vec::new();
        for &variant in VARIANTS.iter().filter(|&&variant| only.is_none_or(|only| only == variant)) {
            if let Some(reason) = self.linear_obstacle(variant, op) {
                reasons.push(format!("{variant}: {reason}"));
                continue;
            }
            let window = self.window_bytes();
            let (rows, columns) = (window / (op.d_in.max(op.d_out) * size), window / (op.d_in * size));
            if rows == 0 || columns == 0 {
                reasons.push(format!("{variant}: a row of {} elements, the device binds {window} bytes at a time", op.d_in.max(op.d_out)));
                continue;
            }
            let pipeline = self.pipeline(&source(variant, op.dtype, op.activation, [op.bias, op.residual, false]))?;
            // Whole tiles, where there is room for one.
            let whole = |count: u64| if count > TILE { count - count % TILE } else { count };
            return Ok(Plan { op: op.clone(), variant, pipeline, rows: whole(rows), columns: whole(columns) });
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
            let rows = plan.rows.min(op.tokens - row);
            let mut column = 0;
            while column < op.d_out {
                let columns = plan.columns.min(op.d_out - column);
                // From the part's first element to its last: rows are d_out long, of which `columns` are used.
                let of_y = |slice| part(slice, (row * op.d_out + column) * size, ((rows - 1) * op.d_out + columns) * size);
                let x = part(&args.x, row * op.d_in * size, rows * op.d_in * size);
                let w = part(&args.w, column * op.d_in * size, columns * op.d_in * size);
                let y = of_y(&args.y);
                let bias = args.bias.as_ref().map(|bias| part(bias, column * size, columns * size));
                let residual = args.residual.as_ref().map(of_y);
                let params = Params { tokens: rows as u32, columns: columns as u32, d_in: op.d_in as u32, d_out: op.d_out as u32 };
                let operands = [Some(&x), Some(&w), Some(&y), bias.as_ref(), residual.as_ref(), None];
                queue.dispatch(self, &plan.pipeline, &operands, &params, rows.div_ceil(TILE) * columns.div_ceil(TILE))?;
                column += columns;
            }
            row += rows;
        }
        Ok(())
    }
}
