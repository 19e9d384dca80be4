//! Repacking for `attention`: operands whose rows a kernel cannot read, or whose sequences lie at slots, are copied into aligned rows of the workspace.

use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, address, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::Strides;
use crate::ops::{Attention, AttentionArgs};

params! {
    /// An operand to copy, with strides in elements. It has no rows where it is not copied.
    RowsParams {
        from: [const element],
        end: [const element],
        to: [element],
        /// Rows of all sequences, tokens and heads. `inner` rows follow each other, `middle` times over, and that repeats.
        rows: u64,
        inner: u64,
        middle: u64,
        inner_stride: u64,
        middle_stride: u64,
        outer_stride: u64,
    }
}

params! {
    /// Parameters of the kernel that copies.
    RepackParams {
        q: RowsParams,
        k: RowsParams,
        v: RowsParams,
        head_dim: u64,
        to_stride: u64,
        /// The slot of each sequence; null where sequences are copied in order.
        slots: [const i32],
    }
}

/// The name of the kernel that copies.
pub(crate) const ENTRY: &str = "attention_repack";

/// The unit of the kernel that copies. It moves bits, for f16 and bf16 alike, and for f32 in halves.
pub(crate) fn unit() -> Unit {
    Unit {
        headers: vec![("attention/rows_params.cuh", RowsParams::cuda()), ("attention/repack_params.cuh", RepackParams::cuda())],
        defines: vec![("ELEMENT", "f16".into())],
        entries: &[ENTRY],
        ..Unit::new("attention/repack", source!("attention/repack.cu"))
    }
}

/// Threads of a block, and elements that each writes at a time, in `kernels/tile/repack.cuh`.
const THREADS: u64 = 256;
const WIDTH: u64 = 8;
/// The most blocks an SM for one operand. They are persistent and walk over the rows.
const BLOCKS: u64 = 8;

/// Where the rows of q, k or v lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) batch: u64,
    pub(crate) tokens: u64,
    pub(crate) heads: u64,
    pub(crate) strides: Strides,
}

impl Rows {
    /// The rows of q, of k and of v.
    pub(crate) fn of(op: &Attention) -> [Self; 3] {
        let rows = |(batch, tokens), heads, strides| Self { batch, tokens, heads, strides };
        [rows(op.q_extent(), op.heads, op.q), rows(op.kv_extent(), op.kv_heads, op.k), rows(op.kv_extent(), op.kv_heads, op.v)]
    }

    /// Whether rows lie multiples of 16 bytes apart.
    pub(crate) fn aligned(&self, dtype: DType) -> bool {
        let Strides { batch, token, head } = self.strides;
        let free = |count: u64, stride: u64| count <= 1 || (stride * dtype.size()).is_multiple_of(16);
        free(self.batch, batch) && free(self.tokens, token) && free(self.heads, head)
    }

    /// Whether a token's heads lie further apart than a head's tokens.
    const fn heads_outside(&self) -> bool {
        self.strides.head > self.strides.token
    }

    /// The axes of a copy, innermost first, as `(count, stride)`. Axes that lie end to end are joined into one, but for sequences that are not in
    /// order.
    fn axes(&self, in_order: bool) -> [(u64, u64); 3] {
        let Strides { batch, token, head } = self.strides;
        let (tokens, heads) = ((self.tokens, token), (self.heads, head));
        let (mut inner, mut middle) = if self.heads_outside() { (tokens, heads) } else { (heads, tokens) };
        let joins = |inner: (u64, u64), outer: (u64, u64)| outer.0 == 1 || outer.1 == inner.0 * inner.1;
        let mut outer = (self.batch, batch);
        if joins(inner, middle) {
            (inner.0, middle) = (inner.0 * middle.0, (1, 0));
            if in_order && joins(inner, outer) {
                (inner.0, outer) = (inner.0 * outer.0, (1, 0));
            }
        }
        [inner, middle, outer]
    }

