//! The `pointwise` operations of a layer, a row at a time.

use std::ops::Range;

use rayon::prelude::*;

use super::element::{Element, by_dtype, round_trip, with_scratch};
use super::view::View;
use super::{Cpu, Queue, math, sole_variant};
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::{Error, Result};
use crate::ops::index::PageShape;
use crate::ops::pointwise::{Block, Heads, Kind, Places, Turn};
use crate::ops::{Activation, Pointwise, PointwiseArgs};

const VARIANT: &str = "rows";
/// About how many elements a piece of work has, so that its cost exceeds that of starting it.
const PIECE: usize = 1 << 14;

/// A planned operation.
#[derive(Clone)]
pub struct Plan {
    op: Pointwise,
}

impl Kernel<Pointwise> for Cpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        &[VARIANT]
    }

    fn plan(&self, op: &Pointwise, only: Option<&str>) -> Result<Plan> {
        sole_variant("pointwise", VARIANT, only)?;
        Ok(Plan { op: op.clone() })
    }

    fn workspace_bytes(_plan: &Plan) -> u64 {
        0
    }

    fn variant(_plan: &Plan) -> &'static str {
        VARIANT
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, _workspace: &Slice<Self>, args: &PointwiseArgs<Self>) -> Result<()> {
        let op = plan.op.clone();
        // SAFETY: `check` accepted the operands, and the queue holds their buffers while the work runs.
        queue.put(&plan.op, None, args, move |args| by_dtype!(op.dtype, T => unsafe { run::<T>(&op, args) }))
    }
}

/// The operands, as elements.
struct Operands<T> {
    x: View<T>,
    weight: Option<View<T>>,
    bias: Option<View<T>>,
    residual: Option<View<T>>,
    columns: usize,
    /// The blocks that columns of x, and of y, lie in.
    blocks: Vec<Block>,
}

impl<T: Element> Operands<T> {
    /// Where columns of row `row` lie in x and in y, block by block: their element, and which they are.
    fn pieces(&self, row: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        pieces(&self.blocks, 0..self.columns, row)
    }

    /// Row `row` of x, plus the residual's.
    ///
    /// # Safety
    /// The operands are held and have that row.
    unsafe fn widen(&self, row: usize, values: &mut [f32], other: &mut [f32]) {
        for (at, columns) in self.pieces(row) {
            // SAFETY: as this function's contract.
            T::widen(unsafe { self.x.read(at, columns.len()) }, &mut values[columns]);
        }
        if let Some(residual) = self.residual {
            // SAFETY: as this function's contract.
            T::widen(unsafe { residual.read(row * self.columns, self.columns) }, other);
            math::add(values, other);
        }
    }

    /// LayerNorm of `values`.
    ///
    /// # Safety
    /// The operands are held.
    unsafe fn layer_norm(&self, values: &mut [f32], eps: f32, other: &mut [f32]) {
        let mean = math::sum(values, |x| x) / values.len() as f32;
        let variance = math::sum(values, |x| (x - mean) * (x - mean)) / values.len() as f32;
        // SAFETY: as this function's contract.
        unsafe { self.scale(values, mean, 1.0 / (variance + eps).sqrt(), other) };
    }

    /// RMSNorm of each head of `values`, rounded.
    ///
    /// # Safety
    /// The operands are held.
    unsafe fn norm_heads(&self, values: &mut [f32], head_dim: usize, eps: f32, other: &mut [f32]) {
        let Some(weight) = self.weight else { return };
        // SAFETY: as this function's contract.
        T::widen(unsafe { weight.read(0, self.columns) }, other);
        for (head, weight) in values.chunks_exact_mut(head_dim).zip(other.chunks_exact(head_dim)) {
            let factor = 1.0 / (math::sum(head, |x| x * x) / head_dim as f32 + eps).sqrt();
            head.iter_mut().zip(weight).for_each(|(value, weight)| *value = *value * factor * weight);
        }
        round_trip::<T>(values);
    }

