//! Attention over a prefix in factors. A tile of keys is rebuilt for a tile of rows, in the pool's scratch memory.
//!
//! A row is a query of any sequence and one of the heads that share keys, so sequences and heads fill a tile together.

use std::ops::Range;

use rayon::prelude::*;

use super::attention::{State, finish};
use super::codebook::Factor;
use super::element::{Element, by_dtype, with_scratch};
use super::product::gemm;
use super::view::View;
use super::{Cpu, Queue, math, sole_variant};
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::Result;
use crate::ops::attention::Strides;
use crate::ops::prefix_attention::{Factors, FactorsArgs};
use crate::ops::{PrefixAttention, PrefixAttentionArgs};

const VARIANT: &str = "rebuilt_tiles";
/// Rows of a tile.
const ROWS: usize = 64;
/// Keys of a tile. Codes are widened from multiples of 32.
const KEYS: usize = 128;

/// A planned operation.
#[derive(Clone)]
pub struct Plan {
    op: PrefixAttention,
}

impl Kernel<PrefixAttention> for Cpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        &[VARIANT]
    }

    fn plan(&self, op: &PrefixAttention, only: Option<&str>) -> Result<Plan> {
        sole_variant("prefix_attention", VARIANT, only)?;
        Ok(Plan { op: op.clone() })
    }

    fn workspace_bytes(_plan: &Plan) -> u64 {
        0
    }

    fn variant(_plan: &Plan) -> &'static str {
        VARIANT
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, _workspace: &Slice<Self>, args: &PrefixAttentionArgs<Self>) -> Result<()> {
        let op = plan.op.clone();
        // SAFETY: `check` accepted the operands, and the queue holds their buffers while the work runs.
        queue.put(&plan.op, None, args, move |args| by_dtype!(op.dtype, T => unsafe { run::<T>(&op, args) }))
    }
}

/// K or V, given by its factors.
struct Rebuilt<'a, T> {
    coefficients: Factor<'a, T>,
    basis: Factor<'a, T>,
    rank: usize,
}

impl<T: Element> Rebuilt<'_, T> {
    /// The factors that `args` give.
    ///
    /// # Safety
    /// [`crate::ops::check`] accepted `args`, and they are held for as long as this lives.
    unsafe fn new(op: &PrefixAttention, factors: Factors, args: &FactorsArgs<Cpu>) -> Result<Self> {
        // SAFETY: as this function's contract.
        unsafe {
            let coefficients = Factor::new(&args.coefficients, factors.coefficients, 1, op.tokens, factors.rank)?;
            let basis = Factor::new(&args.basis, factors.basis, 1, op.width(), factors.rank)?;
            Ok(Self { coefficients, basis, rank: factors.rank as usize })
        }
    }

    /// Elements of scratch memory that [`rows`](Self::rows) needs.
    fn scratch_len(&self, head_dim: usize) -> usize {
        // A head need not start where a word of codes does.
        (KEYS + head_dim + 2 * 32) * self.rank
    }

    /// Writes the rows of one head, `[keys, head_dim]`, to `out`. `keys` start at a multiple of 32.
    ///
    /// # Safety
    /// The operands are held; keys and head lie inside them.
    unsafe fn rows(&self, keys: Range<usize>, head: Range<usize>, out: &mut [f32], scratch: &mut [f32]) {
        let (coefficients, basis) = scratch.split_at_mut(KEYS * self.rank);
        let from = head.start / 32 * 32;
        let [m, n] = [keys.len(), head.len()];
        // SAFETY: as this function's contract; `out` is packed.
        unsafe {
            let (own, own_strides) = self.coefficients.tile(0, keys, 0..self.rank, coefficients);
            let (basis, [element, column]) = self.basis.tile(0, from..head.end, 0..self.rank, basis);
            let basis = basis.add((head.start - from) * element);
            gemm([m, n, self.rank], out.as_mut_ptr(), [n, 1], false, (own, own_strides), (basis, [column, element]), 1.0);
        }
    }
}

struct Work<'a, T> {
    op: &'a PrefixAttention,
    q: View<T>,
    key: Rebuilt<'a, T>,
    value: Rebuilt<'a, T>,
    o: View<T>,
    lse: View<f32>,
}

