//! How thread blocks of sm90 `attention` share tiles: the speed rules of `sm90`, and of the variants with the same tiles.

use crate::backends::cuda::attention::block_lists::listed;
use crate::backends::cuda::attention::choose::worth::Worth;
use crate::backends::cuda::attention::sm90::config::{Config, diagonal_in_corners};
use crate::backends::cuda::attention::sm90::ready::rows_of_16_bytes;
use crate::backends::cuda::attention::sm90::schedule::band;
use crate::backends::cuda::attention::sm90::slots::in_place;
use crate::backends::cuda::attention::sm90::stream_k::StreamK;
use crate::backends::cuda::attention::sm90::tile::{GROUP, NARROW, ROWS, Tile, held, keys, work};
use crate::ops::Attention;
use crate::ops::attention::Form;

/// The fewest k-blocks that two tiles share by multicast.
const SHARED_STEPS: u64 = 16;
/// The fewest k-blocks that two tiles of a causal sequence share by multicast. The earlier tile passes over one k-block more than it would
/// alone.
const CAUSAL_STEPS: u64 = 64;
/// The fewest k-blocks that a cluster would wait for the last ones, on average, for which tiles are cut. Leaving a part and joining it
/// takes as long as six.
const LEAST_WAIT: u64 = 7;
/// Blocks with one tile each begin sooner than persistent blocks, which begin a tile while the one before ends. They are taken for one tile
/// an SM for each `ROUND_STEPS` k-blocks of a tile, and at most `MOST_ROUNDS`.
const ROUND_STEPS: u64 = 4;
const MOST_ROUNDS: u64 = 4;
/// Bytes of keys and values that are read again while L2 still has them, where all heads are taken side by side.
const SIDE_BY_SIDE_BYTES: u64 = 40 << 20;
/// GPCs of the chip, in each of which clusters lie.
const PARTS: u64 = 8;
/// The most blocks in a row of lists for which a long row among short ones costs less than cutting it would.
const SHORT_LISTS: u32 = 32;
/// The most k-blocks of a tile for which its warpgroups share it, rather than four blocks of a cluster. Those have fewer k-blocks each, and
/// wait longer for each other.
const MOST_GROUP_STEPS: u64 = 32;

/// The fastest configuration of `sm90` on `units` SMs.
pub(crate) fn tiles(op: &Attention, units: u32) -> Config {
    let op = &*listed(op);
    let groups = groups(op, units);
    let tile = Tile { held: held(op.head_dim), consumers: groups };
    if shares_keys(op, tile, units) || shares_causal_keys(op, tile, units) {
        return Config::Multicast { streamk: streamk(op, tile, units) };
    }
    // O leaves by TMA.
    match one_tile(op, tile, units).filter(|_| rows_of_16_bytes(op)) {
        Some(config) => config,
        None if split_kv(op, units).is_ok() && Config::SplitKv.can_take(op).is_ok() && !stays_at_slots(op) => Config::SplitKv,
        None => match cluster(op, units) {
            1 => Config::Persistent(groups),
            blocks => Config::Cluster(blocks),
        },
    }
}

/// The warpgroups of a tile: three where that is faster. The softmax of narrow heads takes longer than their products, and more warps hide
/// more of it. A tile of 192 rows was measured to take 6/5 of the time of one of 128. Where tiles are few the last ones decide.
fn groups(op: &Attention, units: u32) -> u64 {
    let waves = |rows| work(op, rows).div_ceil(u64::from(units.max(1)));
    let three = op.head_dim <= NARROW && matches!(op.form, Form::Dense) && 6 * waves(3 * GROUP) < 5 * waves(2 * GROUP);
    if three { 3 } else { 2 }
}

/// K-blocks of a tile, as far as the shape tells.
fn mean_steps(op: &Attention) -> u64 {
    match op.form {
        Form::Blocks(shape) => u64::from(shape.capacity / (shape.patterns * shape.q_blocks).max(1)),
        _ => op.kv_len.div_ceil(keys(held(op.head_dim))),
    }
}

