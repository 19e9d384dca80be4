//! `linear` on CUDA: its variants, best first.

pub(crate) mod choose;
pub(crate) mod gemv;
pub(crate) mod gemv_unaligned;
pub(crate) mod layernorm;
pub(crate) mod problem;
pub(crate) mod simt;
pub(crate) mod single_shot;
pub(crate) mod skinny;
pub(crate) mod skinny_lora;
pub(crate) mod skinny_tile;
pub(crate) mod split_k;
pub(crate) mod swap_ab;
pub(crate) mod swap_ab_tile;
pub(crate) mod tile;
pub(crate) mod weight_stationary;

use simt::SIMT;

use crate::backends::cuda::codebook_gemm::long_tile::NAME as PREPARED;
use crate::backends::cuda::codebook_gemm::prepare::prepares;
use crate::backends::cuda::variant::{Table, Target, Variant, count, names};
use crate::ops::{CodebookGemm, Linear};

impl Table for Linear {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { count(&VARIANTS) }>(&VARIANTS);

    /// The adapters' operation, whose result the tensor-core variants find in y, or whose factors they take.
    fn delta(&self, variant: &Variant<Self>, target: &Target) -> Option<(CodebookGemm, Option<&'static str>)> {
        let delta = self.delta.as_ref().filter(|_| variant.name != SIMT.name)?;
        let delta = CodebookGemm { accumulate: false, ..delta.clone() };
        let only = prepares(&delta, target).is_ok().then_some(PREPARED);
        Some((delta, only))
    }
}

