//! `attention` with queries in numbers of their own over keys in pages, on the tensor cores of sm80 and later.

use crate::backends::cuda::attention::entry::{Entry, entry};
use crate::backends::cuda::attention::params::{AttentionParams, headers, parameters};
use crate::backends::cuda::attention::sm80::tile::{self as sm80, ROWS, Tile, WARPS};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm80_ragged_pages",
    label: "attention/sm80_ragged_pages",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    // Whatever a step has: in another variant a query would have other bits.
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, _| Unit { also: vec![unit(UNALIGNED, held(op.head_dim), op.dtype)], ..unit(ALIGNED, held(op.head_dim), op.dtype) },
    units: |_| units(),
    workspace: |_, _| 0,
    launch,
};

const ALIGNED: Entry = entry!("attention_sm80_ragged");
/// The kernel for rows that start anywhere.
const UNALIGNED: Entry = entry!("attention_sm80_ragged_narrow");
/// Head dimensions that the kernels are compiled for.
const HELD: [u64; 3] = [64, 128, 256];

/// The least of [`HELD`] that has room for a head.
fn held(head_dim: u64) -> u64 {
    HELD.into_iter().find(|&held| head_dim <= held).unwrap_or(256)
}

fn unit(entry: Entry, held: u64, dtype: DType) -> Unit {
    let (tile, word) = (Tile::exactly(held), if entry == ALIGNED { "" } else { " unaligned" });
    let mut defines = tile.defines(dtype, Arch(80));
    defines.extend([("SHARED_BYTES", tile.general_bytes().to_string()), ("RAGGED_PAGES", "1".into()), entry.defined()]);
    Unit {
        headers: headers(),
        defines,
        entries: entry.list,
        shared_bytes: tile.general_bytes(),
        ..Unit::new(format!("attention/sm80_ragged_pages{word} {dtype} head_dim {held}"), source!("attention/sm80/ragged_pages.cu"))
    }
}

fn units() -> Vec<Unit> {
    let each = HELD.into_iter().flat_map(|held| [ALIGNED, UNALIGNED].map(|entry| (held, entry)));
    each.flat_map(|(held, entry)| [DType::F16, DType::BF16].map(|dtype| unit(entry, held, dtype))).collect()
}

/// Slots of a head for tiles, whose rows are the queries of all heads that share keys: as many as the tiles of all queries in a row, and one more for
/// each sequence and for the spare queries. A block finds its sequence by its slot.
fn slots(op: &Attention) -> u64 {
    let (_, queries) = op.q_extent();
    (queries * (op.heads / op.kv_heads) / ROWS).saturating_add(op.batch + 1)
}

/// Thread blocks of the whole operation.
fn work(op: &Attention) -> u64 {
    slots(op).saturating_mul(op.kv_heads)
}

fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    if !matches!(op.form, Form::RaggedPaged(_)) {
        return Err("it runs the form of ragged pages".into());
    }
    sm80::limits(op, target)?;
    let (rows, longest) = (sm80::key_rows(op), 1 << 29);
    if rows > longest || work(op) > 1 << 30 {
        return Err(format!("{rows} rows share keys, in {} blocks: expected at most {longest} and {}", work(op), 1 << 30));
    }
    let shared = Tile::exactly(held(op.head_dim)).general_bytes();
    if shared > target.shared_bytes {
        return Err(format!("a block needs {shared} bytes of shared memory, and there are {}", target.shared_bytes));
    }
    Ok(())
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, _: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let mut params: AttentionParams = parameters(op, args, op.heads / op.kv_heads);
    params.tiles = slots(op) as u32;
    // Spare queries are one sequence.
    params.q_len = params.lse_head;
    let entry = if sm80::aligned(op, &params) { ALIGNED } else { UNALIGNED };
    // The kernel's PDL wait stands before its first read.
    let overlap = plan.target.arch.0 >= 90;
    let shared_bytes = Tile::exactly(held(op.head_dim)).general_bytes();
    let launch = Launch { shared_bytes, overlap, ..Launch::new(blocks(work(op)), (WARPS * 32) as u32) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, entry.name(), &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::index::RaggedShape;

    const TARGET: Target = Target { arch: Arch(80), units: 108, shared_bytes: 99 << 10, config: None };

    fn op(batch: u64, total_q: u64, max_q: u64, head_dim: u64) -> Attention {
        Attention::ragged_paged(DType::F16, RaggedShape { batch, total_q, max_q, pages: 64, page: 16, pool_pages: 999 }, [32, 8], head_dim)
    }

    #[test]
    fn every_head_fits_every_chip() {
        assert!((1..=256).all(|head_dim| supports(&op(4, 9, 3, head_dim), &TARGET) == Ok(())));
        assert!(supports(&Attention { dtype: DType::F32, ..op(4, 9, 3, 64) }, &TARGET).is_err());
        assert!(supports(&Attention::dense(DType::F16, 1, [1, 1], [1, 1], 64), &TARGET).is_err());
    }

    #[test]
    fn there_are_blocks_for_every_tile() {
        // Whatever share of 100 queries four sequences and the spare ones have, four heads to a row.
        assert_eq!((slots(&op(4, 100, 33, 64)), work(&op(4, 100, 33, 64))), (6 + 4 + 1, 11 * 8));
        for cut in [[0, 0, 0, 0], [100, 0, 0, 0], [1, 1, 97, 1], [16, 17, 15, 33], [33, 33, 33, 1]] {
            let spare = 100 - cut.iter().sum::<u64>();
            let tiles: u64 = cut.into_iter().chain([spare]).map(|queries: u64| (queries * 4).div_ceil(ROWS)).sum();
            assert!(tiles <= slots(&op(4, 100, 100, 64)));
        }
        assert_eq!(work(&op(0, 6, 0, 64)), 8);
    }
}
