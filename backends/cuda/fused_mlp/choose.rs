//! The speed rules of `fused_mlp`, as measured: which kernels an MLP takes.

use super::gemm::{Kernels, names};
use super::problem::{chunk_rows, tiles};
use super::skinny_tile::{DOWN, GATED, SEVERAL, UP};
use crate::backends::cuda::gemm::sm80::cost::{Shape, alignment};
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm90::cost::enough_rows;
use crate::backends::cuda::gemm::sm90::skinny::SkinnyShape;
use crate::backends::cuda::gemm::sm90::skinny_config::Stream;
use crate::backends::cuda::gemm::sm90::skinny_tile::SkinnyTile;
use crate::backends::cuda::variant::{Configs, RunsOn, Target, number};
use crate::ops::FusedMlp;

/// The most tiles of `skinny_tile` that a block takes of the first product.
const MOST: u64 = 4;

/// The configurations of `gemm`.
pub(crate) const GEMM: Configs<FusedMlp> = Configs { names, choose: |op, target| number(Kernels::all(target.arch), &gemm(op, target)) };

/// The first kernels, fastest first, that can compute the operation.
fn gemm(op: &FusedMlp, target: &Target) -> Kernels {
    let mma = |rows| Kernels::Sm80(MmaTile::least(&products(op, rows), target));
    let (Ok(()), Ok(rows)) = (RunsOn::Only(90).accept(target.arch), chunk_rows(op, target)) else { return mma(chunk_rows(op, target).unwrap_or(op.tokens)) };
    let takes = |kernels: &Kernels| kernels.takes(op, rows, target).is_ok();
    let many = enough_rows(op.tokens).is_ok();
    let skinny_tile = || filling(op, target).filter(|_| many).map(Kernels::SkinnyTile).filter(takes);
    // With this many rows, tiles of 128 are faster on a short intermediate than streaming it.
    let pair = || many.then(|| Kernels::Sm90(tiles(op, rows, target).map(|(tile, _)| tile))).filter(takes);
    let skinny = || Some(Kernels::Skinny(skinny(op, target))).filter(takes);
    skinny_tile().or_else(pair).or_else(skinny).unwrap_or_else(|| mma(rows))
}

/// Both products of a chunk of `rows` rows, as the tiles of `sm80` see them.
fn products(op: &FusedMlp, rows: u64) -> [Shape; 2] {
    let hidden = if op.gated { 2 * op.d_ff } else { op.d_ff };
    let up = Shape { rows, outputs: hidden, depth: op.d_model, alignment: alignment([op.x_stride, op.w1_stride]) };
    [up, Shape { rows, outputs: op.d_out, depth: op.d_ff, alignment: alignment([op.d_ff, op.w2_stride]) }]
}

/// The tiles of `skinny_tile` with which most SMs have a tile, and none has many.
fn filling(op: &FusedMlp, target: &Target) -> Option<[SkinnyTile; 2]> {
    let several = |tiles| SkinnyTile::choose(tiles, op.d_ff, MOST, target);
    let up = if op.gated { several(&GATED) } else { SkinnyTile::choose(&UP, op.d_ff, 1, target).or_else(|| several(&SEVERAL)) }?;
    Some([up, SkinnyTile::choose(&DOWN, op.d_out, 1, target)?])
}