    /// `(values − mean) · factor · weight + bias`.
    ///
    /// # Safety
    /// The operands are held.
    unsafe fn scale(&self, values: &mut [f32], mean: f32, factor: f32, other: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = (*value - mean) * factor);
        if let Some(weight) = self.weight {
            // SAFETY: as this function's contract.
            T::widen(unsafe { weight.read(0, self.columns) }, other);
            values.iter_mut().zip(&*other).for_each(|(value, weight)| *value *= weight);
        }
        if let Some(bias) = self.bias {
            // SAFETY: as this function's contract.
            T::widen(unsafe { bias.read(0, self.columns) }, other);
            math::add(values, other);
        }
    }
}

/// Where `columns` of row `row` lie, block by block: their element, and which they are.
fn pieces(blocks: &[Block], columns: Range<usize>, row: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let wanted = columns.start as u64..columns.end as u64;
    let piece = move |block: &Block| {
        let own = block.within(wanted.clone());
        let at = block.start + row as u64 * block.stride + (own.start - block.columns.start.min(own.start));
        (at as usize, own.start as usize..own.end as usize)
    };
    blocks.iter().map(piece).filter(|(_, own)| !own.is_empty())
}

/// Runs the operation.
///
/// # Safety
/// [`crate::ops::check`] accepted `args`, and they are held.
unsafe fn run<T: Element>(op: &Pointwise, args: &PointwiseArgs<Cpu>) -> Result<()> {
    let (rows, columns) = (op.rows as usize, op.columns as usize);
    let view = |slice: &Option<Slice<Cpu>>| slice.as_ref().map(View::<T>::new);
    let [weight, bias, residual] = [&args.weight, &args.bias, &args.residual].map(view);
    let whole = || vec![Block { columns: 0..op.columns, start: 0, stride: op.stride() }];
    let blocks = op.heads().map_or_else(whole, |heads| heads.blocks(op.rows, op.columns).into());
    let operands = Operands { x: View::<T>::new(&args.x), weight, bias, residual, columns, blocks };
    // SAFETY: as this function's contract.
    let words = |slice: &Slice<Cpu>| unsafe { View::<i32>::new(slice).all() };
    let positions = args.positions.as_ref().map(words).unwrap_or_default();
    // SAFETY: as this function's contract.
    let frequencies = args.frequencies.as_ref().map(|slice| unsafe { View::<f32>::new(slice).all() }).unwrap_or_default();
    let ids = args.ids.as_ref().map(|ids| words(ids.slice())).unwrap_or_default();
    let places = args.places.as_ref().map(|places| words(places.slice())).unwrap_or_default();
    let starts = args.sequences.as_ref().map(|sequences| words(sequences.slice())).unwrap_or_default();
    check_words(op, ids, places, starts)?;
    let y = View::<T>::new(&args.y);
    let places_of = |to: Places, own: &[i32]| match to {
        Places::Pages(cache) => rows_in(&cache, rows, args.pages.as_ref().map(|pages| words(pages.slice())).unwrap_or_default()),
        Places::Slots(slots) => Ok(own.iter().take(rows).map(|&place| u32::try_from(place).ok().filter(|&to| to < slots).map(|to| to as usize)).collect()),
    };
    let to = match op.kind {
        Kind::Append { cache, .. } => Some(Places::Pages(cache)),
        Kind::Store { slots, .. } => Some(Places::Slots(slots)),
        _ => None,
    };
    if let Some(to) = to {
        // SAFETY: as this function's contract: the places were checked.
        unsafe { keep((operands.x, &operands.blocks), 0..columns, y, &places_of(to, positions)?) };
        return Ok(());
    }
    if let Kind::Glu(activation) = op.kind {
        // SAFETY: as this function's contract.
        unsafe { gates(activation, operands.x, y, [rows, columns]) };
        return Ok(());
    }
    let frequency = |head_dim: u64, turn: Turn| {
        move |j: usize| match turn {
            Turn::Base(bits) => f64::from(f32::from_bits(bits)).powf(-2.0 * j as f64 / head_dim as f64),
            Turn::Table => f64::from(frequencies[j]),
        }
    };
    let piece = (PIECE / columns).max(1);
    (0..rows.div_ceil(piece)).into_par_iter().for_each(|number| {
        with_scratch([columns, columns], |[values, other]| {
            for row in number * piece..((number + 1) * piece).min(rows) {
                // SAFETY: rows lie inside the operands, each written by one piece of work; the words were checked.
                unsafe {
                    match op.kind {
                        Kind::RmsNorm { eps, .. } => {
                            operands.widen(row, values, other);
                            let mean_square = math::sum(values, |x| x * x) / columns as f32;
                            operands.scale(values, 0.0, 1.0 / (mean_square + f32::from_bits(eps)).sqrt(), other);
                        }
                        Kind::LayerNorm { eps, .. } => {
                            operands.widen(row, values, other);
                            operands.layer_norm(values, f32::from_bits(eps), other);
                        }
                        Kind::Rope { head_dim, turn } | Kind::RopeInPlace { head_dim, turn, .. } => {
                            operands.widen(row, values, other);
                            rotate(values, head_dim as usize, frequency(head_dim, turn), positions[row], other);
                        }
                        Kind::Heads(Heads { head_dim, turn, norm, .. }) => {
                            operands.widen(row, values, other);
                            if let Some(eps) = norm {
                                operands.norm_heads(values, head_dim as usize, f32::from_bits(eps), other);
                            }
                            rotate(values, head_dim as usize, frequency(head_dim, turn), positions[row], other);
                        }
                        Kind::Embedding { .. } => match usize::try_from(ids[2 + row]) {
                            Ok(id) => operands.widen(id, values, other),
                            Err(_) => values.fill(0.0),
                        },
                        Kind::EmbeddingNorm { eps, .. } => {
                            values.fill(0.0);
                            for (table, ids) in [(Some(operands.x), ids), (operands.residual, places)] {
                                if let (Some(table), Ok(id)) = (table, usize::try_from(ids[2 + row])) {
                                    T::widen(table.read(id * columns, columns), other);
                                    math::add(values, other);
                                }
                            }
                            operands.layer_norm(values, f32::from_bits(eps), other);
                        }
                        Kind::MeanPool(_) => {
                            let (first, last) = (starts[row] as usize, starts[row + 1] as usize);
                            values.fill(0.0);
                            for token in first..last {
                                T::widen(operands.x.read(token * columns, columns), other);
                                math::add(values, other);
                            }
                            let count = (last - first).max(1) as f32;
                            values.iter_mut().for_each(|value| *value /= count);
                        }
                        Kind::L2Normalise => {
                            operands.widen(row, values, other);
                            let norm = math::sum(values, |x| x * x).sqrt();
                            // `max` would hide NaN here.
                            let norm = if norm < 1e-12 { 1e-12 } else { norm };
                            values.iter_mut().for_each(|value| *value /= norm);
                        }
                        Kind::Add | Kind::Append { .. } | Kind::Store { .. } | Kind::Glu(_) => operands.widen(row, values, other),
                        Kind::Activation(activation) => {
                            operands.widen(row, values, other);
                            math::activate(activation, values);
                        }
                    }
                    for (at, columns) in operands.pieces(row) {
                        T::narrow(&values[columns.clone()], y.write(at, columns.len()));
                    }
                }
            }
        });
    });
    if let (Some(heads), Some(pool)) = (op.heads(), &args.pool) {
        let own = args.slots.as_ref().map(words).unwrap_or_default();
        // SAFETY: as this function's contract: the places were checked, and no row is written any more.
        unsafe { keep((y, &operands.blocks), heads.first as usize..(heads.first + heads.kept) as usize, View::new(pool), &places_of(heads.to, own)?) };
    }
    Ok(())
}

