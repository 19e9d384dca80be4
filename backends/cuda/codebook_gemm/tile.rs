//! The tile of the tensor-core variants of `codebook_gemm`: S2LC's form, 16 tokens a block. The file has its kernels' parameters and
//! compile-time constants.

use crate::backends::cuda::codebook_gemm::entry::Entry;
use crate::backends::cuda::codebook_gemm::factor::{FactorParams, factor_header};
use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Plan, Target};
use crate::dtype::DType;
use crate::ops::codebook_gemm::{CodebookSlice, Factor};
use crate::ops::{CodeWidth, CodebookGemm};

params! {
    /// Parameters of one slice.
    TileParams {
        x: [const element],
        y: [element],
        /// The words of the token index.
        index: [const i32],
        scaling: [const f32],
        core: [const f32],
        tokens: u64,
        x_stride: u64,
        y_stride: u64,
        input: FactorParams,
        output: FactorParams,
        accumulate: u32,
        /// Whether rows of x, of the input factor and of y start at multiples of 16 bytes.
        x_aligned: u32,
        v_aligned: u32,
        y_aligned: u32,
        /// Blocks that share a tile of tokens.
        blocks: u32,
        /// Whether no launch in flight writes x or the core.
        x_early: u32,
        /// Whether no launch in flight reads or writes y. It holds only with `x_early`.
        y_early: u32,
        /// Whether each token has a scaling of its own.
        scaled_by_token: u32,
    }
}

params! {
    /// What slices of one launch do not share.
    TileSlice {
        y: [element],
        core: [const f32],
        values: [const element],
        basis_of: [const i32],
        codes: [const u32],
        codebooks: [const f32],
        y_stride: u64,
        d_out: u64,
        rank: u32,
        bits: u32,
        words_per_adapter: u32,
        unused: u32,
    }
}

params! {
    /// Parameters of one launch of several slices, whose rows are whole multiples of 16 bytes. Every driver takes 4 KiB of parameters.
    TileGroup {
        x: [const element],
        index: [const i32],
        scaling: [const f32],
        tokens: u64,
        x_stride: u64,
        d_in: u64,
        accumulate: u32,
        blocks: u32,
        x_early: u32,
        y_early: u32,
        scaled_by_token: u32,
        unused: u32,
        slices: [TileSlice; 48],
    }
}

/// The most slices that one launch takes.
pub(crate) const GROUPED: usize = 48;
/// Constants of `kernels/codebook_gemm/tile.cuh`.
pub(crate) const ROWS: u64 = 16;
pub(crate) const GROUP: u64 = 32;
pub(crate) const THREADS: u32 = 256;
/// The most groups of columns that a warp finishes at once.
pub(crate) const HELD: u64 = 2;
/// Blocks of a cluster. Every device with clusters has room for these. Twice as many read x sooner, and wait longer for each other.
pub(crate) const CLUSTER: u64 = 8;
/// From this many slices on, clusters always have fewer blocks. The order in which h is summed depends on it, so it may not depend on the batch.
pub(crate) const MANY_SLICES: usize = 17;
pub(crate) const FEW: u64 = 2;

/// Columns of both factors that a kernel is compiled for.
pub(crate) const RANKS: [u64; 3] = [16, 32, 64];
/// Bits of a field that a kernel is compiled for. 0 takes every width, and widths that differ.
pub(crate) const WIDTHS: [u32; 5] = [0, CodeWidth::Three.bits(), CodeWidth::Four.bits(), CodeWidth::FourThree.bits(), CodeWidth::Bytes.bits()];
/// The rank that the kernel for an operation is compiled for.
pub(crate) fn rank_of(op: &CodebookGemm) -> u64 {
    let rank = op.slices.iter().map(|slice| slice.rank).max().unwrap_or(0);
    RANKS.into_iter().find(|&padded| rank <= padded).unwrap_or(RANKS[RANKS.len() - 1])
}

/// The bits of every field, where a kernel is compiled for them.
pub(crate) fn width_of(op: &CodebookGemm) -> u32 {
    let bits = |slice: &CodebookSlice| match slice.output {
        Factor::Coded { width: Some(width), .. } => width.bits(),
        _ => WIDTHS[0],
    };
    let first = op.slices.first().map_or(WIDTHS[0], bits);
    if WIDTHS.contains(&first) && op.slices.iter().all(|slice| bits(slice) == first) { first } else { WIDTHS[0] }
}