/// The shape of a block's stages of `sm90_skinny`, for tiles of both products, and whether the second product's K is split. The tiles of a
/// split product are never the larger ones.
fn skinny(op: &FusedMlp, target: &Target) -> Stream {
    let room = SkinnyShape::clusters(target.units);
    let (split, rows) = (SkinnyShape::splits(op.d_out, room), |columns| SkinnyShape::tile_rows(columns, room, false));
    let down = if split { 0 } else { rows(op.d_out) };
    Stream::tiles(SkinnyShape::choose(op.tokens).filled(rows(op.d_ff).max(down), false), split)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::problem::{TILE_ROWS, planned_rows, workspace};
    use super::*;
    use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
    use crate::backends::cuda::variant::drawn::{Numbers, check};
    use crate::backends::cuda::variant::{Table, choose};
    use crate::dtype::DType;
    use crate::ops::Activation;
    use crate::ops::fused_mlp::MAX_WORKSPACE;

    #[test]
    fn the_choice_supports_every_shape_on_every_device() {
        let sizes = [
            [0, 64, 64, 64],
            [1, 4096, 11008, 4096],
            [1, 4095, 11007, 4095],
            [17, 768, 3072, 768],
            [64, 4096, 14336, 4096],
            [65, 8, 8, 8],
            [128, 4096, 11008, 4096],
            [128, 8192, 28672, 8192],
            [128, 768, 3072, 768],
            [129, 5120, 13824, 5120],
            [300, 4095, 11008, 4095],
            [4096, 4096, 11008, 4096],
            [8192, 768, 3072, 768],
        ];
        for target in Target::TESTED {
            for op in sizes
                .map(|sizes| FusedMlp::new(DType::F16, sizes, Activation::Silu))
                .into_iter()
                .flat_map(|op| [FusedMlp { gated: true, ..op.clone() }, op.clone().with_padded_weights(), op])
            {
                let (variant, target) = choose(FusedMlp::VARIANTS, &op, &target, None).unwrap();
                assert_eq!((variant.supports)(&op, &target), Ok(()), "{}: {op:?} on {target:?}", variant.name);
                assert_eq!((variant.suits)(&op, &target), Ok(()), "{}: {op:?} on {target:?}", variant.name);
            }
        }
    }

    #[test]
    fn a_tile_a_block_of_most_multiprocessors() {
        let of = |op: FusedMlp| filling(&op, &Target::H200).map(|[up, down]| (up.columns, down.columns, up.several));
        let plain = |dims: [u64; 4]| FusedMlp::new(DType::F16, dims, Activation::Silu);
        assert_eq!(of(plain([128, 4096, 11008, 4096])), Some((88, 64, false)));
        assert_eq!(of(plain([128, 4096, 14336, 4096])), Some((112, 64, false)));
        assert_eq!(of(plain([128, 5120, 13824, 5120])), Some((112, 80, false)));
        assert_eq!(of(plain([128, 8192, 28672, 8192])), Some((112, 128, true)), "two tiles a block");
        assert_eq!(of(plain([128, 768, 3072, 768])), None, "fewer than multiprocessors");
        let gated = |d_ff| of(FusedMlp { gated: true, ..plain([128, 4096, d_ff, 4096]) });
        let chosen = [11008, 14336, 18944, 28672].map(gated);
        assert_eq!(chosen, [88, 112, 72, 112].map(|columns| Some((columns, 64, true))));
    }

    #[test]
    fn the_choice_is_the_measured_one() {
        let of = |target: Target, op: FusedMlp| {
            let (variant, target) = choose(FusedMlp::VARIANTS, &op, &target, None).unwrap();
            let config = variant.configs.as_ref().map(|configs| (configs.names)(target.arch));
            config.and_then(|names| names.into_iter().nth(target.config?.into())).unwrap_or_else(|| variant.name.into())
        };
        let plain = |dims| FusedMlp::new(DType::F16, dims, Activation::GeluTanh);
        let rows = |target, tokens| of(target, plain([tokens, 4096, 11008, 4096]));
        let h200 = [1, 17, 64, 65, 128, 256, 1024, 4096].map(|tokens| rows(Target::H200, tokens));
        let expected = [
            "sm90_skinny-16x96-splitk2",
            "sm90_skinny-32x96-splitk2",
            "sm90_skinny-64x96-splitk2",
            "sm90_skinny-128x88+128x64-splitk2-tile",
            "sm90_skinny-128x88+128x64-splitk2-tile",
            "sm90-128x168+128x64",
            "sm90-128x256-160+128x256",
            "sm90-128x256-160+128x256",
        ];
        assert_eq!(h200, expected);
        assert_eq!([1, 17, 65, 4096].map(|tokens| rows(Target::A100, tokens)), ["sm80-16x32", "sm80-16x32", "sm80-64x64", "sm80-128x128"]);
        assert_eq!(of(Target::H200, plain([8192, 768, 3072, 768])), "sm90-64x256-pingpong+128x192");
        assert_eq!(of(Target::H200, FusedMlp { dtype: DType::F32, ..plain([64, 768, 3072, 768]) }), "simt");
    }

    fn pair(op: &FusedMlp, target: &Target) -> [WgmmaTile; 2] {
        tiles(op, chunk_rows(op, target).unwrap(), target).map(|(tile, _)| tile)
    }

    fn op(tokens: u64, d_model: u64, d_ff: u64) -> FusedMlp {
        FusedMlp::new(DType::F16, [tokens, d_model, d_ff, d_model], Activation::GeluTanh)
    }

    #[test]
    fn a_chunk_fits_into_the_workspace_and_is_whole_tiles() {
        for (tokens, d_ff) in [(1, 11008), (300, 11008), (4096, 11008), (4096, 14336), (100_000, 4095), (7, 1 << 24), (9, 3)] {
            let op = op(tokens, 4096, d_ff);
            let rows = chunk_rows(&op, &Target::H200).unwrap();
            assert!(rows > 0 && workspace(&op, &Target::H200) <= MAX_WORKSPACE, "{op:?}: {rows}");
            assert_eq!(planned_rows(&op, workspace(&op, &Target::H200).next_multiple_of(16)), rows, "{op:?}");
            assert!(rows == tokens || rows.is_multiple_of(TILE_ROWS) || MAX_WORKSPACE / (d_ff * 2) < TILE_ROWS, "{op:?}: {rows}");
        }
        assert!(chunk_rows(&op(1, 8, (16 << 20) + 1), &Target::H200).is_err());
    }

    #[test]
    fn chunks_leave_few_multiprocessors_idle() {
        // 8 × 43 and 8 × 16 tiles for 132 SMs. The largest chunk, of 1,408 rows, has 11 × 16, of which 44 are in a second wave.
        assert_eq!(chunk_rows(&op(4096, 4096, 11008), &Target::H200), Ok(1024));
    }

    #[test]
    fn weights_packed_at_load_take_the_kernels_of_whole_rows() {
        let takes = |op: &FusedMlp| {
            let (_, target) = choose(FusedMlp::VARIANTS, op, &Target::H200, None).unwrap();
            (target.configured(Kernels::all(target.arch)).is_some_and(|kernels| matches!(kernels, Kernels::Sm90(_))), workspace(op, &target))
        };
        let odd = op(300, 4095, 11008);
        assert_eq!(takes(&odd), (false, 300 * 11008 * 2), "two bytes at a time");
        let padded = odd.with_padded_weights();
        assert_eq!(takes(&padded), (true, 300 * (11008 + 4096) * 2), "X alone is copied");
        assert_eq!(takes(&FusedMlp { x_stride: 4096, ..padded }), (true, 300 * 11008 * 2));
        assert!(!takes(&op(300, 4096, 11007).with_padded_weights()).0, "an odd intermediate");
        assert!(workspace(&op(100_000, 4095, 11008).with_padded_weights(), &Target::H200) <= MAX_WORKSPACE);
    }

    #[test]
    fn both_products_of_an_mlp_fill_whole_rounds() {
        let widths = |tokens, d_model, d_ff| pair(&op(tokens, d_model, d_ff), &Target::H200).map(|tile| (tile.columns, tile.last));
        assert_eq!([256, 512].map(|tokens| widths(tokens, 4096, 11008)), [[(168, 168), (64, 64)], [(168, 168), (128, 128)]]);
        assert_eq!([1024, 4096].map(|tokens| widths(tokens, 4096, 11008)), [[(256, 160), (256, 256)]; 2]);
        assert_eq!([512, 1024].map(|tokens| widths(tokens, 5120, 13824)), [[(256, 168), (160, 160)]; 2]);
        let gated = FusedMlp { gated: true, ..op(2048, 4096, 11008) };
        assert_eq!(
            pair(&gated, &Target::H200).map(Some),
            [WgmmaTile::MIDDLE, WgmmaTile::WIDE].map(WgmmaTile::alone),
            "half of its columns are whole in runs of 32"
        );
    }

    #[test]
    fn the_last_chunk_takes_the_tiles_of_the_others() {
        // 4,224 tokens are 132 tiles of 192 outputs of the second product, and the rest are 124.
        let op = op(8192, 768, 3072);
        assert_eq!(chunk_rows(&op, &Target::H200), Ok(4224));
        assert_eq!(pair(&op, &Target::H200).map(Some), [Some(WgmmaTile::PINGPONG), WgmmaTile::MIDDLE.alone()]);
    }

    fn drawn(numbers: &mut Numbers) -> FusedMlp {
        let dtype = numbers.one(&[DType::F16, DType::F16, DType::BF16, DType::F32]);
        let tokens = if numbers.coin() { numbers.size(128) } else { numbers.size(9000) };
        let dims = [tokens, numbers.size(8192), numbers.size(16_384), numbers.size(8192)];
        let plain = FusedMlp::new(dtype, dims, numbers.one(&[Activation::Silu, Activation::Relu, Activation::GeluTanh]));
        let mut op = FusedMlp { gated: numbers.coin(), ..plain };
        if numbers.coin() {
            op = op.with_padded_weights();
        }
        if numbers.coin() {
            op.x_stride = op.x_stride.next_multiple_of(8);
        }
        op
    }

    #[test]
    fn what_is_chosen_and_whatever_is_able_is_compiled() {
        let mut numbers = Numbers::new(20_261_124);
        let ops: Vec<_> = (0..1500).map(|_| drawn(&mut numbers)).collect();
        check(ops, &mut numbers);
    }
}
