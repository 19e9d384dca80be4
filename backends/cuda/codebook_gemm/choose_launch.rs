//! The speed rules of one launch: the kernel of `sm90`, and how many blocks share a tile. A launch knows more than its plan: whether the launch
//! before still runs, and what it writes.

use super::clusters::{AHEAD, ANY, GROUPED, ICACHE_WARM, Known, LINE, MANY, Shape, USUAL, WIDE, in_one_share};
use super::launch::{Group, sharing};
use super::order::in_halves;
use super::tile::{CLUSTER, FEW, GROUP, HELD, ROWS, THREADS, predecodes, rank_of, width_of};
use crate::ops::CodebookGemm;

/// The most blocks of `sm90` that decode all they need of a tile's 16 adapters before the PDL wait, and the most groups of columns of each.
const AHEAD_BLOCKS: u64 = 32;
const AHEAD_GROUPS: u64 = 4;
/// Launches that should be in flight at once with such a block an SM, which has no room for a second.
const UNDER_WAY: u64 = 4;

/// Blocks of `sm90` that share a tile, in clusters, on a device of `units` SMs.
fn cluster_sharing(op: &CodebookGemm, group: Group, cluster: u64, units: u64, known: Known) -> u64 {
    let (tiles, columns) = (op.tokens.div_ceil(ROWS), group.widest.div_ceil(GROUP));
    let chained = known.early && group.slices == 1;
    let most = match (known.early && known.x_early, op.adapters) {
        // All work but the last step is done before the launch before ends. Fewer blocks put more launches in flight, but a block should
        // finish its columns at once, of ranks above 16 half as many.
        (true, _) => group.widest.div_ceil(GROUP * HELD * u64::from(THREADS / 32)).max(if rank_of(op) > 16 { 32 } else { 16 }).next_multiple_of(CLUSTER),
        // Fewer blocks have less to wait for. But with many adapters each should decode little once x is there.
        (false, 0..=1) => 32,
        // Slices run beside each other.
        (false, _) if group.slices > 1 => 32,
        (false, _) if chained && columns <= FEW_COLUMNS => 32,
        (false, _) => 64,
    };
    // A launch takes one block an SM, and the next launch should start beside it. Several tiles leave it room, and were timed in powers of two.
    let shared = match (chained && tiles > 1, columns <= MIDDLE_COLUMNS) {
        (true, true) => units * 5 / 8,
        (true, false) if rank_of(op) > 16 => units * 3 / 4,
        _ => units,
    };
    let blocks = sharing(op, group, shared, most);
    // Where there are no more columns, every block of the last cluster has some.
    let whole = blocks.next_multiple_of(cluster);
    let blocks = if group.slices == 1 && blocks == columns && whole * tiles <= shared { whole } else { (blocks / cluster).max(1) * cluster };
    if shared < units { cluster << (blocks / cluster).ilog2() } else { blocks }
}

/// Groups of columns up to which a launch of several tiles leaves room for the next one.
const MIDDLE_COLUMNS: u64 = 128;
/// Groups of columns up to which decoding before the PDL wait gains nothing.
const FEW_COLUMNS: u64 = 64;

/// Whether a launch whose x another launch writes has few blocks, which decode everything before the PDL wait. The fewer blocks there are,
/// the sooner a launch ends. A launch of several tiles or slices fills too much of the device for that.
fn ahead(op: &CodebookGemm, group: Group, units: u64) -> bool {
    let blocks = op.tokens.div_ceil(ROWS) * group.slices * AHEAD_BLOCKS;
    let columns = group.widest.div_ceil(GROUP);
    let groups = columns.div_ceil(AHEAD_BLOCKS);
    let worth = columns > FEW_COLUMNS && groups <= AHEAD_GROUPS && blocks * UNDER_WAY <= units;
    group.slices == 1 && op.adapters > 1 && predecodes(rank_of(op), width_of(op)) && worth
}

/// Whether a launch whose x another launch writes has one adapter and so few blocks that one an SM is enough. Registers are then left to
/// run the way from x to y once before the PDL wait, which warms the instruction cache.
fn warms_icache(op: &CodebookGemm, group: Group, units: u64) -> bool {
    group.slices == 1 && op.adapters <= 1 && rank_of(op) == 16 && op.tokens.div_ceil(ROWS) * AHEAD_BLOCKS * UNDER_WAY <= units
}