/// Blocks that share the keys of a tile.
pub(super) fn cluster(op: &Attention, units: u32) -> u64 {
    sharing(work(op, ROWS), mean_steps(op), units)
}

/// Blocks that share the keys of each of `tiles` tiles of `steps` k-blocks: as many as fill the GPU at once, while each has four k-blocks.
/// A cluster lies in one GPC, whose SMs are an even number, so some SMs of each may be left over.
pub(super) fn sharing(tiles: u64, steps: u64, units: u32) -> u64 {
    [8, 4, 2].into_iter().find(|&size| tiles * size + PARTS * (size - 2) <= u64::from(units) && steps >= 4 * size).unwrap_or(1)
}

/// Whether the two blocks of a cluster take neighbouring tiles of a head and share its keys by multicast. That halves the reads from L2. It
/// pays where there are many k-blocks, and both tiles of a pair need all of them. Heads with three warpgroups read less.
pub(super) fn shares_keys(op: &Attention, tile: Tile, units: u32) -> bool {
    let (all_seen, tiles) = (matches!(op.form, Form::Dense) && !op.causal && op.window.is_none(), op.q_len.div_ceil(tile.rows()));
    // With an odd number of tiles the last pair has one.
    let paired = tiles > 1 && (tiles.is_multiple_of(2) || tiles >= 32);
    all_seen && paired && op.head_dim > NARROW && op.kv_len.div_ceil(tile.keys()) >= SHARED_STEPS && cluster(op, units) == 1
}

/// Whether all pairs of tiles of causal sequences have equally many k-blocks, and many. Where blocks have one tile each, those are as fast.
fn shares_causal_keys(op: &Attention, tile: Tile, units: u32) -> bool {
    let long = op.causal && StreamK::can_take(op, tile, false).is_ok() && op.kv_len >= CAUSAL_STEPS * ROWS;
    let many = || StreamK::of(op, tile, units, false).work >= StreamK::most(units);
    long && cluster(op, units) == 1 && one_tile(op, tile, units).is_none() && many()
}

/// Whether the last units are shared by k-blocks, so that all clusters end at the same time (stream-K).
fn streamk(op: &Attention, tile: Tile, units: u32) -> bool {
    let StreamK { work, clusters, .. } = StreamK::of(op, tile, units, false);
    let waiting = (work.next_multiple_of(clusters.max(1)) - work) * StreamK::steps(op, tile) / clusters.max(1);
    StreamK::can_take(op, tile, true).is_ok() && waiting >= LEAST_WAIT
}

/// The configuration of one tile a block, where it is faster than persistent blocks. Only a tile's last k-block may have masked keys, and
/// tiles must be few.
fn one_tile(op: &Attention, tile: Tile, units: u32) -> Option<Config> {
    let tiles = work(op, ROWS);
    if !matches!(op.form, Form::Dense) || op.window.is_some() || tile.rows() != ROWS || cluster(op, units) > 1 {
        return None;
    }
    // Narrow heads that are not causal are not worth it, by measurement.
    let rounds = if op.causal || op.head_dim > NARROW { (op.kv_len / tile.keys() / ROUND_STEPS).clamp(1, MOST_ROUNDS) } else { 1 };
    if tiles > rounds * u64::from(units) {
        return None;
    }
    if !op.causal {
        return Some(Config::SingleTile);
    }
    let side_by_side = op.batch * op.kv_heads * op.kv_len * op.head_dim * 2 * op.dtype.size() <= SIDE_BY_SIDE_BYTES;
    match (op.q_len > ROWS && tiles <= units.into(), diagonal_in_corners(op, tile), side_by_side) {
        (true, true, _) => Some(Config::CausalPaired),
        (false, true, true) => Some(Config::SingleTile),
        _ => None,
    }
}

/// Whether the warpgroups of a block have the same 64 rows and share their k-blocks, where there are fewer tiles than SMs. Blocks that
/// share a tile wait for each other longer.
pub(super) fn by_steps(op: &Attention, units: u32) -> bool {
    let (tiles, shared) = (op.batch * op.heads * op.q_len.div_ceil(GROUP), cluster(op, units));
    let short = match op.form {
        Form::Blocks(shape) => u64::from(shape.block) == ROWS && (shape.kv_blocks <= SHORT_LISTS || shared == 2),
        _ => matches!(op.form, Form::Dense),
    };
    short && op.head_dim <= NARROW && tiles <= units.into() && (shared <= 2 || shared == 4 && mean_steps(op) <= MOST_GROUP_STEPS)
}

