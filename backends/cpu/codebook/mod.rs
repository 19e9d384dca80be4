//! Codebook GEMM: coefficients first (`g = x·I·Q`, one block of tokens at a time), then `g·Oᵀ` tile by tile. Each tile of a factor is
//! widened for all the tokens that share it.
//!
//! The products are those of `few_rows` whatever the size of a group. They sum a row in one order, however many rows there are. So what an
//! adapter gives a token does not depend on what else is in the batch.

mod factor;
mod groups;

use std::ops::Range;

use rayon::prelude::*;

use super::element::{Element, by_dtype, with_scratch};
use super::product::Rows;
use super::view::View;
use super::{Cpu, Queue, few_rows, math, sole_variant};
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::Result;
use crate::ops::codebook_gemm::{CodebookSliceArgs, ScaledBy};
use crate::ops::{CodebookGemm, CodebookGemmArgs};
pub use factor::Factor;
pub use groups::{Group, Groups};

const VARIANT: &str = "grouped";
/// Tokens whose coefficients are in the workspace at a time.
pub const BLOCK: usize = 1024;
/// The most tokens of one piece of work.
pub const GROUP: usize = 64;
/// Elements of a factor's columns that are widened at a time.
const DEPTH: usize = 512;

/// A planned codebook GEMM.
#[derive(Clone)]
pub struct Plan {
    op: CodebookGemm,
}

impl Kernel<CodebookGemm> for Cpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        &[VARIANT]
    }

    fn plan(&self, op: &CodebookGemm, only: Option<&str>) -> Result<Plan> {
        sole_variant("codebook_gemm", VARIANT, only)?;
        Ok(Plan { op: op.clone() })
    }

    fn workspace_bytes(plan: &Plan) -> u64 {
        workspace_bytes(&plan.op)
    }

    fn variant(_plan: &Plan) -> &'static str {
        VARIANT
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, workspace: &Slice<Self>, args: &CodebookGemmArgs<Self>) -> Result<()> {
        let (op, space) = (plan.op.clone(), workspace.clone());
        // SAFETY: `check` accepted the operands, and the queue holds their buffers while the work runs.
        queue.put(&plan.op, Some(workspace), args, move |args| by_dtype!(op.dtype, T => unsafe { run::<T>(&op, args, &space) }))
    }
}

/// Bytes of workspace that [`Projection::coefficients`] needs for any slice of `op`.
pub fn workspace_bytes(op: &CodebookGemm) -> u64 {
    let widest = op.slices.iter().map(|slice| slice.rank * if slice.core { 2 } else { 1 }).max().unwrap_or(0);
    op.tokens.min(BLOCK as u64) * widest * 4
}

/// Runs the operation.
///
/// # Safety
/// [`crate::ops::check`] accepted `args`, and they and the workspace are held.
unsafe fn run<T: Element>(op: &CodebookGemm, args: &CodebookGemmArgs<Cpu>, workspace: &Slice<Cpu>) -> Result<()> {
    let tokens = op.tokens as usize;
    for index in 0..op.slices.len() {
        // SAFETY: as this function's contract.
        let projection = unsafe { Projection::<T>::new(op, args, index, workspace)? };
        let slice = &op.slices[index];
        let (y, d_out) = (Rows::<T> { view: View::new(&args.slices[index].y), start: 0, stride: slice.y_stride as usize }, slice.d_out as usize);
        if !op.accumulate {
            let bare = (0..tokens).into_par_iter().filter(|&token| projection.groups.adapter(token).is_none());
            // SAFETY: each row is written once; rows of tokens with an adapter are written below.
            bare.for_each(|token| T::narrow(&vec![0.0; d_out], unsafe { y.row_mut(token, d_out) }));
        }
        for start in (0..tokens).step_by(BLOCK) {
            let block = start..(start + BLOCK).min(tokens);
            // SAFETY: as this function's contract.
            unsafe { projection.coefficients(&block) };
            let groups = projection.groups_of(&block);
            let width = projection.tile_columns();
            let tiles = d_out.div_ceil(width);
            (0..groups.len() * tiles).into_par_iter().for_each(|item| {
                let (group, first) = (&groups[item / tiles], item % tiles * width);
                let columns = first..(first + width).min(d_out);
                with_scratch([group.tokens.len() * columns.len(), projection.scratch_len(columns.len()), columns.len()], |[tile, scratch, wide]| {
                    // SAFETY: as this function's contract; the coefficients were computed above.
                    unsafe { projection.output(&block, group, columns.clone(), tile, scratch) };
                    for (values, &token) in tile.chunks_exact_mut(columns.len()).zip(&group.tokens) {
                        // SAFETY: a token is in one group, so each part of a row is written by one piece of work.
                        let y = unsafe { y.from(token, columns.start).row_mut(0, columns.len()) };
                        if op.accumulate {
                            T::widen(y, wide);
                            math::add(values, wide);
                        }
                        T::narrow(values, y);
                    }
                });
            });
        }
    }
    Ok(())
}

