//! `attention` on Hopper where heads do not start on multiples of 16 bytes, but the tokens of k and v lie such multiples apart: nothing is copied.

use super::attention::parameters;
use super::attention_lists as lists;
use super::attention_pairs as pairs;
use super::attention_repack::{self as repack, Rows};
use super::attention_sm90 as sm90;
use super::attention_sm90_order::{band, by_steps, cluster, shares_keys};
use super::attention_sm90_tile::{GROUP, HELD, NARROW, PANEL, Tile, TmaParams, WIDE, held, work};
use super::jit::{Arch, Unit};
use super::kernel::{Launch, Plan, RunsOn, Target, TensorCores, Variant, address, blocks};
use super::params::params;
use super::tma::{Layout, Promotion, Swizzle, TensorMap};
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::{Form, Strides};
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm90_rotated",
    label: "attention/sm90_rotated",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    covers,
    unit: |op, _| unit(tile(op), op.dtype),
    units,
    workspace: |_, _| QUEUE_BYTES,
    launch,
};

params! {
    /// Where TMA finds the heads of k or v: elements that the first one starts behind a multiple of 16 bytes, and from there to the next, where
    /// heads are no axis of the description.
    HeadsParams {
        over: u32,
        inside: u32,
    }
}

params! {
    /// What the kernels of `sm90` take, and what is behind the columns that they hold.
    RotatedParams {
        tiles: TmaParams,
        k_beyond: map,
        v_beyond: map,
        k: HeadsParams,
        v: HeadsParams,
        q: HeadsParams,
        /// Past the last element of q.
        q_end: [const element],
        /// Whether TMA may bring q.
        q_boxes: u32,
    }
}

/// The counter that blocks take their next tile from.
const QUEUE_BYTES: u64 = 256;
/// Keys of a row, of causal ones in the middle, up to which it pays: each step waits for its rows to be mended, and a copy is made once.
const MOST_KEYS: u64 = 2048;
/// Elements in 16 bytes.
const CHUNK: u64 = 8;

fn tile(op: &Attention) -> Tile {
    Tile { held: held(op.head_dim), consumers: 2 }
}

/// Bytes for 16 of each row of a step's k and v, where panels end with the columns that a kernel holds: `K_BEYOND` and `V_BEYOND` in
/// `kernels/attention/sm90.cuh`.
fn beyond_bytes(tile: Tile) -> u64 {
    let whole = tile.held.next_multiple_of(PANEL);
    [whole - PANEL + tile.tail(), whole].into_iter().filter(|&there| there == tile.held).count() as u64 * tile.keys() * CHUNK * 2
}

fn shared_bytes(tile: Tile) -> u32 {
    tile.shared_bytes() + beyond_bytes(tile) as u32
}

fn unit(tile: Tile, dtype: DType) -> Unit {
    let mut unit = tile.unit(dtype);
    unit.name = format!("attention/sm90_rotated {dtype} head_dim {}", tile.held);
    unit.headers.push(("attention/sm90_rotated.cuh", include_str!("../../kernels/attention/sm90_rotated.cuh").into()));
    unit.headers.push(("attention/heads_params.cuh", HeadsParams::cuda()));
    unit.headers.push(("attention/rotated_params.cuh", RotatedParams::cuda()));
    unit.shared_bytes = shared_bytes(tile);
    unit.defines.retain(|(name, _)| *name != "TMA_SHARED_BYTES");
    unit.defines.extend([("ROTATE_ROWS", "1".into()), ("TMA_SHARED_BYTES", unit.shared_bytes.to_string())]);
    unit.entries = &ENTRIES;
    unit
}

const ENTRIES: [&str; 5] = ["attention_sm90_rotated", "attention_sm90_rotated_neighbours", repack::ENTRY, pairs::ENTRY, lists::ENTRY];

fn units(_: Arch) -> Vec<Unit> {
    let all = HELD.into_iter().chain(WIDE.map(|(held, _)| held)).filter(|&held| held > NARROW);
    all.map(|held| Tile { held, consumers: 2 }).flat_map(|tile| [DType::F16, DType::BF16].map(|dtype| unit(tile, dtype))).collect()
}

/// The rows of k or v as TMA sees them, from the multiple of 16 bytes on that comes before their first element.
#[derive(Clone, Copy)]
struct Heads {
    params: HeadsParams,
    dims: [u64; 4],
    strides: [u64; 3],
}

