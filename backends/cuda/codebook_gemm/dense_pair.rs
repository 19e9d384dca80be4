//! The shrink and the expand kernel for dense factors, which both lines of `sgmv_dense` launch: sizes, units and launch.

use super::dense::{Form, TOGETHER, may_be_whole, most_units, params, pieces, shares, whole};
use super::entry::{Entry, entry, together};
use super::launch::{overlaps, read_early};
use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::runtime::pdl::starts_early;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, address, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

const SHRINK: Entry = entry!("codebook_gemm_sgmv_dense_shrink");
const EXPAND: Entry = entry!("codebook_gemm_sgmv_dense_expand");
const SHRINK_ANY: Entry = entry!("codebook_gemm_sgmv_dense_shrink_any");
const EXPAND_ANY: Entry = entry!("codebook_gemm_sgmv_dense_expand_any");
/// Warps of a block.
const WARPS: u64 = 4;

/// Bytes of h for all slices of a launch.
pub(crate) fn workspace_bytes(op: &CodebookGemm) -> u64 {
    op.slices.len().min(TOGETHER) as u64 * shares(op) * op.tokens * Form::of(op).rank * 4
}

/// The units of every form.
pub(crate) fn units() -> Vec<Unit> {
    let forms = [DType::F16, DType::BF16].into_iter().flat_map(|dtype| Form::ALL.map(|form| (dtype, form)));
    forms.flat_map(|(dtype, form)| units_of(form, dtype)).collect()
}

/// The units of one form.
pub(crate) fn units_of(form: Form, dtype: DType) -> Vec<Unit> {
    [SHRINK, EXPAND, SHRINK_ANY, EXPAND_ANY].map(|entry| unit(entry, form, dtype)).into()
}

fn unit(entry: Entry, form: Form, dtype: DType) -> Unit {
    let shared = if entry == SHRINK || entry == SHRINK_ANY { form.share_bytes() } else { form.expand_bytes() };
    form.unit(entry, "sgmv_dense", source!("codebook_gemm/sgmv_dense.cu"), dtype, WARPS, shared)
}

/// Both kernels of a launch whose rows are `whole` or not.
const fn kernels(whole: bool) -> [Entry; 2] {
    if whole { [SHRINK, EXPAND] } else { [SHRINK_ANY, EXPAND_ANY] }
}

/// The units of a plan for `op`, whose kernels read `by_element` whatever operands allow, or not.
pub(crate) fn plan_unit(op: &CodebookGemm, by_element: bool) -> Unit {
    let fast = may_be_whole(op) && !by_element;
    let others = [EXPAND_ANY].into_iter().chain(kernels(true).into_iter().filter(move |_| fast));
    together(SHRINK_ANY, others, |entry| unit(entry, Form::of(op), op.dtype))
}

/// Enqueues both kernels for each group of slices, which read `by_element` whatever operands allow, or not.
///
/// # Safety
/// As [`Plan::launch`].
pub(crate) unsafe fn launch(
    queue: &mut Queue,
    plan: &Plan<CodebookGemm>,
    by_element: bool,
    workspace: &Slice<Cuda>,
    args: &CodebookGemmArgs<Cuda>,
) -> Result<()> {
    let (op, form) = (&plan.op, Form::of(&plan.op));
    if op.tokens == 0 {
        return Ok(());
    }
    let overlaps = overlaps(plan);
    let slices: Vec<_> = op.slices.iter().zip(&args.slices).collect();
    for slices in slices.chunks(TOGETHER) {
        let mut open = queue.take_open();
        let reads: Vec<_> = slices.iter().flat_map(|(_, of)| read_early(args, of)).collect();
        let early = overlaps && starts_early(&open, &reads);
        let params = params(op, args, slices, address(workspace));
        let [shrinking, expanding] = kernels(whole(op, args, slices) && !by_element);
        let launch = |blocks: u64, shared: u64, overlap| Launch {
            grid: [(most_units(op) * blocks) as u32, slices.len() as u32, 1],
            shared_bytes: shared as u32,
            overlap,
            ..Launch::new(1, WARPS as u32 * 32)
        };
        plan.most_shared(shrinking.name())?;
        plan.most_shared(expanding.name())?;
        // SAFETY: the caller's promise; the workspace has room for the sums; launches in flight write nothing that these read before their PDL
        // waits, and both wait before they write.
        unsafe {
            plan.launch(queue, shrinking.name(), &launch(shares(op), form.share_bytes(), early), &params)?;
            plan.launch(queue, expanding.name(), &launch(pieces(op), form.expand_bytes(), overlaps), &params)?;
        }
        if overlaps {
            if !early {
                open.clear();
            }
            open.extend(slices.iter().map(|(_, of)| range(&of.y)));
            if !open.names(&range(workspace)) {
                open.extend([range(workspace)]);
            }
            queue.leave_open(open);
        }
    }
    Ok(())
}
