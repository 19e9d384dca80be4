//! `linear` on up to 16 rows with a small weight: the variant `sm80_gemv`, whose blocks hold their part of W in registers. It norms rows before the product
//! and gates outputs.

use crate::backends::cuda::gemm::activation::activation_code;
use crate::backends::cuda::gemm::problem::{HALVES, fits, half};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::pdl::{InFlightWrites, starts_early};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, address_of, range};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const GEMV: Variant<Linear> = Variant {
    name: "sm80_gemv",
    label: "linear/sm80_gemv",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, target| {
        let form = Form::of(op);
        Unit { also: vec![unit(form, None, target.shared_bytes)], ..unit(form, Some(configured(target)), target.shared_bytes) }
    },
    units: |arch: Arch| {
        let shared = arch.shared_bytes().unwrap_or(0);
        let of = move |form| DEPTHS.map(Some).into_iter().chain([None]).map(move |depth| unit(form, depth, shared));
        Form::all().flat_map(of).collect()
    },
    workspace: |_, _| 0,
    launch,
};

params! {
    /// Parameters of the kernels. Strides are in elements.
    GemvParams {
        x: [const element],
        w: [const element],
        /// The weight of the norm before the product.
        norm: [const element],
        bias: [const element],
        residual: [const element],
        y: [element],
        x_stride: u64,
        w_stride: u64,
        rows: u32,
        columns: u32,
        depth: u32,
        /// K rounded up to whole chunks, and elements from a normed row to the next.
        whole: u32,
        stride: u32,
        activation: u32,
        eps: f32,
        /// Whether weights, bias and norm may be read before the wait.
        early: u32,
    }
}

/// The most elements of K, by kernel: 256 for each of a thread's registers of 16 bytes.
pub(crate) const DEPTHS: [u64; 2] = [1024, 2048];
/// The most rows of X, and outputs of a block, in `kernels/gemm/sm80/gemv.cuh`; its threads, and elements of K of a chunk.
const ROWS: u64 = 16;
pub(crate) const OUTPUTS: u64 = 8;
const THREADS: u32 = 256;
const CHUNK: u64 = 32;
/// Bytes of shared memory that the kernels have besides: sums of eight warps, of gates too.
const SUMS: u32 = 8 << 10;

/// What kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Form {
    dtype: crate::dtype::DType,
    gated: bool,
    normed: bool,
}

impl Form {
    fn of(op: &Linear) -> Self {
        Self { dtype: op.dtype, gated: op.gated, normed: op.input_norm.is_some() }
    }

    fn all() -> impl Iterator<Item = Self> {
        let forms = [(false, false), (false, true), (true, false), (true, true)];
        HALVES.into_iter().flat_map(move |dtype| forms.map(|(gated, normed)| Self { dtype, gated, normed }))
    }
}

/// The configurations' names: the most elements of K.
pub(crate) fn names(_: Arch) -> Vec<String> {
    DEPTHS.map(|depth| format!("k{depth}")).into()
}

/// The configuration of a target that supports the operation.
fn configured(target: &Target) -> u64 {
    target.configured(DEPTHS.into_iter()).unwrap_or(DEPTHS[1])
}

/// Elements from a normed row to the next: neighbours fall into different halves of the banks.
const fn stride(depth: u64) -> u64 {
    depth.next_multiple_of(64) + 32
}

/// Bytes of dynamic shared memory: the norm's weight and the rows of X, where they are normed.
fn shared_bytes(op: &Linear) -> u32 {
    let elements = if op.input_norm.is_some() { op.d_in.next_multiple_of(CHUNK).saturating_add(op.tokens.saturating_mul(stride(op.d_in))) } else { 0 };
    u32::try_from(elements.saturating_mul(2)).unwrap_or(u32::MAX - SUMS)
}

fn supports(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_delta()?;
    op.no_wide_outputs()?;
    op.sums(true)?;
    if op.norm.is_some() {
        return Err("a norm at the end: a block has eight outputs".into());
    }
    if op.tokens > ROWS || op.d_out > u64::from(u32::MAX) / 2 {
        return Err(format!("{} rows of X, {} outputs: there is room for {ROWS} rows", op.tokens, op.d_out));
    }
    target.any(DEPTHS.into_iter(), |&depth| if op.d_in <= depth { Ok(()) } else { Err(format!("a K of {}: registers hold {depth}", op.d_in)) })?;
    fits(shared_bytes(op).saturating_add(SUMS), target)
}

