//! The `pointwise` operations of a layer on CUDA.

use crate::backends::cuda::gemm::activation::activation_code;
use crate::backends::cuda::heads;
use crate::backends::cuda::jit::{Arch, Source, Unit, source};
use crate::backends::cuda::runtime::pdl::{Appended, InFlightWrites, Pool};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Table, TensorCores, Variant, address, address_of, blocks, count, names, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::pointwise::{Kind, Turn};
use crate::ops::{Pointwise, PointwiseArgs};

impl Table for Pointwise {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { count(&VARIANTS) }>(&VARIANTS);
}

const VARIANTS: [Variant<Pointwise>; 1] = [Variant {
    name: "simt",
    label: "pointwise/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("there is no product of matrices"),
    supports: |_, _| Ok(()),
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, _| plan_unit(op),
    units: |_| [units(), heads::units()].concat(),
    workspace: |_, _| 0,
    launch,
}];

params! {
    /// Parameters of every kind of operation.
    PointwiseParams {
        x: [const element],
        weight: [const element],
        bias: [const element],
        residual: [const element],
        y: [element],
        /// Positions, places, ids, cumulative lengths, or lengths and pages.
        index: [const i32],
        /// Radians from a position to the next of each pair of a head, where a table has them.
        frequencies: [const f32],
        /// Ids of the second table.
        places: [const i32],
        rows: u64,
        columns: u64,
        /// Elements from a row to the next, for rotary positions, rows that go to a pool, and gates.
        stride: u64,
        head_dim: u64,
        /// Shape of a cache that is appended to: rows of a sequence, pages of a sequence, tokens of a page.
        each: u64,
        pages: u64,
        page: u64,
        /// Base-2 logarithm of the rotary base.
        log2_base: f64,
        eps: f32,
        kind: u32,
        activation: u32,
        /// Rows of a pool that rows are stored in.
        slots: u32,
    }
}

/// A kernel: the one entry of its unit, its source, and the macro that compiles it where the source holds several.
#[derive(Clone, Copy, Debug)]
struct Entry {
    list: &'static [&'static str; 1],
    define: Option<&'static str>,
    source: Source,
}

/// The kernel of a name, alone in its source or `of` several.
macro_rules! entry {
    ($path:literal, $name:literal) => {
        Entry { list: &[$name], define: None, source: source!($path) }
    };
    ($path:literal of $name:literal) => {
        Entry { list: &[$name], define: Some(concat!("COMPILE_", $name)), source: source!($path) }
    };
}

/// The kernels for every size and alignment.
const SIMT: Entry = entry!("pointwise/simt.cu", "pointwise_simt");
const ROPE: Entry = entry!("pointwise/rope.cu", "pointwise_rope");
const LINES: Entry = entry!("pointwise/lines.cu", "pointwise_lines");
const APPEND: Entry = entry!("pointwise/append.cu", "pointwise_append");
const POOL: Entry = entry!("pointwise/pool.cu", "pointwise_pool");

fn unit(entry: Entry, dtype: DType) -> Unit {
    let word = entry.list[0].strip_prefix("pointwise_").unwrap_or(entry.list[0]);
    let define = entry.define.map(|define| (define, "1".into()));
    Unit {
        headers: vec![("pointwise/params.cuh", PointwiseParams::cuda())],
        defines: [("ELEMENT", dtype.name().into())].into_iter().chain(define).collect(),
        entries: entry.list,
        ..Unit::new(format!("pointwise/{word} {dtype}"), entry.source)
    }
}

/// The unit of every kernel but those of heads.
fn units() -> Vec<Unit> {
    let norms = NORMS.into_iter().map(|(_, entry)| entry).chain(WIDE.into_iter().map(|(_, _, entry)| entry));
    let all = norms.chain([SIMT, ROPE, LINES, APPEND, POOL]);
    all.flat_map(|entry| DType::ALL.map(|dtype| unit(entry, dtype))).collect()
}

