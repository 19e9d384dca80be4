//! The grid of `prefix_attention`: tiles of rows, KV heads, splits of the keys; and the second launch, which joins the parts (split-KV).

use crate::backends::cuda::codebook_gemm::factor::{FactorParams, factor, factor_header};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, address, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::prefix_attention::{Factors, FactorsArgs};
use crate::ops::{PrefixAttention, PrefixAttentionArgs};

params! {
    /// Parameters of the kernels. Sizes and strides are in elements.
    PrefixParams {
        q: [const element],
        o: [element],
        lse: [f32],
        /// Partial results of each split: O of every row; `part_lse` has its LSE.
        parts: [f32],
        part_lse: [f32],
        key_coefficients: FactorParams,
        key_basis: FactorParams,
        value_coefficients: FactorParams,
        value_basis: FactorParams,
        batch: u64,
        heads: u64,
        kv_heads: u64,
        q_len: u64,
        tokens: u64,
        q_batch: u64,
        q_token: u64,
        q_head: u64,
        o_batch: u64,
        o_token: u64,
        o_head: u64,
        /// Keys of a split, in whole k-blocks.
        split_keys: u64,
        scale: f32,
        head_dim: i32,
        /// Query heads that share a KV head.
        group: u32,
        splits: u32,
        /// Tiles of a head's rows.
        tiles: u32,
        join: u32,
    }
}

/// The most splits. Every row reads the parts of all of them.
const MOST_SPLITS: u64 = 64;

/// The headers that the host writes for every kernel of `prefix_attention`.
pub(super) fn headers() -> Vec<(&'static str, String)> {
    vec![factor_header(), ("attention/prefix_params.cuh", PrefixParams::cuda())]
}

const JOIN: &str = "prefix_attention_join";

/// The unit of the kernel that joins the parts of each row. Every plan launches it.
pub(super) fn join_unit(dtype: DType) -> Unit {
    Unit {
        headers: headers(),
        defines: vec![("ELEMENT", dtype.name().into())],
        entries: &[JOIN],
        ..Unit::new(format!("prefix_attention/join {dtype}"), source!("attention/prefix_join.cu"))
    }
}

/// Blocks of a launch: tiles of rows, times KV heads, times splits of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    tiles: u64,
    splits: u64,
    split_keys: u64,
}

impl Grid {
    /// The grid of tiles of `rows` rows and k-blocks of `step` keys. It has as many splits as make about `wanted` blocks.
    pub(crate) fn of(op: &PrefixAttention, rows: u64, step: u64, wanted: u64) -> Self {
        let tiles = head_rows(op).div_ceil(rows);
        let steps = op.tokens.div_ceil(step);
        let splits = (wanted / (tiles * op.kv_heads).max(1)).clamp(1, MOST_SPLITS.min(steps));
        let split_keys = steps.div_ceil(splits) * step;
        Self { tiles, splits: op.tokens.div_ceil(split_keys), split_keys }
    }

    /// Bytes of the partial results.
    pub(crate) fn workspace(self, op: &PrefixAttention) -> u64 {
        self.splits.saturating_mul(op.rows()).saturating_mul((op.head_dim + 1) * 4)
    }

    pub(crate) fn blocks(self, op: &PrefixAttention) -> u64 {
        (self.tiles * op.kv_heads).saturating_mul(self.splits)
    }
}

/// Rows of a KV head.
pub(crate) fn head_rows(op: &PrefixAttention) -> u64 {
    op.batch * op.q_len * (op.heads / op.kv_heads)
}

fn parameters(op: &PrefixAttention, args: &PrefixAttentionArgs<Cuda>, workspace: &Slice<Cuda>, grid: Grid) -> PrefixParams {
    let pair = |factors: Factors, args: &FactorsArgs<Cuda>| {
        let coefficients = factor(factors.coefficients, &args.coefficients, op.tokens, factors.rank);
        (coefficients, factor(factors.basis, &args.basis, op.width(), factors.rank))
    };
    let ((key_coefficients, key_basis), (value_coefficients, value_basis)) = (pair(op.key, &args.key), pair(op.value, &args.value));
    let parts = address(workspace);
    PrefixParams {
        q: address(&args.q),
        o: address(&args.o),
        lse: address(&args.lse),
        parts,
        part_lse: parts + grid.splits * op.rows() * op.head_dim * 4,
        key_coefficients,
        key_basis,
        value_coefficients,
        value_basis,
        batch: op.batch,
        heads: op.heads,
        kv_heads: op.kv_heads,
        q_len: op.q_len,
        tokens: op.tokens,
        q_batch: op.q.batch,
        q_token: op.q.token,
        q_head: op.q.head,
        o_batch: op.o.batch,
        o_token: op.o.token,
        o_head: op.o.head,
        split_keys: grid.split_keys,
        scale: op.plain().scale_value(),
        head_dim: op.head_dim as i32,
        group: (op.heads / op.kv_heads) as u32,
        splits: grid.splits as u32,
        tiles: grid.tiles as u32,
        join: u32::from(op.join),
    }
}

/// Launches kernel `entry` on `grid`, then the kernel that joins the parts of each row.
///
/// # Safety
/// The conditions of [`Kernel::launch`](crate::backend::Kernel::launch) hold. The workspace is at least that of `grid`.
pub(crate) unsafe fn launch_grid(
    queue: &mut Queue,
    plan: &Plan<PrefixAttention>,
    (entry, launch): (&str, Launch),
    grid: Grid,
    workspace: &Slice<Cuda>,
    args: &PrefixAttentionArgs<Cuda>,
) -> Result<()> {
    let op = &plan.op;
    let params = parameters(op, args, workspace, grid);
    // Both kernels have their PDL wait before the first read.
    let overlap = plan.target.arch >= Arch(90);
    // SAFETY: the caller's promise.
    unsafe {
        plan.launch(queue, entry, &Launch { overlap, ..launch }, &params)?;
        plan.launch(queue, JOIN, &Launch { overlap, ..Launch::new(blocks(op.rows()), 128) }, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::codebook_gemm::Factor;

    #[test]
    fn splits_are_whole_steps_that_cover_the_prefix_and_none_is_empty() {
        let dense = Factors { rank: 4, coefficients: Factor::Dense { bases: 1 }, basis: Factor::Dense { bases: 1 } };
        for tokens in [1, 31, 64, 65, 4096, 4097, 100_000] {
            for batch in [1, 64, 1000] {
                let op = PrefixAttention::new(DType::F16, batch, [32, 8], [1, tokens], 128, [dense; 2]);
                let Grid { splits, split_keys, .. } = Grid::of(&op, 64, 64, 264);
                assert!(split_keys % 64 == 0 && splits * split_keys >= tokens && (splits - 1) * split_keys < tokens && splits <= MOST_SPLITS);
            }
        }
    }
}
