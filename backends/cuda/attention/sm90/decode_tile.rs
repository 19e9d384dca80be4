//! The tiles of split-KV `attention` by boxes of TMA: what its kernels are compiled for, and how steps are shared out among blocks.

use crate::backends::cuda::attention::sm80::tile::key_rows;
use crate::backends::cuda::variant::Target;
use crate::ops::Attention;
use crate::ops::attention::Form;

/// Keys of a step of a warp, rows of a matrix instruction, and keys of a stretch at least, in `kernels/attention/sm90/decode.cuh`.
pub(crate) const KEYS: u64 = 16;
pub(crate) const ROWS: u64 = 16;
pub(crate) const LEAST_KEYS: u64 = 512;
/// Elements of a row of a box: 128 bytes, as wide as the swizzle.
pub(crate) const PANEL: u64 = 64;
/// Shared memory of a block that is alone on an SM, but for what the kernel declares itself, and of one of two.
pub(crate) const ROOM: u64 = 226 << 10;
pub(crate) const HALF: u64 = 112 << 10;
const MOST_SLOTS: u64 = 12;
/// Head dimensions that a kernel is compiled for: Q is read as it lies, without padding.
pub(crate) const HEADS: [u64; 5] = [64, 80, 96, 112, 128];
/// Steps on the line of all steps, that it is counted in 32 bits.
pub(crate) const LONGEST: u64 = 1 << 30;
/// Steps of an SM from which on a launch has it to itself, and SMs that share an item then, at most: its parts are joined
/// by one.
const ALONE_STEPS: u64 = 12;
const ALONE_PARTS: u64 = 4;
/// Heads of a box where no item is cut, the best first: of two more lies end to end, and half as many items end. Steps of an SM from which on
/// that is so, and the share of all SMs that have to get as many items each.
const WHOLE_HEADS: [u64; 2] = [2, 1];
const WHOLE_STEPS: u64 = 48;
const WHOLE_SHARE: (u64, u64) = (31, 32);

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) head_dim: u64,
    /// Rows that share keys, at most.
    pub(crate) rows: u64,
    /// Warps that multiply: eight have an SM to themselves; of four, the next launch's stand beside.
    pub(crate) warps: u64,
}

impl Tile {
    pub(crate) fn of(op: &Attention, target: &Target) -> Self {
        let tile = |warps| Self::new(op.head_dim, key_rows(op), warps);
        if tile(8).fills(op, target, ALONE_STEPS, ALONE_PARTS) { tile(8) } else { tile(4) }
    }

    pub(crate) fn new(head_dim: u64, rows: u64, warps: u64) -> Self {
        Self { head_dim, rows: rows.next_power_of_two().clamp(warps, ROWS), warps }
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let rows = [(8, 8), (8, 16), (4, 4), (4, 8), (4, 16)];
        HEADS.into_iter().flat_map(move |head_dim| rows.map(|(warps, rows)| Self { head_dim, rows, warps }))
    }

    /// Whether a launch has each SM to itself.
    pub(crate) fn alone(self) -> bool {
        self.warps == 8
    }

    /// Whether there are `steps` for each SM, and no item is cut into more than `parts`.
    pub(crate) fn fills(self, op: &Attention, target: &Target, steps: u64, parts: u64) -> bool {
        let (heads, units) = (self.heads(op), u64::from(target.units));
        let items = op.batch * (op.kv_heads / heads);
        items.saturating_mul(op.kv_len.div_ceil(self.tokens(heads))) >= steps * units && items * parts >= units
    }

    /// Tokens of a box of so many heads, which is a step of a block.
    pub(crate) fn tokens(self, heads: u64) -> u64 {
        self.warps * KEYS / heads
    }

    /// Heads of a box, which lies in one page: one, or more of pages that have fewer tokens than a step.
    pub(crate) fn heads(self, op: &Attention) -> u64 {
        let whole = |tokens: &u64| !matches!(op.form, Form::Paged(shape) if !shape.page.is_multiple_of(*tokens));
        let step = self.warps * KEYS;
        step / [step, 64, 32].into_iter().find(whole).unwrap_or(KEYS)
    }

    /// How the steps are shared out, of items that are cut where that is needed.
    pub(crate) fn share(self, op: &Attention, target: &Target) -> Share {
        let units = u64::from(target.units);
        let items = |heads| op.batch * (op.kv_heads / heads);
        let whole = |&heads: &u64| {
            let turns = items(heads).div_ceil(units).max(1);
            let evenly = op.kv_heads.is_multiple_of(heads) && items(heads).is_multiple_of(turns);
            evenly && items(heads) / turns * WHOLE_SHARE.1 >= units * WHOLE_SHARE.0
        };
        if alike(op) && self.warps == 8 && self.fills(op, target, WHOLE_STEPS, ALONE_PARTS) {
            if let Some(heads) = WHOLE_HEADS.into_iter().find(whole) {
                return Share { heads, items: items(heads), blocks: items(heads) / items(heads).div_ceil(units).max(1) };
            }
        }
        let heads = self.heads(op);
        Share { heads, items: items(heads), blocks: units }
    }

    /// Of K or V of a step of a block.
    fn slot_bytes(self) -> u64 {
        self.head_dim.div_ceil(PANEL) * self.warps * KEYS * PANEL * 2
    }

    /// What the warps leave for each other: O, maximum and sum of each row, on multiples of 16.
    fn left_bytes(self) -> u64 {
        self.warps * self.rows * (self.head_dim + 4) * 4
    }

    pub(crate) fn slots(self) -> u64 {
        let room = if self.warps == 8 { ROOM } else { HALF };
        ((room - self.left_bytes()) / self.slot_bytes()).min(MOST_SLOTS)
    }

    pub(crate) fn shared_bytes(self) -> u32 {
        (self.slots() * self.slot_bytes() + self.left_bytes()) as u32
    }
}

/// How a launch is shared out: heads of a box, items (a sequence's keys of these heads), and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) heads: u64,
    pub(crate) items: u64,
    pub(crate) blocks: u64,
}

/// Whether all sequences are as long, as the host knows.
pub(crate) fn alike(op: &Attention) -> bool {
    matches!(op.form, Form::Dense)
}
