//! The compile units of the sm90 kernels that `linear` and both products of `fused_mlp` launch.

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
    /// Parameters of a product whose K is split.
    SplitKParams {
        gemm: GemmParams,
        /// Partial sums of every tile that another block finishes.
        sums: [f32],
        /// For every slice of a tile and warpgroup, how many parts have sent their sums. All are zero between launches.
        arrived: [u32],
    }
}

/// What a kernel is compiled for beside its tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub dtype: DType,
    /// Whether there are two weights, one of them the gate's.
    pub gated: bool,
    pub activation: ActivationForm,
}

impl Form {
    pub(crate) const fn plain(dtype: DType, activation: ActivationForm) -> Self {
        Self { dtype, gated: false, activation }
    }

    /// Every form of these dtypes, gated or not.
    pub(crate) fn all(dtypes: &'static [DType], gated: bool) -> impl Iterator<Item = Self> + Clone {
        dtypes.iter().flat_map(move |&dtype| ActivationForm::ALL.map(|activation| Self { dtype, gated, activation }))
    }

    fn defines(self, gated: &'static str) -> [(&'static str, String); 3] {
        [("ELEMENT", self.dtype.name().into()), ("ACTIVATION_FORM", self.activation.name().into()), (gated, self.gated.to_string())]
    }

    /// The form as names of units write it.
    fn name(self) -> String {
        format!("{}{}", if self.gated { "gated, " } else { "" }, self.activation.name())
    }
}

/// A kernel of `kernels/gemm/sm90/tile.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WgmmaKernel {
    /// The kernel for outputs that can be moved 16 bytes at a time.
    Whole,
    /// The kernel for all other outputs.
    Unaligned,
    /// The kernel with the part of LoRA adapters, whose basis comes as further rows of W.
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

    /// The name by which a plan launches the kernel.
    pub(crate) const fn name(self) -> &'static str {
        self.entry().name()
    }

    /// Whether the kernel exists for this tile.
    fn has(self, tile: &WgmmaTile) -> bool {
        match self {
            Self::Whole => true,
            Self::Unaligned => !tile.is_pingpong(),
            Self::Lora => tile.takes_lora(),
        }
    }

    /// The kernels for a product of this many outputs; the tile has all of them. Only the launch knows where outputs start.
    pub(crate) fn within(tile: &WgmmaTile, outputs: u64) -> impl Iterator<Item = Self> {
        let kinds = [(Self::Whole, outputs.is_multiple_of(8)), (Self::Unaligned, Self::Unaligned.has(tile))];
        kinds.into_iter().filter(|(_, there)| *there).map(|(kernel, _)| kernel)
    }

    /// Every kernel of this tile for a product with one weight.
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
    /// A warpgroup, or with split-K a cluster's blocks, takes a tile.
    Tiles,
    /// Both warpgroups of a block take a tile of at most 64 rows of W.
    Groups,
}

impl SkinnyKernel {
    const fn entry(self) -> Entry {
        match self {
            Self::Tiles => entry!("gemm_skinny"),
            Self::Groups => entry!("gemm_skinny_groups"),
        }
    }

    /// The name by which a plan launches the kernel.
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