    fn count(&self) -> u64 {
        self.batch.saturating_mul(self.tokens).saturating_mul(self.heads)
    }

    /// Elements from the first of the operand to one past its last.
    pub(crate) fn span(&self, head_dim: u64) -> u64 {
        let last = |count: u64, stride| count.saturating_sub(1) * stride;
        if self.count() == 0 {
            0
        } else {
            last(self.batch, self.strides.batch) + last(self.tokens, self.strides.token) + last(self.heads, self.strides.head) + head_dim
        }
    }
}

/// Which operands of an operation are copied.
#[derive(Clone, Debug)]
pub(crate) struct Repack {
    rows: [Rows; 3],
    copied: [bool; 3],
    /// How many sequences are copied, where they lie at slots. Else all are, in order.
    taken: Option<u64>,
    head_dim: u64,
    /// Bytes of an element.
    size: u64,
}

/// Whether sequences lie in order, as variants that copy nothing read them, or why not.
pub(crate) fn in_order(op: &Attention) -> std::result::Result<(), String> {
    op.slots.map_or(Ok(()), |_| Err("sequences lie at slots, and it reads them in order".into()))
}

impl Repack {
    /// The copies of the operands that `readable` refuses; of all, where sequences lie at slots.
    pub(crate) fn of(op: &Attention, readable: impl Fn(&Rows) -> bool) -> Self {
        let (rows, taken) = (Rows::of(op), op.slots.map(|_| op.batch));
        let copied = rows.each_ref().map(|rows| taken.is_some() || !readable(rows));
        Self { rows, copied, taken, head_dim: op.head_dim, size: op.dtype.size() }
    }

    /// Rows that are copied of an operand.
    fn count(&self, operand: usize) -> u64 {
        let rows = self.rows[operand];
        if self.copied[operand] { Rows { batch: self.taken.unwrap_or(rows.batch), ..rows }.count() } else { 0 }
    }

    /// Elements of a row of a copy.
    fn stride(&self) -> u64 {
        self.head_dim.next_multiple_of(WIDTH)
    }

    /// Bytes of each copy, a multiple of 16.
    fn parts(&self) -> [u64; 3] {
        [0, 1, 2].map(|i: usize| self.count(i).saturating_mul(self.stride() * self.size))
    }

