//! The tile of the kernels for long segments of few adapters: their parameters, their sizes, and the launch of the shrink kernel. Products
//! that add `h·(O·Qᵀ)ᵀ` themselves launch it too.

use super::entry::{Entry, entry};
use super::factor::{FactorParams, adapter_of_token, factor, factor_header};
use super::launch::{Slices, overlaps};
use crate::backends::cuda::gemm::problem::{fits, half};
use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, Target, address, address_of, blocks};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::codebook_gemm::{CodebookSlice, CodebookSliceArgs, Factor, ScaledBy};
use crate::ops::{CodebookGemm, CodebookGemmArgs};

/// Columns and rows of a block of the expand kernel, in `kernels/codebook_gemm/sgmv_long.cu`.
pub(crate) const STRIP: u64 = 64;
pub(crate) const ROWS: u64 = 64;

/// The variant to which these kernels belong.
pub(crate) const NAME: &str = "sgmv_long";

/// Whether the kernels can compute an operation, or why not.
pub(crate) fn supports(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    if op.scaled_by == ScaledBy::Token {
        return Err("a scaling for each token: it folds an adapter's into the factors".into());
    }
    let rank = rank_of(op);
    if !RANKS.contains(&rank) {
        return Err(format!("rank {rank}, more than {}", RANKS[RANKS.len() - 1]));
    }
    // The kernels count columns of x, and parts of y, in 32 bits.
    let most = op.slices.iter().map(|slice| op.tokens.div_ceil(ROWS).saturating_mul(slice.d_out.div_ceil(STRIP))).chain([op.d_in]).max();
    if most.is_some_and(|most| most >= 1 << 31) {
        return Err(format!("{most:?} columns, or parts of y: 2^31 or more"));
    }
    // Blocks that decode, for all slices of one launch, are counted in 32 bits too.
    let decoding = op.slices.iter().fold(0, |sum: u64, slice| sum.saturating_add(blocks_to_decode(op, slice)));
    if decoding > 1 << 30 {
        return Err(format!("{decoding} blocks that decode output factors, 2^30 at most"));
    }
    if op.slices.iter().any(|slice| matches!(slice.input, Factor::Coded { .. })) {
        return Err("an input factor of codes: its kernels read a dense one".into());
    }
    fits(most_shared_bytes(rank), target)?;
    LongWay::of(target).map_or(Ok(()), |way| way.computes(op))
}

params! {
    /// What slices of one launch do not share.
    SgmvLongSlice {
        y: [element],
        core: [const f32],
        input: FactorParams,
        output: FactorParams,
        /// The workspace: h of each token and its divisor, then the output factors as fragments and their divisor.
        shrunk: [element],
        token_scale: [f32],
        fragments: [u32],
        table_scale: [f32],
        /// The input factor in the form by which a product multiplies (`kernels/gemm/adapter_sums.cuh`).
        basis: [element],
        y_stride: u64,
        /// Blocks that decode the output factor.
        decoding: u32,
        /// Whether rows of the input factor are whole multiples of 16 bytes.
        v_vector: u32,
    }
}

params! {
    /// Parameters of the shrink and the expand kernel.
    SgmvLongParams {
        x: [const element],
        token_adapter: [const i32],
        scaling: [const f32],
        tokens: u64,
        d_in: u64,
        x_stride: u64,
        /// Tiles of tokens that a block of the shrink kernel takes.
        tiles_each: u64,
        /// Blocks that decode, for all slices.
        decoding: u32,
        /// Rows of the input factor in shared memory.
        chunk_rows: u32,
        slices: [SgmvLongSlice; 3],
    }
}

/// Columns of both factors that the kernels are compiled for.
pub(crate) const RANKS: [u64; 2] = [16, 32];
/// Constants of `kernels/codebook_gemm/sgmv_long_fragments.cuh` and `kernels/codebook_gemm/sgmv_long_shrink.cuh`.
pub(crate) const SHRINK_WARPS: u64 = 8;
pub(crate) const GROUP: u64 = 32;
const TOKENS: u64 = 32;
const SHARES: u64 = 4;
const PART_ROWS: u64 = 96;
/// Blocks of the shrink kernel that an SM holds at once.
const RESIDENT: u64 = 2;
/// Slices of one launch that read x once.
pub(crate) const TOGETHER: usize = 3;
/// Rows of the input factor of which every part takes a batch, and bytes of shared memory for the factor.
pub(crate) const LEAST_ROWS: u64 = PART_ROWS * SHARES;
const FACTOR_BYTES: u64 = 48 << 10;
/// The alignment of the parts of the workspace, in bytes.
pub(crate) const ALIGN: u64 = 16;

