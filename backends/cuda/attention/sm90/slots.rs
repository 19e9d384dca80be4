//! Sequences at slots on sm90: which operations read them in place, and the parameters of the kernel that does. All others copy them first.

use crate::backends::cuda::attention::block_lists as lists;
use crate::backends::cuda::attention::block_pairs::Pairs;
use crate::backends::cuda::attention::params::AttentionParams;
use crate::backends::cuda::attention::repack::Rows;
use crate::backends::cuda::attention::sm90::config::Config;
use crate::backends::cuda::attention::sm90::ready::described;
use crate::backends::cuda::attention::sm90::schedule::band;
use crate::backends::cuda::attention::sm90::tile::{ROWS, TmaParams, work};
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, address};
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

params! {
    /// Parameters of the kernel for sequences at slots: those of the tiles, whose maps have all slots, and the slot of each sequence.
    SlotParams {
        tiles: TmaParams,
        slots: [const i32],
    }
}

/// The operation on all slots as they lie, where the kernel reads sequences of them in place: with lists of blocks of 128, in rows that TMA reads.
pub(crate) fn in_place(config: Config, op: &Attention) -> Option<Attention> {
    let listed = lists::listed(op);
    let by_tiles = matches!(config, Config::Persistent(2) | Config::Cluster(_)) && matches!(listed.form, Form::Blocks(_)) && Pairs::of(&listed, ROWS).is_none();
    let all = Attention { batch: op.slots?.into(), slots: None, ..op.clone() };
    let readable = |rows: &Rows| rows.aligned(op.dtype) && described(op, rows).is_ok();
    (by_tiles && Rows::of(&all).iter().all(readable)).then_some(all)
}

impl SlotParams {
    /// The parameters for the sequences of `op`, from those for all slots as they lie.
    pub(crate) fn of(op: &Attention, all: TmaParams, args: &AttentionArgs<Cuda>) -> Self {
        let common = AttentionParams { batch: op.batch, band: band(op) as u32, ..all.common };
        Self { tiles: TmaParams { common, work: work(op, ROWS) as u32, ..all }, slots: args.slots.as_ref().map_or(0, |slots| address(slots.slice())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::index::MapShape;

    #[test]
    fn blocks_of_128_in_aligned_rows_are_read_in_place() {
        let op = |block: u32, head_dim| {
            let map = MapShape { block, q_blocks: 1024 / block, kv_blocks: 1024 / block, patterns: 4 };
            Attention::dense(DType::F16, 4, [1, 1], [1024, 1024], head_dim).with_form(Form::BlockMap(map)).with_slots(9)
        };
        let in_place = |config, op: &Attention| in_place(config, op).map(|all| (all.batch, all.slots));
        for config in [Config::Persistent(2), Config::Cluster(4)] {
            assert_eq!(in_place(config, &op(128, 64)), Some((9, None)));
            assert_eq!(in_place(config, &op(64, 64)), None, "blocks of 64 have a plan by sequence");
            assert_eq!(in_place(config, &op(128, 57)), None, "rows are copied");
            assert_eq!(in_place(config, &op(128, 64).with_form(Form::Dense)), None);
            assert_eq!(in_place(config, &Attention { slots: None, ..op(128, 64) }), None);
        }
        assert_eq!(in_place(Config::SplitKv, &op(128, 64)), None);
    }
}
