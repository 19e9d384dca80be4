//! Both products of an MLP of few tokens, at the rate of memory.

use super::problem::{beside, bring, chunks, up_strides};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::problem::HALVES;
use crate::backends::cuda::gemm::sm90::skinny::SkinnyShape;
use crate::backends::cuda::gemm::sm90::skinny_config::{SkinnyUse, Stream};
use crate::backends::cuda::gemm::sm90::units::{Form, SkinnyKernel};
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, Target};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

/// Whether the kernels of `down`, and those of its tile for the first product, can compute one chunk of all tokens, or why not.
pub(crate) fn takes(op: &FusedMlp, down: &Stream, rows: u64, target: &Target) -> std::result::Result<(), String> {
    if rows < op.tokens {
        return Err(format!("the intermediate of {} tokens is larger than the workspace", op.tokens));
    }
    SkinnyShape::supports(op.dtype, [op.tokens, op.d_ff, op.d_model], up_strides(op))?;
    SkinnyShape::supports(op.dtype, [op.tokens, op.d_out, op.d_ff], [op.w2_stride; 2])?;
    down.holds(op.tokens, target)
}

/// The index of the second product's kernel among a plan's units.
const DOWN: usize = 1;

/// The first product's configuration. Its K is never split.
const fn up(down: &Stream) -> Stream {
    Stream::tiles(down.tile, false)
}

pub(crate) fn unit(op: &FusedMlp, down: &Stream) -> Unit {
    let form = Form { dtype: op.dtype, gated: op.gated, activation: ActivationForm::of(Some(op.activation)) };
    Unit { also: [vec![down.unit(Form::plain(op.dtype, ActivationForm::Floor))], beside(op)].concat(), ..up(down).unit(form) }
}

/// The units of both products.
pub(crate) fn units() -> impl Iterator<Item = Unit> {
    let tiles = || SkinnyShape::every(false, SkinnyShape::filled).into_iter();
    let up = tiles().flat_map(|tile| [false, true].map(|gated| (tile, gated)));
    let up = up.flat_map(|(tile, gated)| Form::all(&HALVES, gated).map(move |form| SkinnyKernel::Tiles.unit(&tile, false, form)));
    up.chain(Stream::of_mlp().flat_map(|down| HALVES.map(|dtype| down.unit(Form::plain(dtype, ActivationForm::Floor)))))
}

/// Enqueues both products of every chunk.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn launch(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>, stream: &Stream) -> Result<()> {
    let how = |unit| SkinnyUse { unit, room: SkinnyShape::clusters(plan.target.units), keeps: false, overlap: false };
    for [mut first, second] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; the intermediate fits into the workspace, and aligned rows start where TMA can read
        // them.
        unsafe {
            bring(queue, plan, workspace, &mut first)?;
            if first.aligned() && second.aligned() {
                up(stream).run(queue, plan, &first, how(0))?;
                stream.run(queue, plan, &second, how(DOWN))?;
                continue;
            }
            for product in [first, second] {
                product.launch_fallback(queue, plan)?;
            }
        }
    }
    Ok(())
}