const VARIANTS: [Variant<Linear>; 11] = [
    Variant { suits: choose::suits_gemv_unaligned, configs: Some(choose::GEMV_UNALIGNED), ..gemv_unaligned::ROWS },
    Variant { suits: choose::suits_gemv, configs: Some(choose::GEMV), ..gemv::GEMV },
    Variant { suits: choose::adapted, configs: Some(choose::SKINNY_LORA), ..skinny_lora::ADAPTED },
    Variant { suits: choose::suits_skinny_tile, configs: Some(choose::SKINNY_TILE), ..skinny_tile::SKINNY_TILE },
    Variant { suits: choose::suits_skinny, configs: Some(choose::SKINNY), ..skinny::SKINNY },
    Variant { suits: choose::suits_swap_ab, configs: Some(choose::SWAP_AB), ..swap_ab::SWAP_AB },
    Variant { configs: Some(choose::LAYERNORM), ..layernorm::LAYERNORM },
    Variant { suits: choose::weight_stationary, configs: Some(choose::WEIGHT_STATIONARY), ..weight_stationary::WEIGHT_STATIONARY },
    Variant { suits: choose::tiles, configs: Some(choose::SM90), ..tile::SM90 },
    Variant { configs: Some(choose::SM80), ..tile::SM80 },
    SIMT,
];

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::backends::cuda::variant::choose as choose_of;
    use crate::dtype::DType;
    use crate::ops::{Activation, CodeWidth};

    /// The file of the kernels that an operation takes, and its workspace.
    fn taken(op: &Linear, target: &Target) -> Option<(&'static str, u64)> {
        let (variant, target) = choose_of(&VARIANTS, op, target, None).ok()?;
        let file = (variant.unit)(op, &target).source.path.strip_prefix("gemm/")?.strip_suffix(".cu")?;
        Some((file, (variant.workspace)(op, &target)))
    }

    #[test]
    fn few_rows_take_their_adapters_along() {
        let adapted = |tokens: u64, d_in: u64| {
            let delta = CodebookGemm::s2lc(DType::F16, tokens, [d_in, 4096, 16], 16, CodeWidth::FourThree);
            taken(&Linear { delta: Some(delta), ..Linear::new(DType::F16, [tokens, d_in, 4096]) }, &Target::H200)
        };
        assert_eq!(adapted(16, 4096), Some(("sm90/skinny_lora", 0)));
        assert_eq!(adapted(33, 4096), Some(("sm90/skinny", 0)));
        assert_eq!(adapted(16, 4092).map(|(name, _)| name), Some("sm80/gemv_unaligned"));
    }

    #[test]
    fn small_weights_of_few_rows_lie_in_registers() {
        let name = |sizes: [u64; 3], target: &Target| taken(&Linear::new(DType::F16, [sizes[0], sizes[2], sizes[1]]), target).map(|(name, _)| name);
        for target in [Target::H200, Target::A100] {
            assert!([[1, 960, 576], [16, 576, 1536], [4, 3072, 576]].iter().all(|sizes| name(*sizes, &target) == Some("sm80/gemv")), "{target:?}");
        }
        assert!([[17, 960, 576], [1, 4096, 4096], [1, 49_152, 576]].iter().all(|sizes| name(*sizes, &Target::H200) == Some("sm90/skinny")));
        // A norm before the product is the only kernel's that has one.
        let normed = Linear::new(DType::F16, [1, 2048, 12_288]).with_input_norm(Some(1e-5f32.to_bits()));
        assert_eq!(taken(&normed, &Target::H200), Some(("sm80/gemv", 0)));
        assert_eq!([normed.clone().with_tokens(17), normed.with_d_in(4096).with_padded_weights()].map(|op| taken(&op, &Target::H200)), [None, None]);
    }

    #[test]
    fn weights_packed_at_load_are_streamed_and_take_no_workspace() {
        // Bytes of copies in the workspace: W is never copied, and X only where its rows start anywhere.
        for (rows, packed, padded, copied) in [
            (1, "sm80/gemv_unaligned", "sm90/skinny", 0),
            (16, "sm80/gemv_unaligned", "sm90/skinny", 16),
            (64, "sm90/skinny", "sm90/skinny", 64),
            (2048, "sm90/tile", "sm90/tile", 2048),
        ] {
            let op = Linear::new(DType::F16, [rows, 4095, 4096]);
            let whole = if rows < 17 { 0 } else { rows + 4096 };
            assert_eq!(taken(&op, &Target::H200), Some((packed, whole * 8192)), "{rows} rows");
            let op = op.with_padded_weights();
            assert_eq!(taken(&op, &Target::H200), Some((padded, copied * 8192)), "{rows} rows, w padded");
            assert_eq!(taken(&Linear { x_stride: 4096, ..op }, &Target::H200), Some((padded, 0)), "{rows} rows, both padded");
        }
        for (rows, name, copied) in [(1, "sm80/gemv_unaligned", 0), (8, "sm80/gemv_unaligned", 0), (17, "sm80/tile", 17), (2048, "sm80/tile", 2048)] {
            let op = Linear::new(DType::F16, [rows, 4095, 4096]).with_padded_weights();
            assert_eq!(taken(&op, &Target::RTX_3090), Some((name, copied * 8192)), "{rows} rows");
        }
        let short = Linear { x_stride: 376, ..Linear::new(DType::BF16, [4096, 371, 1536]).with_padded_weights() };
        assert_eq!(taken(&short, &Target::H200), Some(("sm90/weight_stationary", 0)));
    }

    /// The sizes of the cases `linear/across…` take every tile.
    #[test]
    fn the_cases_take_every_tile_of_swap_ab() {
        let sizes = [
            [129, 72, 72],
            [129, 67, 2000],
            [150, 2160, 72],
            [129, 2867, 2000],
            [150, 2864, 72],
            [129, 4264, 72],
            [144, 5760, 648],
            [150, 3464, 4104],
            [129, 14_864, 136],
            [129, 16_960, 72],
        ];
        let mut taken = Vec::new();
        for (n, sizes) in sizes.into_iter().enumerate() {
            let activation = (!n.is_multiple_of(3)).then_some(Activation::ALL[n % Activation::ALL.len()]);
            let op = Linear { bias: true, residual: true, activation, ..Linear::new([DType::F16, DType::BF16][n % 2], [sizes[0], sizes[2], sizes[1]]) };
            let (variant, target) = choose_of(&VARIANTS, &op, &Target::H200, Some("sm90_swap_ab")).unwrap();
            assert_eq!((variant.supports)(&op, &target), Ok(()), "{sizes:?}");
            taken.push(choose::swap_ab(&op, &target));
        }
        assert!(swap_ab_tile::TILES.iter().all(|tile| taken.contains(tile)), "{taken:?}");
    }
}
