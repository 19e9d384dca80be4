//! Which variants of `attention` are worth taking: the speed rules, as they were measured. What its kernels can run a variant says itself.

use crate::backends::cuda::attention::block_lists::listed;
use crate::backends::cuda::attention::repack::Rows;
use crate::backends::cuda::attention::sm80::tile::key_rows;
use crate::backends::cuda::attention::sm90::decode_tile as boxes;
use crate::backends::cuda::attention::sm90::schedule::{band, cluster, mean_steps};
use crate::backends::cuda::attention::sm90::tile::{GROUP, NARROW, ROWS, held, work};
use crate::backends::cuda::attention::sm90::varlen_tile as spans;
use crate::backends::cuda::variant::Target;
use crate::ops::Attention;
use crate::ops::attention::Form;

/// Whether a variant is worth taking, or what is faster.
type Worth = std::result::Result<(), String>;

/// Keys of a step of four groups.
const SMALL_HEAD_KEYS: u64 = 128;
/// Keys of a causal row up to which it does not matter that the last tiles of four groups are not shared evenly.
const MOST_CAUSAL: u64 = 512;
/// Blocks in a row of lists up to which a long row among short ones costs less than cutting it would.
const SHORT_LISTS: u32 = 32;
/// Steps of a tile up to which its groups share it rather than four blocks of a cluster: those have fewer steps each, and wait longer for each other.
const MOST_GROUP_STEPS: u64 = 32;
/// The longest of many short sequences: of longer ones blocks of all keys would be better, and more rows a warp.
const LONGEST_SHORT: u64 = 512;
/// Steps of an SM from which on split-KV by TMA pays where the next launch's blocks stand beside, and SMs that share an item at
/// most: of more parts an item, split-KV by cp.async is faster where it has to wait for the launch before.
const BESIDE_STEPS: u64 = 2;
const BESIDE_PARTS: u64 = 5;
/// Rows that share keys, up to which their split pays, and up to which it does whatever the sequences are.
const SPLIT_ROWS: u64 = 64;
const ALWAYS_SPLIT_ROWS: u64 = 16;

fn when(worth: bool, else_why: impl FnOnce() -> String) -> Worth {
    if worth { Ok(()) } else { Err(else_why()) }
}

/// Whether the groups of a block have the same 64 rows and share their steps, where there are fewer tiles than SMs: blocks that share a
/// tile wait for each other longer.
fn by_steps(op: &Attention, units: u32) -> bool {
    let (tiles, shared) = (op.batch * op.heads * op.q_len.div_ceil(GROUP), cluster(op, units));
    let short = match op.form {
        Form::Blocks(shape) => u64::from(shape.block) == ROWS && (shape.kv_blocks <= SHORT_LISTS || shared == 2),
        _ => matches!(op.form, Form::Dense),
    };
    short && op.head_dim <= NARROW && tiles <= units.into() && (shared <= 2 || shared == 4 && mean_steps(op) <= MOST_GROUP_STEPS)
}

/// Four groups of the same rows, each with every fourth step.
pub(crate) fn intra_split(op: &Attention, target: &Target) -> Worth {
    when(by_steps(&listed(op), target.units), || "tiles of 64 rows are not few, or their steps are many".into())
}

/// Whether tiles are so many that nobody shares one.
fn many_tiles(op: &Attention, target: &Target) -> Worth {
    let shared = cluster(op, target.units) > 1 || by_steps(op, target.units);
    when(!shared, || "tiles are so few that the blocks of a cluster, or the groups of a block, share one".into())
}

/// Rows of blocks cut into parts.
pub(crate) fn block_sparse(op: &Attention, target: &Target) -> Worth {
    let (listed, band) = (listed(op), band(op));
    let Form::Blocks(shape) = listed.form else { return Ok(()) };
    many_tiles(&listed, target)?;
    // Rows are in the order of their lengths, whatever the head.
    when(2 * band >= u64::from(shape.patterns), || format!("{} heads have patterns of their own, and keys of {} fit the L2 together", shape.patterns, 2 * band))
}

/// Heads that start anywhere, where they lie.
pub(crate) fn unaligned(op: &Attention, target: &Target) -> Worth {
    when(!Rows::of(op).iter().all(|rows| rows.aligned(op.dtype)), || "rows start on multiples of 16 bytes".into())?;
    many_tiles(op, target)
}

/// Four groups an SM, of 64 rows each: where that takes less time than tiles of two groups or three, by waves of tiles. Measured, a wave of
/// 256 rows takes 7/5 of the time of one of 192, and that 6/5 of one of 128. Causal tiles are not alike: those are taken where many can even out.
pub(crate) fn small_head(op: &Attention, target: &Target) -> Worth {
    let units = u64::from(target.units.max(1));
    let (tiles, waves) = (work(op, ROWS), |rows: u64, room: u64| work(op, rows).div_ceil(room));
    // Blocks that stay begin a tile of one step while the one before ends.
    let many_short = op.kv_len <= SMALL_HEAD_KEYS && tiles > 4 * units;
    let fewer = if op.causal {
        op.kv_len <= MOST_CAUSAL || tiles > 2 * units
    } else {
        42 * waves(ROWS, 2 * units) < (25 * waves(ROWS, units)).min(30 * waves(3 * GROUP, units))
    };
    when(held(op.head_dim) == NARROW && tiles > units && !many_short && fewer, || {
        format!("{tiles} tiles of heads of {}: two groups take less time", op.head_dim)
    })
}