/// One slice of a codebook GEMM, ready to run.
pub struct Projection<'a, T> {
    pub groups: Groups<'a>,
    input: Factor<'a, T>,
    core: Option<View<f32>>,
    output: Factor<'a, T>,
    scaling: &'a [f32],
    scaled_by: ScaledBy,
    x: Rows<T>,
    d_in: usize,
    rank: usize,
    /// `x·I` of the tokens of a block, one row a token.
    projected: Rows<f32>,
    /// `x·I·Q`, in the memory of `projected` where there is no core.
    coefficients: Rows<f32>,
}

impl<'a, T: Element> Projection<'a, T> {
    /// Slice number `index` of `op`.
    ///
    /// # Safety
    /// [`crate::ops::check`] accepted `args`, and they and the workspace are held for as long as this lives.
    pub unsafe fn new(op: &CodebookGemm, args: &CodebookGemmArgs<Cpu>, index: usize, workspace: &Slice<Cpu>) -> Result<Self> {
        let slice = &op.slices[index];
        let CodebookSliceArgs { input, core, output, .. } = &args.slices[index];
        let rank = slice.rank as usize;
        let rows = |start: usize| Rows { view: View::new(workspace), start, stride: rank };
        // SAFETY: as this function's contract.
        unsafe {
            Ok(Self {
                groups: Groups::read(View::new(args.token_adapter.slice()).all(), *args.token_adapter.shape())?,
                input: Factor::new(input, slice.input, op.adapters, op.d_in, slice.rank)?,
                core: core.as_ref().map(View::new),
                output: Factor::new(output, slice.output, op.adapters, slice.d_out, slice.rank)?,
                scaling: View::new(&args.scaling).read(0, op.scalings() as usize),
                scaled_by: op.scaled_by,
                x: Rows { view: View::new(&args.x), start: 0, stride: op.x_stride as usize },
                d_in: op.d_in as usize,
                rank,
                projected: rows(0),
                coefficients: rows(if core.is_some() { (op.tokens as usize).min(BLOCK) * rank } else { 0 }),
            })
        }
    }

    /// Computes the coefficients of the tokens of `block`, at most [`BLOCK`].
    ///
    /// # Safety
    /// The contract of [`new`](Self::new), and no other work of this projection runs.
    pub unsafe fn coefficients(&self, block: &Range<usize>) {
        let groups = self.groups.by_key(block, GROUP, |adapter| self.input.key(adapter));
        self.pieces(&groups, |group, columns| {
            let (m, n) = (group.tokens.len(), columns.len());
            with_scratch([m * DEPTH, DEPTH * n, m * n], |[x, factor, sums]| {
                for at in (0..self.d_in).step_by(DEPTH) {
                    let depth = DEPTH.min(self.d_in - at);
                    // SAFETY: the ranges lie inside x and the factor; `sums` is packed.
                    unsafe {
                        for (wide, &token) in x.chunks_exact_mut(depth).zip(&group.tokens) {
                            T::widen(self.x.from(token, at).row(0, depth), wide);
                        }
                        let factor = self.input.tile(group.key, at..at + depth, columns.clone(), factor);
                        few_rows::product([m, n, depth], (sums.as_mut_ptr(), n), at > 0, (x.as_ptr(), depth), factor, 1.0);
                    }
                }
                // SAFETY: a token is in one group, so that each part of a row is written by one piece of work.
                unsafe { store(sums, self.projected, block, group, columns) };
            });
        });
        let Some(core) = self.core else { return };
        let groups = self.groups.by_key(block, GROUP, |adapter| adapter);
        self.pieces(&groups, |group, columns| {
            let (m, n) = (group.tokens.len(), columns.len());
            with_scratch([m * self.rank, m * n], |[rows, sums]| {
                // SAFETY: the core has rank² elements an adapter; the rows of `projected` are done.
                unsafe {
                    gather(rows, self.projected, block, group, self.rank, |_| 1.0);
                    let core = core.read(group.key * self.rank * self.rank, self.rank * self.rank);
                    let core = (core[columns.start..].as_ptr(), [self.rank, 1]);
                    few_rows::product([m, n, self.rank], (sums.as_mut_ptr(), n), false, (rows.as_ptr(), self.rank), core, 1.0);
                    store(sums, self.coefficients, block, group, columns);
                }
            });
        });
    }