/// Elements of K, and bytes, that a product reads of an input factor in a k-block.
pub(crate) const DEPTH: u64 = 64;
pub(crate) const STEP_BYTES: u64 = DEPTH * 16 * 2;

/// Bytes of a slice's output factors, of its input factor and of its scales, in this order.
pub(crate) fn parts(op: &CodebookGemm, slice: &CodebookSlice) -> [u64; 3] {
    let adapters = u64::from(op.adapters);
    [adapters * slice.d_out * RANKS[0] * 2, op.d_in.div_ceil(DEPTH) * STEP_BYTES, (adapters * 4).next_multiple_of(ALIGN)]
}

/// Whether one input factor serves all adapters, and their output factors are codes. A product then computes h itself, and multiplies rows
/// of other adapters by zeros. That is right because decoding makes every factor finite.
pub(crate) fn has_basis(op: &CodebookGemm) -> bool {
    let one = |slice: &CodebookSlice| {
        matches!((slice.input, slice.output), (Factor::Dense { bases: 1 }, Factor::Coded { .. }))
            && slice.d_out.is_multiple_of(GROUP)
            && slice.d_out == op.slices[0].d_out
    };
    matches!(op.slices.len(), 1 | TOGETHER) && rank_of(op) == RANKS[0] && op.slices.iter().all(one)
}

/// Bytes of the factors that are prepared for a product.
pub(crate) fn bytes(op: &CodebookGemm) -> u64 {
    if has_basis(op) { op.slices.iter().map(|slice| parts(op, slice).iter().sum::<u64>()).sum() } else { 0 }
}

pub(crate) fn rank_of(op: &CodebookGemm) -> u64 {
    let rank = op.slices.iter().map(|slice| slice.rank).max().unwrap_or(0);
    RANKS.into_iter().find(|&padded| rank <= padded).unwrap_or(rank)
}

/// Bytes of shared memory of the shrink kernel, for `slices` slices and `rows` rows of their input factors.
pub(crate) const fn shared_bytes(rank: u64, slices: u64, rows: u64) -> u32 {
    let (parts, factor) = (SHARES * TOKENS * (rank + 8) * 4, rows * rank * 2);
    (slices * (parts + factor)) as u32
}

/// Bytes of shared memory in which a block that decodes arranges its values. Each warp has a part of its own.
pub(crate) const fn decoding_bytes(rank: u64) -> u32 {
    (SHRINK_WARPS * rank * (GROUP + 4) * 4) as u32
}

/// Rows of the input factor that a block holds at once.
fn chunk_rows(rank: u64, d_in: u64) -> u64 {
    d_in.next_multiple_of(LEAST_ROWS).min(FACTOR_BYTES / (rank * 2))
}

/// A configuration: how many slices a launch has, and what its kernels read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LongWay {
    /// [`TOGETHER`] slices read x once.
    Together,
    /// Each slice has a launch of its own.
    Alone,
    /// Each slice has a launch, of kernels that read and write rows whatever their alignment.
    Any,
}

impl LongWay {
    /// Every configuration, fastest first.
    pub(crate) const ALL: [Self; 3] = [Self::Together, Self::Alone, Self::Any];

    /// The configuration of the target, where it has one.
    pub(crate) fn of(target: &Target) -> Option<Self> {
        target.configured(Self::ALL.into_iter())
    }

