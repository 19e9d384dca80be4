//! `linear` on few rows: the variant `sm90_skinny`.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::{listed, widened};
use crate::backends::cuda::gemm::problem::HALVES;
use crate::backends::cuda::gemm::repack::{Copies, repack_unit};
use crate::backends::cuda::gemm::sm90::skinny::SkinnyShape;
use crate::backends::cuda::gemm::sm90::skinny_config::{SkinnyUse, Stream};
use crate::backends::cuda::gemm::sm90::units::Form;
use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::linear::problem::{every_fallback, fallback, is_wide, product, repacked_bytes, streams, writes};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const SKINNY: Variant<Linear> = Variant {
    name: "sm90_skinny",
    label: "linear/sm90_skinny",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports: |op, target| {
        streams(op)?;
        target.any(Stream::all(), |stream| {
            op.sums(stream.in_parts())?;
            writes(op, !stream.in_parts())?;
            stream.holds(op.tokens, target)
        })
    },
    suits: |_, _| Ok(()),
    configs: None,
    unit,
    units: |_: Arch| {
        let own = Stream::all().flat_map(|stream| Form::all(&HALVES, false).map(move |form| stream.unit(form)));
        let wide = Stream::all().filter(|stream| !stream.in_parts()).flat_map(|stream| HALVES.map(|dtype| wide_unit(&stream, dtype)));
        listed(own.chain(wide), every_fallback().chain(HALVES.map(repack_unit)))
    },
    workspace: |op, _| repacked_bytes(op),
    launch,
};

pub(crate) fn names(_: Arch) -> Vec<String> {
    Stream::all().map(|stream| stream.config()).collect()
}

/// The configuration of a target that supports the operation.
fn configured(target: &Target) -> Stream {
    target.configured(Stream::all()).unwrap_or(Stream::tiles(SkinnyShape::ALL[3], false))
}

/// Whether W is kept in L2. It must be so small that L2 (50 MB on an H200) still has it at the next launch. With many rows of X this costs
/// other data more than it gains.
fn keeps(op: &Linear) -> bool {
    op.tokens <= 64 && op.d_out.saturating_mul(op.w_stride).saturating_mul(op.dtype.size()) <= 36 << 20
}

/// The unit of a kernel with wide outputs.
fn wide_unit(stream: &Stream, dtype: DType) -> Unit {
    widened(stream.unit(Form::plain(dtype, ActivationForm::Floor)))
}

fn unit(op: &Linear, target: &Target) -> Unit {
    let stream = configured(target);
    let own = if is_wide(op) { wide_unit(&stream, op.dtype) } else { stream.unit(Form::plain(op.dtype, ActivationForm::of(op.activation))) };
    Unit { also: fallback(op).into_iter().chain(Copies::of(op).unit(op.dtype)).collect(), ..own }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if op.tokens == 0 {
        return Ok(());
    }
    let stream = configured(&plan.target);
    // SAFETY: the caller's promise; aligned rows start where TMA can read them.
    unsafe {
        let (product, overlap) = product(queue, plan, workspace, args)?;
        if !product.aligned() {
            return product.launch_fallback(queue, plan);
        }
        let room = match stream.tile.cluster() {
            4 => {
                let all = stream.tile.launch(u64::from(plan.target.units) / 4);
                plan.once(|plan| plan.resident_clusters(stream.kernel.name(), &all))?.max(SkinnyShape::quarter_clusters(plan.target.units))
            }
            _ => SkinnyShape::clusters(plan.target.units),
        };
        stream.run(queue, plan, &product, SkinnyUse { unit: 0, room, keeps: keeps(op), overlap })
    }
}
