//! `prefix_attention`: the factors are widened to f32 in the workspace, then one shader rebuilds K and V tile by tile. See
//! `shaders/prefix/`.

use std::sync::Arc;

use super::codebook_gemm_stage::MIXED;
use super::compiled::Pipeline;
use super::queue::{MAX_WORK, part};
use super::source::{Constant, Element, File, Operand, Source, shader};
use super::{Queue, Wgpu};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::codebook_gemm::{Factor, FactorArgs};
use crate::ops::codes::CodeWidth;
use crate::ops::{PrefixAttention, PrefixAttentionArgs};

const VARIANTS: &[&str] = &["portable"];
/// Rows of a workgroup of `attend.wgsl`; then elements of a column, and columns, of a workgroup of `widen.wgsl`.
const ROWS: u64 = 4;
const WIDENED: [u64; 2] = [64, 16];

const F32: Element = Element::Float(DType::F32);

/// A plan of `prefix_attention`.
pub struct Plan {
    op: PrefixAttention,
    /// Pipelines that widen the keys' coefficients and basis, then the values'.
    widen: [Arc<Pipeline>; 4],
    attend: Arc<Pipeline>,
    /// The most workgroups of one dispatch.
    groups: u64,
}

/// The `Params` of `widen.wgsl` (d, rank, words).
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct WidenParams([u32; 3]);

/// The `Params` of `attend.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    q: [u32; 3],
    o: [u32; 3],
    q_len: u32,
    heads: u32,
    share: u32,
    rows: u32,
    tokens: u32,
    ranks: [u32; 2],
    first: u32,
    scale: f32,
}

fn widen_source(factor: Factor, dtype: DType) -> Source {
    const DENSE: &[File] = &[shader!("codebook/dense.wgsl"), shader!("prefix/widen.wgsl")];
    const CODED: &[File] = &[shader!("codebook/coded.wgsl"), shader!("prefix/widen.wgsl")];
    let wide = Operand::write("wide", F32);
    let (files, operands, constants, name) = match factor {
        Factor::Dense { .. } => (DENSE, vec![Operand::read("values", Element::Float(dtype)), wide], Vec::new(), format!("dense {dtype}")),
        Factor::Coded { width, .. } => {
            let bits = width.map_or(MIXED, CodeWidth::bits);
            let operands = vec![Operand::read("codes", Element::U32), Operand::read("codebooks", F32), wide];
            (CODED, operands, vec![("BITS", Constant::U32(bits))], format!("codes {width:?}"))
        }
    };
    Source { kernel: format!("prefix factor {name}"), files, operands, constants, f16: false }
}

fn attend_source(dtype: DType, head_dim: u64, join: bool) -> Source {
    let float = Element::Float(dtype);
    let factors = ["key_coefficients", "key_basis", "value_coefficients", "value_basis"].map(|name| Operand::read(name, F32));
    let mut operands = vec![Operand::read("q", float)];
    operands.extend(factors);
    operands.extend([Operand::write("o", float), Operand::write("lse", F32)]);
    let constants = vec![("HEAD_DIM", Constant::U32(head_dim as u32)), ("JOIN", Constant::Bool(join))];
    Source { kernel: format!("prefix attention {dtype}"), files: &[shader!("prefix/attend.wgsl")], operands, constants, f16: false }
}

/// Every specialisation, at the head dimensions between which the shader changes in numbers alone.
pub(super) fn sources() -> Vec<Source> {
    let widths = CodeWidth::ALL.map(Some).into_iter().chain([None]);
    let coded = widths.map(|width| widen_source(Factor::Coded { width, words_per_adapter: 0 }, DType::F32));
    let dense = DType::ALL.map(|dtype| widen_source(Factor::Dense { bases: 1 }, dtype));
    let attend = DType::ALL.into_iter().flat_map(|dtype| [1, 64, 107, 256].map(|head_dim| attend_source(dtype, head_dim, head_dim != 64)));
    coded.chain(dense).chain(attend).collect()
}

impl Plan {
    /// `[d, rank]` of the four factors.
    fn sizes(op: &PrefixAttention) -> [[u64; 2]; 4] {
        let (tokens, width) = (op.tokens, op.width());
        [[tokens, op.key.rank], [width, op.key.rank], [tokens, op.value.rank], [width, op.value.rank]]
    }
}

/// Bytes of a factor in f32, padded so that the next one is aligned.
fn wide_bytes([d, rank]: [u64; 2]) -> u64 {
    (d * rank * 4).next_multiple_of(256)
}

