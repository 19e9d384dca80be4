//! `checksum`: a workgroup for each range. A range that is longer than the device binds is summed in parts, one dispatch after the other.

use std::sync::Arc;

use super::compiled::Pipeline;
use super::queue::part;
use super::source::{Element, Operand, Source, shader};
use super::{Buffer, Queue, Wgpu};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::error::{Error, Result};
use crate::ops::{Checksum, ChecksumArgs};

const VARIANTS: &[&str] = &["portable"];

/// A plan of `checksum`.
pub struct Plan {
    op: Checksum,
    pipeline: Arc<Pipeline>,
    /// Bytes that a dispatch can reach, whole words.
    window: u64,
}

/// The `Params` of `sum.wgsl` (start, stride, bytes, place, ends, begun).
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params([u32; 6]);

fn source() -> Source {
    Source {
        kernel: "checksum".into(),
        files: &[shader!("wide.wgsl"), shader!("checksum/sum.wgsl")],
        operands: vec![Operand::read("x", Element::U32), Operand::write("checksums", Element::U32)],
        constants: vec![],
        f16: false,
    }
}

/// Every specialisation.
pub(super) fn sources() -> Vec<Source> {
    vec![source()]
}

impl Kernel<Checksum> for Wgpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        VARIANTS
    }

    fn plan(&self, op: &Checksum, _: Option<&str>) -> Result<Plan> {
        if let Some(reason) = self.narrow() {
            return Err(Error::unsupported(format!("checksum on {}", Self::NAME), format!("portable: {reason}")));
        }
        // What is bound begins at a word, which may be in front of the range.
        let window = self.window_bytes() / Buffer::WORD * Buffer::WORD - Buffer::WORD;
        Ok(Plan { op: op.clone(), pipeline: self.pipeline(&source())?, window })
    }

    fn workspace_bytes(_: &Plan) -> u64 {
        0
    }

    fn variant(_: &Plan) -> &'static str {
        VARIANTS[0]
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, _: &Slice<Self>, args: &ChecksumArgs<Self>) -> Result<()> {
        let Plan { op, pipeline, window } = plan;
        // Ranges that one dispatch can reach.
        let together = window.saturating_sub(op.bytes).checked_div(op.start(1)).unwrap_or(op.ranges).saturating_add(1);
        for range in (0..op.ranges).step_by(together.min(op.ranges).max(1) as usize) {
            let ranges = together.min(op.ranges - range);
            let sums = part(&args.sums, 8 * range, 8 * ranges);
            let mut done = 0;
            loop {
                let bytes = (*window).min(op.bytes - done);
                let from = args.x.offset + op.start(range) + done;
                let start = from % Buffer::WORD;
                let x = Slice::new(args.x.buffer.clone(), from - start, start + op.start(ranges - 1) + bytes);
                let ends = done + bytes == op.bytes;
                let params = Params([start as u32, op.start(1) as u32, bytes as u32, (done / 4) as u32, ends.into(), (done > 0).into()]);
                queue.dispatch(self, pipeline, &[Some(&x), Some(&sums)], &params, ranges)?;
                done += bytes;
                if ends {
                    break;
                }
            }
        }
        Ok(())
    }
}
