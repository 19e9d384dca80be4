//! The speed rules of `linear`, as measured: which variant a product takes where several support it, and in which configuration.

use super::gemv_unaligned::{self, ROOMS};
use super::skinny_lora::{Adapted, RANKS, TOKENS};
use super::swap_ab_tile::{self, SwapAbTile};
use super::tile::Kind;
use super::{gemv, layernorm, single_shot, skinny, skinny_lora, skinny_tile, swap_ab, tile, weight_stationary};
use crate::backends::cuda::gemm::sm80::cost as sm80_cost;
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm90::cost::enough_rows;
use crate::backends::cuda::gemm::sm90::skinny::SkinnyShape;
use crate::backends::cuda::gemm::sm90::skinny_config::Stream;
use crate::backends::cuda::gemm::sm90::skinny_tile::SkinnyTile;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::linear::problem::{is_wide, shape};
use crate::backends::cuda::variant::{Configs, Target, number};
use crate::ops::Linear;

type Suits = std::result::Result<(), String>;

/// The most rows for which blocks of `skinny_tile` take one tile after another. With more, 128 × 128256 × 4096 took 3 % longer than
/// streamed.
const ROUNDS_ROWS: u64 = 96;

/// The fewest rows for which a stationary slab of W is faster, and the least share of the SMs' accumulators that must hold outputs, in
/// percent.
const WEIGHT_STATIONARY_ROWS: u64 = 256;
const WEIGHT_STATIONARY_SHARE: u64 = 75;

/// The fewest outputs of all rows for which the weight-stationary kernel, where it serves a product, is faster than swap-AB.
const WEIGHT_STATIONARY_OUTPUTS: u64 = 3 << 19;

/// Whether `skinny_lora` is worth taking, or why not.
pub(crate) fn adapted(op: &Linear, target: &Target) -> Suits {
    skinny_lora(op, target).map(drop).ok_or_else(|| "adapters' rows leave no room for tiles that all multiprocessors share evenly".into())
}

/// The kernel of `skinny_lora`: the smallest for the tokens, the rank and the rows of a tile.
pub(crate) fn skinny_lora(op: &Linear, target: &Target) -> Option<Adapted> {
    let least = |sizes: [u64; 2], wanted: u64| sizes.into_iter().find(|&size| wanted <= size);
    let (tokens, rank) = (least(TOKENS, op.tokens)?, least(RANKS, skinny_lora::rank(op).ok()?)?);
    let room = SkinnyShape::clusters(target.units);
    let split = SkinnyShape::splits(op.d_out, room);
    let rows = SkinnyShape::weight_rows_for(SkinnyShape::tile_rows(op.d_out, room, split), split);
    Adapted::new(tokens, rank, (rows, split), target.shared_bytes)
}

pub(crate) const SKINNY_LORA: Configs<Linear> = Configs {
    names: skinny_lora::names,
    choose: |op, target| skinny_lora(op, target).map_or(0, |chosen| number(Adapted::all(target.arch).into_iter(), &chosen)),
};

/// The most blocks an SM of `gemv`: W is then so small that a launch takes longer than its bytes.
const GEMV_BLOCKS: u64 = 4;
/// The most weights of `gemv` on Hopper: of 6.7 million an H200 streams them in 5 % less time with one row, and in 12 % less with 16
/// (`lab/language-models.md`).
const GEMV_WEIGHTS: u64 = 6 << 20;

/// Whether `gemv` is worth taking, or what is faster.
pub(crate) fn suits_gemv(op: &Linear, target: &Target) -> Suits {
    unaligned(op).err().ok_or("rows of an odd length are read two bytes at a time")?;
    let small = op.d_out <= GEMV_BLOCKS * gemv::OUTPUTS * u64::from(target.units);
    match small && (target.arch.0 < 90 || op.d_out * op.d_in <= GEMV_WEIGHTS) {
        true => Ok(()),
        false => Err(format!("{} outputs of a K of {}: streaming W is as fast as memory", op.d_out, op.d_in)),
    }
}

/// The kernel of `gemv`: the first that holds all of K.
pub(crate) const GEMV: Configs<Linear> =
    Configs { names: gemv::names, choose: |op, _| gemv::DEPTHS.into_iter().position(|depth| op.d_in <= depth).unwrap_or_default() as u16 };

