//! Attention: tiles of rows against tiles of keys, with an online softmax.
//!
//! A row is a query of one head. The heads that share keys are folded into the rows of one tile. Where there are too few tiles for the
//! threads, the keys of each tile are split, and the parts combined in their order.

mod layout;
mod softmax;

use std::ops::Range;

use rayon::prelude::*;

use super::element::{Element, by_dtype, with_scratch};
use super::product::{self, Rows};
use super::view::View;
use super::{Cpu, Queue, math, sole_variant};
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::Result;
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};
use layout::{Layout, Piece, Sequence};
pub use softmax::{State, finish};

const VARIANT: &str = "online_tiled";
/// Rows of a tile. The block of every block-sparse pattern is a multiple of it.
const ROWS: usize = 64;
/// Keys of a tile.
const KEYS: usize = 128;
/// About how many pieces of work keys are split into: enough for many threads, and equally many on every machine.
const PIECES: usize = 64;
/// The fewest keys of a split.
const SPLIT_KEYS: usize = 256;
/// Rows that a tile of the ragged paged form has at least, in which each tile has [`KEYS`] keys too: products of fewer are summed in another order,
/// and there a query's bits are to depend on nothing but its keys.
const LEAST_ROWS: usize = 16;

/// A planned attention.
#[derive(Clone)]
pub struct Plan {
    op: Attention,
    /// Heads that are folded into the rows of one tile.
    fold: usize,
    /// Tiles of rows of one sequence and folded head.
    row_tiles: usize,
    /// Parts of the keys of each tile.
    splits: usize,
}

impl Plan {
    fn new(op: &Attention) -> Self {
        // Blocks hide different keys from different heads, and a tile stays inside one row of blocks.
        let fold = if op.form.is_sparse() { 1 } else { (op.heads / op.kv_heads) as usize };
        let row_tiles = (op.q_len as usize * fold).div_ceil(ROWS);
        let items = op.batch as usize * (op.heads as usize / fold) * row_tiles;
        let splits = match op.form {
            form if form.is_sparse() || matches!(form, Form::RaggedPaged(_)) => 1,
            _ => PIECES.div_ceil(items.max(1)).min((op.kv_len as usize).div_ceil(SPLIT_KEYS)).max(1),
        };
        Self { op: op.clone(), fold, row_tiles, splits }
    }

    fn items(&self) -> usize {
        self.op.batch as usize * (self.op.heads as usize / self.fold) * self.row_tiles
    }

    /// Rows of the largest tile.
    fn tile_rows(&self) -> usize {
        ROWS.min(self.op.q_len as usize * self.fold)
    }

    /// Floats that one part of a tile leaves in the workspace: values, maximum and sum of each row.
    fn part_len(&self) -> usize {
        self.tile_rows() * (self.op.head_dim as usize + 2)
    }
}

impl Kernel<Attention> for Cpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        &[VARIANT]
    }

    fn plan(&self, op: &Attention, only: Option<&str>) -> Result<Plan> {
        sole_variant("attention", VARIANT, only)?;
        Ok(Plan::new(op))
    }

    fn workspace_bytes(plan: &Plan) -> u64 {
        if plan.splits > 1 { (plan.items() * plan.splits * plan.part_len() * 4) as u64 } else { 0 }
    }

    fn variant(_plan: &Plan) -> &'static str {
        VARIANT
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, workspace: &Slice<Self>, args: &AttentionArgs<Self>) -> Result<()> {
        let (plan, space) = (plan.clone(), workspace.clone());
        let op = plan.op.clone();
        // SAFETY: `check` accepted the operands, and the queue holds their buffers while the work runs.
        queue.put(&op, Some(workspace), args, move |args| by_dtype!(plan.op.dtype, T => unsafe { run::<T>(&plan, args, &space) }))
    }
}

