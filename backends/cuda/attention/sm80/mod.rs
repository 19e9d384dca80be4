//! `attention` with the tensor cores of sm80 and later.

pub(crate) mod decode;
pub(crate) mod decode_block;
pub(crate) mod ragged_pages;
pub(crate) mod tile;
pub(crate) mod unaligned;
pub(crate) mod varlen_short;

pub(crate) use tile::Tile;

use crate::backends::cuda::attention::block_lists as lists;
use crate::backends::cuda::attention::choose;
use crate::backends::cuda::attention::params::{self, parameters};
use crate::backends::cuda::attention::repack::{self as repack, Repack};
use crate::backends::cuda::attention::sm80::tile::{HELD, ROWS, WARPS, aligned, band, limits, pack, rows_aligned, tiles, work};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, blocks, number};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm80",
    label: "attention/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: Some(Configs {
        names: |_| Kernel::ALL.map(|kernel| kernel.word().into()).into(),
        choose: |op, target| number(Kernel::ALL.into_iter(), &Kernel::fastest(&lists::listed(op), target)),
    }),
    unit,
    units,
    workspace: |op, target| lists::workspace(op, |op| Kernel::of(op, target).copies(op).bytes()),
    launch,
};

/// The kernels of this variant. A plan launches one of them, or [`unaligned`] where operands turn out to start off a multiple of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    /// The kernel for every form.
    General,
    /// The kernel for sequences without lists and with many queries.
    Wide,
    /// The kernel for rows that start anywhere.
    Unaligned,
}

impl Kernel {
    const ALL: [Self; 3] = [Self::General, Self::Wide, Self::Unaligned];

    /// The kernel that the target forces, or the fastest one. `op` has no map.
    fn of(op: &Attention, target: &Target) -> Self {
        target.configured(Self::ALL.into_iter()).unwrap_or_else(|| Self::fastest(op, target))
    }

    fn fastest(op: &Attention, target: &Target) -> Self {
        if Self::General.can_take(op, target).is_err() {
            Self::Unaligned
        } else if Self::Wide.can_take(op, target).is_ok() && choose::wide(op, target) {
            Self::Wide
        } else {
            Self::General
        }
    }

    /// Whether the kernel can compute an operation without a map, or why not.
    fn can_take(self, op: &Attention, target: &Target) -> std::result::Result<(), String> {
        let tile = Tile::of(op);
        if self != Self::Unaligned && !rows_aligned(&self.copies(op).reads(op)) {
            return Err("rows do not start on multiples of 16 bytes".into());
        }
        if self == Self::Wide && (matches!(op.form, Form::Blocks(_) | Form::Paged(_)) || pack(op) > 1) {
            return Err("it walks over neither lists nor pages, and heads that share keys have tiles of their own".into());
        }
        if self == Self::Wide && !tile.has_wide(target.arch) {
            return Err(format!("a block needs {} bytes of shared memory", tile.wide_bytes()));
        }
        Ok(())
    }

    /// The operands that are copied first, to rows that start at multiples of 16 bytes. Copying pays where more than one tile reads them.
    /// An operation may use few pages of a pool, so pages are not copied.
    fn copies(self, op: &Attention) -> Repack {
        let pays = op.q_len > ROWS && !matches!(op.form, Form::Paged(_));
        Repack::of(op, |rows| self == Self::Unaligned || !pays || rows.aligned(op.dtype))
    }

    const fn word(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Wide => "wide",
            Self::Unaligned => "unaligned",
        }
    }

    fn unit(self, tile: Tile, dtype: DType) -> Unit {
        let (source, entries, shared_bytes): (_, &[&str], _) = match self {
            Self::General => (source!("attention/sm80/tile.cu"), &["attention_sm80"], tile.general_bytes()),
            Self::Wide => (source!("attention/sm80/wide.cu"), &["attention_sm80_wide"], tile.wide_bytes()),
            Self::Unaligned => return unaligned::unit(tile.held(), dtype),
        };
        let mut defines = tile.defines(dtype, Arch(80));
        defines.push(("SHARED_BYTES", shared_bytes.to_string()));
        Unit {
            headers: params::headers(),
            defines,
            entries,
            shared_bytes,
            also: vec![unaligned::unit(tile.held(), dtype)],
            ..Unit::new(format!("attention/sm80 {} {dtype} head_dim {}", self.word(), tile.held()), source)
        }
    }
}