/// Whether `skinny_tile` is worth taking, or what is faster.
pub(crate) fn suits_skinny_tile(op: &Linear, target: &Target) -> Suits {
    enough_rows(op.tokens)?;
    if shape(op).tiles_beat_skinny(target) {
        return Err("tiles of sm90 take no more time here".into());
    }
    if op.tokens > ROUNDS_ROWS && skinny_tile(op, target).rounds(op.d_out, target) > 1 {
        return Err(format!("{} rows, more than {ROUNDS_ROWS}, of several tiles a block: streaming W is as fast", op.tokens));
    }
    Ok(())
}

/// The tile of `skinny_tile`.
pub(crate) fn skinny_tile(op: &Linear, target: &Target) -> SkinnyTile {
    SkinnyTile::least(&skinny_tile::TILES, [op.d_out, op.d_in], target).unwrap_or(skinny_tile::TILES[0])
}

pub(crate) const SKINNY_TILE: Configs<Linear> =
    Configs { names: skinny_tile::names, choose: |op, target| number(skinny_tile::TILES.into_iter(), &skinny_tile(op, target)) };

/// Whether `skinny` is worth taking, or what is faster.
pub(crate) fn suits_skinny(op: &Linear, target: &Target) -> Suits {
    match !is_wide(op) && shape(op).tiles_beat_skinny(target) {
        true => Err("tiles of sm90 take less time here than stages with few rows of W".into()),
        false => Ok(()),
    }
}

/// The kernel, tile and cut of K of `skinny`.
pub(crate) fn skinny(op: &Linear, target: &Target) -> Stream {
    let room = SkinnyShape::clusters(target.units);
    let split = !is_wide(op) && SkinnyShape::splits(op.d_out, room);
    let tile = SkinnyShape::choose(op.tokens).fitted(SkinnyShape::tile_rows(op.d_out, room, split), split);
    match (split, SkinnyShape::by_groups(op.d_out, room)) {
        (true, _) if SkinnyShape::quarters(op.d_out, op.d_in, target.units) => Stream::tiles(tile.quartered(), true),
        (false, true) if !is_wide(op) => Stream::groups(tile.grouped()),
        _ => Stream::tiles(tile, split),
    }
}

pub(crate) const SKINNY: Configs<Linear> = Configs { names: skinny::names, choose: |op, target| number(Stream::all(), &skinny(op, target)) };

/// The tile of `sm90` that loads all of a short K at once: the first whose blocks are all resident at once.
fn single_shot(op: &Linear, target: &Target) -> Option<WgmmaTile> {
    enough_rows(op.tokens).ok()?;
    let takes = |tile: &WgmmaTile| single_shot::has_room(op, tile, target) && single_shot::supports(op, tile, target).is_ok();
    single_shot::TILES.into_iter().find(takes)
}

/// Whether no `single_shot` tile serves. Where one does, other variants do not suit.
fn no_single_shot(op: &Linear, target: &Target) -> Suits {
    if single_shot(op, target).is_some() { Err("tiles of sm90 that ask for all of K at once are done sooner".into()) } else { Ok(()) }
}

/// Whether `sm90_swap_ab` is worth taking, or what is faster.
pub(crate) fn suits_swap_ab(op: &Linear, target: &Target) -> Suits {
    if op.tokens <= WgmmaTile::ROWS {
        return Err(format!("{} rows: a tile of {} has room for them", op.tokens, WgmmaTile::ROWS));
    }
    if is_wide(op) {
        return Ok(());
    }
    no_single_shot(op, target)?;
    let stays = weight_stationary::supports(op, target).and_then(|()| weight_stationary(op, target)).is_ok();
    let sooner = if stays { op.tokens.saturating_mul(op.d_out) < WEIGHT_STATIONARY_OUTPUTS } else { swap_ab_tile::beats_rows(&shape(op), target) };
    if sooner { Ok(()) } else { Err("tiles of rows of X are done sooner".into()) }
}

/// The tile of `sm90_swap_ab`.
pub(crate) fn swap_ab(op: &Linear, target: &Target) -> SwapAbTile {
    let tiles: &[SwapAbTile] = if is_wide(op) { &swap_ab_tile::WIDE } else { &swap_ab_tile::TILES };
    swap_ab_tile::choose(tiles, &shape(op), target).0
}

pub(crate) const SWAP_AB: Configs<Linear> =
    Configs { names: swap_ab::names, choose: |op, target| number(swap_ab_tile::TILES.into_iter(), &swap_ab(op, target)) };

