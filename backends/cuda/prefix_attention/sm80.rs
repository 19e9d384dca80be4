//! `prefix_attention` with the tensor cores of sm80 and later.

use crate::backends::cuda::attention;
use crate::backends::cuda::attention::sm80::Tile;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::prefix_attention::grid::{Grid, head_rows, headers, join_unit, launch_grid};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, blocks, number};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::codebook_gemm::Factor;
use crate::ops::prefix_attention::Factors;
use crate::ops::{PrefixAttention, PrefixAttentionArgs};

pub(crate) const VARIANT: Variant<PrefixAttention> = Variant {
    name: "sm80",
    label: "prefix_attention/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: Some(Configs { names: |_| MANY.map(|many| format!("{}rows", rows(many))).into(), choose: |op, _| number(MANY.into_iter(), &takes_many(op)) }),
    unit: |op, target| unit(op.dtype, held(op.head_dim), Shape::of(op, target).many, target.arch),
    units: |arch| {
        let forms = HELD.into_iter().flat_map(|held| MANY.map(|many| (held, many)));
        forms.flat_map(|(held, many)| [DType::F16, DType::BF16].map(|dtype| unit(dtype, held, many, arch))).collect()
    },
    workspace: |op, target| Shape::of(op, target).grid.workspace(op),
    launch,
};

/// Head dimensions that a kernel is compiled for. A head is padded to the next of them in shared memory.
const HELD: [u64; 3] = [32, 64, 128];
/// Keys of a k-block, rows of a warp, and padding elements after a row in shared memory, in `kernels/attention/sm80/tile.cuh`.
const KEYS: u64 = 64;
const WARP_ROWS: u64 = 16;
const PADDING: u64 = 8;
/// Elements of a coded factor's table, and of its index for 16 columns, in `kernels/attention/sm80/prefix_factors.cuh`.
const TABLE: u64 = 160;
const INDEX_STEP: u64 = 32;
/// The most rows of the factors. Rows, and places in their codes, are counted in 32 bits.
const LONGEST: u64 = 1 << 27;
/// Shared memory of an SM that each block takes beside its own.
const BLOCK_RESERVED: u64 = 1024;

fn held(head_dim: u64) -> u64 {
    HELD.into_iter().find(|&held| head_dim <= held).unwrap_or(128)
}

/// Bytes of a block's shared memory. They hold a tile of K and of V, and for each of them the index of its codes, the tile's coefficients
/// and the head's basis.
fn shared_bytes(op: &PrefixAttention) -> u64 {
    let held = held(op.head_dim);
    let factors = |factors: Factors| {
        let steps = factors.rank.div_ceil(16);
        let index = if matches!(factors.coefficients, Factor::Coded { .. }) { TABLE + INDEX_STEP * steps } else { 0 };
        index + (KEYS + held) * (steps * 16 + PADDING)
    };
    2 * (2 * KEYS * (held + PADDING) + factors(op.key) + factors(op.value))
}

/// The unit of the kernel whose blocks have a tile of `many` rows, or of few.
fn unit(dtype: DType, held: u64, many: bool, arch: Arch) -> Unit {
    let (entry, define) = kernel(many);
    let mut defines = Tile::exactly(held).defines(dtype, Arch(80));
    defines.push((define, "1".into()));
    Unit {
        headers: [attention::params::headers(), headers()].concat(),
        defines,
        entries: entry,
        // The ranks decide how much a launch uses.
        shared_bytes: arch.shared_bytes().unwrap_or(99 << 10),
        also: vec![join_unit(dtype)],
        ..Unit::new(format!("prefix_attention/sm80 {dtype} head_dim {held}{}", if many { " many" } else { "" }), source!("attention/sm80/prefix.cu"))
    }
}

/// The entry of a unit, and the macro with which the source compiles it.
fn kernel(many: bool) -> (&'static [&'static str; 1], &'static str) {
    if many { (&["prefix_attention_sm80_many"], "COMPILE_prefix_attention_sm80_many") } else { (&["prefix_attention_sm80"], "COMPILE_prefix_attention_sm80") }
}

/// How an operation is cut into blocks.
struct Shape {
    many: bool,
    grid: Grid,
}

/// The configurations: whether a block has a tile of many rows.
const MANY: [bool; 2] = [false, true];

