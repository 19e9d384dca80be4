//! Which variant an MLP takes where several support it: what measurements said is faster.

use super::skinny_tile;
use crate::backends::cuda::gemm::sm90::cost::enough_rows;
use crate::backends::cuda::variant::Target;
use crate::ops::FusedMlp;

type Suits = std::result::Result<(), String>;

/// Of `sm90_skinny_tile`.
pub(crate) fn skinny_tile(op: &FusedMlp, target: &Target) -> Suits {
    enough_rows(op.tokens)?;
    match skinny_tile::filling(op, target) {
        Some(_) => Ok(()),
        None => Err(format!("{} and {} outputs: not a tile for most multiprocessors, and no more", op.d_ff, op.d_out)),
    }
}

/// Of `sm90`.
pub(crate) fn tiles(op: &FusedMlp, _: &Target) -> Suits {
    enough_rows(op.tokens)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::backends::cuda::jit::Arch;
    use crate::backends::cuda::variant::{Table, choose};
    use crate::dtype::DType;
    use crate::ops::Activation;

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
        for target in TARGETS {
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
}