/// The units of the kernels that a launch of `op` may take, wherever its operands lie, best first.
fn plan_unit(op: &Pointwise) -> Unit {
    if op.heads().is_some() {
        return heads::plan_unit(op.dtype, op.heads().is_some_and(|heads| heads.apart));
    }
    let mut units = ALIGNMENTS.map(|alignment| unit(kernel(op, alignment, 1).0, op.dtype)).to_vec();
    units.dedup_by_key(|unit| unit.entries);
    let also = units.split_off(1);
    match units.pop() {
        Some(main) => Unit { also, ..main },
        None => unit(SIMT, op.dtype),
    }
}

/// Rows of a block, with a warp each, and elements that a lane moves at once, in `kernels/pointwise/norm.cuh`.
const NORM_ROWS: u64 = 8;
const PIECE: u64 = 4;
/// Pieces of a row that a lane holds, by kernel.
const NORMS: [(u64, Entry); 4] = [
    (2, entry!("pointwise/norm.cu" of "pointwise_norm_2")),
    (3, entry!("pointwise/norm.cu" of "pointwise_norm_3")),
    (4, entry!("pointwise/norm.cu" of "pointwise_norm_4")),
    (8, entry!("pointwise/norm.cu" of "pointwise_norm_8")),
];
/// Lines of a row that a thread holds, by kernel, in `kernels/pointwise/wide.cuh`. The second number is how many such blocks an SM has
/// registers for.
const WIDE: [(u64, u64, Entry); 3] = [
    (2, 4, entry!("pointwise/wide.cu" of "pointwise_wide_2")),
    (3, 3, entry!("pointwise/wide.cu" of "pointwise_wide_3")),
    (4, 2, entry!("pointwise/wide.cu" of "pointwise_wide_4")),
];
const WIDE_THREADS: u64 = 256;
/// The most pieces of a row of `RmsNorm` that a lane holds, where a block could take the row.
const ALONE: u64 = 4;
/// The most pairs of a head in `kernels/pointwise/rope.cuh`.
const ROPE_PAIRS: u64 = 256;
/// Blocks an SM of the norm kernels. Each is persistent and takes row after row.
const NORM_BLOCKS: u64 = 4;
/// Threads of a block, bytes that each moves at once, and lines of a row that a block sums, in `kernels/pointwise/lines.cuh`.
const LINE_THREADS: u64 = 256;
const LINE: u64 = 16;
const POOL_LINES: u64 = 16;

/// Alignments of all operands, in bytes, by which kernels differ.
const ALIGNMENTS: [u64; 3] = [16, 8, 1];

/// The largest of [`ALIGNMENTS`] to which all operands are aligned.
fn alignment(params: &PointwiseParams) -> u64 {
    let places = params.x | params.weight | params.bias | params.residual | params.y;
    ALIGNMENTS.into_iter().find(|&alignment| places.is_multiple_of(alignment)).unwrap_or(1)
}