/// Runs the operation.
///
/// # Safety
/// [`crate::ops::check`] accepted `args`, and they and the workspace are held.
unsafe fn run<T: Element>(plan: &Plan, args: &AttentionArgs<Cpu>, workspace: &Slice<Cpu>) -> Result<()> {
    let op = &plan.op;
    let work = Work {
        plan,
        // SAFETY: as this function's contract.
        layout: unsafe { Layout::new(op, args)? },
        q: View::<T>::new(&args.q),
        k: View::<T>::new(&args.k),
        v: View::<T>::new(&args.v),
        o: View::<T>::new(&args.o),
        lse: args.lse.as_ref().map(View::<f32>::new),
        parts: Rows { view: View::new(workspace), start: 0, stride: plan.part_len() },
    };
    (0..plan.items() * plan.splits).into_par_iter().for_each(|item| {
        // SAFETY: as this function's contract; each item is run once.
        unsafe { work.part(item / plan.splits, item % plan.splits) };
    });
    if plan.splits > 1 {
        // SAFETY: as above; all parts are done.
        (0..plan.items()).into_par_iter().for_each(|item| unsafe { work.combine(item) });
    }
    // SAFETY: as above; no item has these queries.
    unsafe { work.clear_spare() };
    Ok(())
}

struct Work<'a, T> {
    plan: &'a Plan,
    layout: Layout<'a>,
    q: View<T>,
    k: View<T>,
    v: View<T>,
    o: View<T>,
    lse: Option<View<f32>>,
    parts: Rows<f32>,
}

/// A tile of rows. Row `r` is query `r / fold` of head `head + r % fold`.
struct Tile<'a> {
    sequence: Sequence<'a>,
    head: usize,
    fold: usize,
    rows: Range<usize>,
}

impl Tile<'_> {
    fn query(&self, row: usize) -> usize {
        row / self.fold
    }

    fn head(&self, row: usize) -> usize {
        self.head + row % self.fold
    }

    fn queries(&self) -> Range<usize> {
        self.query(self.rows.start)..self.query(self.rows.end - 1) + 1
    }
}

