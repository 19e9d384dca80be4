//! `linear`: tiles of the product, finished while they are in the cache.

use std::ops::Range;

use rayon::prelude::*;

use super::codebook::{self, Projection};
use super::element::{Element, by_dtype, with_scratch};
use super::product::{self, Rows, Tiling};
use super::view::View;
use super::{Cpu, Queue, math, sole_variant};
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::{Error, Result};
use crate::ops::{Linear, LinearArgs};

const VARIANT: &str = "tiled";

/// A planned linear layer.
#[derive(Clone)]
pub struct Plan {
    op: Linear,
}

impl Kernel<Linear> for Cpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        &[VARIANT]
    }

    fn plan(&self, op: &Linear, only: Option<&str>) -> Result<Plan> {
        sole_variant("linear", VARIANT, only)?;
        op.one_slice().map_err(|reason| Error::unsupported("linear on cpu", reason))?;
        Ok(Plan { op: op.clone() })
    }

    fn workspace_bytes(plan: &Plan) -> u64 {
        let normed = if plan.op.input_norm.is_some() { plan.op.tokens * plan.op.d_in * plan.op.dtype.size() } else { 0 };
        plan.op.delta.as_ref().map_or(normed, codebook::workspace_bytes)
    }

    fn variant(_plan: &Plan) -> &'static str {
        VARIANT
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, workspace: &Slice<Self>, args: &LinearArgs<Self>) -> Result<()> {
        let (op, space) = (plan.op.clone(), workspace.clone());
        // SAFETY: `check` accepted the operands, and the queue holds their buffers while the work runs.
        queue.put(&plan.op, Some(workspace), args, move |args| {
            by_dtype!(op.dtype, T => {
                // SAFETY: as above.
                unsafe { if op.wide_outputs { run::<T, f32>(&op, args, &space) } else { run::<T, T>(&op, args, &space) } }
            })
        })
    }
}

/// Runs the operation, whose outputs are of type `Y`.
///
/// # Safety
/// [`crate::ops::check`] accepted `args`, and they and the workspace are held.
unsafe fn run<T: Element, Y: Element>(op: &Linear, args: &LinearArgs<Cpu>, workspace: &Slice<Cpu>) -> Result<()> {
    let (tokens, d_in, d_out) = (op.tokens as usize, op.d_in as usize, op.d_out as usize);
    let rows_of = |slice: &Slice<Cpu>, stride: usize| Rows::<T> { view: View::new(slice), start: 0, stride };
    let (mut x, w) = (rows_of(&args.x, op.x_stride as usize), rows_of(&args.w, op.w_stride as usize));
    let y = Rows::<Y> { view: View::new(&args.y), start: 0, stride: d_out };
    if let Some((eps, weight)) = op.input_norm.zip(args.input_norm.as_ref()) {
        let normed = rows_of(workspace, d_in);
        // SAFETY: as this function's contract; the workspace has room for the rows.
        unsafe { norm(x, (rows_of(weight, 0), f32::from_bits(eps)), normed, [tokens, d_in]) };
        x = normed;
    }
    // Of gates, and of what they let through.
    let (gates, w) = if op.gated { (Some(w), w.from(d_out, 0)) } else { (None, w) };
    let (bias, residual) = (args.bias.as_ref().map(|b| rows_of(b, 0)), args.residual.as_ref().map(|r| rows_of(r, d_out)));
    let delta = match (&op.delta, &args.delta) {
        // SAFETY: as this function's contract.
        (Some(op), Some(args)) => Some(unsafe { Projection::<T>::new(op, args, 0, workspace)? }),
        _ => None,
    };
    let norm =
        op.norm.zip(args.norm.as_ref()).map(|(eps, norm)| Norm { weight: rows_of(&norm.weight, 0), bias: rows_of(&norm.bias, 0), eps: f32::from_bits(eps) });
    // With adapters, one block at a time, whose coefficients are in the workspace; else all rows at once.
    let block_rows = if delta.is_some() { codebook::BLOCK } else { tokens.max(1) };
    for start in (0..tokens).step_by(block_rows) {
        let block = start..(start + block_rows).min(tokens);
        if let Some(delta) = &delta {
            // SAFETY: as this function's contract; no work of the delta runs now.
            unsafe { delta.coefficients(&block) };
        }
        let tiling = if norm.is_some() { Tiling::whole_rows(block.len(), d_out) } else { Tiling::new(block.len(), d_out) };
        let product_scratch = tiling.scratch_len(d_in);
        (0..tiling.count()).into_par_iter().for_each(|tile| {
            let (rows, columns) = tiling.get(tile);
            let rows = rows.start + start..rows.end + start;
            let (m, n) = (rows.len(), columns.len());
            let delta_scratch = delta.as_ref().map_or(0, |delta| delta.scratch_len(n) + codebook::GROUP * n);
            let gated = if gates.is_some() { m * n } else { 0 };
            with_scratch([m * n, product_scratch.max(delta_scratch), n, gated], |[sums, scratch, wide, gated]| {
                // SAFETY: the tile's rows and columns lie inside the operands; each tile of y is written by one piece of work.
                unsafe {
                    product::tile(x.from(rows.start, 0), w.from(columns.start, 0), [m, n, d_in], sums, scratch);
                    if let Some(delta) = &delta {
                        add_delta(delta, &block, &rows, &columns, sums, scratch);
                    }
                    if let Some(gates) = gates {
                        product::tile(x.from(rows.start, 0), gates.from(columns.start, 0), [m, n, d_in], gated, scratch);
                        if let Some(activation) = op.activation {
                            math::activate(activation, gated);
                        }
                        sums.iter_mut().zip(&*gated).for_each(|(sum, gate)| *sum *= gate);
                    }
                    let epilogue = Epilogue { bias, activation: op.activation.filter(|_| !op.gated), residual, norm };
                    epilogue.finish(sums, &rows, &columns, y, wide);
                }
            });
        });
    }
    Ok(())
}

