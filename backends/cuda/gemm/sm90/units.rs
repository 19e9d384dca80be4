//! The kernels of Hopper that `linear` and both products of `fused_mlp` take: the unit of each.

use super::skinny::{SkinnyParams, SkinnyShape};
use super::skinny_tile::SkinnyTile;
use super::tile::WgmmaTile;
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::{Entry, entry};
use crate::backends::cuda::gemm::lora::adapted_headers;
use crate::backends::cuda::gemm::problem::{GemmParams, gemm_header};
use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::variant::params::params;
use crate::dtype::DType;

params! {
    /// A product whose K is in parts.
    SplitKParams {
        gemm: GemmParams,
        /// Of every tile, those that another block finishes.
        sums: [f32],
        /// Of every slice of a tile and warpgroup, the parts that have sent theirs. All zero between launches.
        arrived: [u32],
    }
}

/// What a kernel is compiled for beside its tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub dtype: DType,
    /// Whether there are two weights.
    pub gated: bool,
    pub activation: ActivationForm,
}

impl Form {
    pub(crate) const fn plain(dtype: DType, activation: ActivationForm) -> Self {
        Self { dtype, gated: false, activation }
    }

    /// Every one of those weights.
    pub(crate) fn all(dtypes: &'static [DType], gated: bool) -> impl Iterator<Item = Self> + Clone {
        dtypes.iter().flat_map(move |&dtype| ActivationForm::ALL.map(|activation| Self { dtype, gated, activation }))
    }

    fn defines(self, gated: &'static str) -> [(&'static str, String); 3] {
        [("ELEMENT", self.dtype.name().into()), ("ACTIVATION_FORM", self.activation.name().into()), (gated, self.gated.to_string())]
    }

    /// In the names of units.
    fn name(self) -> String {
        format!("{}{}", if self.gated { "gated, " } else { "" }, self.activation.name())
    }
}

/// A kernel of `kernels/gemm/sm90/tile.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WgmmaKernel {
    /// For outputs that can be moved 16 bytes at a time.
    Whole,
    /// For all others.
    Unaligned,
    /// With what adapters add, their basis as further rows of W.
    Lora,
}

impl WgmmaKernel {
    const ALL: [Self; 3] = [Self::Whole, Self::Unaligned, Self::Lora];

    const fn entry(self) -> Entry {
        match self {
            Self::Whole => entry!("gemm_wgmma"),
            Self::Unaligned => entry!("gemm_wgmma_unaligned"),
            Self::Lora => entry!("gemm_wgmma_lora"),
        }
    }

    /// What a plan launches it by.
    pub(crate) const fn name(self) -> &'static str {
        self.entry().name()
    }

    /// Whether there is one of that tile.
    fn has(self, tile: &WgmmaTile) -> bool {
        match self {
            Self::Whole => true,
            Self::Unaligned => !tile.is_pingpong(),
            Self::Lora => tile.takes_lora(),
        }
    }

    /// Those for a product of so many outputs: the tile has all of them. Where outputs start, only the launch knows.
    pub(crate) fn within(tile: &WgmmaTile, outputs: u64) -> impl Iterator<Item = Self> {
        let kinds = [(Self::Whole, outputs.is_multiple_of(8)), (Self::Unaligned, Self::Unaligned.has(tile))];
        kinds.into_iter().filter(|(_, there)| *there).map(|(kernel, _)| kernel)
    }

    /// Every one of that tile for a product by one weight.
    pub(crate) fn all(tile: WgmmaTile) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |kernel| kernel.has(&tile))
    }

    /// `tile` as this kernel has it.
    pub(crate) fn tile(self, tile: &WgmmaTile) -> WgmmaTile {
        if self == Self::Unaligned { tile.of_odd_outputs() } else { *tile }
    }

    pub(crate) fn unit(self, tile: &WgmmaTile, form: Form) -> Unit {
        let tile = &self.tile(tile);
        let headers = match self {
            Self::Lora => [vec![gemm_header(), ("gemm/split_k_params.cuh", SplitKParams::cuda())], adapted_headers()].concat(),
            _ => vec![gemm_header(), ("gemm/split_k_params.cuh", SplitKParams::cuda())],
        };
        let shared_bytes = match self {
            Self::Whole => tile.shared_bytes(),
            Self::Unaligned => tile.unaligned_shared_bytes(),
            Self::Lora => tile.lora_shared_bytes(),
        };
        let name = format!("{} {}, {}, {}", self.name(), form.dtype, tile.name(), form.name());
        let defines = [tile.defines(), form.defines("WGMMA_GATED").into()].concat();
        self.entry().alone(Unit { headers, defines, shared_bytes, ..Unit::new(name, source!("gemm/sm90/tile.cu")) })
    }
}

/// A kernel of `kernels/gemm/sm90/skinny.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SkinnyKernel {
    /// A warpgroup, or a cluster's blocks, a tile.
    Tiles,
    /// Both warpgroups of a block a tile, of at most 64 rows of W.
    Groups,
}

impl SkinnyKernel {
    const fn entry(self) -> Entry {
        match self {
            Self::Tiles => entry!("gemm_skinny"),
            Self::Groups => entry!("gemm_skinny_groups"),
        }
    }

    /// What a plan launches it by.
    pub(crate) const fn name(self) -> &'static str {
        self.entry().name()
    }

    pub(crate) fn unit(self, tile: &SkinnyShape, split: bool, form: Form) -> Unit {
        let cut = match (split, tile.cluster()) {
            (false, _) => "",
            (true, 2) => ", K split",
            _ => ", K in quarters",
        };
        let name = format!("{} {}, {}, {}{cut}", self.name(), form.dtype, tile.name(), form.name());
        self.entry().alone(Unit {
            headers: vec![gemm_header(), ("gemm/skinny_params.cuh", SkinnyParams::cuda())],
            defines: [tile.defines(split), form.defines("SKINNY_GATED").into()].concat(),
            shared_bytes: tile.shared_bytes(),
            ..Unit::new(name, source!("gemm/sm90/skinny.cu"))
        })
    }
}

/// The kernel of `kernels/gemm/sm90/skinny_tile.cu`.
pub(crate) fn skinny_tile_unit(tile: &SkinnyTile, dtype: DType, activation: ActivationForm) -> Unit {
    let form = Form { dtype, gated: tile.gated, activation };
    let numbers = [
        ("SKINNY_TILE_COLUMNS", tile.columns),
        ("SKINNY_TILE_STAGES", tile.stages()),
        ("SKINNY_TILE_PARTS", tile.parts),
        ("TOKEN_STAGES", tile.x_stages()),
        ("CLUSTER", tile.parts),
    ];
    let mut defines: Vec<_> = numbers.map(|(name, value)| (name, value.to_string())).into();
    defines.push(("SKINNY_TILE_SEVERAL", tile.several.to_string()));
    defines.extend(form.defines("SKINNY_TILE_GATED"));
    let parts = if tile.parts == 1 { String::new() } else { format!(", K in {} parts", tile.parts) };
    let turns = if tile.several { " in turn" } else { "" };
    Unit {
        headers: vec![gemm_header()],
        defines,
        entries: &[SkinnyTile::ENTRY],
        shared_bytes: tile.shared_bytes(),
        ..Unit::new(format!("{} {dtype}, {} columns{turns}{parts}, {}", SkinnyTile::ENTRY, tile.columns, form.name()), source!("gemm/sm90/skinny_tile.cu"))
    }
}
