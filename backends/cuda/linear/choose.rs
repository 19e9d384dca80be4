//! Which variant a product takes where several support it: what measurements said is faster.

use super::{single_shot, skinny_tile, swap_ab, weight_stationary};
use crate::backends::cuda::gemm::sm90::cost::enough_rows;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::linear::problem::shape;
use crate::backends::cuda::variant::Target;
use crate::ops::Linear;

type Suits = std::result::Result<(), String>;

/// Rows up to which blocks of `sm90_skinny_tile` take one tile after another: of more, 128 × 128256 × 4096 took 3 % longer so than streamed.
const ROUNDS_ROWS: u64 = 96;

/// The rows from which on a slab of W that stays is faster, and the least share of the SMs' sums that are outputs, in percent.
const WEIGHT_STATIONARY_ROWS: u64 = 256;
const WEIGHT_STATIONARY_SHARE: u64 = 75;

/// Outputs of all rows from which on `sm90_weight_stationary`, where it is for a product, is done sooner than swap-AB.
const WEIGHT_STATIONARY_OUTPUTS: u64 = 3 << 19;

/// Of `sm90_skinny_tile`.
pub(crate) fn skinny_tile(op: &Linear, target: &Target) -> Suits {
    enough_rows(op.tokens)?;
    if shape(op).tiles_beat_skinny(target) {
        return Err("tiles of sm90 take no more time here".into());
    }
    let rounds = skinny_tile::tile(op, target).map_or(1, |tile| tile.rounds(op.d_out, target));
    if op.tokens > ROUNDS_ROWS && rounds > 1 {
        return Err(format!("{} rows, more than {ROUNDS_ROWS}, of several tiles a block: streaming W is as fast", op.tokens));
    }
    Ok(())
}

/// Of `sm90_skinny`.
pub(crate) fn skinny(op: &Linear, target: &Target) -> Suits {
    match shape(op).tiles_beat_skinny(target) {
        true => Err("tiles of sm90 take less time here than stages with few rows of W".into()),
        false => Ok(()),
    }
}

/// Of `sm90_single_shot`.
pub(crate) fn single_shot(op: &Linear, target: &Target) -> Suits {
    enough_rows(op.tokens)?;
    match single_shot::has_room(op, &single_shot::tile(op, target), target) {
        true => Ok(()),
        false => Err("more tiles than have room at once".into()),
    }
}

/// Of `sm90_swap_ab`.
pub(crate) fn swap_ab(op: &Linear, target: &Target) -> Suits {
    if op.tokens <= WgmmaTile::ROWS {
        return Err(format!("{} rows: a tile of {} has room for them", op.tokens, WgmmaTile::ROWS));
    }
    let stays = weight_stationary::supports(op, target).and_then(|()| weight_stationary(op, target)).is_ok();
    let sooner = if stays { op.tokens.saturating_mul(op.d_out) < WEIGHT_STATIONARY_OUTPUTS } else { swap_ab::beats_rows(&shape(op), target) };
    if sooner { Ok(()) } else { Err("tiles of rows of X are done sooner".into()) }
}

/// Of `sm90_weight_stationary`.
pub(crate) fn weight_stationary(op: &Linear, target: &Target) -> Suits {
    if op.tokens < WEIGHT_STATIONARY_ROWS {
        return Err(format!("{} rows < {WEIGHT_STATIONARY_ROWS}: bringing the slab would take the time", op.tokens));
    }
    match weight_stationary::share(op, target) {
        WEIGHT_STATIONARY_SHARE.. => Ok(()),
        share => Err(format!("{} outputs: slabs would use {share} % of the multiprocessors", op.d_out)),
    }
}

/// Of `sm90`.
pub(crate) fn tiles(op: &Linear, _: &Target) -> Suits {
    enough_rows(op.tokens)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::backends::cuda::jit::Arch;
    use crate::backends::cuda::variant::{Table, choose};
    use crate::dtype::DType;

    const TARGETS: [Target; 6] = [
        Target { arch: Arch(90), units: 78, shared_bytes: 227 << 10, config: None },
        Target { arch: Arch(90), units: 114, shared_bytes: 227 << 10, config: None },
        Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None },
        Target { arch: Arch(90), units: 144, shared_bytes: 227 << 10, config: None },
        Target { arch: Arch(80), units: 108, shared_bytes: 163 << 10, config: None },
        Target { arch: Arch(86), units: 82, shared_bytes: 99 << 10, config: None },
    ];

    #[test]
    fn the_choice_supports_every_shape_on_every_device() {
        let sizes = [
            [0, 64, 64],
            [1, 4096, 4096],
            [1, 4096, 4095],
            [16, 11008, 4096],
            [33, 1024, 8192],
            [64, 4096, 11008],
            [65, 8, 8],
            [72, 4608, 3584],
            [128, 128_256, 4096],
            [129, 4096, 9000],
            [300, 3584, 18944],
            [512, 11008, 4096],
            [1000, 384, 1536],
            [2048, 2048, 128],
            [4096, 4096, 4096],
            [5000, 1 << 20, 64],
            [131_072, 1152, 384],
            [131_072, 416, 384],
        ];
        for target in TARGETS {
            for op in sizes.map(|sizes| Linear::new(DType::F16, sizes)).into_iter().flat_map(|op| [op.clone().with_padded_weights(), op]) {
                let (variant, target) = choose(Linear::VARIANTS, &op, &target, None).unwrap();
                assert_eq!((variant.supports)(&op, &target), Ok(()), "{}: {op:?} on {target:?}", variant.name);
                assert_eq!((variant.suits)(&op, &target), Ok(()), "{}: {op:?} on {target:?}", variant.name);
            }
        }
    }

    #[test]
    fn few_tiles_and_full_slabs_suit() {
        let h200 = TARGETS[2];
        let op = |sizes| Linear::new(DType::F16, sizes);
        assert!(
            single_shot(&op([1089, 2048, 128]), &h200).is_ok()
                && single_shot(&op([2177, 2048, 128]), &h200).is_err()
                && single_shot(&op([64, 2048, 128]), &h200).is_err()
        );
        assert!(weight_stationary(&op([4096, 1536, 384]), &h200).is_ok() && weight_stationary(&op([200, 1536, 384]), &h200).is_err());
        assert!(weight_stationary(&op([131_072, 416, 384]), &h200).is_err());
        assert!(skinny_tile(&op([72, 4608, 3584]), &h200).is_ok() && skinny_tile(&op([64, 4608, 3584]), &h200).is_err());
    }
}
