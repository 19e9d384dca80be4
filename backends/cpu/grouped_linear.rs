//! `grouped_linear`: the tiles of all products in one parallel region.

use rayon::prelude::*;

use super::element::{Element, by_dtype, with_scratch};
use super::linear::Epilogue;
use super::product::{self, Rows, Tiling};
use super::view::View;
use super::{Cpu, Queue, math, sole_variant};
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Activation, GroupedLinear, GroupedLinearArgs, Linear, LinearArgs};

const VARIANT: &str = "tiled";

/// A planned group of products.
#[derive(Clone)]
pub struct Plan {
    op: GroupedLinear,
}

impl Kernel<GroupedLinear> for Cpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        &[VARIANT]
    }

    fn plan(&self, op: &GroupedLinear, only: Option<&str>) -> Result<Plan> {
        sole_variant("grouped_linear", VARIANT, only)?;
        Ok(Plan { op: op.clone() })
    }

    fn workspace_bytes(_plan: &Plan) -> u64 {
        0
    }

    fn variant(_plan: &Plan) -> &'static str {
        VARIANT
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, _workspace: &Slice<Self>, args: &GroupedLinearArgs<Self>) -> Result<()> {
        let op = plan.op.clone();
        // SAFETY: `check` accepted the operands, and the queue holds their buffers while the work runs.
        queue.put(&plan.op, None, args, move |args| by_dtype!(op.dtype(), T => unsafe { run::<T>(&op, args) }))
    }
}

/// A product that opens or closes what another lets through.
struct Gate<T> {
    x: Rows<T>,
    w: Rows<T>,
    d_in: usize,
    activation: Activation,
}

/// A product, and how it is cut.
struct Part<T> {
    x: Rows<T>,
    w: Rows<T>,
    y: Rows<T>,
    epilogue: Epilogue<T>,
    gate: Option<Gate<T>>,
    d_in: usize,
    tiling: Tiling,
    /// Tiles of the products before.
    first: usize,
}

impl<T: Element> Part<T> {
    fn new(op: &Linear, args: &LinearArgs<Cpu>, first: usize) -> Self {
        let (tokens, d_out) = (op.tokens as usize, op.d_out as usize);
        let rows = |slice: &Slice<Cpu>, stride: usize| Rows::<T> { view: View::new(slice), start: 0, stride };
        let (bias, residual) = (args.bias.as_ref().map(|bias| rows(bias, 0)), args.residual.as_ref().map(|residual| rows(residual, d_out)));
        Self {
            x: rows(&args.x, op.x_stride as usize),
            w: rows(&args.w, op.w_stride as usize),
            y: rows(&args.y, d_out),
            epilogue: Epilogue { bias, activation: op.activation, residual, norm: None },
            gate: None,
            d_in: op.d_in as usize,
            tiling: Tiling::new(tokens, d_out),
            first,
        }
    }

    /// Computes the tile of that number.
    ///
    /// # Safety
    /// The operands hold what the descriptor says, and the tile's outputs are written by nobody else.
    unsafe fn tile(&self, number: usize) {
        let (rows, columns) = self.tiling.get(number);
        let (m, n) = (rows.len(), columns.len());
        let (gated, depth) = self.gate.as_ref().map_or((0, 0), |gate| (m * n, gate.d_in));
        with_scratch([m * n, self.tiling.scratch_len(self.d_in.max(depth)), n, gated], |[sums, scratch, wide, gated]| {
            // SAFETY: as this function's contract; the tile lies inside the operands.
            unsafe {
                product::tile(self.x.from(rows.start, 0), self.w.from(columns.start, 0), [m, n, self.d_in], sums, scratch);
                if let Some(gate) = &self.gate {
                    product::tile(gate.x.from(rows.start, 0), gate.w.from(columns.start, 0), [m, n, gate.d_in], gated, scratch);
                    math::activate(gate.activation, gated);
                    sums.iter_mut().zip(&*gated).for_each(|(sum, gate)| *sum *= gate);
                }
                self.epilogue.finish(sums, &rows, &columns, self.y, wide);
            }
        });
    }
}

/// Runs the products.
///
/// # Safety
/// [`crate::ops::check`] accepted `args`, and they are held.
unsafe fn run<T: Element>(op: &GroupedLinear, args: &GroupedLinearArgs<Cpu>) -> Result<()> {
    let mut parts: Vec<Part<T>> = Vec::with_capacity(op.problems.len());
    let mut tiles = 0;
    if let (Some(activation), [gate, through], [gate_args, own]) = (op.gate, &op.problems[..], &args.problems[..]) {
        let Part { x, w, d_in, .. } = Part::new(gate, gate_args, 0);
        let part = Part { gate: Some(Gate { x, w, d_in, activation }), ..Part::new(through, own, 0) };
        tiles = part.tiling.count();
        parts.push(part);
    } else {
        for (problem, own) in op.problems.iter().zip(&args.problems) {
            let part = Part::new(problem, own, tiles);
            tiles += part.tiling.count();
            parts.push(part);
        }
    }
    (0..tiles).into_par_iter().for_each(|tile| {
        let behind = parts.partition_point(|part| part.first <= tile);
        if let Some(part) = behind.checked_sub(1).and_then(|number| parts.get(number)) {
            // SAFETY: as this function's contract; each tile of a y is written by one piece of work.
            unsafe { part.tile(tile - part.first) };
        }
    });
    Ok(())
}
