//! The tensor-core variants of `codebook_gemm`: S2LC's form, 16 tokens a block.

use super::codebook_gemm::{FactorParams, factor, factor_header};
use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Target, TensorCores, Variant, address, address_of, range};
use super::params::params;
use super::queue::starts_early;
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::codebook_gemm::{CodebookSlice, CodebookSliceArgs, Factor, FactorArgs};
use crate::ops::{CodeWidth, CodebookGemm, CodebookGemmArgs};

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

params! {
    /// Of one slice.
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
        /// Rows of x, of the input factor and of y start on multiples of 16 bytes.
        x_aligned: u32,
        v_aligned: u32,
        y_aligned: u32,
        /// Blocks that share a tile of tokens.
        blocks: u32,
        /// No launch still under way writes x or the core.
        x_early: u32,
        /// Nor reads or writes y. Only with the above.
        y_early: u32,
        unused: u32,
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
    /// Of one launch of several slices, whose rows are whole multiples of 16 bytes: 4 KiB of parameters are what every driver takes.
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
        slices: [TileSlice; 48],
    }
}

/// Slices that one launch takes at most.
const GROUPED: usize = 48;
/// As in `kernels/codebook_gemm/tile.cuh`.
const ROWS: u64 = 16;
const GROUP: u64 = 32;
const THREADS: u32 = 256;
/// Groups of columns that a warp finishes at once, at most.
const HELD: u64 = 2;
/// Columns of both factors that a kernel is compiled for.
const RANKS: [u64; 3] = [16, 32, 64];
/// Bits of a field that a kernel is compiled for: 0 takes every width, and widths that differ.
const WIDTHS: [u32; 5] = [0, CodeWidth::Three.bits(), CodeWidth::Four.bits(), CodeWidth::FourThree.bits(), CodeWidth::Bytes.bits()];
/// Blocks of a cluster: what every device with clusters has room for. Twice as many read x sooner, and wait longer for each other.
const CLUSTER: u64 = 8;

/// The ranks that the kernel for an operation is compiled for.
fn rank_of(op: &CodebookGemm) -> u64 {
    let rank = op.slices.iter().map(|slice| slice.rank).max().unwrap_or(0);
    RANKS.into_iter().find(|&padded| rank <= padded).unwrap_or(RANKS[RANKS.len() - 1])
}

/// The bits of every field, where a kernel is compiled for them.
fn width_of(op: &CodebookGemm) -> u32 {
    let bits = |slice: &CodebookSlice| match slice.output {
        Factor::Coded { width: Some(width), .. } => width.bits(),
        _ => WIDTHS[0],
    };
    let first = op.slices.first().map_or(WIDTHS[0], bits);
    if WIDTHS.contains(&first) && op.slices.iter().all(|slice| bits(slice) == first) { first } else { WIDTHS[0] }
}

