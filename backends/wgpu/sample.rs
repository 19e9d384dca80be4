//! `sample`: a workgroup for each row of logits.

use std::sync::Arc;

use super::compiled::Pipeline;
use super::queue::part;
use super::source::{Constant, Element, Operand, Source, shader};
use super::{Queue, Wgpu};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::sample::PARAMS;
use crate::ops::{Sample, SampleArgs};

const VARIANTS: &[&str] = &["portable"];
/// The most tokens: they are counted in f32, which holds each number up to this one.
const MAX_VOCABULARY: u64 = 1 << 24;

/// A plan of `sample`.
pub struct Plan {
    op: Sample,
    pipeline: Arc<Pipeline>,
    /// Rows that one dispatch can bind.
    rows: u64,
}

/// The `Params` of `draw.wgsl` (vocabulary, stride, words).
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params([u32; 3]);

fn source(dtype: DType, mask: bool) -> Source {
    let operands = vec![
        Operand::read("logits", Element::Float(dtype)),
        Operand::read("params", Element::U32),
        Operand::read("mask", Element::U32).when(mask),
        Operand::write("ids", Element::I32),
        Operand::write("log_probability", Element::Float(DType::F32)),
    ];
    let kernel = format!("sample {dtype}{}", if mask { " with a mask" } else { "" });
    Source { kernel, files: &[shader!("wide.wgsl"), shader!("sample/draw.wgsl")], operands, constants: vec![("MASK", Constant::Bool(mask))], f16: false }
}

/// Every specialisation.
pub(super) fn sources() -> Vec<Source> {
    DType::ALL.into_iter().flat_map(|dtype| [false, true].map(|mask| source(dtype, mask))).collect()
}

impl Kernel<Sample> for Wgpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        VARIANTS
    }

    fn plan(&self, op: &Sample, _: Option<&str>) -> Result<Plan> {
        let refuse = |reason: String| Err(Error::unsupported(format!("sample on {}", Self::NAME), format!("portable: {reason}")));
        let window = self.window_bytes();
        // A row of parameters is the longest but for the logits.
        let rows = window / (op.stride * op.dtype.size()).max(4 * PARAMS);
        if rows == 0 {
            return refuse(format!("a row of {} logits, the device binds {window} bytes at a time", op.stride));
        }
        if op.vocabulary > MAX_VOCABULARY {
            return refuse(format!("a vocabulary of {}, more than {MAX_VOCABULARY}", op.vocabulary));
        }
        if let Some(reason) = self.narrow() {
            return refuse(reason);
        }
        Ok(Plan { op: op.clone(), pipeline: self.pipeline(&source(op.dtype, op.mask))?, rows })
    }

    fn workspace_bytes(_: &Plan) -> u64 {
        0
    }

    fn variant(_: &Plan) -> &'static str {
        VARIANTS[0]
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, _: &Slice<Self>, args: &SampleArgs<Self>) -> Result<()> {
        let op = &plan.op;
        let size = op.dtype.size();
        let params = Params([op.vocabulary, op.stride, op.mask_words()].map(|count| count as u32));
        for row in (0..op.rows).step_by(plan.rows as usize) {
            let rows = plan.rows.min(op.rows - row);
            let words = |slice: &Slice<Self>, each: u64| part(slice, 4 * row * each, 4 * rows * each);
            let logits = part(&args.logits, size * row * op.stride, size * ((rows - 1) * op.stride + op.vocabulary));
            let mask = args.mask.as_ref().map(|mask| words(mask, op.mask_words()));
            let (row_params, ids, log_probability) = (words(&args.params, PARAMS), words(&args.ids, 1), words(&args.log_probability, 1));
            let operands = [Some(&logits), Some(&row_params), mask.as_ref(), Some(&ids), Some(&log_probability)];
            queue.dispatch(self, &plan.pipeline, &operands, &params, rows)?;
        }
        Ok(())
    }
}
