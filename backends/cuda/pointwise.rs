//! The small operations of a layer on CUDA.

use crate::backends::cuda::gemm::activation::activation_code;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::pdl::{Appended, Open, Pool};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Table, TensorCores, Variant, address, address_of, blocks, names, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::pointwise::Kind;
use crate::ops::{Pointwise, PointwiseArgs};

impl Table for Pointwise {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { VARIANTS.len() }>(&VARIANTS);
}

const VARIANTS: [Variant<Pointwise>; 1] = [Variant {
    name: "simt",
    label: "pointwise/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("there is no product of matrices"),
    supports: |_, _| Ok(()),
    suits: |_, _| Ok(()),
    unit: |op, _| unit(op.dtype),
    units: |_: Arch| DType::ALL.map(unit).into(),
    workspace: |_, _| 0,
    launch,
}];

params! {
    /// Of every kind.
    PointwiseParams {
        x: [const element],
        weight: [const element],
        bias: [const element],
        residual: [const element],
        y: [element],
        /// Positions, ids, running totals, or lengths and pages.
        index: [const i32],
        /// Ids of the second table.
        places: [const i32],
        rows: u64,
        columns: u64,
        /// Elements from a row to the next, of rotary positions and of what is appended.
        stride: u64,
        head_dim: u64,
        /// Of what is appended: rows a sequence, pages a sequence, tokens of a page.
        each: u64,
        pages: u64,
        page: u64,
        /// Of the rotary base.
        log2_base: f64,
        eps: f32,
        kind: u32,
        activation: u32,
        unused: u32,
    }
}

fn unit(dtype: DType) -> Unit {
    Unit {
        name: format!("pointwise/simt {dtype}"),
        source: source!("pointwise/simt.cu"),
        headers: vec![
            ("pointwise/params.cuh", PointwiseParams::cuda()),
            ("pointwise/kind.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/pointwise/kind.cuh")).into()),
            ("pointwise/append.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/pointwise/append.cuh")).into()),
            ("pointwise/norm.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/pointwise/norm.cuh")).into()),
            ("pointwise/lines.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/pointwise/lines.cuh")).into()),
            ("pointwise/rope.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/pointwise/rope.cuh")).into()),
            ("pointwise/wide.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/pointwise/wide.cuh")).into()),
        ],
        defines: vec![("ELEMENT", dtype.name().into())],
        entries: &ENTRIES,
        shared_bytes: 0,
        also: Vec::new(),
    }
}

const ENTRIES: [&str; 12] = [
    "pointwise_simt",
    "pointwise_norm_2",
    "pointwise_norm_3",
    "pointwise_norm_4",
    "pointwise_norm_8",
    "pointwise_wide_2",
    "pointwise_wide_3",
    "pointwise_wide_4",
    "pointwise_rope",
    "pointwise_lines",
    "pointwise_append",
    "pointwise_pool",
];

/// As in `kernels/pointwise/norm.cuh`: rows of a block, a warp each; elements that a lane moves at once.
const NORM_ROWS: u64 = 8;
const PIECE: u64 = 4;
/// Pieces of a row that a lane holds, by kernel.
const NORMS: [(u64, &str); 4] = [(2, "pointwise_norm_2"), (3, "pointwise_norm_3"), (4, "pointwise_norm_4"), (8, "pointwise_norm_8")];
/// As in `kernels/pointwise/wide.cuh`: lines of a row that a thread holds, by kernel, with the blocks of each that a multiprocessor
/// has registers for; and threads.
const WIDE: [(u64, u64, &str); 3] = [(2, 4, "pointwise_wide_2"), (3, 3, "pointwise_wide_3"), (4, 2, "pointwise_wide_4")];
const WIDE_THREADS: u64 = 256;
/// As in `kernels/pointwise/rope.cuh`: pairs of a head at most.
const ROPE_PAIRS: u64 = 256;
/// Blocks of those kernels a multiprocessor: each takes row after row.
const NORM_BLOCKS: u64 = 4;
/// As in `kernels/pointwise/lines.cuh`: threads of a block, bytes that each moves at once, lines of a row that a block sums.
const LINE_THREADS: u64 = 256;
const LINE: u64 = 16;
const POOL_LINES: u64 = 16;

/// Whether every operand starts on a multiple of that many elements, and rows are whole in it.
fn on_whole(elements: u64, op: &Pointwise, params: &PointwiseParams) -> bool {
    let places = [params.x, params.weight, params.bias, params.residual, params.y];
    op.columns.is_multiple_of(elements) && places.iter().all(|place| place.is_multiple_of(elements * op.dtype.size()))
}