impl Heads {
    /// Of rows that start `over` elements behind such a multiple; or why TMA cannot bring them.
    fn of(rows: &Rows, head_dim: u64, over: u64) -> std::result::Result<Self, String> {
        let Strides { batch, token, head } = rows.strides;
        let free = |count: u64, stride: u64| count <= 1 || stride.is_multiple_of(CHUNK);
        if !free(rows.tokens, token) || !free(rows.batch, batch) {
            return Err(format!("tokens and sequences of k and v {token} and {batch} elements apart: not multiples of 16 bytes"));
        }
        // The stride of an axis with one index is never used, but has to be legal.
        let legal = |count, stride| if count == 1 { CHUNK } else { stride };
        let (apart, across) = (free(rows.heads, head), rows.heads.saturating_sub(1).saturating_mul(head).saturating_add(head_dim + over));
        if !apart && (across > token.saturating_add(over) || across > 1 << 30) {
            return Err(format!("heads of k and v {head} elements apart, tokens {token}: a token's heads do not lie together"));
        }
        let (inside, width, heads) = if apart { (0, over + head_dim, rows.heads) } else { (head, across, 1) };
        Ok(Self {
            params: HeadsParams { over: over as u32, inside: inside as u32 },
            dims: [width, rows.tokens, heads, rows.batch],
            strides: [legal(rows.tokens, token), legal(heads, head), legal(rows.batch, batch)],
        })
    }

    /// Boxes have that many rows of `width` elements.
    fn map(&self, dtype: DType, box_rows: u64, width: u64, start: u64) -> Result<TensorMap> {
        let swizzle = match width {
            PANEL => Swizzle::B128,
            CHUNK => Swizzle::None,
            _ => Swizzle::B64,
        };
        let box_dims = [width as u32, box_rows as u32, 1, 1];
        Layout { dtype, dims: &self.dims, strides: &self.strides, box_dims: &box_dims, swizzle, promotion: Promotion::B256 }
            .encode_at(start - u64::from(self.params.over) * dtype.size())
    }
}

