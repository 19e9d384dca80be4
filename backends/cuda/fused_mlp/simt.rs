//! `fused_mlp` without tensor cores: every dtype and size.

use crate::backends::cuda::gemm::activation::activation_code;
use crate::backends::cuda::gemm::entry::{Entry, entry, listed};
use crate::backends::cuda::gemm::problem::SIMT_TILE;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, TensorCores, Variant, address, address_of, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::fused_mlp::MAX_WORKSPACE;
use crate::ops::{FusedMlp, FusedMlpArgs};

pub(crate) const SIMT: Variant<FusedMlp> = Variant {
    name: "simt",
    label: "fused_mlp/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("it serves f32 and every size; the tensor cores round f32 to 11 bits"),
    supports: |op, _| Chunks::new(op, MAX_WORKSPACE).map(drop),
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, _| Unit { also: vec![kernel(DOWN, op.dtype)], ..kernel(UP, op.dtype) },
    units: |_: Arch| listed([UP, DOWN].into_iter().flat_map(|entry| DType::ALL.map(|dtype| kernel(entry, dtype))), []),
    workspace: |op, _| Chunks::new(op, MAX_WORKSPACE).map_or(0, |chunks| chunks.bytes),
    launch,
};

params! {
    /// Parameters of both kernels, for one chunk of tokens and of d_ff.
    FusedMlpParams {
        x: [const element],
        w1: [const element],
        wg: [const element],
        b1: [const element],
        w2: [const element],
        b2: [const element],
        residual: [const element],
        y: [element],
        intermediate: [element],
        partial: [f32],
        rows: u64,
        d_model: u64,
        d_ff: u64,
        d_out: u64,
        x_stride: u64,
        w1_stride: u64,
        w2_stride: u64,
        /// Columns of the intermediate in this chunk.
        hidden: u64,
        activation: u32,
        /// Whether this chunk of d_ff is the first; then whether it is the last.
        first: u32,
        last: u32,
        unused: u32,
    }
}

/// How an operation is cut into chunks so that the workspace stays small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunks {
    /// Tokens of a chunk.
    rows: u64,
    /// Columns of the intermediate of a chunk.
    hidden: u64,
    /// Bytes of the intermediate, behind which the partial sums start.
    partial_at: u64,
    /// Bytes of the workspace.
    bytes: u64,
}

impl Chunks {
    /// The chunks of an operation within `limit` bytes.
    fn new(op: &FusedMlp, limit: u64) -> std::result::Result<Self, String> {
        let size = op.dtype.size();
        let tokens = op.tokens.max(1);
        let whole_row = op.d_ff.saturating_mul(size);
        // With whole rows of the intermediate, in tiles where possible, no sums have to wait in f32.
        let rows = (limit / whole_row).min(tokens);
        let rows = if rows > SIMT_TILE { rows / SIMT_TILE * SIMT_TILE } else { rows };
        if rows > 0 {
            return Ok(Self { rows, hidden: op.d_ff, partial_at: rows * whole_row, bytes: rows * whole_row });
        }
        // One row at a time, with its sums in f32.
        let room = limit.saturating_sub(op.d_out.saturating_mul(4)) / size / 64 * 64;
        if room == 0 {
            return Err(format!("a row of {} sums does not fit into the workspace of {limit} bytes", op.d_out));
        }
        Ok(Self { rows: 1, hidden: room, partial_at: room * size, bytes: room * size + op.d_out * 4 })
    }
}

/// The kernels of both products, in order.
const UP: Entry = entry!("mlp_up");
const DOWN: Entry = entry!("mlp_down");

fn kernel(entry: Entry, dtype: DType) -> Unit {
    entry.alone(Unit {
        headers: vec![("fused_mlp/params.cuh", FusedMlpParams::cuda())],
        defines: vec![("ELEMENT", dtype.name().into())],
        ..Unit::new(format!("{} {dtype}", entry.name()), source!("fused_mlp/simt.cu"))
    })
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let size = op.dtype.size();
    let chunks = Chunks::new(op, MAX_WORKSPACE).map_err(|reason| crate::Error::unsupported("fused_mlp/simt", reason))?;
    let offset = |base: u64, elements: u64| if base == 0 { 0 } else { base + elements * size };
    let (wg, b1) = (address_of(args.wg.as_ref()), address_of(args.b1.as_ref()));
    let mut token = 0;
    while token < op.tokens {
        let rows = chunks.rows.min(op.tokens - token);
        let mut start = 0;
        while start < op.d_ff {
            let hidden = chunks.hidden.min(op.d_ff - start);
            let params = FusedMlpParams {
                x: offset(address(&args.x), token * op.x_stride),
                w1: offset(address(&args.w1), start * op.w1_stride),
                wg: offset(wg, start * op.w1_stride),
                b1: offset(b1, start),
                w2: offset(address(&args.w2), start),
                b2: address_of(args.b2.as_ref()),
                residual: offset(address_of(args.residual.as_ref()), token * op.d_out),
                y: offset(address(&args.y), token * op.d_out),
                intermediate: address(workspace),
                partial: address(workspace) + chunks.partial_at,
                rows,
                d_model: op.d_model,
                d_ff: op.d_ff,
                d_out: op.d_out,
                x_stride: op.x_stride,
                w1_stride: op.w1_stride,
                w2_stride: op.w2_stride,
                hidden,
                activation: activation_code(Some(op.activation)),
                first: u32::from(start == 0),
                last: u32::from(start + hidden == op.d_ff),
                unused: 0,
            };
            let grid = |columns: u64| Launch::new(blocks(rows.div_ceil(SIMT_TILE) * columns.div_ceil(SIMT_TILE)), 256);
            // SAFETY: the caller's promise; the chunk's intermediate and sums fit into the workspace.
            unsafe {
                plan.launch(queue, UP.name(), &grid(hidden), &params)?;
                plan.launch(queue, DOWN.name(), &grid(op.d_out), &params)?;
            }
            start += hidden;
        }
        token += rows;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ops::Activation;

    fn op(tokens: u64, d_ff: u64, d_out: u64) -> FusedMlp {
        FusedMlp::new(DType::F16, [tokens, 8, d_ff, d_out], Activation::Silu)
    }

    #[test]
    fn the_workspace_is_never_larger_than_allowed() {
        for (tokens, d_ff, d_out) in [(0, 1, 1), (1, 11008, 4096), (4096, 11008, 4096), (5, 16 << 20, 3), (5, (16 << 20) + 1, 3), (9, 1 << 40, 1000)] {
            let chunks = Chunks::new(&op(tokens, d_ff, d_out), MAX_WORKSPACE).unwrap();
            assert!(chunks.bytes <= MAX_WORKSPACE && chunks.rows > 0 && chunks.hidden > 0, "{chunks:?}");
            assert!(chunks.rows * chunks.hidden * 2 <= chunks.partial_at, "{chunks:?}");
            assert!(chunks.hidden == d_ff || chunks.partial_at.is_multiple_of(4), "{chunks:?}: the sums are f32");
        }
    }

    #[test]
    fn a_small_intermediate_is_not_cut() {
        let chunks = Chunks::new(&op(100, 1000, 10), MAX_WORKSPACE).unwrap();
        assert_eq!((chunks.rows, chunks.hidden), (64, 1000), "whole tiles");
        assert_eq!(Chunks::new(&op(40, 1000, 10), MAX_WORKSPACE).unwrap().rows, 40);
    }
}
