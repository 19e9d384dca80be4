//! The tiles of `sm90` flash-decoding: what its kernels are compiled for, and how blocks share the k-blocks.

use crate::backends::cuda::attention::sm80::tile::key_rows;
use crate::ops::Attention;
use crate::ops::attention::Form;

/// Keys of a warp's k-block, rows of an mma instruction, and the fewest keys of a stretch, in `kernels/attention/sm90/decode.cuh`.
pub(crate) const KEYS: u64 = 16;
pub(crate) const ROWS: u64 = 16;
pub(crate) const LEAST_KEYS: u64 = 512;
/// Elements of a row of a box: 128 bytes, as wide as the swizzle.
pub(crate) const PANEL: u64 = 64;
/// Shared memory of a block that is alone on an SM, and of one of two, without what the kernel declares itself.
pub(crate) const ROOM: u64 = 226 << 10;
pub(crate) const HALF: u64 = 112 << 10;
const MOST_SLOTS: u64 = 12;
/// Head dimensions that a kernel is compiled for. Q is read as it lies, without padding.
pub(crate) const HEADS: [u64; 5] = [64, 80, 96, 112, 128];
/// The most k-blocks in all, so that 32 bits count them.
pub(crate) const LONGEST: u64 = 1 << 30;
/// What a decode kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) head_dim: u64,
    /// The most rows that share keys.
    pub(crate) rows: u64,
    /// Warps that multiply. With eight, a block has the SM to itself. With four, a block of the next launch fits beside it.
    pub(crate) warps: u64,
}

impl Tile {
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

    /// Tokens of a box of `heads` heads, which is a k-block of a thread block.
    pub(crate) fn tokens(self, heads: u64) -> u64 {
        self.warps * KEYS / heads
    }

    /// Heads of a box, which lies in one page. There are several only where a page has fewer tokens than a k-block.
    pub(crate) fn heads(self, op: &Attention) -> u64 {
        let whole = |tokens: &u64| !matches!(op.form, Form::Paged(shape) if !shape.page.is_multiple_of(*tokens));
        let step = self.warps * KEYS;
        step / [step, 64, 32].into_iter().find(whole).unwrap_or(KEYS)
    }

    /// Bytes of K, or of V, of a block's k-block.
    fn slot_bytes(self) -> u64 {
        self.head_dim.div_ceil(PANEL) * self.warps * KEYS * PANEL * 2
    }

    /// Bytes that warps exchange: O, maximum and sum of each row, at multiples of 16.
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

/// A configuration of `sm90_decode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Warps that multiply.
    pub(crate) warps: u64,
    /// Heads of a box.
    pub(crate) heads: u64,
    /// Whether the count of blocks gives each block equally many items, so that as few items as possible are cut.
    pub(crate) whole: bool,
}

impl Config {
    pub(crate) const ALL: [Self; 9] = [
        Self::new(8, 1, false),
        Self::new(8, 2, false),
        Self::new(8, 4, false),
        Self::new(8, 8, false),
        Self::new(8, 1, true),
        Self::new(8, 2, true),
        Self::new(4, 1, false),
        Self::new(4, 2, false),
        Self::new(4, 4, false),
    ];

    const fn new(warps: u64, heads: u64, whole: bool) -> Self {
        Self { warps, heads, whole }
    }

    /// The configuration's name in `--variant sm90_decode:config`.
    pub(crate) fn name(self) -> String {
        let heads = if self.heads == 1 { String::new() } else { format!("-{}heads", self.heads) };
        format!("{}warps{heads}{}", self.warps, if self.whole { "-whole" } else { "" })
    }

    /// What the configuration's kernel for an operation is compiled for.
    pub(crate) fn tile(self, op: &Attention) -> Tile {
        Tile::new(op.head_dim, key_rows(op), self.warps)
    }

    /// Tokens of a box, which is a k-block of a thread block.
    pub(crate) fn tokens(self) -> u64 {
        self.warps * KEYS / self.heads
    }

    /// Whether the configuration's kernel can compute an operation that the variant can, or why not.
    pub(crate) fn can_take(self, op: &Attention) -> std::result::Result<(), String> {
        let (heads, tokens) = (self.heads, self.tokens());
        // A k-block of a window starts anywhere, and could end in another page.
        if matches!(op.form, Form::Paged(shape) if op.window.is_some() || !shape.page.is_multiple_of(tokens)) {
            return Err(format!("pages: expected multiples of {tokens} tokens, and no window"));
        }
        if !op.kv_heads.is_multiple_of(heads) {
            return Err(format!("{} heads of keys: {heads} heads of a page are a box", op.kv_heads));
        }
        if self.whole && !alike(op) {
            return Err("only the device knows how long sequences are".into());
        }
        let steps = (op.batch * (op.kv_heads / heads)).saturating_mul(op.kv_len.div_ceil(tokens));
        if steps > LONGEST {
            return Err(format!("it takes {steps} steps, and they are counted in 30 bits"));
        }
        Ok(())
    }

    /// The shares of a launch on `units` SMs.
    pub(crate) fn share(self, op: &Attention, units: u32) -> Share {
        let (items, units) = (op.batch * (op.kv_heads / self.heads), u64::from(units));
        let blocks = if self.whole { (items / items.div_ceil(units).max(1)).max(1) } else { units };
        Share { heads: self.heads, items, blocks }
    }
}

/// The shares of a launch: heads of a box, items, and blocks. An item is a sequence's keys of these heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) heads: u64,
    pub(crate) items: u64,
    pub(crate) blocks: u64,
}

/// Whether the host knows that all sequences have one length.
pub(crate) fn alike(op: &Attention) -> bool {
    matches!(op.form, Form::Dense)
}