    /// Bytes of all copies.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts().into_iter().fold(0, u64::saturating_add)
    }

    /// The unit of the kernel that copies, where there is anything to copy.
    pub(crate) fn unit(&self) -> Option<Unit> {
        self.copied.contains(&true).then(unit)
    }

    /// The operation on the copies: padded rows end to end, with tokens and heads nested as before, and sequences in order.
    pub(crate) fn reads(&self, op: &Attention) -> Attention {
        let strides = |i: usize| match self.copied[i] {
            true if self.rows[i].heads_outside() => Strides::bhsd(self.rows[i].tokens, self.rows[i].heads, self.stride()),
            true => Strides::bshd(self.rows[i].tokens, self.rows[i].heads, self.stride()),
            false => self.rows[i].strides,
        };
        Attention { q: strides(0), k: strides(1), v: strides(2), slots: None, ..op.clone() }
    }

    /// Enqueues the copies, if there are any, and returns where q, k and v then start. The plan has the unit of [`unit`](Self::unit).
    ///
    /// # Safety
    /// The conditions of [`Plan::launch`] hold, and `workspace` starts at a multiple of 16 bytes.
    pub(crate) unsafe fn launch(&self, queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<[u64; 3]> {
        let mut starts = [&args.q, &args.k, &args.v].map(address);
        if self.bytes() == 0 {
            return Ok(starts);
        }
        if workspace.len < self.bytes() {
            return Err(Error::invalid("workspace", format!("at least {} bytes", self.bytes()), workspace.len));
        }
        let (mut to, parts, mut most) = (address(workspace), self.parts(), 0);
        // What the kernel moves is 16 bits wide.
        let wide = self.size / 2;
        let params = [0, 1, 2].map(|i: usize| {
            let rows = &self.rows[i];
            let (from, count) = (starts[i], self.count(i));
            let [inner, middle, outer] = rows.axes(self.taken.is_none());
            let params = RowsParams {
                from,
                end: from + rows.span(self.head_dim) * self.size,
                to,
                rows: count,
                inner: inner.0,
                middle: middle.0,
                inner_stride: inner.1 * wide,
                middle_stride: middle.1 * wide,
                outer_stride: outer.1 * wide,
            };
            if self.copied[i] {
                starts[i] = to;
                to += parts[i];
                most = most.max(count * self.stride() * wide / WIDTH);
            }
            params
        });
        let [q, k, v] = params;
        let slots = args.slots.as_ref().map_or(0, |slots| address(slots.slice()));
        let params = RepackParams { q, k, v, head_dim: self.head_dim * wide, to_stride: self.stride() * wide, slots };
        let launch = Launch { grid: [blocks(most.div_ceil(THREADS).min(BLOCKS * u64::from(plan.target.units))), 3, 1], ..Launch::new(1, THREADS as u32) };
        // SAFETY: the caller's promise; the workspace holds the copies.
        unsafe { plan.launch(queue, ENTRY, &launch, &params)? };
        Ok(starts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_lie_end_to_end_are_one() {
        let rows = |strides| Rows { batch: 2, tokens: 5, heads: 3, strides };
        assert_eq!(rows(Strides::bshd(5, 3, 107)).axes(true), [(30, 107), (1, 0), (1, 0)]);
        assert_eq!(rows(Strides::bhsd(5, 3, 107)).axes(true), [(30, 107), (1, 0), (1, 0)]);
        let packed = Strides { batch: 2000, token: 330, head: 107 };
        assert_eq!(rows(packed).axes(true), [(3, 107), (5, 330), (2, 2000)]);
        let apart = Strides { batch: 2000, token: 321, head: 107 };
        assert_eq!(rows(apart).axes(true), [(15, 107), (1, 0), (2, 2000)]);
    }

    #[test]
    fn copies_lie_one_after_the_other_in_padded_rows() {
        let op = Attention::dense(DType::F16, 2, [4, 2], [65, 130], 107);
        let repack = Repack::of(&op, |rows| rows.heads == 4);
        assert_eq!(repack.parts(), [0, 2 * 130 * 2 * 112 * 2, 2 * 130 * 2 * 112 * 2]);
        let read = repack.reads(&op);
        assert_eq!((read.q, read.k, read.head_dim), (op.q, Strides::bshd(130, 2, 112), 107));
        assert_eq!(repack.rows.map(|rows| rows.span(107)), [2 * 65 * 4 * 107, 2 * 130 * 2 * 107, 2 * 130 * 2 * 107]);
        assert_eq!(Repack::of(&op, |_| true).bytes(), 0);
    }

    #[test]
    fn sequences_at_slots_are_copied_one_by_one() {
        let op = Attention::dense(DType::F32, 2, [4, 2], [65, 130], 64).with_slots(5);
        let repack = Repack::of(&op, |_| true);
        assert_eq!(repack.parts(), [65 * 4, 130 * 2, 130 * 2].map(|rows| 2 * rows * 64 * 4), "of two sequences");
        assert_eq!(repack.rows[0].span(64), 5 * 65 * 4 * 64, "from five");
        assert_eq!((repack.rows[0].axes(false), repack.rows[0].axes(true)), ([(260, 64), (1, 0), (5, 65 * 256)], [(1300, 64), (1, 0), (1, 0)]));
        assert_eq!(repack.reads(&op), Attention::dense(DType::F32, 2, [4, 2], [65, 130], 64));
        assert!(in_order(&op).is_err() && in_order(&repack.reads(&op)).is_ok());
    }
}