/// Whether the weight-stationary kernel is worth taking, or why not.
pub(crate) fn weight_stationary(op: &Linear, target: &Target) -> Suits {
    if op.tokens < WEIGHT_STATIONARY_ROWS {
        return Err(format!("{} rows < {WEIGHT_STATIONARY_ROWS}: bringing the slab would take the time", op.tokens));
    }
    match weight_stationary::share(op, target) {
        WEIGHT_STATIONARY_SHARE.. => no_single_shot(op, target),
        share => Err(format!("{} outputs: slabs would use {share} % of the multiprocessors", op.d_out)),
    }
}

/// The warpgroups of `layernorm`: one where that gives more SMs work.
pub(crate) fn layernorm(op: &Linear, target: &Target) -> u64 {
    layernorm::GROUPS[usize::from(op.tokens > layernorm::ROWS * u64::from(target.units))]
}

pub(crate) const LAYERNORM: Configs<Linear> =
    Configs { names: layernorm::names, choose: |op, target| number(layernorm::GROUPS.into_iter(), &layernorm(op, target)) };

pub(crate) const WEIGHT_STATIONARY: Configs<Linear> = Configs { names: weight_stationary::names, choose: |_, _| 0 };

/// Whether tiles of `sm90` are worth taking, or why not.
pub(crate) fn tiles(op: &Linear, _: &Target) -> Suits {
    enough_rows(op.tokens)
}

/// The tile of `sm90`, and the kind of its kernel.
pub(crate) fn sm90(op: &Linear, target: &Target) -> Kind {
    if let Some(tile) = single_shot(op, target) {
        return Kind::SingleShot(tile);
    }
    let lora = tile::lora_shape(op).and_then(|shape| WgmmaTile::choose_with_lora(shape, target));
    lora.map_or_else(|| Kind::Ring(shape(op).choose(target)), Kind::Lora)
}

pub(crate) const SM90: Configs<Linear> = Configs { names: tile::names_sm90, choose: |op, target| number(Kind::all(), &sm90(op, target)) };

/// Whether `gemv_unaligned` is worth taking, or why not.
pub(crate) fn suits_gemv_unaligned(op: &Linear, target: &Target) -> Suits {
    unaligned(op)?;
    match skinny::SKINNY.accepts(op, target).and_then(|()| suits_skinny(op, target)) {
        Ok(()) => Err("rows of W start where TMA can read them: streaming W is as fast as memory".into()),
        Err(_) => Ok(()),
    }
}

/// Whether rows start off multiples of 16 bytes, or why that is not so.
fn unaligned(op: &Linear) -> Suits {
    match [op.d_in, op.x_stride, op.w_stride].iter().all(|elements| elements.is_multiple_of(8)) {
        true => Err(format!("rows of {} elements are whole in 16 bytes", op.d_in)),
        false => Ok(()),
    }
}

/// Rows of X of `gemv_unaligned`.
pub(crate) fn gemv_unaligned(op: &Linear, _: &Target) -> u64 {
    ROOMS[usize::from(op.tokens > ROOMS[0])]
}

pub(crate) const GEMV_UNALIGNED: Configs<Linear> =
    Configs { names: gemv_unaligned::names, choose: |op, target| number(ROOMS.into_iter(), &gemv_unaligned(op, target)) };

/// The tile of `sm80`.
pub(crate) fn sm80(op: &Linear, target: &Target) -> MmaTile {
    let product = sm80_cost::Shape { rows: op.tokens, outputs: op.d_out, depth: op.d_in, alignment: sm80_cost::alignment([op.x_stride, op.w_stride]) };
    MmaTile::least(&[product], target)
}