/// Runs the operation.
///
/// # Safety
/// [`crate::ops::check`] accepted `args`, and they are held.
unsafe fn run<T: Element>(op: &PrefixAttention, args: &PrefixAttentionArgs<Cpu>) -> Result<()> {
    // SAFETY: as this function's contract.
    let [key, value] = unsafe { [Rebuilt::new(op, op.key, &args.key)?, Rebuilt::new(op, op.value, &args.value)?] };
    let work = Work { op, q: View::<T>::new(&args.q), key, value, o: View::new(&args.o), lse: View::new(&args.lse) };
    let tiles = work.head_rows().div_ceil(ROWS);
    (0..op.kv_heads as usize * tiles).into_par_iter().for_each(|item| {
        let rows = item % tiles * ROWS..(item % tiles * ROWS + ROWS).min(work.head_rows());
        // SAFETY: as this function's contract; each row is of one item.
        unsafe { work.tile(item / tiles, rows) };
    });
    Ok(())
}

impl<T: Element> Work<'_, T> {
    /// Query heads that share a KV head.
    fn group(&self) -> usize {
        (self.op.heads / self.op.kv_heads) as usize
    }

    /// Rows of a KV head.
    fn head_rows(&self) -> usize {
        (self.op.batch * self.op.q_len) as usize * self.group()
    }

    /// Sequence, query and head of a row.
    fn place(&self, kv_head: usize, row: usize) -> [usize; 3] {
        let (line, q_len) = (row / self.group(), self.op.q_len as usize);
        [line / q_len, line % q_len, kv_head * self.group() + row % self.group()]
    }

    fn at(&self, strides: Strides, [batch, query, head]: [usize; 3]) -> usize {
        batch * strides.batch as usize + query * strides.token as usize + head * strides.head as usize
    }

    /// Computes and stores `rows` of one KV head.
    ///
    /// # Safety
    /// The operands are held; each row is of one call.
    unsafe fn tile(&self, kv_head: usize, rows: Range<usize>) {
        let (op, d, m, tokens) = (self.op, self.op.head_dim as usize, rows.len(), self.op.tokens as usize);
        let head = kv_head * d..(kv_head + 1) * d;
        let factors = self.key.scratch_len(d).max(self.value.scratch_len(d));
        with_scratch([m * d, m * d, m, m, m * KEYS, KEYS * d, factors], |[q, values, max, sum, scores, kv, factors]| {
            for (wide, row) in q.chunks_exact_mut(d).zip(rows.clone()) {
                // SAFETY: the query lies inside q.
                T::widen(unsafe { self.q.read(self.at(op.q, self.place(kv_head, row)), d) }, wide);
            }
            let mut state = State { max, sum, values };
            state.clear();
            for first in (0..tokens).step_by(KEYS) {
                let keys = first..(first + KEYS).min(tokens);
                let n = keys.len();
                let scores = &mut scores[..m * n];
                // SAFETY: keys and head lie inside the factors; tiles are packed.
                unsafe {
                    self.key.rows(keys.clone(), head.clone(), &mut kv[..n * d], factors);
                    gemm([m, n, d], scores.as_mut_ptr(), [n, 1], false, (q.as_ptr(), [d, 1]), (kv.as_ptr(), [1, d]), op.plain().scale_value());
                    state.take(scores, n, d, |_| 0..n);
                    self.value.rows(keys, head.clone(), &mut kv[..n * d], factors);
                    gemm([m, d, n], state.values.as_mut_ptr(), [d, 1], true, (scores.as_ptr(), [n, 1]), (kv.as_ptr(), [d, 1]), 1.0);
                }
            }
            for (i, row) in rows.clone().enumerate() {
                let (factor, lse) = finish(state.max[i], state.sum[i]);
                let values = &mut state.values[i * d..][..d];
                values.iter_mut().for_each(|value| *value *= factor);
                // SAFETY: each row is stored once.
                unsafe { self.store(self.place(kv_head, row), values, lse, &mut kv[..d]) };
            }
        });
    }

    /// Stores a row, joined with the stored row where the descriptor says so.
    ///
    /// # Safety
    /// The operands are held; each row is stored once.
    unsafe fn store(&self, place: [usize; 3], values: &mut [f32], mut lse: f32, other: &mut [f32]) {
        let [batch, query, head] = place;
        let at = (batch * self.op.heads as usize + head) * self.op.q_len as usize + query;
        // SAFETY: rows of o and of the LSE are apart, as the descriptor's rules say.
        let (o, log) = unsafe { (self.o.write(self.at(self.op.o, place), values.len()), &mut self.lse.write(at, 1)[0]) };
        if self.op.join && *log != f32::NEG_INFINITY {
            let most = if *log > lse || log.is_nan() { *log } else { lse };
            let [weight, other_weight] = [lse, *log].map(|log| math::exp(log - most));
            let total = weight + other_weight;
            T::widen(o, other);
            for (value, other) in values.iter_mut().zip(&*other) {
                *value = (*value * weight + other * other_weight) / total;
            }
            lse = most + total.ln();
        }
        T::narrow(values, o);
        *log = lse;
    }
}