/// Copies `columns` of each row of x, which lie in `blocks`, to its place in y. Rows are written one after another, since two rows may have one place.
///
/// # Safety
/// The operands are held: x has those rows, and y those places.
unsafe fn keep<T: Element>((x, blocks): (View<T>, &[Block]), columns: Range<usize>, y: View<T>, places: &[Option<usize>]) {
    for (row, place) in places.iter().enumerate() {
        let Some(to) = place else { continue };
        for (at, own) in pieces(blocks, columns.clone(), row) {
            // SAFETY: as this function's contract.
            unsafe { y.write(to * columns.len() + own.start - columns.start, own.len()).copy_from_slice(x.read(at, own.len())) };
        }
    }
}

/// What gates let through, of rows `[gate | up]`. A long row is cut, so that one row keeps all cores busy.
///
/// # Safety
/// The operands are held: x has `rows` rows of `2 · columns` elements, and y as many of `columns`.
unsafe fn gates<T: Element>(activation: Activation, x: View<T>, y: View<T>, [rows, columns]: [usize; 2]) {
    let (length, least) = (columns.min(PIECE), (PIECE / columns).max(1));
    let parts = columns.div_ceil(length);
    (0..rows * parts).into_par_iter().with_min_len(least).for_each(|number| {
        let (row, first) = (number / parts, number % parts * length);
        let count = length.min(columns - first);
        let at = 2 * row * columns + first;
        with_scratch([count, count], |[values, other]| {
            // SAFETY: the part lies inside its row, and no other part writes there.
            unsafe {
                T::widen(x.read(at, count), values);
                math::activate(activation, values);
                T::widen(x.read(at + columns, count), other);
                values.iter_mut().zip(&*other).for_each(|(value, up)| *value *= up);
                T::narrow(values, y.write(row * columns + first, count));
            }
        });
    });
}