impl<'a, T: Element> Work<'a, T> {
    /// The tile of an item, unless its sequence is too short to have it.
    fn tile(&self, item: usize) -> Option<Tile<'a>> {
        let (plan, op) = (self.plan, &self.plan.op);
        let groups = op.heads as usize / plan.fold;
        let (tile, rest) = (item % plan.row_tiles, item / plan.row_tiles);
        let sequence = self.layout.sequence(rest / groups);
        let rows = tile * ROWS..((tile + 1) * ROWS).min(sequence.queries * plan.fold);
        let head = rest % groups * plan.fold;
        (!rows.is_empty()).then_some(Tile { sequence, head, fold: plan.fold, rows })
    }

    /// Computes one part of one item. It stores the result or, where there are several parts, leaves it in the workspace.
    ///
    /// # Safety
    /// The operands are held; each part of each item is run once.
    unsafe fn part(&self, item: usize, split: usize) {
        let (op, d) = (&self.plan.op, self.plan.op.head_dim as usize);
        let Some(tile) = self.tile(item) else { return };
        let m = if self.is_whole() { tile.rows.len().max(LEAST_ROWS) } else { tile.rows.len() };
        with_scratch([m * d, m * d, m, m, m * KEYS, KEYS * d, KEYS * d], |[q, values, max, sum, scores, k, v]| {
            q[tile.rows.len() * d..].fill(0.0);
            for (wide, row) in q.chunks_exact_mut(d).zip(tile.rows.clone()) {
                let at = tile.sequence.q_at + tile.query(row) * op.q.token as usize + tile.head(row) * op.q.head as usize;
                // SAFETY: the query lies inside q.
                T::widen(unsafe { self.q.read(at, d) }, wide);
            }
            let mut state = State { max, sum, values };
            state.clear();
            for piece in self.layout.pieces(&tile.sequence, tile.head, &tile.queries()) {
                let keys = share(&piece.keys, split, self.plan.splits);
                let cut = if self.is_whole() { keys.start % KEYS } else { 0 };
                for first in (keys.start - cut..keys.end).step_by(KEYS) {
                    let keys = first.max(keys.start)..(first + KEYS).min(keys.end);
                    // SAFETY: as this function's contract; the keys lie inside the sequence.
                    unsafe { self.attend(&tile, &piece, keys, q, &mut state, [&mut *scores, &mut *k, &mut *v]) };
                }
            }
            if self.plan.splits == 1 {
                for (i, row) in tile.rows.clone().enumerate() {
                    let (factor, lse) = softmax::finish(state.max[i], state.sum[i]);
                    // SAFETY: each row is stored once.
                    unsafe { self.store(&tile, row, &mut state.values[i * d..][..d], factor, lse) };
                }
            } else {
                // SAFETY: the part is this piece of work's own.
                let part = unsafe { self.parts.row_mut(item * self.plan.splits + split, self.plan.part_len()) };
                part[..m].copy_from_slice(state.max);
                part[m..2 * m].copy_from_slice(state.sum);
                part[2 * m..][..m * d].copy_from_slice(state.values);
            }
        });
    }

    /// Whether all tiles are of one size, so that a query's bits do not depend on which others are in its tile.
    fn is_whole(&self) -> bool {
        matches!(self.plan.op.form, Form::RaggedPaged(_))
    }

    /// Gives spare queries the result of those that see nothing.
    ///
    /// # Safety
    /// The operands are held, and no item is at work.
    unsafe fn clear_spare(&self) {
        let op = &self.plan.op;
        for query in self.layout.queries()..op.q_extent().1 as usize {
            for head in 0..op.heads as usize {
                let at = query * op.o.token as usize + head * op.o.head as usize;
                // SAFETY: as this function's contract; the query lies inside o, and inside the LSE.
                unsafe {
                    T::narrow(&[0.0; 256][..op.head_dim as usize], self.o.write(at, op.head_dim as usize));
                    if let Some(out) = self.lse {
                        out.write(head * (op.lse_len() / op.heads) as usize + query, 1).fill(f32::NEG_INFINITY);
                    }
                }
            }
        }
    }

    /// Adds a tile of keys to the state.
    ///
    /// # Safety
    /// The operands are held; the keys lie inside the sequence.
    unsafe fn attend(&self, tile: &Tile<'_>, piece: &Piece<'_>, keys: Range<usize>, q: &[f32], state: &mut State<'_>, [scores, k, v]: [&mut [f32]; 3]) {
        let (op, d, sequence) = (&self.plan.op, self.plan.op.head_dim as usize, &tile.sequence);
        // A tile of one size has its first key at a multiple of it. Keys that are not seen are zeros before the products.
        let first = if self.is_whole() { keys.start / KEYS * KEYS } else { keys.start };
        let (m, n) = if self.is_whole() { (state.max.len(), KEYS) } else { (tile.rows.len(), keys.len()) };
        let (skipped, behind) = ((keys.start - first) * d, (keys.end - first) * d);
        let kv_head = tile.head / (op.heads / op.kv_heads) as usize;
        let scores = &mut scores[..m * n];
        // SAFETY: as this function's contract; the scores are packed.
        unsafe {
            let place = |j: usize| sequence.k_place(op.k, j) + kv_head * op.k.head as usize;
            let (k, stride) = if self.is_whole() {
                k[..skipped].fill(0.0);
                k[behind..].fill(0.0);
                panel(self.k, &keys, d, op.k.token as usize, false, place, &mut k[skipped..]);
                (k.as_ptr(), d)
            } else {
                panel(self.k, &keys, d, op.k.token as usize, sequence.is_contiguous(), place, k)
            };
            product::gemm([m, n, d], scores.as_mut_ptr(), [n, 1], false, (q.as_ptr(), [d, 1]), (k, [1, stride]), op.scale_value());
        }
        if let Some(bits) = &piece.bits {
            for (row, scores) in tile.rows.clone().zip(scores.chunks_exact_mut(n)) {
                for (j, score) in keys.clone().zip(scores) {
                    if !bits.sees(tile.query(row), j) {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
        }
        state.take(scores, n, d, |i| {
            if i >= tile.rows.len() {
                return 0..0;
            }
            let query = tile.query(tile.rows.start + i);
            let mut seen = self.layout.seen(sequence, query);
            if piece.causal {
                seen.end = seen.end.min((self.layout.position(sequence, query) + 1).max(0) as usize);
            }
            let inside = |key: usize| key.clamp(keys.start, keys.end) - first;
            let end = inside(seen.end);
            inside(seen.start).min(end)..end
        });
        // SAFETY: as above.
        unsafe {
            let place = |j: usize| sequence.v_place(op.v, j) + kv_head * op.v.head as usize;
            let (v, stride) = if self.is_whole() {
                v[..skipped].fill(0.0);
                v[behind..].fill(0.0);
                panel(self.v, &keys, d, op.v.token as usize, false, place, &mut v[skipped..]);
                (v.as_ptr(), d)
            } else {
                panel(self.v, &keys, d, op.v.token as usize, sequence.is_contiguous(), place, v)
            };
            product::gemm([m, d, n], state.values.as_mut_ptr(), [d, 1], true, (scores.as_ptr(), [n, 1]), (v, [stride, 1]), 1.0);
        }
    }

    /// Adds up the parts of an item in their order, and stores the result.
    ///
    /// # Safety
    /// The operands are held; all parts are done; each item is run once.
    unsafe fn combine(&self, item: usize) {
        let d = self.plan.op.head_dim as usize;
        let Some(tile) = self.tile(item) else { return };
        let m = tile.rows.len();
        // SAFETY: the parts are done, and nobody writes them now.
        let part = |split: usize| unsafe { self.parts.row(item * self.plan.splits + split, self.plan.part_len()) };
        with_scratch([d], |[values]| {
            for (i, row) in tile.rows.clone().enumerate() {
                let larger = |a: f32, b: f32| if b > a || b.is_nan() { b } else { a };
                let max = (0..self.plan.splits).map(|split| part(split)[i]).fold(f32::NEG_INFINITY, larger);
                let mut sum = 0.0;
                values.fill(0.0);
                for split in 0..self.plan.splits {
                    let part = part(split);
                    // A part that saw nothing adds nothing, and −∞ − −∞ would be NaN.
                    if part[i] == f32::NEG_INFINITY {
                        continue;
                    }
                    let factor = math::exp(part[i] - max);
                    sum += factor * part[m + i];
                    math::add_scaled(values, factor, &part[2 * m + i * d..][..d]);
                }
                let (factor, lse) = softmax::finish(max, sum);
                // SAFETY: each row is stored once.
                unsafe { self.store(&tile, row, values, factor, lse) };
            }
        });
    }

    /// Stores `factor · values` and the LSE of a row.
    ///
    /// # Safety
    /// The operands are held; each row is stored once.
    unsafe fn store(&self, tile: &Tile<'_>, row: usize, values: &mut [f32], factor: f32, lse: f32) {
        let (op, sequence) = (&self.plan.op, &tile.sequence);
        let (query, head) = (tile.query(row), tile.head(row));
        values.iter_mut().for_each(|value| *value *= factor);
        let at = sequence.o_at + query * op.o.token as usize + head * op.o.head as usize;
        // SAFETY: rows of o are apart, as the descriptor's rules say.
        T::narrow(values, unsafe { self.o.write(at, values.len()) });
        if let Some(out) = self.lse {
            // SAFETY: one place a row.
            unsafe { out.write(sequence.lse_at + head * sequence.lse_stride + query, 1) }.fill(lse);
        }
    }
}

/// The keys of part `split`, in whole tiles, so that the cut depends on the number of parts alone.
fn share(keys: &Range<usize>, split: usize, splits: usize) -> Range<usize> {
    let size = keys.len().div_ceil(splits).next_multiple_of(KEYS);
    let at = |split: usize| (keys.start + split * size).min(keys.end);
    at(split)..at(split + 1)
}

/// The rows of `keys` as f32, and the distance between them. Evenly spaced f32 stays in place.
///
/// # Safety
/// `place` gives the start of `d` elements inside the view, which nobody writes.
unsafe fn panel<T: Element>(
    view: View<T>,
    keys: &Range<usize>,
    d: usize,
    stride: usize,
    contiguous: bool,
    place: impl Fn(usize) -> usize,
    scratch: &mut [f32],
) -> (*const f32, usize) {
    // SAFETY: as this function's contract.
    let row = |j: usize| unsafe { view.read(place(j), d) };
    if let (true, Some(first)) = (contiguous, T::as_f32(row(keys.start))) {
        return (first.as_ptr(), stride);
    }
    for (j, wide) in keys.clone().zip(scratch.chunks_exact_mut(d)) {
        T::widen(row(j), wide);
    }
    (scratch.as_ptr(), d)
}
