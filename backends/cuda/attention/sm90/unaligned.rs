//! `attention` on sm90 where heads start off multiples of 16 bytes but tokens of k and v lie such multiples apart. Nothing is copied.

use crate::backends::cuda::attention::choose;
use crate::backends::cuda::attention::entry::{Entry, entry};
use crate::backends::cuda::attention::params::parameters;
use crate::backends::cuda::attention::repack::{Rows, in_order};
use crate::backends::cuda::attention::sm90::ready::limits;
use crate::backends::cuda::attention::sm90::schedule::band;
use crate::backends::cuda::attention::sm90::tile::{GROUP, NARROW, PANEL, Tile, TmaParams, define, held, pairs_of_groups, work};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::tensor_map::{Layout, Promotion, Swizzle, TensorMap};
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, blocks, number};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::{Form, Strides};
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm90",
    label: "attention/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: choose::unaligned,
    configs: Some(Configs {
        names: |_| ["persistent-unaligned", "multicast-unaligned"].map(String::from).into(),
        choose: |op, target| number(KERNELS.into_iter(), &kernel(op, &Target { config: None, ..*target })),
    }),
    unit: |op, target| unit(kernel(op, target), tile(op), op.dtype),
    units,
    workspace: |_, _| QUEUE_BYTES,
    launch,
};

params! {
    /// Tensor map of a head and every eighth one after it. All of them start at the same offset past a multiple of 16 bytes.
    HeadMap {
        map: map,
    }
}

params! {
    /// Where TMA finds the heads of q, k or v. `over` is the elements by which the first head starts past a multiple of 16 bytes, `inside`
    /// those from a head to the next.
    HeadsParams {
        over: u32,
        inside: u32,
        rows: [HeadMap; 8],
    }
}

params! {
    /// Parameters of the unaligned kernels: those of the tiles, and where heads lie. K and V have narrower boxes too, for k's last panel
    /// and for what lies past the columns that a kernel holds.
    UnalignedParams {
        tiles: TmaParams,
        q: HeadsParams,
        k: HeadsParams,
        v: HeadsParams,
        k_tail: [HeadMap; 8],
        k_beyond: [HeadMap; 8],
        v_beyond: [HeadMap; 8],
        /// The address past the last element of q.
        q_end: [const element],
    }
}

/// Bytes for the counter from which blocks take their next tile.
const QUEUE_BYTES: u64 = 256;
/// Elements in 16 bytes.
const CHUNK: u64 = 8;
/// Heads from one to the next with an equal offset past a multiple of 16 bytes, whatever lies between heads.
const EIGHT: u64 = 8;
const NONE: [HeadMap; EIGHT as usize] = [HeadMap { map: TensorMap::NONE }; EIGHT as usize];

fn tile(op: &Attention) -> Tile {
    Tile { held: held(op.head_dim), consumers: 2 }
}

/// Whether panels of k, and of v, end with the columns that a kernel holds. What lies past them then needs boxes of its own: `K_BEYOND` and
/// `V_BEYOND` in `kernels/attention/sm90/tile.cuh`.
fn beyond(tile: Tile) -> [bool; 2] {
    let whole = tile.held.next_multiple_of(PANEL);
    [whole - PANEL + tile.tail(), whole].map(|there| there == tile.held)
}

fn beyond_bytes(tile: Tile) -> u64 {
    beyond(tile).into_iter().map(|needed| u64::from(needed) * tile.keys() * CHUNK * 2).sum()
}

fn shared_bytes(tile: Tile) -> u32 {
    tile.shared_bytes() + beyond_bytes(tile) as u32
}

const TILES: Entry = entry!("attention_sm90_unaligned");
const MULTICAST: Entry = entry!("attention_sm90_unaligned_multicast");

/// The kernels: persistent blocks, and clusters of two that share keys by multicast. Each computes everything that the variant does.
const KERNELS: [Entry; 2] = [TILES, MULTICAST];

/// The kernel that the target's configuration names, or the fastest one.
fn kernel(op: &Attention, target: &Target) -> Entry {
    target.configured(KERNELS.into_iter()).unwrap_or(if choose::unaligned_multicast(op, tile(op), target) { MULTICAST } else { TILES })
}

fn unit(entry: Entry, tile: Tile, dtype: DType) -> Unit {
    let name = if entry == MULTICAST { "attention/sm90 unaligned multicast" } else { "attention/sm90 unaligned" };
    let mut unit = Unit { entries: entry.list, shared_bytes: shared_bytes(tile), ..tile.unit(name, source!("attention/sm90/unaligned.cu"), dtype) };
    unit.headers.push(("attention/head_map.cuh", HeadMap::cuda()));
    unit.headers.push(("attention/heads_params.cuh", HeadsParams::cuda()));
    unit.headers.push(("attention/unaligned_params.cuh", UnalignedParams::cuda()));
    define(&mut unit, &[("TMA_SHARED_BYTES", shared_bytes(tile).into())]);
    unit.defines.push(entry.defined());
    unit
}