    /// The configuration's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Together => "slices3",
            Self::Alone => "slices1",
            Self::Any => "any",
        }
    }

    /// Whether launches of `op` can be of this kind, or why not.
    pub(crate) fn computes(self, op: &CodebookGemm) -> std::result::Result<(), String> {
        let able = match self {
            Self::Together => op.slices.len() >= TOGETHER && fits_together(op) && may_be_aligned(op),
            Self::Alone => may_be_aligned(op) || op.slices.iter().any(may_be_whole),
            Self::Any => true,
        };
        if able { Ok(()) } else { Err("slices that are too few or too long for one launch, or rows that are no whole multiples of 16 bytes".into()) }
    }

    /// Slices that share a launch if there are that many, in a configuration or in none.
    pub(crate) fn at_once(way: Option<Self>, op: &CodebookGemm, aligned: bool) -> usize {
        if aligned && fits_together(op) && matches!(way, None | Some(Self::Together)) { TOGETHER } else { 1 }
    }
}

/// Whether the input factors of several slices fit shared memory together. They must where slices read x once.
fn fits_together(op: &CodebookGemm) -> bool {
    rank_of(op) == RANKS[0] && op.d_in <= LEAST_ROWS
}

/// Whether rows of y are whole multiples of 16 bytes, if y starts at one.
pub(crate) fn may_be_whole(slice: &CodebookSlice) -> bool {
    slice.y_stride.is_multiple_of(8) && slice.d_out.is_multiple_of(8)
}

pub(crate) const SHRINK: Entry = entry!("codebook_gemm_shrink");
pub(crate) const SHRINK_ANY: Entry = entry!("codebook_gemm_shrink_any");
/// The shrink kernel of [`TOGETHER`] slices, for the least rank.
pub(crate) const SHRINK_3: Entry = entry!("codebook_gemm_shrink_3");
/// The kernel that prepares factors for a product, for the least rank.
pub(crate) const UNPACK: Entry = entry!("codebook_gemm_unpack");

/// The shrink kernel of this many slices, by whether rows of x are whole multiples of 16 bytes.
pub(crate) const fn shrink_kernel(slices: usize, aligned: bool) -> Entry {
    match (slices, aligned) {
        (1, true) => SHRINK,
        (1, false) => SHRINK_ANY,
        _ => SHRINK_3,
    }
}

/// The most bytes of shared memory that the shrink kernel takes.
pub(crate) fn most_shared_bytes(rank: u64) -> u32 {
    let alone = shared_bytes(rank, 1, FACTOR_BYTES / (rank * 2));
    if rank == RANKS[0] { alone.max(shared_bytes(rank, TOGETHER as u64, LEAST_ROWS)) } else { alone }
}

/// The unit of one kernel, with the most dynamic shared memory that it takes.
pub(crate) fn unit(entry: Entry, dtype: DType, rank: u64) -> Unit {
    let shared_bytes = match entry {
        SHRINK | SHRINK_ANY => shared_bytes(rank, 1, FACTOR_BYTES / (rank * 2)),
        SHRINK_3 => shared_bytes(rank, TOGETHER as u64, LEAST_ROWS),
        UNPACK => decoding_bytes(rank),
        _ => 0,
    };
    let base = Unit {
        headers: vec![factor_header(), ("codebook_gemm/sgmv_long_params.cuh", [SgmvLongSlice::cuda(), SgmvLongParams::cuda()].concat())],
        defines: vec![("ELEMENT", dtype.name().into()), ("RANK", rank.to_string())],
        ..Unit::new(format!("codebook_gemm/{NAME} {dtype} rank {rank}"), source!("codebook_gemm/sgmv_long.cu"))
    };
    entry.unit(base, "codebook_gemm", shared_bytes)
}

/// Bytes of the workspace for one slice.
pub(crate) struct Room {
    shrunk: u64,
    token_scale: u64,
    fragments: u64,
    table_scale: u64,
}

impl Room {
    pub(crate) fn of(op: &CodebookGemm, slice: &CodebookSlice) -> Self {
        let (rank, adapters) = (rank_of(op), u64::from(op.adapters));
        Self {
            shrunk: (op.tokens * rank * 2).next_multiple_of(ALIGN),
            token_scale: (op.tokens * 4).next_multiple_of(ALIGN),
            fragments: adapters * slice.d_out.next_multiple_of(GROUP) * rank * 2,
            table_scale: (adapters * 4).next_multiple_of(ALIGN),
        }
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.shrunk + self.token_scale + self.fragments + self.table_scale
    }
}

