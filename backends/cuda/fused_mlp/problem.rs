//! `fused_mlp` as two products a chunk of tokens.
//!
//! The intermediate of a chunk is at most 32 MiB, so that the L2 cache of an A100 or H100 still holds it when the second product reads it.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::problem::{HALVES, Product, elements};
use crate::backends::cuda::gemm::repack::{Copies, padded, repack_unit};
use crate::backends::cuda::gemm::sm80::units::{fallback_units, gated_fallback_units};
use crate::backends::cuda::gemm::sm90::cost::{Shape, straddles};
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, Target};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::fused_mlp::MAX_WORKSPACE;
use crate::ops::{FusedMlp, FusedMlpArgs};

/// Elements from a row of the intermediate to the next, a multiple of 16 bytes.
pub(crate) const fn intermediate_stride(op: &FusedMlp) -> u64 {
    op.d_ff.next_multiple_of(8)
}

/// Rows of a tile of either kind. Chunks are multiples of it, where there is more than one.
pub(crate) const TILE_ROWS: u64 = 128;

/// Elements from a row of a chunk's X to the next, where X is copied; else none.
pub(crate) fn copied_stride(op: &FusedMlp) -> u64 {
    if Copies::of_mlp(op).x { padded(op.d_model) } else { 0 }
}

/// Bytes of a token in the workspace: its intermediate, and its row of X where that is copied.
pub(crate) fn token_bytes(op: &FusedMlp) -> u64 {
    intermediate_stride(op).saturating_add(copied_stride(op)).saturating_mul(op.dtype.size())
}

/// How both products' blocks are grouped: outside clusters where such a kernel exists, or in clusters.
pub(crate) const WAYS: [fn(WgmmaTile) -> Option<WgmmaTile>; 2] = [|tile| tile.alone().or(tile.in_clusters()), WgmmaTile::in_clusters];

/// Tokens of a chunk, with which all chunks together take the least modelled time.
pub(crate) fn chunk_rows(op: &FusedMlp, target: &Target) -> std::result::Result<u64, String> {
    let row = token_bytes(op);
    let most = MAX_WORKSPACE / row;
    if most == 0 {
        return Err(format!("a token takes {row} bytes of the workspace, which has {MAX_WORKSPACE}"));
    }
    let tokens = op.tokens.max(1);
    if tokens <= most || most < TILE_ROWS {
        return Ok(tokens.min(most));
    }
    let time = |rows| tiles(op, rows, target).into_iter().map(|(_, time)| time).sum::<f64>();
    let sizes = (1..=most / TILE_ROWS).rev().map(|tiles| (tiles * TILE_ROWS, time(tiles * TILE_ROWS)));
    // Of equal times, the first has the largest chunk, which starts the fewest kernels.
    Ok(sizes.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(TILE_ROWS, |(rows, _)| rows))
}

/// The shapes by which tiles are chosen, for both products of a chunk of `rows` rows.
pub(crate) fn shapes(op: &FusedMlp, rows: u64) -> [Shape; 2] {
    let activated = ActivationForm::of(Some(op.activation)) != ActivationForm::Floor;
    // A tile holds both weights of the gated form.
    let outputs = if op.gated { 2 * op.d_ff } else { op.d_ff };
    let up = Shape { rows, outputs, depth: op.d_model, activated, straddles: straddles(op.dtype, up_strides(op)) };
    let straddles = straddles(op.dtype, [intermediate_stride(op), op.w2_stride]);
    [up, Shape { rows, outputs: op.d_out, depth: op.d_ff, activated: false, straddles }]
}

/// The tile of each product in chunks of `rows` rows, and its time for all chunks. The last chunk may be shorter, and takes the same
/// kernels.
pub(crate) fn tiles(op: &FusedMlp, rows: u64, target: &Target) -> [(WgmmaTile, f64); 2] {
    let tokens = op.tokens.max(1);
    let chunks = [(rows, tokens / rows), (tokens % rows, 1)];
    let [up, down] = shapes(op, rows).map(|shape| chunks.map(|(rows, times)| (Shape { rows, ..shape }, times)));
    let of_up = || WgmmaTile::OF_UP.into_iter().filter(|tile| !op.gated || tile.gates());
    let pair = |way: fn(WgmmaTile) -> Option<WgmmaTile>| {
        [WgmmaTile::least(of_up().filter_map(way), &up, target), WgmmaTile::least(WgmmaTile::OF_DOWN.into_iter().filter_map(way), &down, target)]
    };
    let time = |[(_, up), (_, down)]: &[(WgmmaTile, f64); 2]| up + down;
    let [alone, clusters] = WAYS.map(pair);
    if time(&alone) < time(&clusters) { alone } else { clusters }
}