/// Whether tiles of many rows are faster. They are where one tile of few does not hold all rows.
fn takes_many(op: &PrefixAttention) -> bool {
    head_rows(op) > rows(false)
}

/// The configuration that the target forces, or the fastest one.
fn has_many(op: &PrefixAttention, target: &Target) -> bool {
    target.configured(MANY.into_iter()).unwrap_or_else(|| takes_many(op))
}

/// Rows of a tile.
const fn rows(many: bool) -> u64 {
    if many { 8 * WARP_ROWS } else { 4 * WARP_ROWS }
}

impl Shape {
    fn of(op: &PrefixAttention, target: &Target) -> Self {
        let many = has_many(op, target);
        // Two small blocks an SM, where shared memory allows it.
        let together = if !many && 2 * (shared_bytes(op) + BLOCK_RESERVED) <= u64::from(target.shared_bytes) { 2 } else { 1 };
        Self { many, grid: Grid::of(op, rows(many), KEYS, together * u64::from(target.units)) }
    }
}

fn supports(op: &PrefixAttention, target: &Target) -> std::result::Result<(), String> {
    if op.dtype == DType::F32 {
        return Err("the tensor cores round f32 to 11 bits".into());
    }
    if op.head_dim > 128 {
        return Err(format!("heads of {} elements, and it is made for 128 at most", op.head_dim));
    }
    let words = [op.key.coefficients, op.key.basis, op.value.coefficients, op.value.basis].map(|factor| match factor {
        Factor::Coded { words_per_adapter, .. } => words_per_adapter.into(),
        Factor::Dense { .. } => 0,
    });
    if let Some(most) = words.into_iter().chain([op.tokens, op.width()]).find(|&count| count >= LONGEST) {
        return Err(format!("a factor of {most} rows or words of codes, and they are counted to {LONGEST}"));
    }
    if !(op.plain().scale_value().abs() * std::f32::consts::LOG2_E).is_finite() {
        return Err("the scale times log2(e) is not finite".into());
    }
    let (shared, room) = (shared_bytes(op), u64::from(target.shared_bytes));
    if shared > room {
        let ranks = [op.key.rank, op.value.rank];
        return Err(format!("with ranks {ranks:?} a block needs {shared} bytes of shared memory, and there are {room}"));
    }
    // Keys are split only where there are fewer blocks than fit the device at once.
    let work = Grid::of(op, rows(has_many(op, target)), KEYS, 1).blocks(op);
    if work > 1 << 30 {
        return Err(format!("it needs {work} blocks of threads, and they are counted in 30 bits"));
    }
    Ok(())
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<PrefixAttention>, workspace: &Slice<Cuda>, args: &PrefixAttentionArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let Shape { many, grid } = Shape::of(op, &plan.target);
    let (&[entry], threads) = (kernel(many).0, if many { 256 } else { 128 });
    let launch = Launch { shared_bytes: shared_bytes(op) as u32, ..Launch::new(blocks(grid.blocks(op)), threads) };
    // SAFETY: the caller's promise; the workspace is that of this grid.
    unsafe { launch_grid(queue, plan, (entry, launch), grid, workspace, args) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    fn op(dtype: DType, rank: u64, head_dim: u64) -> PrefixAttention {
        let dense = Factors { rank, coefficients: Factor::Dense { bases: 1 }, basis: Factor::Dense { bases: 1 } };
        PrefixAttention::new(dtype, 16, [32, 8], [1, 4096], head_dim, [dense; 2])
    }

    #[test]
    fn what_is_not_covered_says_why() {
        assert_eq!(supports(&op(DType::F16, 128, 128), &TARGET), Ok(()));
        assert!(supports(&op(DType::F32, 16, 64), &TARGET).is_err_and(|why| why.contains("f32")));
        assert!(supports(&op(DType::F16, 16, 129), &TARGET).is_err_and(|why| why.contains("129")));
        assert!(supports(&op(DType::F16, 1024, 128), &TARGET).is_err_and(|why| why.contains("shared memory")));
    }

    #[test]
    fn ranks_of_64_fit_the_smallest_chip() {
        assert_eq!(supports(&op(DType::BF16, 64, 128), &Target { shared_bytes: 99 << 10, ..TARGET }), Ok(()));
    }
}