/// Blocks that decode the output factors of a slice.
pub(crate) fn blocks_to_decode(op: &CodebookGemm, slice: &CodebookSlice) -> u64 {
    u64::from(op.adapters).saturating_mul(slice.d_out.div_ceil(GROUP * SHRINK_WARPS))
}

/// The parameters of a slice whose part of the workspace starts at `place`.
pub(crate) fn slice_params(op: &CodebookGemm, slice: &CodebookSlice, of: &CodebookSliceArgs<Cuda>, place: u64) -> SgmvLongSlice {
    let room = Room::of(op, slice);
    let input = factor(slice.input, &of.input, op.d_in, slice.rank);
    SgmvLongSlice {
        y: address(&of.y),
        core: address_of(of.core.as_ref()),
        input,
        output: factor(slice.output, &of.output, slice.d_out, slice.rank),
        shrunk: place,
        token_scale: place + room.shrunk,
        fragments: place + room.shrunk + room.token_scale,
        table_scale: place + room.shrunk + room.token_scale + room.fragments,
        basis: 0,
        y_stride: slice.y_stride,
        decoding: blocks_to_decode(op, slice) as u32,
        v_vector: u32::from(input.values.is_multiple_of(16) && slice.rank.is_multiple_of(8)),
    }
}

/// The parameters of one launch of both kernels. `group` is one slice or `TOGETHER` slices, whose part of the workspace starts at `place`.
pub(crate) fn group_params(plan: &Plan<CodebookGemm>, args: &CodebookGemmArgs<Cuda>, group: &Slices<'_>, mut place: u64) -> SgmvLongParams {
    let (op, rank) = (&plan.op, rank_of(&plan.op));
    let mut slices = [slice_params(op, group[0].0, group[0].1, place); TOGETHER];
    for (params, (slice, of)) in slices.iter_mut().zip(group) {
        *params = slice_params(op, slice, of, place);
        place += Room::of(op, slice).bytes();
    }
    // The registers of several slices hold little of x. Blocks that start one after another hide that.
    let waves = if group.len() == 1 { 1 } else { 2 };
    SgmvLongParams {
        x: address(&args.x),
        token_adapter: adapter_of_token(&args.token_adapter),
        scaling: address(&args.scaling),
        tokens: op.tokens,
        d_in: op.d_in,
        x_stride: op.x_stride,
        tiles_each: op.tokens.div_ceil(TOKENS).div_ceil(u64::from(plan.target.units) * RESIDENT * waves).max(1),
        decoding: slices[..group.len()].iter().map(|slice| slice.decoding).sum(),
        chunk_rows: chunk_rows(rank, op.d_in) as u32,
        slices,
    }
}

/// Whether [`aligned`] may hold: rows of x are whole multiples of 16 bytes, if x starts at one.
pub(crate) fn may_be_aligned(op: &CodebookGemm) -> bool {
    op.x_stride.is_multiple_of(8) && op.d_in.is_multiple_of(8)
}

/// Whether rows of x are whole multiples of 16 bytes.
pub(crate) fn aligned(op: &CodebookGemm, args: &CodebookGemmArgs<Cuda>) -> bool {
    address(&args.x).is_multiple_of(16) && may_be_aligned(op)
}

/// Enqueues the shrink kernel for `count` slices.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn shrink(queue: &mut Queue, plan: &Plan<CodebookGemm>, params: &SgmvLongParams, count: usize, aligned: bool) -> Result<()> {
    let shrinking = params.tokens.div_ceil(TOKENS).div_ceil(params.tiles_each);
    let launch = Launch {
        shared_bytes: shared_bytes(rank_of(&plan.op), count as u64, u64::from(params.chunk_rows)),
        overlap: overlaps(plan),
        ..Launch::new(params.decoding + blocks(shrinking), SHRINK_WARPS as u32 * 32)
    };
    // SAFETY: the caller's promise; the workspace has room for what the kernel leaves there. Its PDL wait stands before its first read of
    // what a kernel may have written.
    unsafe { plan.launch(queue, shrink_kernel(count, aligned).name(), &launch, params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_decodes_has_room_beside_those_that_project() {
        for rank in RANKS {
            assert!(shared_bytes(rank, 1, LEAST_ROWS) >= decoding_bytes(rank), "rank {rank}");
        }
    }
}
