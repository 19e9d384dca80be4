//! Fused SGMV for Hopper: a configuration of `sgmv` of one launch in place of two, with the same bits.

use super::choose::many_adapters_at_once;
use super::launch::{read_early, tile_params, whole};
use super::segments::{self, Shares};
use super::tile::{GROUP, ROWS, THREADS, TileParams, rank_of, supports as supports_tiles, width_of};
use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::runtime::pdl::starts_early;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::codebook_gemm::{CodebookSlice, Factor};
use crate::ops::{CodeWidth, CodebookGemm, CodebookGemmArgs};

pub(crate) const SGMV_FUSED: Variant<CodebookGemm> = Variant {
    name: "sgmv",
    label: "codebook_gemm/sgmv",
    runs_on: RunsOn::From(90),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: many_adapters_at_once,
    configs: Some(Configs { names: |_| vec!["fused".into()], choose: |_, _| 0 }),
    // Operands off 16-byte alignment are left to the kernels for segments.
    unit: |op, _| Unit { also: vec![segments::plan_unit(op, None)], ..unit(op.dtype) },
    units: |_| [DType::F16, DType::BF16].map(|dtype| Unit { also: segments::units_of_one(dtype, RANK, WIDTH), ..unit(dtype) }).into(),
    workspace: |op, _| published_bytes(op) + segments::shrunk_bytes(op),
    launch,
};

params! {
    /// Parameters of the fused kernel beside the operation's.
    SgmvFusedPlan {
        /// h in the workspace, twice: for each share of d_in, and each token in the index's order.
        published: [f32],
        /// A counter in the workspace of the blocks that have ended. It wraps after two launches.
        counted: [u32],
        /// Elements of d_in in a share.
        each: u32,
        /// The most segments that there may be.
        segments: u32,
        /// Tiles of tokens that blocks take at once.
        lanes: u32,
        unused: u32,
    }
}

params! {
    SgmvFusedParams {
        tile: TileParams,
        plan: SgmvFusedPlan,
    }
}

/// The only rank and width that the kernel is compiled for.
const RANK: u64 = 16;
const WIDTH: u32 = CodeWidth::FourThree.bits();
/// Parts of d_in, and the most elements of each.
const SHARES: u64 = segments::SHARES;
const SHARE: u64 = 512;
const WARPS: u64 = THREADS as u64 / 32;
/// Groups of columns that a warp has in registers and in shared memory, in `kernels/codebook_gemm/sgmv_fused.cuh`.
const HELD: u64 = 6;
const KEPT: u64 = 8;
/// Pairs of a unit and a group that a block has room for. They may be split in any way among two units, and a warp has one unit.
const PAIRS: u64 = (HELD + KEPT) * (WARPS - 1) + 1;
/// Bytes of the counters, which lie before what is published.
const COUNT_BYTES: u64 = 256;

/// Shared memory of a block. The kernel asserts that it is enough.
const fn shared_bytes() -> u32 {
    let (tables, basis, decoded) = (2 * 128 * 128, SHARE * RANK * 2, WARPS * KEPT * 32 * 8 * 4);
    (tables + basis + decoded + 512) as u32
}

fn published_bytes(op: &CodebookGemm) -> u64 {
    COUNT_BYTES + 2 * SHARES * op.tokens * RANK * 4
}

fn supports(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    supports_tiles(op, target, false)?;
    segments::supports(op, target)?;
    let [slice] = op.slices.as_slice() else {
        return Err(format!("{} slices: it takes one", op.slices.len()));
    };
    if op.accumulate {
        return Err("y is added to: it is written over".into());
    }
    if rank_of(op) != RANK || width_of(op) != WIDTH || !matches!(slice.input, Factor::Dense { bases: 1 }) {
        return Err(format!("it is for ranks up to {RANK}, one basis and codes of {WIDTH} bits"));
    }
    if op.d_in > SHARES * SHARE {
        return Err(format!("{} inputs, more than its blocks keep of the basis", op.d_in));
    }
    if !starts_whole(slice) {
        return Err("rows of codes that do not start on 16 bytes".into());
    }
    // Blocks wait for each other. There is one an SM, so that all are resident at once, and each decodes all of its pairs before.
    let (resident, groups) = (u64::from(target.units), slice.d_out / GROUP);
    let pairs = (segments::most_units(op) * groups).div_ceil(resident.max(1));
    if resident < SHARES || pairs > groups.min(PAIRS) {
        return Err(format!("{pairs} pairs of an adapter's tokens and {GROUP} columns for each of {resident} multiprocessors, more than it decodes ahead"));
    }
    let shared = shared_bytes();
    if shared > target.shared_bytes {
        return Err(format!("{shared} bytes of shared memory, the device has {}", target.shared_bytes));
    }
    Ok(())
}

