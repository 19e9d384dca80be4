//! `attention` on the tensor cores of Ampere and later.

pub(crate) mod decode;
pub(crate) mod varlen_short;

use crate::backends::cuda::attention::block_lists as lists;
use crate::backends::cuda::attention::params::{AttentionParams, headers, parameters};
use crate::backends::cuda::attention::repack::{self as repack, Repack, Rows};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm80",
    label: "attention/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: |_, _| Ok(()),
    unit: |op, target| Tile::of(op).unit(op.dtype, target.arch),
    units,
    workspace: |op, _| lists::workspace(op, |op| copies(op).bytes()),
    launch,
};

/// Head dimensions that a kernel is compiled for; a head is padded to the next in shared memory.
pub(crate) const HELD: [u64; 12] = [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256];
/// Keys of a step, warps, and rows of a matrix instruction in `kernels/attention/sm80/copies.cuh`.
const KEYS: u64 = 64;
const WARPS: u64 = 4;
const STEP: u64 = 16;
/// Elements of which a row in shared memory has whole multiples: 128 bytes.
const LINE: u64 = 64;
/// Rows of a block of threads.
const ROWS: u64 = WARPS * STEP;
/// Head dimensions up to which a warp of the wide kernel has registers for twice the rows. Above, two warps share them, and hand
/// each other their weights and a number of each row.
const TWICE: u64 = 128;
const HANDED_BYTES: u32 = (2 * ROWS * KEYS + WARPS * 2 * STEP * 4) as u32;

/// The head dimension that a kernel for heads of `head_dim` elements is compiled for.
pub(crate) fn held(head_dim: u64) -> u64 {
    HELD.into_iter().find(|&held| head_dim <= held).unwrap_or(256)
}

/// Shared memory of a block on the smallest chips.
const SMALLEST: u32 = 99 << 10;

/// The kernels for many queries.
const WIDE: [(&str, &str); 4] = [
    ("attention/sm80/softmax.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/attention/sm80/softmax.cuh"))),
    ("attention/sm80/held.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/attention/sm80/held.cuh"))),
    ("attention/sm80/wide.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/attention/sm80/wide.cuh"))),
    ("attention/sm80/halves.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/attention/sm80/halves.cuh"))),
];

/// What a kernel is compiled for: a head, padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile(u64);

impl Tile {
    pub(crate) fn of(op: &Attention) -> Self {
        Self(held(op.head_dim))
    }

    /// A kernel for heads of `held` elements, of those there are.
    pub(crate) fn exactly(held: u64) -> Self {
        Self(held)
    }

    /// Rows of a block of threads of the wide kernel.
    fn wide_rows(self) -> u64 {
        if self.0 <= TWICE { 2 * ROWS } else { ROWS }
    }

    /// Shared memory of a block of the general kernel, and of the wide one.
    fn general_bytes(self) -> u32 {
        self.tile_bytes(ROWS)
    }

    fn wide_bytes(self) -> u32 {
        self.tile_bytes(self.wide_rows()) + if self.0 <= TWICE { 0 } else { HANDED_BYTES }
    }

    fn tile_bytes(self, rows: u64) -> u32 {
        ((rows + 2 * KEYS) * self.0.next_multiple_of(LINE) * 2) as u32
    }

    /// Whether a block of the wide kernel fits a multiprocessor: but for 256 elements on the small chips of Ampere and Ada.
    fn has_wide(self, arch: Arch) -> bool {
        self.wide_bytes() <= arch.shared_bytes().unwrap_or(SMALLEST)
    }

    pub(crate) fn shared_bytes(self, arch: Arch) -> u32 {
        if self.has_wide(arch) { self.wide_bytes() } else { self.general_bytes() }
    }

    pub(crate) fn defines(self, dtype: DType, arch: Arch) -> Vec<(&'static str, String)> {
        vec![("ELEMENT", dtype.name().into()), ("HEAD_DIM", self.0.to_string()), ("SHARED_BYTES", self.shared_bytes(arch).to_string())]
    }

    fn unit(self, dtype: DType, arch: Arch) -> Unit {
        let mut headers = headers();
        headers.extend(repack::headers());
        headers.extend(lists::headers());
        headers.extend(WIDE.map(|(name, text)| (name, text.to_owned())));
        Unit {
            name: format!("attention/sm80 {dtype} head_dim {}", self.0),
            source: source!("attention/sm80/tile.cu"),
            headers,
            defines: self.defines(dtype, arch),
            entries: &["attention_sm80", "attention_sm80_narrow", "attention_sm80_wide", repack::ENTRY, lists::ENTRY],
            shared_bytes: self.shared_bytes(arch),
            also: Vec::new(),
        }
    }
}

fn units(arch: Arch) -> Vec<Unit> {
    HELD.iter().flat_map(|&head_dim| [DType::F16, DType::BF16].map(|dtype| Tile(head_dim).unit(dtype, arch))).collect()
}