pub(crate) fn workspace(op: &FusedMlp, target: &Target) -> u64 {
    chunk_rows(op, target).map_or(0, |rows| rows * token_bytes(op))
}

/// [`chunk_rows`], derived from the bytes of the plan's workspace. Choosing them anew takes the host as long as tens of launches.
pub(crate) fn planned_rows(op: &FusedMlp, workspace: u64) -> u64 {
    workspace / token_bytes(op).max(1)
}

/// The strides of X and of the weights that the first product's kernel reads. The stride of a single row is never used, but TMA must accept
/// it.
pub(crate) fn up_strides(op: &FusedMlp) -> [u64; 2] {
    let x = if op.tokens == 1 { padded(op.d_model) } else { op.x_stride };
    Copies::of_mlp(op).strides([x, op.w1_stride], op.d_model)
}

/// The two products of each chunk of tokens, in order. X of each first product lies in place; [`bring`] copies it where needed.
pub(crate) fn chunks<'a>(plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &'a FusedMlpArgs<Cuda>) -> Result<Vec<[Product<'a>; 2]>> {
    let op = &plan.op;
    let rows = planned_rows(op, workspace.len);
    let mut chunks = Vec::new();
    let mut token = 0;
    while token < op.tokens {
        let count = rows.min(op.tokens - token);
        let part = |slice: &Slice<Cuda>, columns: u64| elements(slice, op.dtype, token * columns, count * columns);
        let x_stride = if count == 1 { padded(op.d_model) } else { op.x_stride };
        let residual = args.residual.as_ref().map(|residual| part(residual, op.d_out)).transpose()?;
        let up = Product {
            dtype: op.dtype,
            x: elements(&args.x, op.dtype, token * op.x_stride, (count - 1) * op.x_stride + op.d_model)?,
            w: args.w1.clone(),
            gate: args.wg.clone(),
            bias: args.b1.as_ref(),
            residual: None,
            y: workspace.clone(),
            rows: count,
            columns: op.d_ff,
            depth: op.d_model,
            x_stride,
            w_stride: op.w1_stride,
            y_stride: intermediate_stride(op),
            activation: Some(op.activation),
            adds: false,
            wide: false,
        };
        let down = Product {
            dtype: op.dtype,
            x: workspace.clone(),
            w: args.w2.clone(),
            gate: None,
            bias: args.b2.as_ref(),
            residual,
            y: part(&args.y, op.d_out)?,
            rows: count,
            columns: op.d_out,
            depth: op.d_ff,
            x_stride: intermediate_stride(op),
            w_stride: op.w2_stride,
            y_stride: op.d_out,
            activation: None,
            adds: false,
            wide: false,
        };
        chunks.push([up, down]);
        token += count;
    }
    Ok(chunks)
}

/// Copies the X of a first product behind the intermediate, where its rows start anywhere and the rows of the weights do not.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold, and the plan has the kernel.
pub(crate) unsafe fn bring(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, up: &mut Product<'_>) -> Result<()> {
    let op = &plan.op;
    let rows = planned_rows(op, workspace.len);
    let place = elements(workspace, op.dtype, rows * intermediate_stride(op), rows * copied_stride(op))?;
    // SAFETY: the caller's promise.
    unsafe { Copies::of_mlp(op).launch(queue, plan, &place, up) }
}

/// The units that plans launch beside the sm90 kernels: the fallback for unaligned operands, and the copy of X.
pub(crate) fn beside(op: &FusedMlp) -> Vec<Unit> {
    let gated = if op.gated { gated_fallback_units(op.dtype) } else { Vec::new() };
    [gated, fallback_units(op.dtype), Copies::of_mlp(op).unit(op.dtype).into_iter().collect()].concat()
}

/// The units of [`beside`] for every operation.
pub(crate) fn all_beside() -> Vec<Unit> {
    HALVES.into_iter().flat_map(|dtype| [gated_fallback_units(dtype), fallback_units(dtype), vec![repack_unit(dtype)]].concat()).collect()
}