pub(crate) const SM80: Configs<Linear> =
    Configs { names: tile::names_sm80, choose: |op, target| number(MmaTile::on(target.arch).into_iter(), &sm80(op, target)) };

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::backends::cuda::variant::drawn::{Numbers, check};
    use crate::backends::cuda::variant::{Table, choose};
    use crate::dtype::DType;
    use crate::ops::{Activation, CodeWidth, CodebookGemm};

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
        for target in Target::TESTED {
            for op in
                sizes.map(|sizes| Linear::new(DType::F16, [sizes[0], sizes[2], sizes[1]])).into_iter().flat_map(|op| [op.clone().with_padded_weights(), op])
            {
                let (variant, target) = choose(Linear::VARIANTS, &op, &target, None).unwrap();
                assert_eq!((variant.supports)(&op, &target), Ok(()), "{}: {op:?} on {target:?}", variant.name);
                assert_eq!((variant.suits)(&op, &target), Ok(()), "{}: {op:?} on {target:?}", variant.name);
            }
        }
    }

    #[test]
    fn few_tiles_and_full_slabs_suit() {
        let h200 = Target::H200;
        let op = |sizes: [u64; 3]| Linear::new(DType::F16, [sizes[0], sizes[2], sizes[1]]);
        let short = |sizes| single_shot(&op(sizes), &h200).map(|tile| tile.columns);
        assert_eq!(
            [[1089, 2048, 128], [2048, 2048, 128], [2177, 2048, 128], [64, 2048, 128], [2048, 2048, 136]].map(short),
            [Some(64), Some(128), None, None, None]
        );
        assert!(weight_stationary(&op([4096, 1536, 384]), &h200).is_ok() && weight_stationary(&op([200, 1536, 384]), &h200).is_err());
        assert!(weight_stationary(&op([131_072, 416, 384]), &h200).is_err());
        assert!(suits_skinny_tile(&op([72, 4608, 3584]), &h200).is_ok() && suits_skinny_tile(&op([64, 4608, 3584]), &h200).is_err());
    }

    #[test]
    fn outputs_fill_the_multiprocessors() {
        let tile = |d_out, d_in| {
            let tile = skinny_tile(&Linear::new(DType::F16, [72, d_in, d_out]), &Target::H200);
            (tile.columns, tile.parts)
        };
        assert_eq!([tile(4608, 3584), tile(2304, 2304), tile(18_944, 3584), tile(14_336, 3584)], [(72, 2), (40, 2), (144, 1), (112, 1)]);
        let stream = |sizes: [u64; 3]| skinny(&Linear::new(DType::F16, [sizes[0], sizes[2], sizes[1]]), &Target::H200).config();
        assert_eq!(stream([1, 4096, 4096]), "16x128-splitk2");
        assert_eq!(stream([16, 1024, 8192]), "16x128-splitk4");
        assert_eq!(stream([32, 8448, 4096]), "32x64-groups");
        assert_eq!([stream([128, 11008, 1024]), stream([64, 11008, 4096])], ["128x96", "64x128"]);
        let groups = |tokens| layernorm(&Linear::new(DType::F16, [tokens, 1536, 384]), &Target::H200);
        assert_eq!([1, 8448, 8449].map(groups), [1, 1, 2]);
    }

    fn drawn(numbers: &mut Numbers) -> Linear {
        let dtype = numbers.one(&[DType::F16, DType::F16, DType::BF16, DType::F32]);
        let norm = numbers.one(&[None, None, None, Some(1e-5f32.to_bits())]);
        let (tokens, d_in) = (numbers.size(20_000), numbers.one(&[64, 128, 384, 4096, 11008]));
        let d_in = if numbers.coin() { d_in } else { numbers.size(16_384) };
        let d_out = if norm.is_some() { 384 } else { numbers.size(32_768) };
        let mut op =
            Linear { norm, activation: numbers.one(&[None, Some(Activation::Silu), Some(Activation::Relu)]), ..Linear::new(dtype, [tokens, d_in, d_out]) };
        if numbers.coin() {
            op = op.with_padded_weights();
        }
        op.batch_invariant = numbers.one(&[false, false, true]);
        if numbers.coin() {
            op.x_stride = op.x_stride.next_multiple_of(8);
        }
        if numbers.one(&[true, false, false]) {
            let delta = CodebookGemm::s2lc(dtype, tokens, [d_in, d_out, numbers.one(&[8, 16, 32, 9])], 5, CodeWidth::FourThree);
            op.delta = Some(CodebookGemm { x_stride: op.x_stride, ..delta });
        }
        if op.norm.is_none() && op.delta.is_none() && numbers.one(&[true, false, false]) {
            op = Linear { activation: None, wide_outputs: true, ..op };
        }
        op
    }

    #[test]
    fn what_is_chosen_and_whatever_is_able_is_compiled() {
        let mut numbers = Numbers::new(20_261_124);
        let ops: Vec<_> = (0..3000).map(|_| drawn(&mut numbers)).collect();
        check(ops, &mut numbers);
    }
}