    /// Runs `work` on every group and every few columns of the coefficients.
    fn pieces(&self, groups: &[Group], work: impl Fn(&Group, Range<usize>) + Sync) {
        // With few groups, pieces are narrow, so that there is work for many threads.
        let width = if groups.len() * self.rank >= 32 * 64 { 64 } else { 16 };
        let across = self.rank.div_ceil(width);
        (0..groups.len() * across).into_par_iter().for_each(|item| {
            let first = item % across * width;
            work(&groups[item / across], first..(first + width).min(self.rank));
        });
    }

    /// The tokens of `rows` that have an adapter, grouped for [`output`](Self::output).
    pub fn groups_of(&self, rows: &Range<usize>) -> Vec<Group> {
        self.groups.by_key(rows, GROUP, |adapter| self.output.key(adapter))
    }

    /// How many columns of the output are computed at a time.
    fn tile_columns(&self) -> usize {
        if self.rank <= 256 { 256 } else { 128 }
    }

    /// Scratch memory that [`output`](Self::output) needs for `columns` columns.
    pub fn scratch_len(&self, columns: usize) -> usize {
        (GROUP + columns) * self.rank
    }

    /// Computes `tile = s · g · Oᵀ` for the tokens of `group` and the given columns, packed. The columns start at a multiple of 32.
    ///
    /// # Safety
    /// The contract of [`new`](Self::new); the coefficients of `block`, in which the tokens lie, are computed.
    pub unsafe fn output(&self, block: &Range<usize>, group: &Group, columns: Range<usize>, tile: &mut [f32], scratch: &mut [f32]) {
        let (m, n, rank) = (group.tokens.len(), columns.len(), self.rank);
        let (rows, factor) = scratch.split_at_mut(GROUP * rank);
        let scale = |token: usize| match (self.groups.adapter(token), self.scaled_by) {
            (None, _) => 0.0,
            (Some(adapter), ScaledBy::Adapter) => self.scaling[adapter],
            (Some(_), ScaledBy::Token) => self.scaling[token],
        };
        // SAFETY: as this function's contract; the ranges lie inside the factor.
        unsafe {
            gather(rows, self.coefficients, block, group, rank, scale);
            let (values, [element, column]) = self.output.tile(group.key, columns, 0..rank, factor);
            few_rows::product([m, n, rank], (tile.as_mut_ptr(), n), false, (rows.as_ptr(), rank), (values, [column, element]), 1.0);
        }
    }
}

/// Copies the rows of a group's tokens into `packed`, each times its scale.
///
/// # Safety
/// The rows of `block` lie in `rows`, and nobody writes them.
unsafe fn gather(packed: &mut [f32], rows: Rows<f32>, block: &Range<usize>, group: &Group, rank: usize, scale: impl Fn(usize) -> f32) {
    for (packed, &token) in packed.chunks_exact_mut(rank).zip(&group.tokens) {
        let factor = scale(token);
        // SAFETY: as this function's contract.
        let row = unsafe { rows.row(token - block.start, rank) };
        packed.iter_mut().zip(row).for_each(|(packed, value)| *packed = factor * value);
    }
}

/// Copies packed values into the given columns of the rows of a group's tokens.
///
/// # Safety
/// The rows of `block` lie in `rows`, and nobody else refers to these columns of them.
unsafe fn store(packed: &[f32], rows: Rows<f32>, block: &Range<usize>, group: &Group, columns: Range<usize>) {
    for (packed, &token) in packed.chunks_exact(columns.len()).zip(&group.tokens) {
        // SAFETY: as this function's contract.
        unsafe { rows.from(token - block.start, columns.start).row_mut(0, columns.len()) }.copy_from_slice(packed);
    }
}