/// Many short sequences end to end.
pub(crate) fn varlen_short(op: &Attention, _: &Target) -> Worth {
    let longest = op.q_len.max(op.kv_len);
    when(longest <= LONGEST_SHORT, || format!("sequences of {longest}: it is for at most {LONGEST_SHORT}"))
}

/// Sequences of their own lengths, in Hopper's tiles.
pub(crate) fn varlen(op: &Attention, _: &Target) -> Worth {
    when(held(op.head_dim) >= NARROW, || format!("head_dim {}: it is measured for heads of 64 and 128", op.head_dim))
}

/// The same with pages looked up ahead and tiles shared by clusters: elsewhere it was slower, by 1 to 7 %.
pub(crate) fn varlen_lookahead(op: &Attention, target: &Target) -> Worth {
    varlen(op, target)?;
    let (keys, tile) = (spans::box_keys(op), spans::tile(op, target.units));
    when(keys <= spans::LEAST_BOX || spans::cluster(op, tile, target.units) > 1, || format!("boxes of {keys} keys, and tiles for all multiprocessors"))
}

/// Split-KV by boxes of TMA.
pub(crate) fn decode_boxes(op: &Attention, target: &Target) -> Worth {
    let tile = boxes::Tile::of(op, target);
    when(tile.alone() || tile.fills(op, target, BESIDE_STEPS, BESIDE_PARTS), || {
        format!("too few steps of {} sequences and {} heads for {} multiprocessors", op.batch, op.kv_heads, target.units)
    })
}

