//! Fused SGMV for dense factors on both sides, on Hopper: a configuration of `sgmv_dense` of one launch of clusters in place of two, with the same
//! bits.

use super::choose_dense::trained_by_few;
use super::dense::{self, Form, TOGETHER, may_be_whole, most_units, params, pieces, shares, whole};
use super::dense_pair;
use super::entry::{Entry, entry};
use super::launch::read_early;
use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::runtime::pdl::starts_early;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

pub(crate) const SGMV_DENSE_FUSED: Variant<CodebookGemm> = Variant {
    name: "sgmv_dense",
    label: "codebook_gemm/sgmv_dense",
    // The kernel takes clusters and PDL, and nothing that only Hopper has.
    runs_on: RunsOn::From(90),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: trained_by_few,
    configs: Some(Configs { names: |_| vec!["fused".into()], choose: |_, _| 0 }),
    unit: |op, _| Unit { also: dense_pair::plan_unit(op, false).all().into_iter().cloned().collect(), ..unit(Form::of(op), op.dtype) },
    units: |_| {
        let forms = [DType::F16, DType::BF16].into_iter().flat_map(|dtype| Form::ALL.into_iter().filter(|&form| fits(form)).map(move |form| (form, dtype)));
        forms.map(|(form, dtype)| Unit { also: dense_pair::units_of(form, dtype), ..unit(form, dtype) }).collect()
    },
    workspace: |op, _| dense_pair::workspace_bytes(op),
    launch,
};

const FUSED: Entry = entry!("codebook_gemm_sgmv_dense_fused");
/// Warps of a block.
const WARPS: u64 = 8;
/// The most blocks of a cluster. Every device with clusters has room for these.
const CLUSTER: u64 = 8;
/// The largest rank that the kernel is compiled for: clusters of a larger one would have more blocks.
const LARGEST: u64 = 32;

const fn fits(form: Form) -> bool {
    form.rank <= LARGEST
}

const fn shared_bytes(form: Form) -> u64 {
    2 * form.share_bytes() + form.coefficient_bytes() + CLUSTER * dense::ROWS * form.rank * 4
}

fn unit(form: Form, dtype: DType) -> Unit {
    let mut unit = form.unit(FUSED, "sgmv_dense fused", source!("codebook_gemm/sgmv_dense_fused.cu"), dtype, WARPS, shared_bytes(form));
    unit.defines.push(("CLUSTER", CLUSTER.to_string()));
    unit
}

/// Blocks of a cluster: one for each share of d_in, and for each of the columns. A block by itself is no cluster, to which it could send.
fn blocks(op: &CodebookGemm) -> u64 {
    shares(op).max(pieces(op)).max(2)
}

fn supports(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    let form = Form::of(op);
    if !fits(form) || blocks(op) > CLUSTER {
        return Err(format!("rank {} and {} shares: clusters have {CLUSTER} blocks, of rank {LARGEST} at most", form.rank, blocks(op)));
    }
    if !may_be_whole(op) {
        return Err("rows that are no whole multiples of 16 bytes".into());
    }
    dense::supports(op, target, shared_bytes(form))
}

/// Enqueues a kernel for each group of slices.
///
/// # Safety
/// As [`Plan::launch`].
unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let slices: Vec<_> = op.slices.iter().zip(&args.slices).collect();
    if !whole(op, args, &slices) {
        // SAFETY: the caller's promise; the plan has its kernels, and the workspace is of its size.
        return unsafe { dense_pair::launch(queue, plan, false, workspace, args) };
    }
    if op.tokens == 0 {
        return Ok(());
    }
    plan.most_shared(FUSED.name())?;
    for slices in slices.chunks(TOGETHER) {
        let mut open = queue.take_open();
        let reads: Vec<_> = slices.iter().flat_map(|(_, of)| read_early(args, of)).collect();
        let early = starts_early(&open, &reads);
        let launch = Launch {
            grid: [(most_units(op) * blocks(op)) as u32, slices.len() as u32, 1],
            shared_bytes: shared_bytes(Form::of(op)) as u32,
            cluster: [blocks(op) as u32, 1, 1],
            overlap: early,
            ..Launch::new(1, WARPS as u32 * 32)
        };
        // SAFETY: the caller's promise; launches in flight write nothing that this one reads before its PDL wait.
        unsafe { plan.launch(queue, FUSED.name(), &launch, &params(op, args, slices, 0))? };
        if !early {
            open.clear();
        }
        open.extend(slices.iter().map(|(_, of)| range(&of.y)));
        queue.leave_open(open);
    }
    Ok(())
}