/// The kernel for an operation, and its blocks on a device of `units` multiprocessors.
fn kernel(op: &Pointwise, params: &PointwiseParams, units: u64) -> (&'static str, u32) {
    let (each, across) = (LINE / op.dtype.size(), op.columns * op.dtype.size() / LINE);
    let lines = op.rows.saturating_mul(across);
    match op.kind {
        Kind::EmbeddingNorm { .. } => match NORMS.iter().find(|(pieces, _)| on_whole(PIECE, op, params) && op.columns <= pieces * 32 * PIECE) {
            Some((_, entry)) => (entry, blocks(op.rows.div_ceil(NORM_ROWS).min(units * NORM_BLOCKS))),
            None => ("pointwise_simt", blocks(op.rows)),
        },
        Kind::RmsNorm { .. } | Kind::LayerNorm { .. } | Kind::L2Normalise => {
            let short = NORMS.iter().find(|(pieces, _)| on_whole(PIECE, op, params) && op.columns <= pieces * 32 * PIECE);
            let wide = WIDE.iter().find(|(lines, ..)| on_whole(each, op, params) && across <= lines * WIDE_THREADS);
            match (short, wide) {
                (Some((_, entry)), _) => (entry, blocks(op.rows.div_ceil(NORM_ROWS).min(units * NORM_BLOCKS))),
                (None, Some((_, each_unit, entry))) => (entry, blocks(op.rows.min(units * each_unit))),
                (None, None) => ("pointwise_simt", blocks(op.rows)),
            }
        }
        Kind::Rope { head_dim, .. } | Kind::RopeInPlace { head_dim, .. } => {
            let half = head_dim / 2;
            let whole = on_whole(each, op, params) && half.is_multiple_of(each) && op.stride().is_multiple_of(each);
            let entry = if whole && half <= ROPE_PAIRS && op.columns <= u32::MAX.into() { "pointwise_rope" } else { "pointwise_simt" };
            (entry, blocks(op.rows))
        }
        Kind::Embedding { .. } | Kind::Add | Kind::Activation(_) if on_whole(each, op, params) && lines <= u64::from(u32::MAX) => {
            ("pointwise_lines", blocks(lines.div_ceil(LINE_THREADS)))
        }
        Kind::Append { stride, .. } if on_whole(each, op, params) && stride.is_multiple_of(each) && lines < 1 << 31 => {
            ("pointwise_append", blocks(lines.div_ceil(LINE_THREADS)))
        }
        Kind::MeanPool(_) if on_whole(each, op, params) => ("pointwise_pool", blocks(op.rows.saturating_mul(across.div_ceil(POOL_LINES)))),
        _ => ("pointwise_simt", blocks(op.rows)),
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Pointwise>, _workspace: &Slice<Cuda>, args: &PointwiseArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let mut params = PointwiseParams {
        x: address(&args.x),
        weight: address_of(args.weight.as_ref()),
        bias: address_of(args.bias.as_ref()),
        residual: address_of(args.residual.as_ref()),
        y: address(&args.y),
        index: 0,
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
        unused: 0,
    };
    match op.kind {
        Kind::RmsNorm { eps, .. } => (params.kind, params.eps) = (0, f32::from_bits(eps)),
        Kind::LayerNorm { eps, .. } => (params.kind, params.eps) = (1, f32::from_bits(eps)),
        Kind::Rope { head_dim, base } | Kind::RopeInPlace { head_dim, base, .. } => {
            (params.kind, params.head_dim, params.log2_base) = (2, head_dim, f64::from(f32::from_bits(base)).log2());
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
        Kind::Append { cache, .. } => {
            (params.kind, params.index) = (9, address_of(args.pages.as_ref().map(|pages| pages.slice())));
            (params.each, params.pages, params.page) = (op.rows / cache.batch.max(1), cache.pages, cache.page);
        }
    }
    let writes = match op.kind {
        Kind::Append { cache, .. } => {
            let pool = Pool { start: params.y, table: params.index, cache, row: op.columns * op.dtype.size() };
            Open::from(Appended { range: range(&args.y), pool, tokens: params.each })
        }
        _ => Open::from(range(&args.y)),
    };
    let (entry, grid) = kernel(op, &params, plan.target.units.into());
    // Each kernel waits before it reads anything.
    let launch = Launch { overlap: plan.target.arch >= Arch(90), ..Launch::new(grid, 256) };
    let open = if launch.overlap { queue.behind(writes) } else { Open::default() };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, entry, &launch, &params)? };
    queue.leave_open(open);
    Ok(())
}