fn covers(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    sm90::covers(op, target)?;
    if !matches!(op.form, Form::Dense) {
        return Err("it runs the dense form alone".into());
    }
    let rows = Rows::of(op);
    if rows.iter().all(|rows| rows.aligned(op.dtype)) {
        return Err("rows start on multiples of 16 bytes".into());
    }
    if cluster(op, target.units) > 1 || by_steps(op, target.units) {
        return Err("tiles are so few that the blocks of a cluster, or the groups of a block, share one".into());
    }
    // Ordinary loads bring a q whose heads start elsewhere, and take longer than the copy: measured.
    let [q, k, _] = rows.map(|rows| rows.strides.head % CHUNK);
    if op.heads != op.kv_heads || q != k {
        return Err("heads of q and k start at different places".into());
    }
    if op.head_dim <= NARROW {
        return Err(format!("head_dim {} <= {NARROW}: not measured, and copies leave room for a third group", op.head_dim));
    }
    let keys = if op.causal { op.kv_len / 2 } else { op.kv_len };
    if keys > MOST_KEYS {
        return Err(format!("{keys} keys of a row > {MOST_KEYS}: copying takes less time"));
    }
    rows.iter().try_for_each(|rows| Heads::of(rows, op.head_dim, CHUNK - 1).map(|_| ()))
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let (op, tile, units) = (&plan.op, tile(&plan.op), plan.target.units);
    let [q, k, v] = Rows::of(op);
    let paired = shares_keys(op, tile, units);
    let heads = |rows: &Rows, start: u64| {
        Heads::of(rows, op.head_dim, start % (CHUNK * op.dtype.size()) / op.dtype.size()).map_err(|reason| Error::unsupported("attention", reason))
    };
    let mut common = parameters(op, args, 1);
    // Ordinary loads bring a q that TMA cannot.
    let (q_boxes, k, v) = (heads(&q, common.q).ok(), heads(&k, common.k)?, heads(&v, common.v)?);
    // Pairs of tiles are all alike: each cluster takes as many, in turn.
    let rows = if paired { 2 * tile.rows() } else { tile.rows() };
    (common.tiles, common.band) = (op.q_len.div_ceil(rows) as u32, band(op) as u32);
    let (work, box_keys) = (work(op, rows), if paired { tile.keys() / 2 } else { tile.keys() });
    let resident = work.min(u64::from(if paired { units / 2 } else { units }));
    let tiles = TmaParams {
        q: q_boxes.map_or(Ok(TensorMap::NONE), |q| q.map(op.dtype, GROUP, PANEL, common.q))?,
        k: k.map(op.dtype, box_keys, PANEL, common.k)?,
        v: v.map(op.dtype, box_keys, PANEL, common.v)?,
        common,
        queue: if work > resident && !paired { address(workspace) } else { 0 },
        pairs: 0,
        work: work as u32,
        region: 0,
        k_tail: k.map(op.dtype, box_keys, tile.tail(), common.k)?,
        o: TensorMap::NONE,
    };
    let params = RotatedParams {
        tiles,
        k_beyond: k.map(op.dtype, tile.keys(), CHUNK, common.k)?,
        v_beyond: v.map(op.dtype, tile.keys(), CHUNK, common.v)?,
        k: k.params,
        v: v.params,
        q: q_boxes.map_or(HeadsParams { over: 0, inside: 0 }, |q| q.params),
        q_end: common.q + q.span(op.head_dim) * op.dtype.size(),
        q_boxes: u32::from(q_boxes.is_some()),
    };
    let (entry, cluster) = if paired { ("attention_sm90_rotated_neighbours", 2) } else { ("attention_sm90_rotated", 1) };
    // It waits for the launch before, and reads nothing until then.
    let launch = Launch {
        shared_bytes: shared_bytes(tile),
        cluster: [cluster, 1, 1],
        overlap: true,
        ..Launch::new(blocks(resident * u64::from(cluster)), tile.threads())
    };
    // SAFETY: the caller's promise; the counter in the workspace is zero.
    unsafe { plan.launch(queue, entry, &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    fn op([heads, kv_heads]: [u64; 2], head_dim: u64) -> Attention {
        Attention::dense(DType::F16, 4, [heads, kv_heads], [2048, 2048], head_dim)
    }

    #[test]
    fn tokens_of_keys_lie_multiples_of_16_bytes_apart() {
        let takes = |op: &Attention| covers(op, &TARGET).is_ok();
        assert!((65..=256).all(|head_dim| takes(&op([32, 32], head_dim)) != head_dim.is_multiple_of(8)));
        assert!(takes(&op([6, 6], 108)) && !takes(&op([31, 31], 107)) && !takes(&op([32, 32], 63)), "tokens that start anywhere, narrow heads");
        assert!(!takes(&op([32, 8], 107)), "heads of q start elsewhere than those of k");
        let heads_first = Strides::bhsd(2048, 32, 107);
        assert!(!takes(&Attention { k: heads_first, ..op([32, 32], 107) }) && !takes(&Attention { q: heads_first, ..op([32, 32], 107) }));
        assert!(!takes(&Attention { batch: 1, ..op([4, 4], 70) }), "the blocks of a cluster share a tile");
        let long = Attention { kv_len: 4096, ..op([32, 32], 107) };
        assert!(!takes(&long) && takes(&Attention { causal: true, ..long }));
    }

    #[test]
    fn rows_are_described_from_where_tma_may_start() {
        let of = |op: &Attention, over| Heads::of(&Rows::of(op)[1], op.head_dim, over).map(|heads| (heads.params.inside, heads.dims, heads.strides));
        assert_eq!(of(&op([32, 8], 107), 5), Ok((107, [5 + 8 * 107, 2048, 1, 4], [856, 8, 856 * 2048])));
        assert_eq!(of(&op([32, 8], 112), 5), Ok((0, [117, 2048, 8, 4], [896, 112, 896 * 2048])));
        let across = Strides { batch: 0, token: 856, head: 2048 * 856 + 1 };
        assert!(of(&Attention { batch: 1, k: across, ..op([32, 8], 107) }, 0).is_err());
    }

    #[test]
    fn what_is_beyond_the_columns_fits() {
        assert!(units(Arch(90)).iter().all(|unit| unit.shared_bytes <= 227 << 10));
        let bytes = |held| beyond_bytes(Tile { held, consumers: 2 });
        assert_eq!([112, 128, 144, 160, 256].map(bytes), [0, 2 * 128 * 16, 0, 128 * 16, 2 * 80 * 16]);
    }
}