/// RMSNorm of the rows of x, as `pointwise` computes it.
///
/// # Safety
/// Both operands have those rows, and the weight one of them.
unsafe fn norm<T: Element>(x: Rows<T>, (weight, eps): (Rows<T>, f32), y: Rows<T>, [rows, columns]: [usize; 2]) {
    (0..rows).into_par_iter().for_each(|row| {
        with_scratch([columns, columns], |[values, scale]| {
            // SAFETY: as this function's contract; each row is written by one piece of work.
            unsafe {
                T::widen(x.row(row, columns), values);
                T::widen(weight.row(0, columns), scale);
                let factor = 1.0 / (math::sum(values, |x| x * x) / columns as f32 + eps).sqrt();
                values.iter_mut().zip(&*scale).for_each(|(value, weight)| *value = *value * factor * weight);
                T::narrow(values, y.row_mut(row, columns));
            }
        });
    });
}

/// Adds the adapters' part to a tile.
///
/// # Safety
/// The coefficients of `block`, in which the rows lie, are computed.
unsafe fn add_delta<T: Element>(
    delta: &Projection<'_, T>,
    block: &Range<usize>,
    rows: &Range<usize>,
    columns: &Range<usize>,
    sums: &mut [f32],
    scratch: &mut [f32],
) {
    let n = columns.len();
    let (added, scratch) = scratch.split_at_mut(codebook::GROUP * n);
    for group in delta.groups_of(rows) {
        // SAFETY: as this function's contract.
        unsafe { delta.output(block, &group, columns.clone(), &mut added[..group.tokens.len() * n], scratch) };
        for (added, token) in added.chunks_exact(n).zip(group.tokens) {
            math::add(&mut sums[(token - rows.start) * n..][..n], added);
        }
    }
}

/// A LayerNorm of whole rows.
#[derive(Clone, Copy)]
pub struct Norm<T> {
    pub weight: Rows<T>,
    pub bias: Rows<T>,
    pub eps: f32,
}

/// What is done to a tile of sums before it is stored.
pub struct Epilogue<T> {
    /// The bias, one row.
    pub bias: Option<Rows<T>>,
    pub activation: Option<crate::ops::Activation>,
    pub residual: Option<Rows<T>>,
    /// The norm, last. It needs tiles of whole rows.
    pub norm: Option<Norm<T>>,
}

impl<T: Element> Epilogue<T> {
    /// Finishes `sums`, packed, and stores them in the given rows and columns of `y`. `wide` holds one row.
    ///
    /// # Safety
    /// The rows and columns lie inside all operands, and nobody else refers to them in `y`.
    pub unsafe fn finish<Y: Element>(&self, sums: &mut [f32], rows: &Range<usize>, columns: &Range<usize>, y: Rows<Y>, wide: &mut [f32]) {
        let n = columns.len();
        // SAFETY: as this function's contract.
        unsafe { self.bend(sums, columns, wide) };
        for (sums, row) in sums.chunks_exact_mut(n).zip(rows.clone()) {
            if let Some(residual) = self.residual {
                // SAFETY: as this function's contract.
                T::widen(unsafe { residual.from(row, columns.start).row(0, n) }, wide);
                math::add(sums, wide);
            }
            if let Some(Norm { weight, bias, eps }) = self.norm {
                let mean = math::sum(sums, |x| x) / n as f32;
                let variance = math::sum(sums, |x| (x - mean) * (x - mean)) / n as f32;
                let factor = 1.0 / (variance + eps).sqrt();
                // SAFETY: as this function's contract.
                T::widen(unsafe { weight.row(0, n) }, wide);
                sums.iter_mut().zip(&*wide).for_each(|(value, weight)| *value = (*value - mean) * factor * weight);
                // SAFETY: as this function's contract.
                T::widen(unsafe { bias.row(0, n) }, wide);
                math::add(sums, wide);
            }
            // SAFETY: as this function's contract.
            Y::narrow(sums, unsafe { y.from(row, columns.start).row_mut(0, n) });
        }
    }

    /// Adds the bias and applies the activation.
    ///
    /// # Safety
    /// The columns lie inside the bias.
    pub unsafe fn bend(&self, sums: &mut [f32], columns: &Range<usize>, wide: &mut [f32]) {
        if let Some(bias) = self.bias {
            // SAFETY: as this function's contract.
            T::widen(unsafe { bias.from(0, columns.start).row(0, columns.len()) }, wide);
            sums.chunks_exact_mut(columns.len()).for_each(|sums| math::add(sums, wide));
        }
        if let Some(activation) = self.activation {
            math::activate(activation, sums);
        }
    }
}