fn units(_: Arch) -> Vec<Unit> {
    let each = pairs_of_groups().filter(|tile| tile.held > NARROW).flat_map(|tile| KERNELS.map(|entry| (entry, tile)));
    each.flat_map(|(entry, tile)| [DType::F16, DType::BF16].map(|dtype| unit(entry, tile, dtype))).collect()
}

/// Rows of an operand whose first element is number `start`, counted from address zero.
struct Heads {
    rows: Rows,
    head_dim: u64,
    start: u64,
}

/// What a tensor map describes, from element `start` on.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    start: u64,
    dims: [u64; 4],
    strides: [u64; 3],
}

impl Heads {
    /// The heads of rows at an address.
    fn at(address: u64, rows: Rows, op: &Attention) -> Self {
        Self { rows, head_dim: op.head_dim, start: address / op.dtype.size() }
    }

    /// Head `first` and every eighth one after it.
    fn eighth(&self, first: u64) -> Seen {
        let (Strides { batch, token, head }, at) = (self.rows.strides, self.start + first * self.rows.strides.head);
        let dims = [at % CHUNK + self.head_dim, self.rows.tokens, (self.rows.heads - first).div_ceil(EIGHT), self.rows.batch];
        // The stride of an axis with one index is never used, but has to be legal.
        let legal = |axis: usize, stride| if dims[axis] == 1 { CHUNK } else { stride };
        Seen { start: at - at % CHUNK, dims, strides: [legal(1, token), legal(2, EIGHT * head), legal(3, batch)] }
    }

    /// The tensor maps of all heads, in boxes of `box_rows` rows of `width` elements.
    fn maps(&self, dtype: DType, box_rows: u64, width: u64) -> Result<[HeadMap; EIGHT as usize]> {
        let swizzle = match width {
            PANEL => Swizzle::B128,
            CHUNK => Swizzle::None,
            _ => Swizzle::B64,
        };
        let box_dims = [width as u32, box_rows as u32, 1, 1];
        let mut maps = NONE;
        for (first, map) in (0..self.rows.heads).zip(&mut maps) {
            let Seen { start, dims, strides } = self.eighth(first);
            map.map =
                Layout { dtype, dims: &dims, strides: &strides, box_dims: &box_dims, swizzle, promotion: Promotion::B256 }.encode_at(start * dtype.size())?;
        }
        Ok(maps)
    }

    fn params(&self, dtype: DType, box_rows: u64) -> Result<HeadsParams> {
        Ok(HeadsParams { over: (self.start % CHUNK) as u32, inside: self.rows.strides.head as u32, rows: self.maps(dtype, box_rows, PANEL)? })
    }
}

/// Whether TMA can load the rows, or why not.
fn brought(rows: &Rows) -> std::result::Result<(), String> {
    let Strides { batch, token, .. } = rows.strides;
    let free = |count: u64, stride: u64| count <= 1 || stride.is_multiple_of(CHUNK);
    if !free(rows.tokens, token) || !free(rows.batch, batch) {
        return Err(format!("tokens and sequences {token} and {batch} elements apart: not multiples of 16 bytes"));
    }
    Ok(())
}

fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    limits(op, target)?;
    in_order(op)?;
    if !matches!(op.form, Form::Dense) {
        return Err("it runs the dense form alone".into());
    }
    let rows = Rows::of(op);
    if op.head_dim <= NARROW {
        return Err(format!("head_dim {} <= {NARROW}: it is compiled for wider heads", op.head_dim));
    }
    // O is written 16 bytes at a time, so its rows need one offset too.
    if op.q_len > 1 && !op.o.token.is_multiple_of(CHUNK) {
        return Err(format!("tokens of o {} elements apart: not multiples of 16 bytes", op.o.token));
    }
    rows.iter().try_for_each(brought)
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let (op, tile, units) = (&plan.op, tile(&plan.op), plan.target.units);
    let [q, k, v] = Rows::of(op);
    let entry = kernel(op, &plan.target);
    let paired = entry == MULTICAST;
    let mut common = parameters(op, args, 1);
    let [q, k, v] = [Heads::at(common.q, q, op), Heads::at(common.k, k, op), Heads::at(common.v, v, op)];
    // All pairs of tiles are alike: each cluster takes equally many, in turn.
    let rows = if paired { 2 * tile.rows() } else { tile.rows() };
    (common.tiles, common.band) = (op.q_len.div_ceil(rows) as u32, band(op) as u32);
    let (work, box_keys) = (work(op, rows), if paired { tile.keys() / 2 } else { tile.keys() });
    let resident = work.min(u64::from(if paired { (units / 2).max(1) } else { units }));
    let tiles = TmaParams {
        q: TensorMap::NONE,
        k: TensorMap::NONE,
        v: TensorMap::NONE,
        common,
        queue: if work > resident && !paired { address(workspace) } else { 0 },
        pairs: 0,
        work: work as u32,
        region: 0,
        k_tail: TensorMap::NONE,
        o: TensorMap::NONE,
        parts: 0,
        arrivals: 0,
    };
    let [k_beyond, v_beyond] = beyond(tile);
    let params = UnalignedParams {
        tiles,
        q: q.params(op.dtype, GROUP)?,
        k: k.params(op.dtype, box_keys)?,
        v: v.params(op.dtype, box_keys)?,
        k_tail: if tile.tail() < PANEL { k.maps(op.dtype, box_keys, tile.tail())? } else { NONE },
        k_beyond: if k_beyond { k.maps(op.dtype, tile.keys(), CHUNK)? } else { NONE },
        v_beyond: if v_beyond { v.maps(op.dtype, tile.keys(), CHUNK)? } else { NONE },
        q_end: common.q + q.rows.span(op.head_dim) * op.dtype.size(),
    };
    let cluster = if paired { 2 } else { 1 };
    // The kernel's PDL wait stands before its first read.
    let launch = Launch {
        shared_bytes: shared_bytes(tile),
        cluster: [cluster, 1, 1],
        overlap: true,
        ..Launch::new(blocks(resident * u64::from(cluster)), tile.threads())
    };
    // SAFETY: the caller's promise; the counter in the workspace is zero.
    unsafe { plan.launch(queue, entry.name(), &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    fn op([heads, kv_heads]: [u64; 2], head_dim: u64) -> Attention {
        Attention::dense(DType::F16, 4, [heads, kv_heads], [2048, 2048], head_dim)
    }

    #[test]
    fn tokens_of_keys_lie_multiples_of_16_bytes_apart() {
        let takes = |op: &Attention| supports(op, &TARGET).and_then(|()| choose::unaligned(op, &TARGET)).is_ok();
        assert!((65..=256).all(|head_dim| takes(&op([32, 32], head_dim)) != head_dim.is_multiple_of(8)));
        assert!(takes(&op([6, 6], 108)) && !takes(&op([31, 31], 107)) && !takes(&op([32, 32], 63)), "tokens that start anywhere, narrow heads");
        assert!(takes(&op([32, 8], 107)), "heads of q start elsewhere than those of k");
        let heads_first = Strides::bhsd(2048, 32, 107);
        assert!(!takes(&Attention { k: heads_first, ..op([32, 32], 107) }) && !takes(&Attention { q: heads_first, ..op([32, 32], 107) }));
        assert!(!takes(&Attention { batch: 1, ..op([4, 4], 70) }), "the blocks of a cluster share a tile");
        assert!(!takes(&Attention { o: heads_first, ..op([32, 32], 107) }), "rows of o start anywhere");
    }

    #[test]
    fn heads_are_described_from_where_tma_may_start() {
        let heads = |heads, start| {
            let op = op([32, heads], 107);
            Heads { rows: Rows::of(&op)[1], head_dim: 107, start }
        };
        let token = |heads: u64| heads * 107;
        assert_eq!(heads(32, 800).eighth(0), Seen { start: 800, dims: [107, 2048, 4, 4], strides: [token(32), token(8), 2048 * token(32)] });
        assert_eq!(heads(32, 805).eighth(3), Seen { start: 1120, dims: [113, 2048, 4, 4], strides: [token(32), token(8), 2048 * token(32)] });
        assert_eq!(heads(8, 800).eighth(7), Seen { start: 1544, dims: [112, 2048, 1, 4], strides: [token(8), CHUNK, 2048 * token(8)] });
    }

    #[test]
    fn what_is_beyond_the_columns_fits() {
        assert!(units(Arch(90)).iter().all(|unit| unit.shared_bytes <= 227 << 10));
        let bytes = |held| beyond_bytes(Tile { held, consumers: 2 });
        assert_eq!([112, 128, 144, 160, 256].map(bytes), [0, 2 * 128 * 16, 0, 128 * 16, 2 * 80 * 16]);
    }
}