/// The unit for a K up to `depth`; without one, that for rows that are not whole lines. Its launches may use all the shared memory of a block.
fn unit(form: Form, depth: Option<u64>, shared_bytes: u32) -> Unit {
    let Form { dtype, gated, normed } = form;
    let word = depth.map_or_else(|| "unaligned".into(), |depth| format!("k{depth}"));
    let flag = |name, set: bool| (name, u32::from(set).to_string());
    Unit {
        headers: vec![("gemm/sm80/gemv_params.cuh", GemvParams::cuda())],
        defines: vec![
            ("ELEMENT", dtype.name().into()),
            ("GEMV_CHUNKS", (depth.unwrap_or(DEPTHS[1]) / 256).to_string()),
            flag("GEMV_GATED", gated),
            flag("GEMV_NORMED", normed),
            flag("GEMV_ALIGNED", depth.is_some()),
        ],
        entries: if depth.is_some() { &["linear_gemv"] } else { &["linear_gemv_anywhere"] },
        shared_bytes: if normed { shared_bytes.saturating_sub(SUMS) } else { 0 },
        ..Unit::new(format!("linear/sm80_gemv {dtype}, {word}, gated {gated}, normed {normed}"), source!("gemm/sm80/gemv.cu"))
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, _workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if op.tokens == 0 {
        return Ok(());
    }
    let mut params = GemvParams {
        x: address(&args.x),
        w: address(&args.w),
        norm: address_of(args.input_norm.as_ref()),
        bias: address_of(args.bias.as_ref()),
        residual: address_of(args.residual.as_ref()),
        y: address(&args.y),
        x_stride: if op.tokens == 1 { 0 } else { op.x_stride },
        w_stride: op.w_stride,
        rows: op.tokens as u32,
        columns: op.d_out as u32,
        depth: op.d_in as u32,
        whole: op.d_in.next_multiple_of(CHUNK) as u32,
        stride: stride(op.d_in) as u32,
        activation: activation_code(op.activation),
        eps: f32::from_bits(op.input_norm.unwrap_or(0)),
        early: 0,
    };
    let places = params.x | params.w | params.norm | ((params.x_stride | params.w_stride | op.d_in) * op.dtype.size());
    let entry = if places.is_multiple_of(16) { "linear_gemv" } else { "linear_gemv_anywhere" };
    // Each kernel's PDL wait stands before its first read of what is no weight.
    let launch = Launch { overlap: plan.target.arch >= Arch(90), shared_bytes: shared_bytes(op), ..Launch::new(op.d_out.div_ceil(OUTPUTS) as u32, THREADS) };
    let mut open = InFlightWrites::default();
    if launch.overlap {
        let known = queue.take_open();
        let constants: Vec<_> = [Some(&args.w), args.input_norm.as_ref(), args.bias.as_ref()].into_iter().flatten().map(range).collect();
        params.early = starts_early(&known, &constants).into();
        queue.leave_open(known);
        open = queue.behind(range(&args.y).into());
    }
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, entry, &launch, &params)? };
    queue.leave_open(open);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn it_takes_few_rows_of_a_k_that_registers_hold() {
        let norm = Some(1e-5f32.to_bits());
        let takes = |op: Linear, target| supports(&op, target).is_ok();
        let of = |tokens, d_in| Linear::new(DType::F16, [tokens, d_in, 960]);
        let (h200, rtx) = (&Target::H200, &Target::RTX_3090);
        assert!(takes(of(1, 576), rtx) && takes(of(16, 2048).with_input_norm(norm), rtx) && takes(of(3, 333).with_gated(true), h200));
        assert!(!takes(of(17, 576), h200) && !takes(of(1, 2049), h200));
        assert!(!takes(of(1, 576).with_batch_invariant(true), h200) && !takes(of(1, 576).with_norm(norm), h200));
    }
}