impl Kernel<PrefixAttention> for Wgpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        VARIANTS
    }

    fn plan(&self, op: &PrefixAttention, _: Option<&str>) -> Result<Plan> {
        let refuse = |reason: String| Err(Error::unsupported(format!("prefix_attention on {}", Self::NAME), format!("portable: {reason}")));
        let window = self.window_bytes();
        let spans = [op.q, op.o].map(|strides| {
            let last = |count: u64, stride: u64| count.saturating_sub(1).saturating_mul(stride);
            let elements = last(op.batch, strides.batch).saturating_add(last(op.q_len, strides.token)).saturating_add(last(op.heads, strides.head));
            elements.saturating_add(op.head_dim).saturating_mul(op.dtype.size())
        });
        let factors = Plan::sizes(op).map(wide_bytes);
        if let Some(most) = spans.into_iter().chain(factors).chain([op.rows() * 4]).find(|&bytes| bytes > window) {
            return refuse(format!("an operand of {most} bytes, the device binds {window} at a time"));
        }
        if let Some(reason) = self.narrow() {
            return refuse(reason);
        }
        let widen = |factor| self.pipeline(&widen_source(factor, op.dtype));
        let widen = [widen(op.key.coefficients)?, widen(op.key.basis)?, widen(op.value.coefficients)?, widen(op.value.basis)?];
        let attend = self.pipeline(&attend_source(op.dtype, op.head_dim, op.join))?;
        // A workgroup rebuilds every key for itself.
        let work = op.tokens as f64 * op.head_dim as f64 * (2 * (op.key.rank + op.value.rank) + 4 * ROWS) as f64;
        let groups = ((MAX_WORK as f64 / work) as u64).max(1);
        Ok(Plan { op: op.clone(), widen, attend, groups })
    }

    fn workspace_bytes(plan: &Plan) -> u64 {
        Plan::sizes(&plan.op).map(wide_bytes).iter().sum()
    }

    fn variant(_: &Plan) -> &'static str {
        VARIANTS[0]
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, workspace: &Slice<Self>, args: &PrefixAttentionArgs<Self>) -> Result<()> {
        let op = &plan.op;
        if op.rows() == 0 {
            return Ok(());
        }
        let given = [&args.key.coefficients, &args.key.basis, &args.value.coefficients, &args.value.basis];
        let mut at = 0;
        let mut wide = Vec::new();
        for ((factor, pipeline), size) in given.into_iter().zip(&plan.widen).zip(Plan::sizes(op)) {
            let [d, rank] = size;
            let slice = part(workspace, at, d * rank * 4);
            at += wide_bytes(size);
            let groups = d.div_ceil(WIDENED[0]) * rank.div_ceil(WIDENED[1]);
            match factor {
                FactorArgs::Dense { values, .. } => {
                    queue.dispatch(self, pipeline, &[Some(values), Some(&slice)], &WidenParams([d as u32, rank as u32, 0]), groups)?;
                }
                FactorArgs::Coded { codes, codebooks } => {
                    let params = WidenParams([d as u32, rank as u32, codes.shape().words_per_adapter]);
                    queue.dispatch(self, pipeline, &[Some(codes.slice()), Some(codebooks), Some(&slice)], &params, groups)?;
                }
            }
            wide.push(slice);
        }
        let mut operands = vec![Some(&args.q)];
        operands.extend(wide.iter().map(Some));
        operands.extend([Some(&args.o), Some(&args.lse)]);
        let share = op.heads / op.kv_heads;
        let rows = op.batch * op.q_len * share;
        let mut params = Params {
            // A stride that does not fit 32 bits is never multiplied by more than 0, since what is bound is smaller.
            q: [op.q.batch, op.q.token, op.q.head].map(|stride| stride as u32),
            o: [op.o.batch, op.o.token, op.o.head].map(|stride| stride as u32),
            q_len: op.q_len as u32,
            heads: op.heads as u32,
            share: share as u32,
            rows: rows as u32,
            tokens: op.tokens as u32,
            ranks: [op.key.rank, op.value.rank].map(|rank| rank as u32),
            first: 0,
            scale: op.plain().scale_value(),
        };
        let all = rows.div_ceil(ROWS) * op.kv_heads;
        let mut first = 0;
        while first < all {
            let some = plan.groups.min(all - first);
            params.first = first as u32;
            queue.dispatch(self, &plan.attend, &operands, &params, some)?;
            first += some;
        }
        Ok(())
    }
}
