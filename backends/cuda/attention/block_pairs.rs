//! Block-sparse `attention` with blocks of 64 in tiles of 128 rows. A kernel plans the columns of each tile on the device.

use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, address, blocks};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::Attention;
use crate::ops::attention::Form;
use crate::ops::index::BlockShape;

params! {
    /// Parameters of the kernel that plans: what it reads, and where the plan lies.
    PairParams {
        /// The words of the block mask.
        index: [const i32],
        plan: [i32],
        q_blocks: u32,
        patterns: u32,
        capacity: u32,
        /// Tiles of a pattern's rows.
        tiles: u32,
        /// Columns that a pattern has room for.
        region: u32,
    }
}

/// The name of the kernel that plans.
pub(crate) const ENTRY: &str = "attention_pairs";
/// The most words of a plan. Patterns that share their lists have columns of their own in it.
const LONGEST: u64 = 1 << 26;
/// Words of a column in `kernels/attention/block_pairs.cuh`: the column, its kind for either row, and an intermediate count.
const WORDS: u64 = 4;

/// The unit of the kernel that plans, for any dtype.
pub(crate) fn unit() -> Unit {
    Unit {
        headers: vec![("attention/pair_params.cuh", PairParams::cuda())],
        entries: &[ENTRY],
        ..Unit::new("attention/block_pairs", source!("attention/block_pairs.cu"))
    }
}

/// The sizes of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pairs {
    shape: BlockShape,
    tiles: u64,
}

impl Pairs {
    /// The plan of an operation whose blocks are half as long as a tile of `rows` rows.
    pub(crate) fn of(op: &Attention, rows: u64) -> Option<Self> {
        match op.form {
            Form::Blocks(shape) if 2 * u64::from(shape.block) == rows => Some(Self { shape, tiles: op.q_len.div_ceil(rows) }),
            _ => None,
        }
    }

    /// Columns that a pattern has room for.
    pub(crate) fn region(self) -> u64 {
        u64::from(self.shape.capacity).min(u64::from(self.shape.q_blocks) * u64::from(self.shape.kv_blocks))
    }

    /// Whether the plan is within [`LONGEST`], or why not.
    pub(crate) fn validate(self) -> std::result::Result<(), String> {
        let words = self.words();
        if words <= LONGEST { Ok(()) } else { Err(format!("the plan of its blocks of {} needs {words} words: at most {LONGEST}", self.shape.block)) }
    }

    fn words(self) -> u64 {
        let patterns = u64::from(self.shape.patterns);
        (patterns * self.region()).saturating_mul(WORDS) + patterns * self.tiles
    }

    /// Bytes of the plan in the workspace.
    pub(crate) fn bytes(self) -> u64 {
        self.words() * 4
    }

    /// Makes the plan in `workspace`, from the mask that is on the device when the kernel runs.
    ///
    /// # Safety
    /// The conditions of [`Kernel::launch`](crate::backend::Kernel::launch) hold. The plan has the kernel, and nothing else uses
    /// `workspace`.
    pub(crate) unsafe fn launch(self, queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, index: u64) -> Result<()> {
        let BlockShape { q_blocks, patterns, capacity, .. } = self.shape;
        let params = PairParams { index, plan: address(workspace), q_blocks, patterns, capacity, tiles: self.tiles as u32, region: self.region() as u32 };
        // The kernel's PDL wait stands before its first read.
        let launch = Launch { overlap: true, ..Launch::new(blocks(self.tiles * u64::from(patterns)), 32) };
        // SAFETY: the caller's promise.
        unsafe { plan.launch(queue, ENTRY, &launch, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn a_plan_has_room_for_every_column_of_every_pattern() {
        let op = |block, patterns, capacity| {
            let q_blocks = 8192 / block;
            let shape = BlockShape { block, q_blocks, kv_blocks: q_blocks, patterns, capacity, masks: 0 };
            Attention { form: Form::Blocks(shape), ..Attention::dense(DType::F16, 1, [32, 32], [8192, 8192], 128) }
        };
        assert_eq!(Pairs::of(&op(128, 1, 800), 128), None);
        let pairs = Pairs::of(&op(64, 1, 3200), 128).map(|pairs| (pairs.region(), pairs.words(), pairs.validate()));
        assert_eq!(pairs, Some((3200, 4 * 3200 + 64, Ok(()))));
        let every = Pairs::of(&op(64, 32, 1 << 22), 128).map(|pairs| (pairs.region(), pairs.validate()));
        assert_eq!(every, Some((16_384, Ok(()))));
        assert!(Pairs::of(&op(64, 2048, 1 << 22), 128).is_some_and(|pairs| pairs.validate().is_err()));
    }
}
