//! `pointwise` of heads of new tokens on CUDA: turned in place and kept in a pool, in one launch.

use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::pdl::{Appended, InFlightWrites, Pool, starts_early};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, address, address_of, blocks, range};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::pointwise::{Heads, Places, Turn};
use crate::ops::{Pointwise, PointwiseArgs};

/// The units of a plan: both kernels, for only the launch can tell where operands start.
pub(crate) fn plan_unit(dtype: DType, apart: bool) -> Unit {
    Unit { also: vec![unit(&SIMT, dtype, apart)], ..unit(&PIECES, dtype, apart) }
}

/// The unit of each kernel.
pub(crate) fn units() -> Vec<Unit> {
    let both = |dtype| [false, true].into_iter().flat_map(move |apart| [&PIECES, &SIMT].map(|entry| unit(entry, dtype, apart)));
    DType::ALL.into_iter().flat_map(both).collect()
}

params! {
    /// Parameters of both kernels.
    HeadsParams {
        y: [element],
        /// The weights of all heads that turn, one after another, where they are normed.
        weight: [const element],
        pool: [element],
        positions: [const i32],
        /// Radians from a position to the next of each pair of a head, where a table has them.
        frequencies: [const f32],
        /// Lengths and pages, or slots.
        index: [const i32],
        rows: u64,
        columns: u64,
        stride: u64,
        head_dim: u64,
        first: u64,
        kept: u64,
        /// Shape of a cache that is appended to: rows of a sequence (0 where rows have slots), pages of a sequence, tokens of a page.
        each: u64,
        pages: u64,
        page: u64,
        /// Base-2 logarithm of the rotary base.
        log2_base: f64,
        eps: f32,
        slots: u32,
        /// Whether positions and places may be read before the wait.
        early: u32,
        spare: u32,
    }
}

/// The kernels, each the one entry of its unit: one for rows of whole pieces, one for every size and alignment.
const PIECES: [&str; 1] = ["pointwise_heads"];
const SIMT: [&str; 1] = ["pointwise_heads_simt"];

/// Threads of a block, elements that each moves at once, and the most pairs of a head, in `kernels/pointwise/heads.cuh`.
const THREADS: u64 = 256;
const PIECE: u64 = 4;
const PAIRS: u64 = 128;
/// Blocks an SM that are enough, where rows could be shared out among more.
const BLOCKS: u64 = 4;

/// The unit of a kernel, for rows whose q, k and v lie apart or side by side.
fn unit(entry: &'static [&'static str; 1], dtype: DType, apart: bool) -> Unit {
    let word = entry[0].strip_prefix("pointwise_").unwrap_or(entry[0]);
    let rows = if apart { " apart" } else { "" };
    let define = if entry == &PIECES { "COMPILE_pointwise_heads" } else { "COMPILE_pointwise_heads_simt" };
    Unit {
        headers: vec![("pointwise/heads_params.cuh", HeadsParams::cuda())],
        defines: [("ELEMENT", dtype.name().into()), (define, "1".into())].into_iter().chain(apart.then(|| ("HEADS_APART", "1".into()))).collect(),
        entries: entry,
        ..Unit::new(format!("pointwise/{word} {dtype}{rows}"), source!("pointwise/heads.cu"))
    }
}

/// Whether operands that are aligned to `alignment` bytes are moved by pieces, and the blocks on a device of `units` SMs: by rows, and of a row.
fn grid(op: &Pointwise, heads: &Heads, alignment: u64, units: u64) -> (bool, [u32; 2]) {
    let half = heads.head_dim / 2;
    let behind = (heads.first + heads.kept).saturating_sub(op.columns);
    let whole = [half, heads.first, heads.kept, heads.stride].iter().all(|elements| elements.is_multiple_of(PIECE));
    let sums = heads.norm.is_none() || half.is_power_of_two();
    let reach = heads.reach(op.columns);
    let fits = half <= PAIRS && behind.is_multiple_of(heads.head_dim) && reach <= u32::MAX.into();
    if !(whole && sums && fits && alignment.is_multiple_of(PIECE * op.dtype.size())) {
        return (false, [blocks(op.rows), 1]);
    }
    let parts = reach.div_ceil(2 * PIECE * THREADS);
    (true, [blocks(op.rows), blocks((units * BLOCKS).div_ceil(op.rows.max(1)).clamp(1, parts.clamp(1, 1 << 15)))])
}

/// Enqueues the kernel that operands allow.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn launch(queue: &mut Queue, plan: &Plan<Pointwise>, heads: &Heads, args: &PointwiseArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let Some(pool) = &args.pool else { return Ok(()) };
    let pages = args.pages.as_ref().map(|pages| pages.slice());
    let index = pages.or(args.slots.as_ref());
    let (each, cache_pages, page, slots) = match heads.to {
        Places::Pages(cache) => (op.rows / cache.batch.max(1), cache.pages, cache.page, 0),
        Places::Slots(slots) => (0, 0, 1, slots),
    };
    let mut params = HeadsParams {
        y: address(&args.y),
        weight: address_of(args.weight.as_ref()),
        pool: address(pool),
        positions: address_of(args.positions.as_ref()),
        frequencies: address_of(args.frequencies.as_ref()),
        index: address_of(index),
        rows: op.rows,
        columns: op.columns,
        stride: heads.stride,
        head_dim: heads.head_dim,
        first: heads.first,
        kept: heads.kept,
        each,
        pages: cache_pages,
        page,
        log2_base: if let Turn::Base(base) = heads.turn { f64::from(f32::from_bits(base)).log2() } else { 0.0 },
        eps: f32::from_bits(heads.norm.unwrap_or(0)),
        slots,
        early: 0,
        spare: 0,
    };
    let size = op.dtype.size();
    let places = params.y | params.weight | params.pool | (PIECE * size * PAIRS);
    let (pieces, [x, y]) = grid(op, heads, 1 << places.trailing_zeros(), plan.target.units.into());
    let launch = Launch { overlap: plan.target.arch >= Arch(90), grid: [x, y, 1], ..Launch::new(x, THREADS as u32) };
    let mut open = InFlightWrites::default();
    if launch.overlap {
        let known = queue.take_open();
        let reads: Vec<_> = [&args.positions, &args.slots, &args.frequencies].into_iter().flatten().map(range).collect();
        params.early = starts_early(&known, &reads).into();
        queue.leave_open(known);
        let rows = InFlightWrites::from(range(&args.y));
        open = queue.behind(rows.and(match heads.to {
            Places::Pages(cache) => {
                let by = Pool { start: params.pool, table: params.index, cache, row: heads.kept * size };
                Appended { range: range(pool), pool: by, tokens: each }.into()
            }
            Places::Slots(_) => range(pool).into(),
        }));
    }
    let entry = if pieces { PIECES[0] } else { SIMT[0] };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, entry, &launch, &params)? };
    queue.leave_open(open);
    Ok(())
}
