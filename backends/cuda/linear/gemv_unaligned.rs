//! `linear` on up to 16 rows whose K is no multiple of 8: configurations of `sm80_gemv` that read W in place, wherever its rows start.

use crate::backends::cuda::gemm::problem::{HALVES, fits, gemm_header, half};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::linear::problem::adapted;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const ROWS: Variant<Linear> = Variant {
    name: "sm80_gemv",
    label: "linear/sm80_gemv",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, target| unit(op.dtype, configured(target), target.shared_bytes),
    units: |arch: Arch| HALVES.iter().flat_map(|&dtype| ROOMS.map(|tokens| unit(dtype, tokens, arch.shared_bytes().unwrap_or(0)))).collect(),
    workspace: |_, _| 0,
    launch,
};

/// Rows of X that a kernel has room for.
pub(crate) const ROOMS: [u64; 2] = [8, 16];
/// Constants of `kernels/gemm/sm80/gemv_unaligned.cuh`: warps of a block, elements of K that a warp takes at once, rows of W of a tile,
/// phases of rows.
const WARPS: u64 = 16;
const CHUNK: u64 = 32;
const TILE_ROWS: u64 = 16;
const PHASES: u64 = 8;

/// The configurations' names: rows of X that there is room for, by rows of W of a tile.
pub(crate) fn names(_: Arch) -> Vec<String> {
    ROOMS.map(|room| format!("{room}x{TILE_ROWS}-unaligned")).into()
}

/// The configuration of a target that supports the operation.
fn configured(target: &Target) -> u64 {
    target.configured(ROOMS.into_iter()).unwrap_or(ROOMS[1])
}

/// Bytes of shared memory: X, wherever a phase's rows start, and two sets of every warp's sums.
fn shared_bytes(room: u64, depth: u64) -> u64 {
    let line = (depth.saturating_add(PHASES - 1).div_ceil(CHUNK) * CHUNK * 2).next_multiple_of(128) + 64;
    room.saturating_mul(line) + 2 * WARPS * 32 * 4 * 4 * (room / 8)
}

fn supports(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_norm()?;
    op.no_wide_outputs()?;
    op.sums(true)?;
    target.any(ROOMS.into_iter(), |&room| {
        if op.tokens > room {
            return Err(format!("{} rows > {room}: X is not kept in shared memory", op.tokens));
        }
        fits(u32::try_from(shared_bytes(room, op.d_in)).unwrap_or(u32::MAX), target)
    })
}

/// The unit, with all the shared memory that a block may use. K decides how much a launch needs; `supports` checks it.
fn unit(dtype: DType, tokens: u64, shared_bytes: u32) -> Unit {
    Unit {
        name: format!("linear/sm80_gemv {dtype}, unaligned, {tokens} rows"),
        source: source!("gemm/sm80/gemv_unaligned.cu"),
        headers: vec![gemm_header()],
        defines: vec![("ELEMENT", dtype.name().into()), ("GEMV_TOKENS", tokens.to_string())],
        entries: &["linear_gemv_unaligned"],
        shared_bytes,
        also: Vec::new(),
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if op.tokens == 0 {
        return Ok(());
    }
    // A block takes each phase of rows. There are as many sets of eight blocks as run at once, or as there are tiles.
    let eights = (u64::from(plan.target.units) / PHASES).max(1).min(op.d_out.div_ceil(PHASES).div_ceil(TILE_ROWS));
    let shared_bytes = shared_bytes(configured(&plan.target), op.d_in) as u32;
    let how = Launch { shared_bytes, ..Launch::new((eights * PHASES) as u32, (WARPS * 32) as u32) };
    // SAFETY: the caller's promise.
    unsafe {
        let product = adapted(queue, plan, workspace, args)?;
        plan.launch(queue, "linear_gemv_unaligned", &how, &product.params())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_few_rows_that_fit() {
        let takes = |tokens, d_in, target| supports(&Linear::new(DType::F16, [tokens, d_in, 4096]), target).is_ok();
        let (h200, rtx) = (&Target::H200, &Target::RTX_3090);
        assert!(takes(1, 4095, h200) && takes(16, 4095, h200) && takes(8, 11007, h200) && takes(1, 4095, rtx) && takes(1, 4096, h200));
        assert!(!takes(17, 4095, h200) && !takes(1, 1 << 20, h200) && !takes(16, 4095, rtx));
        assert!(shared_bytes(8, 1) >= 8 * 64 && shared_bytes(16, 4095) > shared_bytes(8, 4095));
    }
}