fn unit(op: &Attention, target: &Target) -> Unit {
    let listed = lists::listed(op);
    let kernel = Kernel::of(&listed, target);
    let mut unit = kernel.unit(Tile::of(op), op.dtype);
    unit.also.extend([kernel.copies(&listed).unit(), lists::unit_of(op)].into_iter().flatten());
    unit
}

fn units(arch: Arch) -> Vec<Unit> {
    let kernels = |tile: Tile| Kernel::ALL.into_iter().filter(move |kernel| *kernel != Kernel::Wide || tile.has_wide(arch));
    let each = HELD.iter().flat_map(|&held| kernels(Tile::exactly(held)).map(move |kernel| (kernel, Tile::exactly(held))));
    each.flat_map(|(kernel, tile)| {
        [DType::F16, DType::BF16].map(|dtype| {
            let mut unit = kernel.unit(tile, dtype);
            unit.also.extend([repack::unit(), lists::unit()]);
            unit
        })
    })
    .collect()
}

fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    limits(op, target)?;
    if let Form::RaggedPaged(_) = op.form {
        return Err("ragged pages have a variant of their own".into());
    }
    // With no configuration forced, rows may start anywhere.
    target.configured(Kernel::ALL.into_iter()).map_or(Ok(()), |kernel| kernel.can_take(&lists::listed(op), target))
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { lists::launch(queue, plan, workspace, args, launch_listed) }
}

unsafe fn launch_listed(queue: &mut Queue, plan: &Plan<Attention>, op: &Attention, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let (tile, kernel) = (Tile::of(op), Kernel::of(op, &plan.target));
    let copies = kernel.copies(op);
    // SAFETY: the caller's promise; a workspace is a buffer of its own.
    let starts = unsafe { copies.launch(queue, plan, workspace, args)? };
    let op = &copies.reads(op);
    let mut params = parameters(op, args, pack(op));
    [params.q, params.k, params.v] = starts;
    let (entry, rows, shared_bytes) = match kernel {
        Kernel::Wide if aligned(op, &params) => ("attention_sm80_wide", tile.wide_rows(), tile.wide_bytes()),
        Kernel::General if aligned(op, &params) => ("attention_sm80", ROWS, tile.general_bytes()),
        // SAFETY: the caller's promise; every plan has that kernel.
        _ => return unsafe { unaligned::launch(queue, plan, tile.held(), op, args, starts) },
    };
    (params.tiles, params.band) = (tiles(op, rows) as u32, band(op) as u32);
    // The kernel's PDL wait stands before its first read.
    let overlap = plan.target.arch.0 >= 90;
    let launch = Launch { shared_bytes, overlap, ..Launch::new(blocks(work(op, rows)), (WARPS * 32) as u32) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, entry, &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_the_kernels_that_it_can_launch_and_no_others() {
        let target = Target { arch: Arch(80), units: 108, shared_bytes: 163 << 10, config: None };
        let names = |op: &Attention| unit(op, &target).all().into_iter().map(|unit| unit.entries).collect::<Vec<_>>().concat();
        let op = |q_len, head_dim| Attention::dense(DType::F16, 4, [32, 32], [q_len, 2048], head_dim);
        assert_eq!(names(&op(2048, 128)), ["attention_sm80_wide", "attention_sm80_narrow"]);
        assert_eq!(names(&op(2048, 107)), ["attention_sm80_wide", "attention_sm80_narrow", repack::ENTRY]);
        assert_eq!(names(&op(1, 128)), ["attention_sm80", "attention_sm80_narrow"]);
        assert_eq!(names(&op(1, 107)), ["attention_sm80_narrow"]);
    }
}