/// Whether there are so many tiles that none is shared, or what is faster.
pub(super) fn many_tiles(op: &Attention, units: u32) -> Worth {
    if cluster(op, units) > 1 || by_steps(op, units) {
        return Err("tiles are so few that the blocks of a cluster, or the groups of a block, share one".into());
    }
    Ok(())
}

/// Whether tiles read sequences at their slots, which parts of rows would have copied first.
fn stays_at_slots(op: &Attention) -> bool {
    in_place(Config::Persistent(2), op).is_some()
}

/// Whether rows of blocks are worth cutting into parts, or what is faster.
fn split_kv(op: &Attention, units: u32) -> Worth {
    let Form::Blocks(shape) = op.form else { return Err("it is for lists of blocks".into()) };
    many_tiles(op, units)?;
    // Rows are in the order of their lengths, whatever the head.
    let band = band(op);
    if 2 * band < u64::from(shape.patterns) {
        return Err(format!("{} heads have patterns of their own, and keys of {} fit the L2 together", shape.patterns, 2 * band));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::index::BlockShape;

    const UNITS: u32 = 132;
    const MULTICAST: Config = Config::Multicast { streamk: false };
    const STREAMK: Config = Config::Multicast { streamk: true };

    fn op(heads: u64, tokens: u64, head_dim: u64) -> Attention {
        Attention::dense(DType::F16, 1, [heads, heads], [tokens, tokens], head_dim)
    }

    fn causal(op: Attention) -> Attention {
        Attention { causal: true, ..op }
    }

    fn chosen<const N: usize>(ops: [Attention; N]) -> [Config; N] {
        ops.map(|op| tiles(&op, UNITS))
    }

    #[test]
    fn narrow_heads_have_three_groups_where_tiles_are_many() {
        let of = |heads, tokens, head_dim| 64 * groups(&op(heads, tokens, head_dim), UNITS);
        assert_eq!([of(32, 4096, 64), of(8, 16384, 64), of(32, 4096, 32), of(32, 1024, 64), of(4, 1024, 64), of(32, 4096, 80)], [192, 192, 192, 128, 128, 128]);
        for tokens in (64..20_000).step_by(192) {
            let op = op(3, tokens, 64);
            assert!(groups(&op, UNITS) == 2 || cluster(&op, UNITS) == 1);
        }
    }

    #[test]
    fn few_tiles_are_shared_by_clusters() {
        let op = |heads, queries, keys| Attention::dense(DType::F16, 1, [heads, heads], [queries, keys], 64);
        let of = |heads, queries, keys| cluster(&op(heads, queries, keys), UNITS);
        assert_eq!((of(32, 4096, 4096), of(1, 8192, 8192), of(1, 1024, 4096), of(8, 512, 512)), (1, 2, 8, 1));
        assert_eq!((of(1, 2048, 4096), of(1, 4096, 4096)), (4, 2), "more of four and eight may not find room at once");
    }

    #[test]
    fn long_rows_of_keys_are_shared_by_two_tiles() {
        let op = |queries, keys, head_dim| Attention::dense(DType::F16, 1, [32, 8], [queries, keys], head_dim);
        let of = |op: &Attention| matches!(tiles(op, UNITS), Config::Multicast { .. });
        assert!(of(&op(2048, 2048, 128)) && of(&op(512, 4096, 65)) && of(&op(8064, 8064, 128)));
        assert!(!of(&op(1024, 1024, 128)) && !of(&op(4096, 4096, 64)) && !of(&op(384, 4096, 128)), "few steps, narrow heads, three tiles");
        assert!(!of(&causal(op(4096, 4096, 128))) && !of(&Attention { window: Some(3000), ..op(4096, 4096, 128) }));
        assert!(!of(&Attention { heads: 2, kv_heads: 2, ..op(4096, 4096, 128) }), "a cluster shares one tile");
    }

    #[test]
    fn tiles_are_cut_where_clusters_would_wait_for_one() {
        let cut = [op(32, 4096, 128), op(32, 16_384, 128), op(32, 2048, 128), op(24, 4096, 128), op(32, 4096, 256)];
        assert_eq!(chosen(cut), [STREAMK, STREAMK, MULTICAST, MULTICAST, MULTICAST], "the last: full registers");
        assert_eq!(chosen([op(32, 1024, 128), op(32, 4096, 64)]), [Config::SingleTile, Config::Persistent(3)], "few steps, narrow heads");
    }

    #[test]
    fn two_pairs_of_a_long_causal_sequence_are_one_unit() {
        let ops = [op(32, 8192, 128), op(32, 4096, 128), op(32, 8448, 128), op(2, 16_384, 128), op(32, 8192, 192)].map(causal);
        assert_eq!(chosen(ops), [STREAMK, Config::Persistent(2), Config::Persistent(2), Config::SingleTile, Config::Persistent(2)]);
        assert_eq!(chosen([causal(op(8, 8192, 128))]), [Config::SingleTile], "a tile a block");
    }

    #[test]
    fn few_tiles_are_one_a_block() {
        let each = |all: &[(u64, u64)]| all.iter().map(|&(heads, tokens)| tiles(&causal(op(heads, tokens, 128)), UNITS)).collect::<Vec<_>>();
        let (paired, single) = (Config::CausalPaired, Config::SingleTile);
        assert_eq!(each(&[(32, 512), (16, 1000), (32, 1024), (32, 2048), (32, 128)]), [paired, paired, single, single, single]);
        assert_eq!(each(&[(2, 4096), (34, 500), (32, 4096)]), [Config::Cluster(2), Config::Persistent(2), Config::Persistent(2)]);
        let stays = Config::Persistent(2);
        assert_eq!(chosen([op(32, 512, 128), op(64, 512, 128), op(2, 4096, 128)]), [single, stays, Config::Cluster(2)]);
        assert_eq!(chosen([op(32, 1024, 64), causal(op(32, 1024, 64))]), [stays, single]);
        assert_eq!(chosen([Attention { window: Some(99), ..causal(op(32, 512, 128)) }, Attention { kv_len: 600, ..causal(op(32, 512, 128)) }]), [stays, stays]);
    }

    #[test]
    fn lists_of_sequences_at_slots_are_not_cut() {
        let shape = |block| BlockShape { block, q_blocks: 2048 / block, kv_blocks: 2048 / block, patterns: 32, capacity: 2000, masks: 0 };
        let listed = |block| Attention { batch: 32, form: Form::Blocks(shape(block)), ..op(1, 2048, 64) };
        let of = |op: Attention| tiles(&op, UNITS);
        assert_eq!([of(listed(128)), of(listed(128).with_slots(9))], [Config::SplitKv, Config::Persistent(2)]);
        assert_eq!(of(listed(64).with_slots(9)), Config::SplitKv, "their sequences are copied in any case");
    }

    #[test]
    fn few_narrow_tiles_are_taken_by_steps() {
        let listed = |rows: u32, capacity| {
            let shape = BlockShape { block: 128, q_blocks: rows, kv_blocks: rows, patterns: 1, capacity, masks: 0 };
            Attention { form: Form::Blocks(shape), ..op(1, 128 * u64::from(rows), 64) }
        };
        let of = |op: &Attention| by_steps(op, UNITS);
        assert!(of(&listed(31, 204)) && of(&listed(63, 800)) && !of(&listed(63, 300)) && !of(&listed(89, 1600)), "rows of very different lengths, many tiles");
        assert!(
            of(&op(4, 512, 64)) && of(&op(2, 4096, 64)) && of(&op(1, 4096, 64)) && !of(&Attention { q_len: 1024, ..op(1, 8192, 64) }),
            "many steps of a cluster"
        );
        assert!(!of(&Attention { head_dim: 128, ..listed(31, 204) }), "no room for four steps");
    }
}
