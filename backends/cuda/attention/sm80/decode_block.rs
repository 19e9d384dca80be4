//! Decoding over short caches: `attention` of one query a sequence, where a block has all keys of a sequence and of a head.

use crate::backends::cuda::attention::choose;
use crate::backends::cuda::attention::early::early;
use crate::backends::cuda::attention::params::{AttentionParams, headers, parameters};
use crate::backends::cuda::attention::repack::in_order;
use crate::backends::cuda::attention::sm80::tile::{self as sm80, key_rows};
use crate::backends::cuda::attention::sm80::unaligned;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, blocks, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm80_decode",
    label: "attention/sm80_decode",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: choose::decode_block,
    configs: Some(Configs { names: |_| vec!["block".into()], choose: |_, _| 0 }),
    unit: |op, _| unit(op.head_dim, op.dtype),
    units: |_: Arch| HEADS.into_iter().flat_map(|head_dim| [DType::F16, DType::BF16].map(|dtype| unit(head_dim, dtype))).collect(),
    workspace: |_, _| 0,
    launch,
};

params! {
    /// Parameters of the kernel.
    DecodeBlockParams {
        common: AttentionParams,
        /// Whether the first keys are read before the PDL wait, and how many of the last positions of each sequence only after it.
        early: u32,
        late: u32,
    }
}

/// Head dimensions that there are kernels for: multiples of what four lanes move at once.
const HEADS: [u64; 3] = [64, 96, 128];
/// Constants of `kernels/attention/sm80/decode_block.cu`: the most rows that share keys, warps, and numbers between rows in shared memory.
const ROWS: u64 = 8;
const WARPS: u64 = 8;
const PADDING: u64 = 4;
/// How many times 16 keys of a warp are under way together.
const AHEAD: u64 = 2;

const ENTRY: &str = "attention_sm80_decode_block";

/// Bytes of what warps leave for each other.
const fn shared_bytes(head_dim: u64) -> u32 {
    (WARPS * ROWS * (head_dim + PADDING) * 4) as u32
}

fn unit(head_dim: u64, dtype: DType) -> Unit {
    Unit {
        headers: [headers(), vec![("attention/decode_block_params.cuh", DecodeBlockParams::cuda())]].concat(),
        defines: vec![("ELEMENT", dtype.name().into()), ("HEAD_DIM", head_dim.to_string()), ("BLOCK_AHEAD", AHEAD.to_string())],
        entries: &[ENTRY],
        shared_bytes: shared_bytes(head_dim),
        also: vec![unaligned::unit(sm80::held(head_dim), dtype)],
        ..Unit::new(format!("attention/sm80_decode block {dtype} head_dim {head_dim}"), source!("attention/sm80/decode_block.cu"))
    }
}

fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    sm80::limits(op, target)?;
    in_order(op)?;
    if !matches!(op.form, Form::Paged(_) | Form::Dense) || op.q_len != 1 {
        return Err("it runs one query a sequence over caches in pages, or end to end".into());
    }
    if key_rows(op) > ROWS || !HEADS.contains(&op.head_dim) {
        return Err(format!("{} heads share keys of {}: expected at most {ROWS} and one of {HEADS:?}", key_rows(op), op.head_dim));
    }
    if !sm80::rows_aligned(op) {
        return Err("rows do not start on multiples of 16 bytes".into());
    }
    Ok(())
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, _workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let common = parameters(op, args, key_rows(op));
    if !sm80::aligned(op, &common) {
        // SAFETY: the caller's promise; the plan has the kernel for rows that start anywhere too.
        return unsafe { unaligned::launch(queue, plan, sm80::held(op.head_dim), op, args, [common.q, common.k, common.v]) };
    }
    let mut params = DecodeBlockParams { common, early: 0, late: 0 };
    let launch = Launch {
        shared_bytes: shared_bytes(op.head_dim),
        overlap: plan.target.arch >= Arch(90),
        ..Launch::new(blocks(op.batch * op.kv_heads), (WARPS * 32) as u32)
    };
    let mut open = Default::default();
    if launch.overlap {
        let known = queue.take_open();
        let late = known.late(&early(op, args)).and_then(|late| u32::try_from(late).ok());
        queue.leave_open(known);
        (params.early, params.late) = (late.is_some().into(), late.unwrap_or(0));
        open = queue.behind([Some(&args.o), args.lse.as_ref()].into_iter().flatten().map(range).collect());
    }
    // SAFETY: the caller's promise; launches in flight write nothing that this one reads before its PDL wait.
    unsafe { plan.launch(queue, ENTRY, &launch, &params)? };
    queue.leave_open(open);
    Ok(())
}