/// Split-KV by cp.async.
pub(crate) fn decode(op: &Attention, target: &Target) -> Worth {
    let rows = key_rows(op);
    let few = rows <= ALWAYS_SPLIT_ROWS || rows <= SPLIT_ROWS && op.batch * op.kv_heads < u64::from(target.units);
    when(few, || format!("{rows} rows share keys: the blocks of whole sequences fill the GPU"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::jit::Arch;
    use crate::backends::cuda::variant::{Table, choose};
    use crate::dtype::DType;
    use crate::ops::index::{BlockShape, MapShape, PageShape, VarlenShape};

    const UNITS: u32 = 132;

    const fn hopper(units: u32) -> Target {
        Target { arch: Arch(90), units, shared_bytes: 227 << 10, config: None }
    }

    const A100: Target = Target { arch: Arch(80), units: 108, shared_bytes: 163 << 10, config: None };
    const RTX_3090: Target = Target { arch: Arch(86), units: 82, shared_bytes: 99 << 10, config: None };

    fn dense(batch: u64, heads: [u64; 2], tokens: [u64; 2], head_dim: u64) -> Attention {
        Attention::dense(DType::F16, batch, heads, tokens, head_dim)
    }

    fn causal(op: Attention) -> Attention {
        Attention { causal: true, ..op }
    }

    fn varlen_of(batch: u64, total: u64, longest: u64, heads: [u64; 2], head_dim: u64) -> Attention {
        let shape = VarlenShape { batch, total_q: total, total_kv: total, max_q: longest, max_kv: longest };
        Attention::varlen(DType::F16, shape, heads, head_dim)
    }

    fn paged(page: u64, batch: u64, q_len: u64) -> Attention {
        Attention::paged(DType::F16, PageShape { batch, pages: 4096 / page, page, pool_pages: 1 << 16 }, [32, 8], q_len, 128)
    }

    fn blocks(heads: u64, tokens: u64, head_dim: u64, [block, capacity]: [u32; 2]) -> Attention {
        let q_blocks = tokens.div_ceil(u64::from(block)) as u32;
        let shape = BlockShape { block, q_blocks, kv_blocks: q_blocks, patterns: 1, capacity, masks: 0 };
        Attention { form: Form::Blocks(shape), ..dense(1, [heads, heads], [tokens, tokens], head_dim) }
    }

    fn shapes() -> Vec<Attention> {
        let map = MapShape { block: 64, q_blocks: 128, kv_blocks: 128, patterns: 1 };
        vec![
            dense(1, [32, 32], [4096, 4096], 128),
            causal(dense(1, [32, 32], [4096, 4096], 128)),
            causal(dense(1, [32, 8], [512, 512], 128)),
            dense(1, [32, 32], [1024, 1024], 64),
            dense(1, [2, 2], [4096, 4096], 64),
            dense(4, [32, 32], [2048, 2048], 107),
            dense(1, [16, 16], [2048, 2048], 256),
            dense(16, [32, 32], [1, 4096], 128),
            dense(1, [32, 8], [1, 4096], 128),
            dense(1, [32, 8], [1, 4096], 107),
            paged(16, 64, 1),
            paged(16, 1, 512),
            paged(256, 16, 512),
            varlen_of(32, 4096, 128, [12, 12], 32),
            varlen_of(8, 9000, 3000, [32, 8], 128),
            blocks(8, 8192, 128, [128, 800]),
            blocks(1, 3968, 64, [128, 204]),
            Attention { form: Form::BlockMap(map), ..dense(1, [8, 8], [8192, 8192], 128) },
            Attention::dense(DType::F32, 1, [8, 8], [512, 512], 64),
        ]
    }

    #[test]
    fn every_shape_has_a_variant_that_supports_it_on_every_chip() {
        for target in [78, 114, 132, 144].map(hopper).into_iter().chain([A100, RTX_3090]) {
            for op in shapes() {
                let chosen = choose(Attention::VARIANTS, &op, &target, None)
                    .map(|(variant, target)| (variant.runs_on.accept(target.arch), (variant.supports)(&op, &target)));
                assert!(matches!(chosen, Ok((Ok(()), Ok(())))), "{op:?} on {target:?}: {chosen:?}");
            }
        }
    }

    #[test]
    fn the_choice_is_the_measured_one() {
        let names = |target: Target| {
            shapes().iter().map(|op| choose(Attention::VARIANTS, op, &target, None).map_or("none", |(variant, _)| variant.name)).collect::<Vec<_>>()
        };
        let h200 = [
            "sm90",
            "sm90",
            "sm90",
            "sm90_small_head",
            "sm90_intra_split_kv",
            "sm90_unaligned",
            "sm90",
            "sm90_decode",
            "sm80_decode",
            "sm80_decode",
            "sm90_decode",
            "sm90_varlen_lookahead",
            "sm90_varlen",
            "sm80_varlen_short",
            "sm90_varlen",
            "sm90_block_sparse",
            "sm90_intra_split_kv",
            "sm90_block_sparse",
            "simt",
        ];
        assert_eq!(names(hopper(132)), h200);
        let a100 = [
            "sm80",
            "sm80",
            "sm80",
            "sm80",
            "sm80",
            "sm80",
            "sm80",
            "sm80_decode",
            "sm80_decode",
            "sm80_decode",
            "sm80_decode",
            "sm80",
            "sm80",
            "sm80_varlen_short",
            "sm80",
            "sm80",
            "sm80",
            "sm80",
            "simt",
        ];
        assert_eq!([names(A100), names(RTX_3090)], [a100, a100]);
    }

    #[test]
    fn few_narrow_tiles_are_taken_by_steps() {
        let op = |rows: u32, listed| blocks(1, 128 * u64::from(rows), 64, [128, listed]);
        let of = |op: &Attention| by_steps(op, UNITS);
        assert!(of(&op(31, 204)) && of(&op(63, 800)) && !of(&op(63, 300)) && !of(&op(89, 1600)), "rows of very different lengths, many tiles");
        let whole = |heads, tokens| dense(1, [heads, heads], [tokens, tokens], 64);
        assert!(
            of(&whole(4, 512)) && of(&whole(2, 4096)) && of(&whole(1, 4096)) && !of(&Attention { q_len: 1024, ..whole(1, 8192) }),
            "many steps of a cluster"
        );
        assert!(!of(&Attention { head_dim: 128, ..op(31, 204) }), "no room for four steps");
    }

    #[test]
    fn narrow_heads_in_many_tiles_are_taken_by_four_groups() {
        let of = |batch, heads, tokens| dense(batch, [heads, heads], [tokens, tokens], 64);
        let takes = |op: &Attention| small_head(op, &hopper(UNITS)).is_ok();
        let taken = [(8, 8, 512), (32, 8, 128), (1, 32, 1024), (64, 12, 512), (1, 32, 4096), (1, 8, 16384), (1, 32, 2048)];
        assert!(taken.into_iter().all(|(b, h, s)| takes(&of(b, h, s))));
        assert!(![(1, 32, 512), (1, 9, 2048), (1, 32, 3072), (256, 12, 128)].into_iter().any(|(b, h, s)| takes(&of(b, h, s))), "waves");
        let each = [(8, 8, 512), (1, 32, 2048), (1, 32, 1024), (1, 12, 2048)].map(|(b, h, s)| takes(&causal(of(b, h, s))));
        assert_eq!(each, [true, true, false, false]);
        assert!(!takes(&Attention { head_dim: 128, ..of(8, 8, 512) }) && !takes(&Attention { head_dim: 32, ..of(8, 8, 512) }));
    }

    #[test]
    fn long_prompts_are_not_split() {
        let of = |batch, heads, q_len| decode(&dense(batch, heads, [q_len, 4096], 128), &hopper(UNITS)).is_ok();
        assert_eq!([of(16, [32, 8], 1), of(1, [32, 8], 16), of(64, [32, 8], 16), of(1, [32, 32], 65)], [true, true, false, false]);
    }
}
