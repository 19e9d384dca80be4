//! `checksum`: pieces of a range on every core, whose sums are added in any order.

use rayon::prelude::*;

use super::view::View;
use super::{Cpu, Queue, math, sole_variant};
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::Result;
use crate::ops::checksum::{sum_end, sum_words};
use crate::ops::{Checksum, ChecksumArgs};

const VARIANT: &str = "pieces";
/// Words of a piece.
const PIECE: usize = 1 << 14;

/// Planned checksums.
#[derive(Clone)]
pub struct Plan {
    op: Checksum,
}

impl Kernel<Checksum> for Cpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        &[VARIANT]
    }

    fn plan(&self, op: &Checksum, only: Option<&str>) -> Result<Plan> {
        sole_variant("checksum", VARIANT, only)?;
        Ok(Plan { op: op.clone() })
    }

    fn workspace_bytes(_plan: &Plan) -> u64 {
        0
    }

    fn variant(_plan: &Plan) -> &'static str {
        VARIANT
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, _workspace: &Slice<Self>, args: &ChecksumArgs<Self>) -> Result<()> {
        let op = plan.op.clone();
        // SAFETY: `check` accepted the operands, and the queue holds their buffers while the work runs.
        queue.put(&plan.op, None, args, move |args| unsafe { run(&op, args) })
    }
}

/// Runs the operation.
///
/// # Safety
/// [`crate::ops::check`] accepted `args`, and they are held.
unsafe fn run(op: &Checksum, args: &ChecksumArgs<Cpu>) -> Result<()> {
    let (x, sums) = (View::<u8>::new(&args.x), View::<[u32; 2]>::new(&args.sums));
    (0..op.ranges).into_par_iter().for_each(|range| {
        // SAFETY: as this function's contract: x has that range, and no other piece of work writes this sum.
        let (bytes, place) = unsafe { (x.read(op.start(range) as usize, op.bytes as usize), sums.write(range as usize, 1)) };
        let (words, rest) = bytes.as_chunks();
        let of_piece = |(number, words): (usize, &[[u8; 4]])| math::vectorised(|| sum_words(words, (number * PIECE) as u32));
        let sum = words.par_chunks(PIECE).enumerate().map(of_piece).reduce(|| 0, u64::wrapping_add);
        let sum = sum.wrapping_add(sum_end(rest, words.len() as u32));
        place[0] = [sum as u32, (sum >> 32) as u32];
    });
    Ok(())
}
