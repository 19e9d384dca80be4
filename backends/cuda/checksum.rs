//! `checksum` on CUDA: a block for each piece of a range.

use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Table, TensorCores, Variant, address, blocks, count, names};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Checksum, ChecksumArgs};

impl Table for Checksum {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { count(&VARIANTS) }>(&VARIANTS);
}

const VARIANTS: [Variant<Checksum>; 1] = [Variant {
    name: "simt",
    label: "checksum/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("there is no product of matrices"),
    supports: |_, _| Ok(()),
    suits: |_, _| Ok(()),
    configs: None,
    unit: |_, _| unit(),
    units: |_| vec![unit()],
    workspace: |op, _| if pieces(op) > 1 { op.ranges * STATE } else { 0 },
    launch,
}];

params! {
    /// Parameters of checksums.
    ChecksumParams {
        x: [const u8],
        sums: [u32],
        /// The sum of each range's pieces so far, and how many have come; zeros between launches.
        state: [u64],
        ranges: u64,
        bytes: u64,
        /// Bytes from a range to the next.
        stride: u64,
        /// Pieces of a range.
        pieces: u64,
        piece_words: u64,
    }
}

/// Threads of a block in `kernels/checksum/simt.cu`.
const THREADS: u32 = 256;
/// Words of a piece: 64 a thread.
const PIECE: u64 = 64 * THREADS as u64;
/// Bytes of a range in the workspace.
const STATE: u64 = 16;

fn pieces(op: &Checksum) -> u64 {
    (op.bytes / 4).div_ceil(PIECE).max(1)
}

fn unit() -> Unit {
    Unit {
        headers: vec![("checksum/params.cuh", ChecksumParams::cuda())],
        entries: &["checksum_simt"],
        ..Unit::new("checksum/simt", source!("checksum/simt.cu"))
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Checksum>, workspace: &Slice<Cuda>, args: &ChecksumArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let params = ChecksumParams {
        x: address(&args.x),
        sums: address(&args.sums),
        state: address(workspace),
        ranges: op.ranges,
        bytes: op.bytes,
        stride: op.start(1),
        pieces: pieces(op),
        piece_words: PIECE,
    };
    let launch = Launch { overlap: plan.target.arch >= Arch(90), ..Launch::new(blocks(op.ranges * pieces(op)), THREADS) };
    // SAFETY: the caller's promise; the workspace is as large as the variant says, and zero.
    unsafe { plan.launch(queue, "checksum_simt", &launch, &params) }
}
