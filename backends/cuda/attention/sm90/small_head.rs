//! `attention` with small heads on sm90: four warpgroups an SM, of 64 rows each. It computes the dense form, where four beat two.

use crate::backends::cuda::attention::choose;
use crate::backends::cuda::attention::params::parameters;
use crate::backends::cuda::attention::repack::{Rows, in_order};
use crate::backends::cuda::attention::sm80::{tile as sm80, unaligned};
use crate::backends::cuda::attention::sm90::ready::{Described, WARP_ROWS, limits, writes_16_bytes};
use crate::backends::cuda::attention::sm90::schedule::{grid_fits, one_tile_grid};
use crate::backends::cuda::attention::sm90::tile::{GROUP, PANEL, Tile, TmaParams, define};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, number};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm90",
    label: "attention/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: choose::small_head,
    configs: Some(Configs {
        names: |_| SmallHead::ALL.map(|small_head| format!("{}wg-small_head", small_head.groups)).into(),
        choose: |op, target| number(SmallHead::ALL.into_iter(), &SmallHead::of(op, &Target { config: None, ..*target })),
    }),
    unit: |op, target| SmallHead::of(op, target).unit(op.dtype),
    units: |_: Arch| SmallHead::ALL.into_iter().flat_map(|small_head| [DType::F16, DType::BF16].map(|dtype| small_head.unit(dtype))).collect(),
    workspace: |_, _| 0,
    launch,
};

/// Bytes for the barriers.
const BARRIERS: u64 = 1024;
/// Warpgroups of an SM.
const GROUPS: u64 = 4;

/// The head dimension of every kernel. With wider heads products are most of a k-block, and two warpgroups keep the tensor cores as busy.
const HELD: u64 = 64;
/// Keys of a k-block.
const KEYS: u64 = 128;
/// What a small-head kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SmallHead {
    /// Warpgroups of a block.
    groups: u64,
    stages: u64,
}

impl SmallHead {
    /// Two blocks an SM.
    const PAIRS: Self = Self { groups: 2, stages: 3 };
    /// One block an SM, whose four warpgroups read the same keys.
    const TALL: Self = Self { groups: 4, stages: 5 };
    const ALL: [Self; 2] = [Self::PAIRS, Self::TALL];

    /// The kernel that the target forces, or the fastest one.
    fn of(op: &Attention, target: &Target) -> Self {
        target.configured(Self::ALL.into_iter()).unwrap_or(if choose::one_block_of_four_groups(op) { Self::TALL } else { Self::PAIRS })
    }

    const fn rows(self) -> u64 {
        self.groups * GROUP
    }

    /// Blocks of an SM.
    const fn resident(self) -> u64 {
        GROUPS / self.groups
    }

    const fn threads(self) -> u32 {
        (self.groups * 128) as u32
    }

    const fn shared_bytes(self) -> u32 {
        ((self.rows() + self.stages * KEYS * 2) * HELD * 2 + BARRIERS) as u32
    }

    fn unit(self, dtype: DType) -> Unit {
        let mut unit = Tile { held: HELD, consumers: self.groups }.unit("attention/sm90 small_head", source!("attention/sm90/small_head.cu"), dtype);
        let shape = [("RING_STAGES", self.stages), ("Q_STAGES", 1), ("TMA_SHARED_BYTES", self.shared_bytes().into())];
        define(&mut unit, &shape);
        define(&mut unit, &[("BARRIER_BYTES", BARRIERS), ("RESIDENT", self.resident())]);
        Unit {
            name: format!("{} rows {}", unit.name, self.rows()),
            entries: &[ENTRY],
            shared_bytes: self.shared_bytes(),
            also: vec![unaligned::unit(HELD, dtype)],
            ..unit
        }
    }
}

const ENTRY: &str = "attention_sm90_small_head";

fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    limits(op, target)?;
    in_order(op)?;
    if !matches!(op.form, Form::Dense) || op.window.is_some() {
        return Err("it runs the dense form without a window".into());
    }
    let o = Rows { strides: op.o, ..Rows::of(op)[0] };
    if !Rows::of(op).iter().chain([&o]).all(|rows| rows.aligned(op.dtype)) || !(op.head_dim * op.dtype.size()).is_multiple_of(16) {
        return Err("rows do not start on multiples of 16 bytes".into());
    }
    if op.head_dim > HELD {
        return Err(format!("head_dim {}: at most {HELD} have room beside three other groups", op.head_dim));
    }
    grid_fits(op, op.q_len.div_ceil(GROUP))
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, _: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let small_head = SmallHead::of(op, &plan.target);
    let mut common = parameters(op, args, 1);
    if !sm80::aligned(op, &common) || !writes_16_bytes(&common) {
        // SAFETY: the caller's promise; the plan has the kernel for rows that start anywhere too.
        return unsafe { unaligned::launch(queue, plan, HELD, op, args, [common.q, common.k, common.v]) };
    }
    common.tiles = op.q_len.div_ceil(small_head.rows()) as u32;
    let [q, k, v] = Rows::of(op);
    let o = Rows { strides: op.o, ..q };
    let map = |rows: &Rows, box_rows, start| Described::new(op.head_dim, rows, box_rows, PANEL).layout(op.dtype).encode_at(start);
    let k_map = map(&k, KEYS, common.k)?;
    let params = TmaParams {
        q: map(&q, GROUP, common.q)?,
        k: k_map,
        v: map(&v, KEYS, common.v)?,
        common,
        queue: 0,
        pairs: 0,
        work: 0,
        region: 0,
        k_tail: k_map,
        o: map(&o, WARP_ROWS, common.o)?,
        parts: 0,
        arrivals: 0,
    };
    let launch =
        Launch { grid: one_tile_grid(op, common.tiles), shared_bytes: small_head.shared_bytes(), overlap: true, ..Launch::new(1, small_head.threads()) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, ENTRY, &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    #[test]
    fn long_rows_of_keys_are_read_once_for_all_groups() {
        let op = |tokens, causal| Attention { causal, ..Attention::dense(DType::F16, 1, [32, 32], [tokens, tokens], 64) };
        let of = |tokens, causal| SmallHead::of(&op(tokens, causal), &TARGET);
        assert_eq!([of(1024, false), of(2048, false), of(2048, true)], [SmallHead::PAIRS, SmallHead::TALL, SmallHead::PAIRS]);
    }

    #[test]
    fn every_narrow_head_is_covered_however_few_its_tiles() {
        let takes = |head_dim, tokens| supports(&Attention::dense(DType::F16, 1, [2, 2], [tokens, tokens], head_dim), &TARGET).is_ok();
        assert!((1..=256).all(|head_dim| takes(head_dim, 128) == (head_dim <= 64 && head_dim.is_multiple_of(8))));
    }

    #[test]
    fn a_multiprocessor_holds_four_groups() {
        for small_head in SmallHead::ALL {
            assert!((u64::from(small_head.shared_bytes()) + 1024) * small_head.resident() <= 228 << 10, "{small_head:?}");
        }
    }
}
