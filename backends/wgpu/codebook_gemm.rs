//! `codebook_gemm`, in a dispatch for each step of each slice. The steps are the projection `h = x·I`, the core `g = h·Q` where there is
//! one, and the expansion `y += s·g·Oᵀ`. Factors are decoded as they are read, never into memory. See `shaders/codebook/`.
//!
//! Between the dispatches g stands in the workspace, f32 `[rows, R]`: 4·R bytes a token, which is 64 at rank 16 and more above. To keep it
//! in registers would take one kernel that decodes both factors for every tile of y's columns. This backend prefers two kernels that each
//! read what they need once.
//!
//! How many runs of tokens share an adapter is data, and may change between two replays of a captured graph. A dispatch therefore asks for
//! the most tiles that there can be, and groups that find no tokens return.

use super::codebook_gemm_stage::{Launch, Rows, Stage, Target};
use super::queue::part;
use super::source::Source;
use super::{Queue, Wgpu, codebook_gemm_stage};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::codebook_gemm::{CodebookSliceArgs, Factor, FactorArgs};
use crate::ops::{CodebookGemm, CodebookGemmArgs};

const VARIANTS: &[&str] = &["portable"];
/// The most bytes of workspace. More rows are computed in parts.
pub(super) const MAX_WORKSPACE: u64 = 64 << 20;

/// A plan of `codebook_gemm`.
pub struct Plan {
    op: CodebookGemm,
    slices: Vec<SlicePlan>,
    /// Rows of a part.
    rows: u64,
}

/// The compiled stages of one slice.
pub(super) struct SlicePlan {
    project: Stage,
    core: Option<Stage>,
    expand: Stage,
    rank: u64,
    /// Rows that one dispatch of any stage can reach.
    pub rows: u64,
}

/// Every specialisation.
pub(super) fn sources() -> Vec<Source> {
    codebook_gemm_stage::sources()
}

impl Wgpu {
    /// The plan of slice `index` of `op`, with y as `target` describes it, or why there is none here.
    pub(super) fn plan_slice(&self, op: &CodebookGemm, index: usize, target: Target) -> Result<std::result::Result<SlicePlan, String>> {
        let slice = &op.slices[index];
        let own = Factor::Dense { bases: op.adapters };
        let project = match self.project_stage(op, slice.input, [op.d_in, slice.rank], op.dtype, false)? {
            Ok(stage) => stage,
            Err(reason) => return Ok(Err(reason)),
        };
        let core = match slice.core.then(|| self.project_stage(op, own, [slice.rank; 2], DType::F32, true)).transpose()? {
            Some(Err(reason)) => return Ok(Err(reason)),
            core => core.and_then(std::result::Result::ok),
        };
        let expand = match self.expand_stage(op, slice.output, [slice.d_out, slice.rank], target)? {
            Ok(stage) => stage,
            Err(reason) => return Ok(Err(reason)),
        };
        let x = self.rows_in_reach(op.d_in, op.x_stride, op.dtype.size());
        let y = self.rows_in_reach(slice.d_out, target.stride, target.dtype.size());
        let h = self.window_bytes().min(MAX_WORKSPACE / 2) / (slice.rank * 4);
        let rows = x.min(y).min(h).min(op.tokens);
        if rows == 0 && op.tokens > 0 {
            let widest = op.d_in.max(slice.d_out);
            return Ok(Err(format!("a row of {widest} elements, the device binds {} bytes at a time", self.window_bytes())));
        }
        Ok(Ok(SlicePlan { project, core, expand, rank: slice.rank, rows }))
    }

    /// Rows of a matrix that one dispatch can reach.
    fn rows_in_reach(&self, columns: u64, stride: u64, size: u64) -> u64 {
        let elements = self.window_bytes() / size;
        elements.checked_sub(columns).map_or(0, |rest| rest / stride + 1)
    }
}

impl SlicePlan {
    /// Bytes of workspace for `rows` rows: h, and with a core also g.
    pub(super) fn workspace_bytes(&self, rows: u64) -> u64 {
        rows * self.rank * 4 * if self.core.is_some() { 2 } else { 1 }
    }

    /// Enqueues the work on `rows`, at most [`SlicePlan::rows`]. `y` starts at the first of them.
    pub(super) fn run(
        &self,
        device: &Wgpu,
        queue: &mut Queue,
        (op, args): (&CodebookGemm, &CodebookGemmArgs<Wgpu>),
        slice: &CodebookSliceArgs<Wgpu>,
        rows: Rows,
        (workspace, y): (&Slice<Wgpu>, &Slice<Wgpu>),
    ) -> Result<()> {
        let size = op.dtype.size();
        let of_h = |index: u64| part(workspace, index * rows.count * self.rank * 4, rows.count * self.rank * 4);
        let x = part(&args.x, rows.first * op.x_stride * size, ((rows.count - 1) * op.x_stride + op.d_in) * size);
        let base = Launch {
            token_adapter: args.token_adapter.slice(),
            input: &x,
            factor: &slice.input,
            scaling: None,
            scaled_by: op.scaled_by,
            output: &of_h(0),
            rows,
        };
        self.project.run(device, queue, &base)?;
        let mut h = of_h(0);
        if let (Some(stage), Some(core)) = (&self.core, &slice.core) {
            let factor = FactorArgs::Dense { values: core.clone(), basis_of: None };
            let g = of_h(1);
            stage.run(device, queue, &Launch { input: &h, factor: &factor, output: &g, ..base })?;
            h = g;
        }
        self.expand.run(device, queue, &Launch { input: &h, factor: &slice.output, scaling: Some(&args.scaling), output: y, ..base })
    }
}

impl Kernel<CodebookGemm> for Wgpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        VARIANTS
    }

    fn plan(&self, op: &CodebookGemm, _: Option<&str>) -> Result<Plan> {
        let mut slices = Vec::new();
        for (index, slice) in op.slices.iter().enumerate() {
            let target = Target { dtype: op.dtype, stride: slice.y_stride, accumulate: op.accumulate };
            match self.plan_slice(op, index, target)? {
                Ok(plan) => slices.push(plan),
                Err(reason) => return Err(Error::unsupported(format!("codebook_gemm on {}", Self::NAME), format!("portable: slice {index}: {reason}"))),
            }
        }
        let rows = slices.iter().map(|slice| slice.rows).min().unwrap_or(0);
        Ok(Plan { op: op.clone(), slices, rows })
    }

    fn workspace_bytes(plan: &Plan) -> u64 {
        // All slices use one workspace, one after another.
        plan.slices.iter().map(|slice| slice.workspace_bytes(plan.rows)).max().unwrap_or(0)
    }

    fn variant(_: &Plan) -> &'static str {
        VARIANTS[0]
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, workspace: &Slice<Self>, args: &CodebookGemmArgs<Self>) -> Result<()> {
        let (op, size) = (&plan.op, plan.op.dtype.size());
        let mut first = 0;
        while first < op.tokens {
            let rows = Rows { first, count: plan.rows.min(op.tokens - first) };
            for ((slice, plan), args_of) in op.slices.iter().zip(&plan.slices).zip(&args.slices) {
                let y = part(&args_of.y, first * slice.y_stride * size, ((rows.count - 1) * slice.y_stride + slice.d_out) * size);
                plan.run(self, queue, (op, args), args_of, rows, (workspace, &y))?;
            }
            first += rows.count;
        }
        Ok(())
    }
}
