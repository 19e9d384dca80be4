//! `attention` without tensor cores: every form, dtype and stride.

use super::block_lists as lists;
use super::params::{headers, parameters};
use super::repack::{self as repack, Repack};
use super::simt_tile::{HELD, ROWS, THREADS, held, numbers};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, TensorCores, Variant, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

pub(crate) const SIMT: Variant<Attention> = Variant {
    name: "simt",
    label: "attention/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("it serves f32 and every stride; the tensor cores round f32 to 11 bits"),
    supports: |_, _| Ok(()),
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, _| unit(op.dtype, room(op), is_ragged(op), lists::unit_of(op).into_iter().chain(copies(op).unit()).collect()),
    units: |_: Arch| units(),
    workspace: |op, _| lists::workspace(op, |op| copies(op).bytes()),
    launch,
};

/// The copies of sequences that lie at slots. All else is read in place.
fn copies(op: &Attention) -> Repack {
    Repack::of(op, |_| true)
}

fn is_ragged(op: &Attention) -> bool {
    matches!(op.form, Form::RaggedPaged(_))
}

/// Elements of a head that the kernel has room for. Ragged pages take the one for 64 for smaller heads too: that for 32 spills registers.
fn room(op: &Attention) -> u64 {
    held(op.head_dim).max(if is_ragged(op) { LEAST_RAGGED } else { 0 })
}

const LEAST_RAGGED: u64 = HELD[1];

fn shared_bytes(held: u64) -> u32 {
    (numbers(held) * 4) as u32
}

fn units() -> Vec<Unit> {
    let each = DType::ALL.into_iter().flat_map(|dtype| HELD.map(|held| (dtype, held)));
    let ragged = each.clone().filter(|(_, held)| *held >= LEAST_RAGGED).map(|(dtype, held)| unit(dtype, held, true, Vec::new()));
    each.map(|(dtype, held)| unit(dtype, held, false, vec![lists::unit(), repack::unit()])).chain(ragged).collect()
}

/// The unit for ragged pages, or for all other forms.
fn unit(dtype: DType, held: u64, ragged: bool, also: Vec<Unit>) -> Unit {
    let (word, define) = if ragged { (" ragged pages", Some(("RAGGED_PAGES", "1".into()))) } else { ("", None) };
    let numbers = [("ELEMENT", dtype.name().into()), ("HEAD_DIM_MAX", held.to_string()), ("SHARED_BYTES", shared_bytes(held).to_string())];
    Unit {
        headers: headers(),
        defines: numbers.into_iter().chain(define).collect(),
        entries: &["attention_simt"],
        shared_bytes: shared_bytes(held),
        also,
        ..Unit::new(format!("attention/simt{word} {dtype} head_dim {held}"), source!("attention/simt.cu"))
    }
}

/// Heads whose rows are packed into one tile: those that share keys, unless each has a block pattern of its own.
fn pack(op: &Attention) -> u64 {
    match op.form {
        Form::Blocks(shape) if shape.patterns != 1 => 1,
        _ => op.heads / op.kv_heads,
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { lists::launch(queue, plan, workspace, args, launch_listed) }
}

unsafe fn launch_listed(queue: &mut Queue, plan: &Plan<Attention>, op: &Attention, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let (copies, pack) = (copies(op), pack(op));
    // SAFETY: the caller's promise; a workspace is a buffer of its own.
    let starts = unsafe { copies.launch(queue, plan, workspace, args)? };
    let op = &copies.reads(op);
    let mut params = parameters(op, args, pack);
    [params.q, params.k, params.v] = starts;
    let work = (op.batch + op.spare_sequences()) * (op.heads / pack) * (params.q_len * pack).div_ceil(ROWS);
    let launch = Launch { shared_bytes: shared_bytes(room(op)), ..Launch::new(blocks(work), THREADS) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, "attention_simt", &launch, &params) }
}