pub(crate) fn supports(op: &CodebookGemm, target: &Target, clusters: bool) -> std::result::Result<(), String> {
    if op.dtype == DType::F32 {
        return Err("f32: the tensor cores would round it to 11 bits".into());
    }
    if op.tokens > 1 << 26 {
        return Err(format!("{} tokens, more than one launch takes", op.tokens));
    }
    for slice in &op.slices {
        if slice.rank > RANKS[RANKS.len() - 1] {
            return Err(format!("rank {}, more than a warp's registers take of decoded columns, {}", slice.rank, RANKS[RANKS.len() - 1]));
        }
        match (slice.input, slice.output) {
            (Factor::Dense { .. }, Factor::Coded { .. }) => {}
            (Factor::Coded { .. }, _) => return Err("codes on the input side: they are decoded along d_in, which only single tokens read".into()),
            (_, Factor::Dense { .. }) => return Err("a dense factor on the output side: nothing to decode".into()),
        }
    }
    let shared = shared_bytes(rank_of(op), width_of(op), clusters);
    if shared > target.shared_bytes {
        return Err(format!("{shared} bytes of shared memory, the device has {}", target.shared_bytes));
    }
    Ok(())
}

/// Bytes of shared memory for codes. With clusters they hold a quarter of a cluster's 4,096 columns of eight adapters, with two blocks an
/// SM. Without, they leave room for as many blocks as before, and for one block of rank 64 on the smallest chips.
const fn codes_bytes(rank: u64, clusters: bool) -> u64 {
    match (clusters, rank) {
        (true, _) => 44 << 10,
        (false, 16) => 20 << 10,
        (false, 32) => 36 << 10,
        (false, _) => 10 << 10,
    }
}

/// The sizes of `Space` and `ClusterSpace`.
fn shared_bytes(rank: u64, width: u32, clusters: bool) -> u32 {
    let stage = if rank == 16 { 512 } else { 256 };
    let v = 2 * stage * (rank + 8) * 2;
    let tables = ROWS * if width >= 7 { 256 } else { 512 };
    let space = v + codes_bytes(rank, clusters) + ROWS * (rank + 8) * 2 + ROWS * rank * 4 + tables;
    let received = if clusters { CLUSTER * ROWS * rank * 4 } else { 0 };
    (space.next_multiple_of(128) + received) as u32
}

/// The units of the kernels that `kernels` names for a rank and a width, for every form that has kernels.
pub(crate) fn each_form<I: IntoIterator<Item = Entry>>(kernels: impl Fn(u64, u32) -> I, unit: impl Fn(Entry, DType, u64, u32) -> Unit) -> Vec<Unit> {
    let mut units = Vec::new();
    for dtype in [DType::F16, DType::BF16] {
        for (rank, width) in RANKS.into_iter().flat_map(|rank| WIDTHS.map(|width| (rank, width))) {
            units.extend(kernels(rank, width).into_iter().map(|entry| unit(entry, dtype, rank, width)));
        }
    }
    units
}

/// Whether there are kernels whose warps decode many groups of columns before the PDL wait. Registers, and the codes' shared memory, must
/// have room.
pub(crate) const fn predecodes(rank: u64, width: u32) -> bool {
    rank == 16 && width >= 1 && width <= 7
}

/// The headers that the host writes for every kernel that decodes into fragments of mma.
pub(crate) fn headers() -> Vec<(&'static str, String)> {
    vec![
        factor_header(),
        ("codebook_gemm/tile_params.cuh", TileParams::cuda()),
        ("codebook_gemm/tile_group.cuh", [TileSlice::cuda(), TileGroup::cuda()].concat()),
    ]
}

/// The form of an operation, as names of units write it.
pub(crate) fn form_name(dtype: DType, rank: u64, width: u32) -> String {
    format!("{dtype} rank {rank} {}", if width == 0 { "any width".into() } else { format!("{width} bits") })
}

/// The unit of kernel `entry`, of the variant with clusters or of the one without.
pub(crate) fn unit(entry: Entry, dtype: DType, rank: u64, width: u32, clusters: bool) -> Unit {
    let (variant, source) = if clusters { ("sm90", source!("codebook_gemm/sm90.cu")) } else { ("sm80", source!("codebook_gemm/sm80.cu")) };
    let shared_bytes = shared_bytes(rank, width, clusters);
    let base = Unit {
        headers: headers(),
        defines: vec![
            ("ELEMENT", dtype.name().into()),
            ("RANK", rank.to_string()),
            ("WIDTH", width.to_string()),
            ("SHARED_BYTES", shared_bytes.to_string()),
            ("CODES_BYTES", codes_bytes(rank, clusters).to_string()),
            ("CLUSTER", CLUSTER.to_string()),
        ],
        ..Unit::new(format!("codebook_gemm/{variant} {}", form_name(dtype, rank, width)), source)
    };
    entry.unit(base, &format!("codebook_gemm_{variant}"), shared_bytes)
}

pub(crate) fn plan_shared(plan: &Plan<CodebookGemm>, clusters: bool) -> u32 {
    shared_bytes(rank_of(&plan.op), width_of(&plan.op), clusters)
}