/// What the tensor cores and 32-bit positions allow.
pub(crate) fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    if op.dtype == DType::F32 {
        return Err("the tensor cores round f32 to 11 bits".into());
    }
    // Positions are sums of two lengths, and a window may reach below zero.
    let longest = 1 << 29;
    if op.q_len.saturating_mul(pack(op)) > longest || op.kv_len > longest {
        return Err(format!("positions are 32-bit numbers: at most {longest} queries and keys"));
    }
    if !(op.scale_value().abs() * std::f32::consts::LOG2_E).is_finite() {
        return Err("the scale times log2(e) is not finite".into());
    }
    let work = work(op, ROWS);
    if work > 1 << 30 {
        return Err(format!("it needs {work} blocks of threads, and they are counted in 30 bits"));
    }
    let shared = Tile::of(op).general_bytes();
    if shared > target.shared_bytes {
        return Err(format!("a block needs {shared} bytes of shared memory, and there are {}", target.shared_bytes));
    }
    Ok(())
}

/// Heads that are rows of one tile. Where queries are few, the heads that share keys fill a tile; where they are many, each
/// head has tiles of its own.
fn pack(op: &Attention) -> u64 {
    let group = op.heads / op.kv_heads;
    match op.form {
        form if form.is_sparse() => 1,
        _ if op.q_len >= ROWS => 1,
        _ => group,
    }
}

/// Blocks of threads that a head, or a group of packed ones, needs.
fn tiles(op: &Attention, rows: u64) -> u64 {
    (op.q_len * pack(op)).div_ceil(rows)
}

/// Heads whose tiles are taken together, late queries first: of causal sequences they have the most to do.
fn band(op: &Attention) -> u64 {
    if op.causal { op.batch * (op.heads / pack(op)) } else { 1 }
}

/// Blocks of threads.
fn work(op: &Attention, rows: u64) -> u64 {
    (op.batch * (op.heads / pack(op))).saturating_mul(tiles(op, rows))
}

/// Whether every row of q, k and v starts on a multiple of 16 bytes.
pub(crate) fn aligned(op: &Attention, params: &AttentionParams) -> bool {
    Rows::of(op).iter().all(|rows| rows.aligned(op.dtype)) && [params.q, params.k, params.v].iter().all(|start| start.is_multiple_of(16))
}

/// The operands that are copied first, to rows that start on multiples of 16 bytes. It pays where more than one tile reads them; of
/// a pool of pages an operation may use few.
fn copies(op: &Attention) -> Repack {
    let pays = op.q_len > ROWS && !matches!(op.form, Form::Paged(_));
    Repack::of(op, |rows| !pays || rows.aligned(op.dtype))
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { lists::launch(queue, plan, workspace, args, launch_listed) }
}

unsafe fn launch_listed(queue: &mut Queue, plan: &Plan<Attention>, op: &Attention, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let copies = copies(op);
    // SAFETY: the caller's promise; a workspace is a buffer of its own, and the plan's module was compiled for this tile.
    unsafe {
        let starts = copies.launch(queue, plan, workspace, args)?;
        launch_tile(queue, plan, Tile::of(op), &copies.reads(op), args, starts)
    }
}

/// Launches the kernel of the plan's module that suits the operands: those of `op`, where q, k and v start at `starts`.
///
/// # Safety
/// As [`Kernel::launch`](crate::backend::Kernel::launch); the module was compiled for `tile`, and has the kernels that the operands may need.
pub(crate) unsafe fn launch_tile(
    queue: &mut Queue,
    plan: &Plan<Attention>,
    tile: Tile,
    op: &Attention,
    args: &AttentionArgs<Cuda>,
    starts: [u64; 3],
) -> Result<()> {
    let mut params = parameters(op, args, pack(op));
    [params.q, params.k, params.v] = starts;
    let lists = matches!(op.form, Form::Blocks(_) | Form::Paged(_));
    let many = op.q_len > ROWS && tile.has_wide(plan.target.arch) && work(op, tile.wide_rows()) >= u64::from(plan.target.units);
    let (entry, rows, shared_bytes) = match aligned(op, &params) {
        true if many && !lists => ("attention_sm80_wide", tile.wide_rows(), tile.wide_bytes()),
        true => ("attention_sm80", ROWS, tile.general_bytes()),
        false => ("attention_sm80_narrow", ROWS, tile.general_bytes()),
    };
    params.tiles = tiles(op, rows) as u32;
    params.band = band(op) as u32;
    // It waits for the launch before, and reads nothing until then.
    let overlap = plan.target.arch.0 >= 90;
    let launch = Launch { shared_bytes, overlap, ..Launch::new(blocks(work(op, rows)), (WARPS * 32) as u32) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, entry, &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 99 << 10 };

    #[test]
    fn every_head_dim_has_a_tile_that_fits_the_smallest_chip() {
        for head_dim in 1..=256 {
            let op = Attention::dense(DType::F16, 2, [32, 8], [5000, 5000], head_dim);
            let Tile(held) = Tile::of(&op);
            assert!(held >= head_dim && held < head_dim + 32 && HELD.contains(&held));
            assert_eq!(supports(&op, &TARGET), Ok(()));
        }
    }

    #[test]
    fn a_tile_lies_in_one_row_of_blocks() {
        assert!([64, 128].iter().all(|block| block % ROWS == 0 && block % KEYS == 0));
    }

    #[test]
    fn what_is_not_covered_says_why() {
        let op = Attention::dense(DType::F32, 1, [1, 1], [1, 1], 64);
        assert!(supports(&op, &TARGET).is_err());
        let long = Attention::dense(DType::F16, 1, [1, 1], [1, 1 << 30], 64);
        assert!(supports(&long, &TARGET).is_err());
    }
}
