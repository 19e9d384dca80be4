//! `attention` on Hopper by four warp groups a multiprocessor, of 64 rows each: dense, where that takes less time than two groups do.

use crate::backends::cuda::attention::params::parameters;
use crate::backends::cuda::attention::repack::Rows;
use crate::backends::cuda::attention::sm80::{tile as sm80, unaligned};
use crate::backends::cuda::attention::sm90::ready::{Described, WARP_ROWS, limits, writes_16_bytes};
use crate::backends::cuda::attention::sm90::schedule::OneTile;
use crate::backends::cuda::attention::sm90::tile::{GROUP, PANEL, ROWS, Tile, TmaParams, define, held, work};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm90_quartet",
    label: "attention/sm90_quartet",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: |_, _| Ok(()),
    unit: |op, target| Quartet::of(op, target.units).unwrap_or(Quartet::PAIRS).unit(op.dtype),
    units: |_: Arch| Quartet::ALL.into_iter().flat_map(|quartet| [DType::F16, DType::BF16].map(|dtype| quartet.unit(dtype))).collect(),
    workspace: |_, _| 0,
    launch,
};

/// Bytes for the barriers.
const BARRIERS: u64 = 1024;
/// Warp groups of a multiprocessor.
const GROUPS: u64 = 4;

/// The head that all are compiled for: of wider ones products are most of a step, and two groups keep the tensor cores as busy.
const HELD: u64 = 64;
/// Of a step.
const KEYS: u64 = 128;
/// Keys of a row from which on those of a step are best read once for all groups.
const LEAST_TALL: u64 = 2048;
/// Keys of a causal row up to which it does not matter that the last tiles are not shared evenly.
const MOST_CAUSAL: u64 = 512;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Quartet {
    /// Warp groups of a block, and steps in the ring.
    groups: u64,
    stages: u64,
}

impl Quartet {
    /// Two blocks a multiprocessor.
    const PAIRS: Self = Self { groups: 2, stages: 3 };
    /// One, whose groups all read the same keys.
    const TALL: Self = Self { groups: 4, stages: 5 };
    const ALL: [Self; 2] = [Self::PAIRS, Self::TALL];

    /// Where it takes less time than tiles of two groups or three, by waves of tiles: measured, one of 256 rows takes 7/5 of the time of one of
    /// 192, and that 6/5 of one of 128. Causal tiles are not alike: those are taken where many can even out.
    fn of(op: &Attention, units: u32) -> Option<Self> {
        let units = u64::from(units.max(1));
        let (tiles, waves) = (work(op, ROWS), |rows: u64, room: u64| work(op, rows).div_ceil(room));
        // Blocks that stay begin a tile of one step while the one before ends.
        let many_short = op.kv_len <= KEYS && tiles > 4 * units;
        if held(op.head_dim) != HELD || tiles <= units || many_short {
            return None;
        }
        if op.causal {
            return (op.kv_len <= MOST_CAUSAL || tiles > 2 * units).then_some(Self::PAIRS);
        }
        let fewer = 42 * waves(ROWS, 2 * units) < (25 * waves(ROWS, units)).min(30 * waves(3 * GROUP, units));
        fewer.then_some(if op.kv_len >= LEAST_TALL { Self::TALL } else { Self::PAIRS })
    }

    const fn rows(self) -> u64 {
        self.groups * GROUP
    }

    /// Blocks of a multiprocessor.
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
        let mut unit = Tile { held: HELD, consumers: self.groups }.unit("attention/sm90_quartet", source!("attention/sm90/small_head.cu"), dtype);
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

const ENTRY: &str = "attention_sm90_quartet";

fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    limits(op, target)?;
    if !matches!(op.form, Form::Dense) || op.window.is_some() {
        return Err("it runs the dense form without a window".into());
    }
    let o = Rows { strides: op.o, ..Rows::of(op)[0] };
    if !Rows::of(op).iter().chain([&o]).all(|rows| rows.aligned(op.dtype)) || !(op.head_dim * op.dtype.size()).is_multiple_of(16) {
        return Err("rows do not start on multiples of 16 bytes".into());
    }
    if Quartet::of(op, target.units).is_none() {
        return Err(format!("{} tiles of heads of {}: two groups take less time", work(op, ROWS), op.head_dim));
    }
    Ok(())
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, _: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let quartet = Quartet::of(op, plan.target.units).ok_or_else(|| Error::unsupported("attention", "no tile for this shape"))?;
    let mut common = parameters(op, args, 1);
    if !sm80::aligned(op, &common) || !writes_16_bytes(&common) {
        // SAFETY: the caller's promise; the plan has the kernel for rows that start anywhere too.
        return unsafe { unaligned::launch(queue, plan, HELD, op, args, [common.q, common.k, common.v]) };
    }
    common.tiles = op.q_len.div_ceil(quartet.rows()) as u32;
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
    let order = if op.causal { OneTile::LateFirst } else { OneTile::InOrder };
    let launch = Launch { grid: order.grid(op, common.tiles), shared_bytes: quartet.shared_bytes(), overlap: true, ..Launch::new(1, quartet.threads()) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, ENTRY, &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: u32 = 132;

    #[test]
    fn narrow_heads_in_many_tiles_are_taken() {
        let op = |batch, heads, tokens| Attention::dense(DType::F16, batch, [heads, heads], [tokens, tokens], 64);
        let of = |op: &Attention| Quartet::of(op, UNITS);
        let (pairs, tall) = (Some(Quartet::PAIRS), Some(Quartet::TALL));
        assert_eq!([(8, 8, 512), (32, 8, 128), (1, 32, 1024), (64, 12, 512)].map(|(b, h, s)| of(&op(b, h, s))), [pairs; 4]);
        assert_eq!([of(&op(1, 32, 4096)), of(&op(1, 8, 16384)), of(&op(1, 32, 2048))], [tall; 3]);
        assert_eq!([(1, 32, 512), (1, 9, 2048), (1, 32, 3072), (256, 12, 128)].map(|(b, h, s)| of(&op(b, h, s))), [None; 4], "waves");
        let causal = |op| Attention { causal: true, ..op };
        assert_eq!([(8, 8, 512), (1, 32, 2048), (1, 32, 1024), (1, 12, 2048)].map(|(b, h, s)| of(&causal(op(b, h, s)))), [pairs, pairs, None, None]);
        assert_eq!([of(&Attention { head_dim: 128, ..op(8, 8, 512) }), of(&Attention { head_dim: 32, ..op(8, 8, 512) })], [None; 2]);
    }

    #[test]
    fn a_multiprocessor_holds_four_groups() {
        for quartet in Quartet::ALL {
            assert!((u64::from(quartet.shared_bytes()) + 1024) * quartet.resident() <= 228 << 10, "{quartet:?}");
        }
    }
}
