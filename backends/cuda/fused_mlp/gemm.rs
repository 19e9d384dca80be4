//! `fused_mlp` on the tensor cores: the variant `gemm`. Both of its products take kernels that `linear` has too.

use super::problem::{all_beside, chunk_rows, workspace};
use super::{mma, skinny, skinny_tile, tile};
use crate::backends::cuda::gemm::entry::listed;
use crate::backends::cuda::gemm::problem::{HALVES, fits, half};
use crate::backends::cuda::gemm::repack::repack_unit;
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm90::skinny_config::Stream;
use crate::backends::cuda::gemm::sm90::skinny_tile::SkinnyTile;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::jit::Arch;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

pub(crate) const GEMM: Variant<FusedMlp> = Variant {
    name: "gemm",
    label: "fused_mlp/gemm",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::BySource(&[("gemm/sm90/", "HGMMA"), ("gemm/", "HMMA")]),
    supports: |op, target| {
        half(op.dtype)?;
        let rows = chunk_rows(op, target)?;
        target.any(Kernels::all(target.arch), |kernels| kernels.takes(op, rows, target))
    },
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, target| match configured(target) {
        Kernels::SkinnyTile(pair) => skinny_tile::unit(op, &pair),
        Kernels::Skinny(down) => skinny::unit(op, &down),
        Kernels::Sm90(pair) => tile::unit(op, &pair),
        Kernels::Sm80(tile) => mma::unit(op, &tile),
    },
    units: |arch: Arch| match hopper(arch) {
        true => listed(skinny_tile::units().chain(skinny::units()).chain(tile::units()).chain(mma::units(arch)), all_beside()),
        false => listed(mma::units(arch), HALVES.map(repack_unit)),
    },
    workspace,
    launch,
};

/// A configuration: the kernels of both products, named as `linear`'s variants with these kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernels {
    SkinnyTile([SkinnyTile; 2]),
    /// The second product's configuration. The first product takes its tile too.
    Skinny(Stream),
    Sm90([WgmmaTile; 2]),
    /// The tile of both products.
    Sm80(MmaTile),
}

/// Whether the architecture has wgmma.
fn hopper(arch: Arch) -> bool {
    RunsOn::Only(90).accept(arch).is_ok()
}

impl Kernels {
    /// Every configuration of an architecture.
    pub(crate) fn all(arch: Arch) -> impl Iterator<Item = Self> {
        let few = skinny_tile::pairs().map(Self::SkinnyTile).chain(Stream::of_mlp().map(Self::Skinny));
        let of_hopper = few.chain(tile::pairs().map(Self::Sm90)).filter(move |_| hopper(arch));
        of_hopper.chain(MmaTile::on(arch).map(Self::Sm80))
    }

    fn config(&self) -> String {
        match self {
            Self::SkinnyTile(pair) => format!("sm90_skinny-{}-tile", skinny_tile::config(pair)),
            Self::Skinny(down) => format!("sm90_skinny-{}", down.config()),
            Self::Sm90([up, down]) => format!("sm90-{}+{}", up.config(), down.config()),
            Self::Sm80(tile) => format!("sm80-{}", tile.config()),
        }
    }

    /// Whether the kernels can compute `op` in chunks of this many rows, or why not.
    pub(crate) fn takes(&self, op: &FusedMlp, rows: u64, target: &Target) -> std::result::Result<(), String> {
        match self {
            Self::SkinnyTile(pair) => skinny_tile::takes(op, pair, rows, target),
            Self::Skinny(down) => skinny::takes(op, down, rows, target),
            Self::Sm90(pair) => tile::takes(op, pair, rows, target),
            Self::Sm80(tile) => fits(tile.shared_bytes(), target),
        }
    }
}

pub(crate) fn names(arch: Arch) -> Vec<String> {
    Kernels::all(arch).map(|kernels| kernels.config()).collect()
}

/// The configuration of a target.
fn configured(target: &Target) -> Kernels {
    target.configured(Kernels::all(target.arch)).unwrap_or(Kernels::Sm80(MmaTile::MIDDLE))
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        match plan.once(|plan| Ok(configured(&plan.target)))? {
            Kernels::SkinnyTile(pair) => skinny_tile::launch(queue, plan, workspace, args, &pair),
            Kernels::Skinny(down) => skinny::launch(queue, plan, workspace, args, &down),
            Kernels::Sm90(pair) => tile::launch(queue, plan, workspace, args, pair),
            Kernels::Sm80(tile) => mma::launch(queue, plan, workspace, args, &tile),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_differ() {
        for (arch, count) in [(90, 24 + 16 + 69 + 4), (80, 4), (86, 4)] {
            let names = names(Arch(arch));
            assert_eq!((names.len(), names.iter().collect::<HashSet<_>>().len()), (count, count), "{names:?}");
        }
    }

    #[test]
    fn a_unit_shows_the_instruction_of_its_source() {
        let shown: HashSet<_> = (GEMM.units)(Arch(90)).iter().map(|unit| (unit.source.path, GEMM.tensor_cores.instruction(unit))).collect();
        let of = |path, instruction| (path, Some(instruction));
        let sources = ["gemm/sm90/skinny_tile.cu", "gemm/sm90/skinny.cu", "gemm/sm90/tile.cu"].map(|path| of(path, "HGMMA"));
        assert_eq!(shown, sources.into_iter().chain([of("gemm/sm80/tile.cu", "HMMA")]).collect());
    }
}