/// Whether each rank of an adapter's codes is groups of 32 columns, and starts at 16 bytes where the first does.
fn starts_whole(slice: &CodebookSlice) -> bool {
    let words = slice.d_out / GROUP * u64::from(WIDTH);
    let Factor::Coded { words_per_adapter, .. } = slice.output else { return false };
    slice.d_out.is_multiple_of(GROUP) && words.is_multiple_of(4) && words_per_adapter.is_multiple_of(4)
}

fn unit(dtype: DType) -> Unit {
    let mut base = segments::base(format!("codebook_gemm/sgmv fused {dtype}"), dtype, RANK, WIDTH, source!("codebook_gemm/sgmv_fused.cu"));
    base.headers.push(("codebook_gemm/sgmv_fused_params.cuh", [SgmvFusedPlan::cuda(), SgmvFusedParams::cuda()].concat()));
    base.defines.push(("SGMV_FUSED_BYTES", shared_bytes().to_string()));
    Unit { entries: &["codebook_gemm_sgmv_fused"], shared_bytes: shared_bytes(), ..base }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let (op, blocks) = (&plan.op, plan.target.units);
    let (Some(slice), Some(of)) = (op.slices.first(), args.slices.first()) else { return Ok(()) };
    if op.tokens == 0 {
        return Ok(());
    }
    let tile = tile_params(op, args, slice, of, blocks);
    let room =
        |start, bytes| workspace.sub_slice(start, bytes).ok_or_else(|| Error::invalid("workspace", format!("{bytes} bytes from {start} on"), workspace.len));
    let published = room(0, published_bytes(op))?;
    if !whole(&tile) || !tile.output.codes.is_multiple_of(16) || !tile.core.is_multiple_of(16) {
        let shrunk = room(published.len, segments::shrunk_bytes(op))?;
        // SAFETY: the caller's promise; the plan has its kernels, and the workspace its part.
        return unsafe { segments::launch(queue, plan, None, &shrunk, args) };
    }
    let mut open = queue.take_open();
    let early = starts_early(&open, &read_early(args, of));
    let own = SgmvFusedPlan {
        published: address(&published) + COUNT_BYTES,
        counted: address(&published),
        each: Shares::of(op).each as u32,
        segments: op.tokens.min(u64::from(op.adapters)) as u32,
        lanes: op.tokens.div_ceil(ROWS).min(u64::from(blocks) / SHARES) as u32,
        unused: 0,
    };
    let launch = Launch { shared_bytes: shared_bytes(), overlap: early, ..Launch::new(blocks, THREADS) };
    plan.most_shared("codebook_gemm_sgmv_fused")?;
    // SAFETY: the caller's promise; the workspace was zero at first, and the kernel leaves what the next launch expects; launches in flight
    // write nothing that it reads before its PDL wait.
    unsafe { plan.launch(queue, "codebook_gemm_sgmv_fused", &launch, &SgmvFusedParams { tile, plan: own })? };
    if !early {
        open.clear();
    }
    open.extend([range(&of.y)]);
    if !open.names(&range(&published)) {
        open.extend([range(&published)]);
    }
    queue.leave_open(open);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::backends::cuda::jit::Arch;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    fn op(tokens: u64, adapters: u32) -> CodebookGemm {
        CodebookGemm { accumulate: false, ..CodebookGemm::s2lc(DType::F16, tokens, [4096, 4096, RANK], adapters, CodeWidth::FourThree) }
    }

    #[test]
    fn blocks_have_room_for_whatever_tokens_the_adapters_have() {
        let both = |op: &CodebookGemm| supports(op, &H200).and_then(|()| many_adapters_at_once(op, &H200)).is_ok();
        let takes = |tokens, adapters| both(&op(tokens, adapters));
        assert!(takes(256, 100) && takes(4096, 16) && takes(1024, 87) && takes(129, 96));
        assert!(!takes(512, 100) && !takes(256, 200), "more than is decoded ahead");
        assert!(!takes(240, 32), "15 clusters, of which each has a place");
        let encoder = |tokens| CodebookGemm { accumulate: false, ..CodebookGemm::s2lc(DType::F16, tokens, [1536, 384, RANK], 24, CodeWidth::FourThree) };
        assert!(![256, 1024, 16_384].iter().any(|&tokens| both(&encoder(tokens))), "other bits than those of `sgmv_long`, which takes the rest");
    }
}