/// The kernel for operands that are aligned to `alignment` bytes, and its blocks on a device of `units` SMs.
fn kernel(op: &Pointwise, alignment: u64, units: u64) -> (Entry, u32) {
    // Whether operands start at a multiple of this many elements, and rows are whole multiples of it.
    let on_whole = |elements: u64| op.columns.is_multiple_of(elements) && alignment.is_multiple_of(elements * op.dtype.size());
    let (each, across) = (LINE / op.dtype.size(), op.columns * op.dtype.size() / LINE);
    let lines = op.rows.saturating_mul(across);
    match op.kind {
        Kind::EmbeddingNorm { .. } => match NORMS.iter().find(|(pieces, _)| on_whole(PIECE) && op.columns <= pieces * 32 * PIECE) {
            Some((_, entry)) => (*entry, blocks(op.rows.div_ceil(NORM_ROWS).min(units * NORM_BLOCKS))),
            None => (SIMT, blocks(op.rows)),
        },
        Kind::RmsNorm { .. } | Kind::LayerNorm { .. } | Kind::L2Normalise => {
            let short = |most: u64| NORMS.iter().find(|(pieces, _)| *pieces <= most && on_whole(PIECE) && op.columns <= pieces * 32 * PIECE);
            let wide = || WIDE.iter().find(|(lines, ..)| on_whole(each) && across <= lines * WIDE_THREADS);
            // A step of a decoder has few rows: one that a warp needs eight pieces for is sooner normed by a block. Encoders have many.
            let alone = if matches!(op.kind, Kind::RmsNorm { .. }) { ALONE } else { u64::MAX };
            match (short(alone), wide(), short(u64::MAX)) {
                (Some((_, entry)), ..) | (None, None, Some((_, entry))) => (*entry, blocks(op.rows.div_ceil(NORM_ROWS).min(units * NORM_BLOCKS))),
                (None, Some((_, each_unit, entry)), _) => (*entry, blocks(op.rows.min(units * each_unit))),
                (None, None, None) => (SIMT, blocks(op.rows)),
            }
        }
        Kind::Rope { head_dim, .. } | Kind::RopeInPlace { head_dim, .. } => {
            let half = head_dim / 2;
            let whole = on_whole(each) && half.is_multiple_of(each) && op.stride().is_multiple_of(each);
            let entry = if whole && half <= ROPE_PAIRS && op.columns <= u32::MAX.into() { ROPE } else { SIMT };
            (entry, blocks(op.rows))
        }
        Kind::Embedding { .. } | Kind::Add | Kind::Activation(_) | Kind::Glu(_) if on_whole(each) && lines <= u64::from(u32::MAX) => {
            (LINES, blocks(lines.div_ceil(LINE_THREADS)))
        }
        Kind::Append { stride, .. } | Kind::Store { stride, .. } if on_whole(each) && stride.is_multiple_of(each) && lines < 1 << 31 => {
            (APPEND, blocks(lines.div_ceil(LINE_THREADS)))
        }
        Kind::MeanPool(_) if on_whole(each) => (POOL, blocks(op.rows.saturating_mul(across.div_ceil(POOL_LINES)))),
        _ => (SIMT, blocks(op.rows)),
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Pointwise>, _workspace: &Slice<Cuda>, args: &PointwiseArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if let Some(heads) = op.heads() {
        // SAFETY: the caller's promise.
        return unsafe { heads::launch(queue, plan, &heads, args) };
    }
    let mut params = PointwiseParams {
        x: address(&args.x),
        weight: address_of(args.weight.as_ref()),
        bias: address_of(args.bias.as_ref()),
        residual: address_of(args.residual.as_ref()),
        y: address(&args.y),
        index: 0,
        frequencies: address_of(args.frequencies.as_ref()),
        places: address_of(args.places.as_ref().map(|places| places.slice())),
        rows: op.rows,
        columns: op.columns,
        stride: op.stride(),
        head_dim: op.columns,
        each: 0,
        pages: 0,
        page: 0,
        log2_base: 0.0,
        eps: 0.0,
        kind: 0,
        activation: 0,
        slots: 0,
    };
    match op.kind {
        Kind::RmsNorm { eps, .. } => (params.kind, params.eps) = (0, f32::from_bits(eps)),
        Kind::LayerNorm { eps, .. } => (params.kind, params.eps) = (1, f32::from_bits(eps)),
        Kind::Rope { head_dim, turn } | Kind::RopeInPlace { head_dim, turn, .. } => {
            (params.kind, params.head_dim) = (2, head_dim);
            params.log2_base = if let Turn::Base(base) = turn { f64::from(f32::from_bits(base)).log2() } else { 0.0 };
            params.index = address_of(args.positions.as_ref());
        }
        Kind::Embedding { .. } => (params.kind, params.index) = (3, address_of(args.ids.as_ref().map(|ids| ids.slice()))),
        Kind::EmbeddingNorm { eps, .. } => {
            (params.kind, params.eps, params.index) = (8, f32::from_bits(eps), address_of(args.ids.as_ref().map(|ids| ids.slice())));
        }
        Kind::MeanPool(_) => (params.kind, params.index) = (4, address_of(args.sequences.as_ref().map(|sequences| sequences.slice()))),
        Kind::L2Normalise => params.kind = 5,
        Kind::Add => params.kind = 6,
        Kind::Activation(activation) => (params.kind, params.activation) = (7, activation_code(Some(activation))),
        Kind::Glu(activation) => (params.kind, params.activation) = (11, activation_code(Some(activation))),
        Kind::Store { slots, .. } => (params.kind, params.slots, params.index) = (10, slots, address_of(args.positions.as_ref())),
        Kind::Append { cache, .. } => {
            (params.kind, params.index) = (9, address_of(args.pages.as_ref().map(|pages| pages.slice())));
            (params.each, params.pages, params.page) = (op.rows / cache.batch.max(1), cache.pages, cache.page);
        }
        // They have kernels of their own.
        Kind::Heads(_) => {}
    }
    let writes = match op.kind {
        Kind::Append { cache, .. } => {
            let pool = Pool { start: params.y, table: params.index, cache, row: op.columns * op.dtype.size() };
            InFlightWrites::from(Appended { range: range(&args.y), pool, tokens: params.each })
        }
        _ => InFlightWrites::from(range(&args.y)),
    };
    let (entry, grid) = kernel(op, alignment(&params), plan.target.units.into());
    // Each kernel's PDL wait stands before its first read.
    let launch = Launch { overlap: plan.target.arch >= Arch(90), ..Launch::new(grid, 256) };
    let open = if launch.overlap { queue.behind(writes) } else { InFlightWrites::default() };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, entry.list[0], &launch, &params)? };
    queue.leave_open(open);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::Activation;
    use crate::ops::index::{PageShape, VarlenShape};

    /// Operations of every kind, with rows that begin and end on whole lines and with others.
    fn operations() -> impl Iterator<Item = Pointwise> {
        let eps = 1e-5f32.to_bits();
        let norms = move |residual| [Kind::RmsNorm { eps, residual }, Kind::LayerNorm { eps, residual }];
        let kinds = move |columns: u64| {
            let (head_dim, turn, stride) = (if columns.is_multiple_of(64) { 64 } else { 2 }, Turn::base(1e4), columns + 8);
            let cache = PageShape { batch: 3, pages: 2, page: 16, pool_pages: 7 };
            let sequences = VarlenShape { batch: 6, max_q: 40, max_kv: 40, total_q: 90, total_kv: 90 };
            let rest = [
                Kind::Rope { head_dim, turn },
                Kind::RopeInPlace { head_dim, turn, stride },
                Kind::RopeInPlace { head_dim, turn: Turn::Table, stride: columns + 1 },
                Kind::Embedding { vocabulary: 90 },
                Kind::EmbeddingNorm { vocabulary: 90, places: 40, eps },
                Kind::MeanPool(sequences),
                Kind::L2Normalise,
                Kind::Add,
                Kind::Append { cache, stride },
                Kind::Append { cache, stride: columns + 1 },
                Kind::Store { slots: 9, stride },
                Kind::Store { slots: 9, stride: columns + 1 },
                Kind::Glu(Activation::Silu),
            ];
            [false, true].into_iter().flat_map(norms).chain(rest).chain(Activation::ALL.map(Kind::Activation))
        };
        let widths = [2, 6, 36, 65, 128, 384, 1024, 2048, 4096, 5120, 8192, 9000];
        let of = move |dtype| widths.into_iter().flat_map(move |columns| kinds(columns).map(move |kind| (dtype, columns, kind)));
        let all = DType::ALL.into_iter().flat_map(of);
        all.flat_map(|(dtype, columns, kind)| [0, 6, 6000].map(|rows| Pointwise { dtype, rows, columns, kind }))
    }

    #[test]
    fn a_plan_has_every_kernel_that_its_launches_may_name() {
        for op in operations() {
            let plan = plan_unit(&op);
            let names: Vec<_> = plan.all().iter().flat_map(|unit| unit.entries).copied().collect();
            assert_eq!(names.len(), plan.all().len(), "{names:?}");
            for (alignment, units) in [1, 2, 4, 8, 16].into_iter().flat_map(|alignment| [78, 114, 132, 144].map(|units| (alignment, units))) {
                let (entry, _) = kernel(&op, alignment, units);
                assert!(names.contains(&entry.list[0]), "{alignment} {op:?}: {names:?}");
            }
        }
    }
}