/// The kind of an `sm90` launch, by what the launch knows, on a device of `units` SMs. Where the launch before writes x and there are many
/// adapters, all their pieces are shared among the warps. Each warp decodes its first ones before the PDL wait.
pub(crate) fn shape_by_launch(op: &CodebookGemm, group: Group, units: u64, known: Known) -> Shape {
    let dependent = known.early && !known.x_early;
    let (cluster, grouped) = if group.slices > 1 && in_halves(op) { (FEW, MANY) } else { (CLUSTER, GROUPED) };
    let ahead = dependent && ahead(op, group, units);
    let blocks = if ahead { sharing(op, group, units, AHEAD_BLOCKS).next_multiple_of(CLUSTER) } else { cluster_sharing(op, group, cluster, units, known) };
    // Groups of columns of a block.
    let groups = group.widest.div_ceil(GROUP).div_ceil(blocks);
    let kernel = match (group.slices, known.whole, groups > u64::from(THREADS / 32)) {
        (2.., ..) => grouped,
        (_, false, _) => ANY,
        (_, true, many) if dependent && op.adapters > 1 && !known.basis_of && in_one_share(op) && (many || op.tokens > ROWS) => LINE,
        (_, true, true) => WIDE,
        (_, true, false) if ahead => AHEAD,
        (_, true, false) if dependent && warms_icache(op, group, units) => ICACHE_WARM,
        (_, true, false) => USUAL,
    };
    Shape { kernel, blocks, cluster }
}

/// Blocks of `sm80` that share a tile, on a device of `units` SMs. Every block computes h anew, so they are few, unless there are many
/// adapters to decode.
pub(crate) fn blocks_by_launch(op: &CodebookGemm, group: Group, units: u64) -> u64 {
    let blocks = sharing(op, group, units, 16);
    // Columns are shared evenly by a power of two, or where each block has one group.
    if blocks == group.widest.div_ceil(GROUP) { blocks } else { 1 << blocks.max(1).ilog2() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::codebook_gemm::clusters::config;
    use crate::dtype::DType;
    use crate::ops::CodeWidth;

    fn op(tokens: u64, adapters: u32, dims: [u64; 3]) -> CodebookGemm {
        CodebookGemm::s2lc(DType::F16, tokens, dims, adapters, CodeWidth::FourThree)
    }

    /// Choices by what a launch knows: it reads an x that the launch before writes, or one that none does, or it starts after everything
    /// before it.
    #[test]
    fn a_launch_of_clusters_takes_what_was_measured() {
        let over = |op: CodebookGemm| CodebookGemm { accumulate: false, ..op };
        let of = |op: &CodebookGemm, units| {
            [(true, false), (true, true), (false, true)].map(|(early, x_early)| {
                let known = Known { whole: true, early, x_early, basis_of: false };
                config(Some(shape_by_launch(op, Group::of(&op.slices), units, known)))
            })
        };
        let (square, wide) = ([4096, 4096, 16], [4096, 11_008, 16]);
        let several = CodebookGemm { slices: vec![op(1, 1, square).slices[0].clone(); 20], ..op(16, 16, square) };
        for (op, units, names) in [
            (op(16, 1, square), 132, ["icache_warm-32", "plain-16", "plain-32"]),
            (op(16, 16, square), 132, ["predecode-32", "plain-16", "plain-64"]),
            (op(16, 16, square), 114, ["plain-64", "plain-16", "plain-64"]),
            (over(op(256, 100, square)), 132, ["balanced-8", "wide-8", "wide-8"]),
            (op(128, 100, wide), 132, ["wide-16", "wide-16", "wide-16"]),
            (op(8, 12, [512, 512, 16]), 132, ["plain-16", "plain-16", "plain-16"]),
            (over(op(56, 7, [3520, 3520, 16])), 132, ["balanced-16", "plain-16", "plain-32"]),
            (op(40, 5, [3584, 3584, 64]), 132, ["plain-16", "plain-16", "plain-40"]),
            (op(19, 3, [8192, 8192, 64]), 132, ["plain-32", "plain-32", "plain-64"]),
            (over(op(40, 5, [4096, 4096, 16]).with_slices(vec![op(1, 1, square).slices[0].clone(); 2])), 132, ["grouped-16"; 3]),
            (several, 132, ["many-6", "many-6", "many-6"]),
        ] {
            assert_eq!(of(&op, units), names, "{} tokens, {} adapters, {units}", op.tokens, op.adapters);
        }
    }
}