/// The place in a pool of each of `rows` new rows; none where its sequence is too short. Every word becomes an address, and is checked.
fn rows_in(cache: &PageShape, rows: usize, table: &[i32]) -> Result<Vec<Option<usize>>> {
    let (batch, pages, page) = (cache.batch as usize, cache.pages as usize, cache.page as usize);
    let place = |row: usize| {
        let each = rows / batch;
        let length = usize::try_from(*table.get(row / each)?).ok().filter(|&length| length <= pages * page)?;
        let Some(position) = length.checked_sub(each - row % each) else { return Some(None) };
        let number = u64::try_from(*table.get(batch + row / each * pages + position / page)?).ok().filter(|&number| number < cache.pool_pages)?;
        Some(Some(number as usize * page + position % page))
    };
    (0..rows).map(|row| place(row).ok_or_else(other_words)).collect()
}

fn other_words() -> Error {
    Error::invalid("pointwise: index", "the words that the index was made with", "other words (was its memory written to?)")
}

/// Checks every index word, since they become addresses.
fn check_words(op: &Pointwise, ids: &[i32], places: &[i32], starts: &[i32]) -> Result<()> {
    let below = |ids: &[i32], table: u32| {
        let ids = ids.get(2..2 + op.rows as usize);
        ids.is_some_and(|ids| ids.iter().all(|&id| id >= -1 && i64::from(id) < i64::from(table)))
    };
    let sound = match op.kind {
        Kind::Embedding { vocabulary } => below(ids, vocabulary),
        Kind::EmbeddingNorm { vocabulary, places: table, .. } => below(ids, vocabulary) && below(places, table),
        Kind::MeanPool(shape) => {
            let starts = starts.get(..=op.rows as usize);
            starts.is_some_and(|starts| starts[0] == 0 && starts.windows(2).all(|pair| pair[0] <= pair[1]) && starts[starts.len() - 1] as u64 <= shape.total_q)
        }
        _ => true,
    };
    if sound { Ok(()) } else { Err(other_words()) }
}

/// Rotates the pairs of each head by the angles of a position. The angles are in f64: a position may be large, and an f32 holds a large
/// angle only coarsely.
fn rotate(values: &mut [f32], head_dim: usize, frequency: impl Fn(usize) -> f64, position: i32, angles: &mut [f32]) {
    let half = head_dim / 2;
    let (sines, rest) = angles.split_at_mut(half);
    let cosines = &mut rest[..half];
    for (j, (sine, cosine)) in sines.iter_mut().zip(&mut *cosines).enumerate() {
        let angle = f64::from(position) * frequency(j);
        (*sine, *cosine) = (angle.sin() as f32, angle.cos() as f32);
    }
    for head in values.chunks_exact_mut(head_dim) {
        let (low, high) = head.split_at_mut(half);
        for (((low, high), sine), cosine) in low.iter_mut().zip(high).zip(&*sines).zip(&*cosines) {
            (*low, *high) = (*low * cosine - *high * sine, *high * cosine + *low * sine);
        }
    }
}
