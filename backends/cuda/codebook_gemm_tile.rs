//! The tensor-core variants of `codebook_gemm`: S2LC's form, 16 tokens a block.

use super::codebook_gemm::factor_header;
use super::codebook_gemm_launch::{CLUSTER, ROWS, TileGroup, TileParams, TileSlice, launch_sm80, launch_sm90};
use super::jit::{Arch, Unit, source};
use super::kernel::{Plan, RunsOn, Target, TensorCores, Variant};
use crate::dtype::DType;
use crate::ops::codebook_gemm::{CodebookSlice, Factor};
use crate::ops::{CodeWidth, CodebookGemm};

pub(super) const SM80: Variant<CodebookGemm> = Variant {
    name: "sm80",
    label: "codebook_gemm/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    covers: |op, target| covers(op, target, false),
    unit: |op, _| unit(op.dtype, rank_of(op), width_of(op), false),
    units: |_| units(false),
    workspace: |_, _| 0,
    launch: launch_sm80,
};

pub(super) const SM90: Variant<CodebookGemm> = Variant {
    name: "sm90",
    label: "codebook_gemm/sm90",
    // Clusters and early starts, nothing that is Hopper's alone.
    runs_on: RunsOn::From(90),
    // Not by wgmma: it multiplies 64 rows at least, of which 16 tokens fill a quarter, and reads its second operand from shared
    // memory alone, while codes are decoded into registers.
    tensor_cores: TensorCores::By("HMMA"),
    covers: |op, target| covers(op, target, true),
    unit: |op, _| unit(op.dtype, rank_of(op), width_of(op), true),
    units: |_: Arch| units(true),
    workspace: |_, _| 0,
    launch: launch_sm90,
};

/// Columns of both factors that a kernel is compiled for.
pub(super) const RANKS: [u64; 3] = [16, 32, 64];
/// Bits of a field that a kernel is compiled for: 0 takes every width, and widths that differ.
pub(super) const WIDTHS: [u32; 5] = [0, CodeWidth::Three.bits(), CodeWidth::Four.bits(), CodeWidth::FourThree.bits(), CodeWidth::Bytes.bits()];
/// The ranks that the kernel for an operation is compiled for.
pub(super) fn rank_of(op: &CodebookGemm) -> u64 {
    let rank = op.slices.iter().map(|slice| slice.rank).max().unwrap_or(0);
    RANKS.into_iter().find(|&padded| rank <= padded).unwrap_or(RANKS[RANKS.len() - 1])
}

/// The bits of every field, where a kernel is compiled for them.
pub(super) fn width_of(op: &CodebookGemm) -> u32 {
    let bits = |slice: &CodebookSlice| match slice.output {
        Factor::Coded { width: Some(width), .. } => width.bits(),
        _ => WIDTHS[0],
    };
    let first = op.slices.first().map_or(WIDTHS[0], bits);
    if WIDTHS.contains(&first) && op.slices.iter().all(|slice| bits(slice) == first) { first } else { WIDTHS[0] }
}

pub(super) fn covers(op: &CodebookGemm, target: &Target, clusters: bool) -> std::result::Result<(), String> {
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

/// Shared memory for codes, in bytes: for a quarter of a cluster's 4,096 columns of eight adapters, with two blocks a
/// multiprocessor; without clusters, as much as leaves room for as many blocks as before, and for one of rank 64 on the
/// smallest chips.
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

fn units(clusters: bool) -> Vec<Unit> {
    let dtypes = [DType::F16, DType::BF16];
    let all = dtypes.into_iter().flat_map(|dtype| RANKS.map(|rank| WIDTHS.map(|width| unit(dtype, rank, width, clusters))));
    all.flatten().collect()
}

/// Whether there are kernels whose warps decode many groups of columns of a tile's adapters before they wait: where registers and the codes' room do.
pub(super) const fn decodes_ahead(rank: u64, width: u32) -> bool {
    rank == 16 && width >= 1 && width <= 7
}

/// What every kernel that decodes into fragments of mma includes.
pub(super) fn headers() -> Vec<(&'static str, String)> {
    vec![
        factor_header(),
        ("codebook_gemm/tile_params.cuh", TileParams::cuda()),
        ("codebook_gemm/tile_group.cuh", [TileSlice::cuda(), TileGroup::cuda()].concat()),
        ("codebook_gemm/tile.cuh", include_str!("../../kernels/codebook_gemm/tile.cuh").into()),
        ("codebook_gemm/decode.cuh", include_str!("../../kernels/codebook_gemm/decode.cuh").into()),
        ("codebook_gemm/expand.cuh", include_str!("../../kernels/codebook_gemm/expand.cuh").into()),
        ("codebook_gemm/line.cuh", include_str!("../../kernels/codebook_gemm/line.cuh").into()),
    ]
}

fn unit(dtype: DType, rank: u64, width: u32, clusters: bool) -> Unit {
    let shared_bytes = shared_bytes(rank, width, clusters);
    Unit {
        name: format!(
            "codebook_gemm/{} {dtype} rank {rank} {}",
            if clusters { "sm90" } else { "sm80" },
            if width == 0 { "any width".into() } else { format!("{width} bits") }
        ),
        source: if clusters { source!("codebook_gemm/sm90.cu") } else { source!("codebook_gemm/sm80.cu") },
        headers: headers(),
        defines: vec![
            ("ELEMENT", dtype.name().into()),
            ("RANK", rank.to_string()),
            ("WIDTH", width.to_string()),
            ("SHARED_BYTES", shared_bytes.to_string()),
            ("CODES_BYTES", codes_bytes(rank, clusters).to_string()),
            ("CLUSTER", CLUSTER.to_string()),
        ],
        entries: match (clusters, rank, decodes_ahead(rank, width)) {
            (false, ..) => &["codebook_gemm_sm80", "codebook_gemm_sm80_any", "codebook_gemm_sm80_grouped"],
            (true, 16, true) => &[
                "codebook_gemm_sm90",
                "codebook_gemm_sm90_ahead",
                "codebook_gemm_sm90_line",
                "codebook_gemm_sm90_rehearsed",
                "codebook_gemm_sm90_wide",
                "codebook_gemm_sm90_any",
                "codebook_gemm_sm90_grouped",
                "codebook_gemm_sm90_many",
            ],
            (true, 16, false) => &[
                "codebook_gemm_sm90",
                "codebook_gemm_sm90_rehearsed",
                "codebook_gemm_sm90_wide",
                "codebook_gemm_sm90_any",
                "codebook_gemm_sm90_grouped",
                "codebook_gemm_sm90_many",
            ],
            (true, ..) => &["codebook_gemm_sm90", "codebook_gemm_sm90_wide", "codebook_gemm_sm90_any", "codebook_gemm_sm90_grouped", "codebook_gemm_sm90_many"],
        },
        shared_bytes,
        also: Vec::new(),
    }
}

pub(super) fn plan_shared(plan: &Plan<CodebookGemm>, clusters: bool) -> u32 {
    shared_bytes(rank_of(&plan.op), width_of(&plan.op), clusters)
}
