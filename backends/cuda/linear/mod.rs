//! `linear` on CUDA: its variants, best first.

pub(crate) mod choose;
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
pub(crate) mod tile;
pub(crate) mod weight_stationary;

use simt::SIMT;

use crate::backends::cuda::variant::{Table, Variant, names};
use crate::ops::{CodebookGemm, Linear};

impl Table for Linear {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { VARIANTS.len() }>(&VARIANTS);

    /// The adapters' part, which the tensor-core variants find in y.
    fn delta(&self, variant: &Variant<Self>) -> Option<CodebookGemm> {
        let delta = self.delta.as_ref().filter(|_| variant.name != SIMT.name)?;
        Some(CodebookGemm { accumulate: false, ..delta.clone() })
    }
}

const VARIANTS: [Variant<Linear>; 11] = [
    layernorm::LAYERNORM,
    skinny_lora::ADAPTED,
    Variant { suits: choose::skinny_tile, ..skinny_tile::SKINNY_TILE },
    Variant { suits: choose::skinny, ..skinny::SKINNY },
    Variant { suits: choose::single_shot, ..single_shot::SINGLE_SHOT },
    Variant { suits: choose::swap_ab, ..swap_ab::SWAP_AB },
    Variant { suits: choose::weight_stationary, ..weight_stationary::WEIGHT_STATIONARY },
    Variant { suits: choose::tiles, ..tile::SM90 },
    gemv_unaligned::ROWS,
    tile::SM80,
    SIMT,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::jit::Arch;
    use crate::backends::cuda::variant::{Target, choose as choose_of};
    use crate::dtype::DType;
    use crate::ops::CodeWidth;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };
    const RTX3090: Target = Target { arch: Arch(86), units: 82, shared_bytes: 99 << 10, config: None };

    /// The variant that is taken, and its workspace.
    fn taken(op: &Linear, target: &Target) -> Option<(&'static str, u64)> {
        choose_of(&VARIANTS, op, target, None).ok().map(|(variant, target)| (variant.name, (variant.workspace)(op, &target)))
    }

    #[test]
    fn few_rows_take_their_adapters_along() {
        let adapted = |tokens: u64, d_in: u64| {
            let delta = CodebookGemm::s2lc(DType::F16, tokens, [d_in, 4096, 16], 16, CodeWidth::FourThree);
            taken(&Linear { delta: Some(delta), ..Linear::new(DType::F16, [tokens, 4096, d_in]) }, &H200)
        };
        assert_eq!(adapted(16, 4096), Some(("sm90_skinny_lora", 0)));
        assert_eq!(adapted(33, 4096), Some(("sm90_skinny", 0)));
        assert_eq!(adapted(16, 4092).map(|(name, _)| name), Some("sm80_gemv_unaligned"));
    }

    #[test]
    fn weights_packed_at_load_are_streamed_and_take_no_workspace() {
        // What is copied lies in the workspace: W never, X where its rows start anywhere.
        for (rows, packed, padded, copied) in [
            (1, "sm80_gemv_unaligned", "sm90_skinny", 0),
            (16, "sm80_gemv_unaligned", "sm90_skinny", 16),
            (64, "sm90_skinny", "sm90_skinny", 64),
            (2048, "sm90", "sm90", 2048),
        ] {
            let op = Linear::new(DType::F16, [rows, 4096, 4095]);
            let whole = if rows < 17 { 0 } else { rows + 4096 };
            assert_eq!(taken(&op, &H200), Some((packed, whole * 8192)), "{rows} rows");
            let op = op.with_padded_weights();
            assert_eq!(taken(&op, &H200), Some((padded, copied * 8192)), "{rows} rows, w padded");
            assert_eq!(taken(&Linear { x_stride: 4096, ..op }, &H200), Some((padded, 0)), "{rows} rows, both padded");
        }
        for (rows, name, copied) in [(1, "sm80_gemv_unaligned", 0), (8, "sm80_gemv_unaligned", 0), (17, "sm80", 17), (2048, "sm80", 2048)] {
            let op = Linear::new(DType::F16, [rows, 4096, 4095]).with_padded_weights();
            assert_eq!(taken(&op, &RTX3090), Some((name, copied * 8192)), "{rows} rows");
        }
        let short = Linear { x_stride: 376, ..Linear::new(DType::BF16, [4096, 1536, 371]).with_padded_weights() };
        assert_eq!(taken(&short, &H200), Some(("sm90_weight_stationary", 0)));
    }
}