fn covers(op: &CodebookGemm, target: &Target, clusters: bool) -> std::result::Result<(), String> {
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

fn unit(dtype: DType, rank: u64, width: u32, clusters: bool) -> Unit {
    let shared_bytes = shared_bytes(rank, width, clusters);
    Unit {
        name: format!(
            "codebook_gemm/{} {dtype} rank {rank} {}",
            if clusters { "sm90" } else { "sm80" },
            if width == 0 { "any width".into() } else { format!("{width} bits") }
        ),
        source: if clusters { source!("codebook_gemm/sm90.cu") } else { source!("codebook_gemm/sm80.cu") },
        headers: vec![
            factor_header(),
            ("codebook_gemm/tile_params.cuh", TileParams::cuda()),
            ("codebook_gemm/tile_group.cuh", [TileSlice::cuda(), TileGroup::cuda()].concat()),
            ("codebook_gemm/tile.cuh", include_str!("../../kernels/codebook_gemm/tile.cuh").into()),
            ("codebook_gemm/decode.cuh", include_str!("../../kernels/codebook_gemm/decode.cuh").into()),
            ("codebook_gemm/expand.cuh", include_str!("../../kernels/codebook_gemm/expand.cuh").into()),
        ],
        defines: vec![
            ("ELEMENT", dtype.name().into()),
            ("RANK", rank.to_string()),
            ("WIDTH", width.to_string()),
            ("SHARED_BYTES", shared_bytes.to_string()),
            ("CODES_BYTES", codes_bytes(rank, clusters).to_string()),
            ("CLUSTER", CLUSTER.to_string()),
        ],
        entries: if clusters {
            &["codebook_gemm_sm90", "codebook_gemm_sm90_wide", "codebook_gemm_sm90_any", "codebook_gemm_sm90_grouped"]
        } else {
            &["codebook_gemm_sm80", "codebook_gemm_sm80_any", "codebook_gemm_sm80_grouped"]
        },
        shared_bytes,
    }
}

fn aligned(address: u64, stride: u64) -> u32 {
    u32::from(address.is_multiple_of(16) && stride.is_multiple_of(8))
}

fn tile_params(op: &CodebookGemm, args: &CodebookGemmArgs<Cuda>, slice: &CodebookSlice, of: &CodebookSliceArgs<Cuda>, blocks: u32) -> TileParams {
    let input = factor(slice.input, &of.input, op.d_in, slice.rank);
    TileParams {
        x: address(&args.x),
        y: address(&of.y),
        index: address(args.token_adapter.slice()),
        scaling: address(&args.scaling),
        core: address_of(of.core.as_ref()),
        tokens: op.tokens,
        x_stride: op.x_stride,
        y_stride: slice.y_stride,
        input,
        output: factor(slice.output, &of.output, slice.d_out, slice.rank),
        accumulate: u32::from(op.accumulate),
        x_aligned: aligned(address(&args.x), op.x_stride),
        v_aligned: aligned(input.values, slice.rank),
        y_aligned: aligned(address(&of.y), slice.y_stride),
        blocks,
        x_early: 0,
        y_early: 0,
        unused: 0,
    }
}

/// Whether all rows are whole multiples of 16 bytes, so that the short kernel takes them.
fn whole(params: &TileParams) -> bool {
    let aligned = params.x_aligned & params.v_aligned & params.y_aligned == 1;
    aligned && params.input.d.is_multiple_of(8) && params.output.d.is_multiple_of(8) && params.input.rank.is_multiple_of(8)
}

/// Slices with their operands.
type Slices<'a> = [(&'a CodebookSlice, &'a CodebookSliceArgs<Cuda>)];

/// Blocks that share a tile, so that about `wanted` are in the launch, but no more than `most`, nor than there are groups of
/// columns.
fn sharing(op: &CodebookGemm, slices: &Slices<'_>, wanted: u64, most: u64) -> u64 {
    let tiles = op.tokens.div_ceil(ROWS).max(1) * slices.len() as u64;
    (wanted / tiles).clamp(1, most.min(widest(slices).div_ceil(GROUP)))
}

fn widest(slices: &Slices<'_>) -> u64 {
    slices.iter().map(|(slice, _)| slice.d_out).max().unwrap_or(1)
}

/// The same of clusters, on a device of `units` multiprocessors.
fn cluster_sharing(op: &CodebookGemm, slices: &Slices<'_>, units: u64, x_early: bool) -> u64 {
    let most = match (x_early, op.adapters) {
        // All work but the last step is done before the launch before ends. The fewer blocks, the more launches are under way; but
        // a block is to finish its columns at once.
        (true, _) => widest(slices).div_ceil(GROUP * HELD * u64::from(THREADS / 32)).max(16).next_multiple_of(CLUSTER),
        // Fewer blocks have less to wait for; but of many adapters each is to decode little after x is there.
        (false, 0..=1) => 32,
        (false, _) => 64,
    };
    // A launch takes one block a multiprocessor: the next one is to start beside it.
    (sharing(op, slices, units, most) / CLUSTER).max(1) * CLUSTER
}

/// Calls with slices that one launch takes: all that share it if their rows are whole multiples of 16 bytes, one otherwise.
fn each_group(op: &CodebookGemm, args: &CodebookGemmArgs<Cuda>, mut launch: impl FnMut(&Slices<'_>) -> Result<()>) -> Result<()> {
    let slices: Vec<_> = op.slices.iter().zip(&args.slices).collect();
    // Launches of about the same size.
    let most = slices.len().div_ceil(slices.len().div_ceil(GROUPED).max(1)).max(1);
    for group in slices.chunks(most) {
        let together = group.iter().all(|(slice, of)| whole(&tile_params(op, args, slice, of, 1)));
        group.chunks(if together { most } else { 1 }).try_for_each(&mut launch)?;
    }
    Ok(())
}

/// The same slices as one launch has them.
fn tile_group(first: &TileParams, slices: &[TileParams]) -> TileGroup {
    let own = |params: &TileParams| TileSlice {
        y: params.y,
        core: params.core,
        values: params.input.values,
        basis_of: params.input.basis_of,
        codes: params.output.codes,
        codebooks: params.output.codebooks,
        y_stride: params.y_stride,
        d_out: params.output.d,
        rank: params.output.rank,
        bits: params.output.bits,
        words_per_adapter: params.output.words_per_adapter,
        unused: 0,
    };
    let mut group = TileGroup {
        x: first.x,
        index: first.index,
        scaling: first.scaling,
        tokens: first.tokens,
        x_stride: first.x_stride,
        d_in: first.input.d,
        accumulate: first.accumulate,
        blocks: first.blocks,
        x_early: first.x_early,
        y_early: first.y_early,
        slices: [own(first); GROUPED],
    };
    group.slices.iter_mut().zip(slices).for_each(|(slice, params)| *slice = own(params));
    group
}

/// Puts one launch of `slices` into the queue: `single` names the kernel of one slice alone, `grouped` that of several.
///
/// # Safety
/// As [`Plan::launch`].
unsafe fn launch_group(queue: &mut Queue, plan: &Plan<CodebookGemm>, slices: &[TileParams], entries: [&str; 2], launch: &Launch) -> Result<()> {
    let [single, grouped] = entries;
    match slices {
        [] => Ok(()),
        // SAFETY: the caller's promise.
        [one] => unsafe { plan.launch(queue, single, launch, one) },
        [first, ..] => {
            let group = tile_group(first, slices);
            let launch = Launch { grid: [launch.grid[0], slices.len() as u32, 1], ..*launch };
            // SAFETY: as above; the grid has as many rows as there are slices.
            unsafe { plan.launch(queue, grouped, &launch, &group) }
        }
    }
}

unsafe fn launch_sm80(queue: &mut Queue, plan: &Plan<CodebookGemm>, _workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    each_group(op, args, |group| {
        // Every block computes h anew: few do it, unless there are many adapters to decode.
        let blocks = sharing(op, group, 2 * u64::from(plan.target.units), 16);
        let params: Vec<_> = group.iter().map(|(slice, of)| tile_params(op, args, slice, of, blocks as u32)).collect();
        let grid = [(op.tokens.div_ceil(ROWS) * blocks) as u32, 1, 1];
        let launch = Launch { grid, shared_bytes: plan_shared(plan, false), ..Launch::new(1, THREADS) };
        let single = if params.iter().all(whole) { "codebook_gemm_sm80" } else { "codebook_gemm_sm80_any" };
        // SAFETY: the caller's promise.
        unsafe { launch_group(queue, plan, &params, [single, "codebook_gemm_sm80_grouped"], &launch) }
    })
}

unsafe fn launch_sm90(queue: &mut Queue, plan: &Plan<CodebookGemm>, _workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    // Whether all launches still under way are this operation's.
    let mut own = false;
    each_group(op, args, |group| {
        let mut open = queue.take_open();
        let early = starts_early(&open, &group.iter().flat_map(|(_, of)| read_early(args, of)).collect::<Vec<_>>());
        let cores = group.iter().filter_map(|(_, of)| of.core.as_ref());
        let x_early = !early || starts_early(&open, &cores.chain([&args.x]).map(range).collect::<Vec<_>>());
        let blocks = cluster_sharing(op, group, u64::from(plan.target.units), early && x_early);
        let mut params: Vec<_> = group.iter().map(|(slice, of)| tile_params(op, args, slice, of, blocks as u32)).collect();
        for params in &mut params {
            params.x_early = u32::from(x_early);
            params.y_early = u32::from(x_early && own);
        }
        // Every y of an operation lies apart from the others, and from x.
        own |= !early;
        if !early {
            open.clear();
        }
        open.extend(group.iter().map(|(_, of)| range(&of.y)));
        let launch = Launch {
            grid: [(op.tokens.div_ceil(ROWS) * blocks) as u32, 1, 1],
            shared_bytes: plan_shared(plan, true),
            cluster: [CLUSTER as u32, 1, 1],
            overlap: early,
            ..Launch::new(1, THREADS)
        };
        // SAFETY: the caller's promise; and launches still under way write nothing that this one reads before it waits.
        unsafe { launch_group(queue, plan, &params, [sm90_entry(&params[0]), "codebook_gemm_sm90_grouped"], &launch)? };
        if op.tokens > 0 {
            queue.leave_open(open);
        }
        Ok(())
    })
}

fn sm90_entry(params: &TileParams) -> &'static str {
    let groups = params.output.d.div_ceil(GROUP).div_ceil(u64::from(params.blocks));
    match (whole(params), groups > u64::from(THREADS / 32)) {
        (true, false) => "codebook_gemm_sm90",
        (true, true) => "codebook_gemm_sm90_wide",
        (false, _) => "codebook_gemm_sm90_any",
    }
}

fn plan_shared(plan: &Plan<CodebookGemm>, clusters: bool) -> u32 {
    shared_bytes(rank_of(&plan.op), width_of(&plan.op), clusters)
}

/// What the sm90 kernel reads before it waits for the launch before, apart from indices, which no launch writes.
fn read_early(args: &CodebookGemmArgs<Cuda>, of: &CodebookSliceArgs<Cuda>) -> Vec<std::ops::Range<u64>> {
    let mut reads = vec![range(&args.scaling)];
    for factor in [&of.input, &of.output] {
        reads.push(match factor {
            FactorArgs::Dense { values, .. } => range(values),
            FactorArgs::Coded { codebooks, .. } => range(codebooks),
        });
    }
    reads
}
