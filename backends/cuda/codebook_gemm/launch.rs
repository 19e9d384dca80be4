//! Launches of the tensor-core variants of `codebook_gemm`: what slices share, and when a launch may start early (PDL).

use super::entry::Entry;
use super::factor::{factor, scaled_by_token};
use super::tile::{GROUP, GROUPED, ROWS, TileGroup, TileParams, TileSlice};
use crate::backends::cuda::jit::Arch;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, address, address_of, range};
use crate::error::Result;
use crate::ops::codebook_gemm::{CodebookSlice, CodebookSliceArgs, Factor, FactorArgs};
use crate::ops::{CodebookGemm, CodebookGemmArgs};

/// Whether kernels with a PDL wait may start before the launch before them has ended.
pub(crate) fn overlaps(plan: &Plan<CodebookGemm>) -> bool {
    plan.target.arch >= Arch(90)
}

fn aligned(address: u64, stride: u64) -> u32 {
    u32::from(address.is_multiple_of(16) && stride.is_multiple_of(8))
}

pub(crate) fn tile_params(op: &CodebookGemm, args: &CodebookGemmArgs<Cuda>, slice: &CodebookSlice, of: &CodebookSliceArgs<Cuda>, blocks: u32) -> TileParams {
    let input = factor(slice.input, &of.input, op.d_in, slice.rank);
    TileParams {
        x: address(&args.x),
        y: address(&of.y),
        index: address(args.token_adapter.slice()),
        scaling: address(&args.scaling),
        core: address_of(of.core.as_ref()),
        tokens: op.tokens,
        x_stride: op.x_stride,
        y_stride: slice.y_stride,
        input,
        output: factor(slice.output, &of.output, slice.d_out, slice.rank),
        accumulate: u32::from(op.accumulate),
        x_aligned: aligned(address(&args.x), op.x_stride),
        v_aligned: aligned(input.values, slice.rank),
        y_aligned: aligned(address(&of.y), slice.y_stride),
        blocks,
        x_early: 0,
        y_early: 0,
        scaled_by_token: scaled_by_token(op),
    }
}

/// Whether all rows are whole multiples of 16 bytes, so that the short kernel takes them.
pub(crate) fn whole(params: &TileParams) -> bool {
    let aligned = params.x_aligned & params.v_aligned & params.y_aligned == 1;
    aligned && params.input.d.is_multiple_of(8) && params.output.d.is_multiple_of(8) && params.input.rank.is_multiple_of(8)
}

/// Slices with their operands.
pub(crate) type Slices<'a> = [(&'a CodebookSlice, &'a CodebookSliceArgs<Cuda>)];

/// What the slices of one launch have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// How many slices there are.
    pub(crate) slices: u64,
    /// Columns of the widest slice.
    pub(crate) widest: u64,
    /// Whether one basis serves the adapters of each slice.
    pub(crate) one_basis: bool,
}

impl Group {
    pub(crate) fn of<'a>(slices: impl IntoIterator<Item = &'a CodebookSlice>) -> Self {
        let none = Self { slices: 0, widest: 1, one_basis: true };
        slices.into_iter().fold(none, |group, slice| Self {
            slices: group.slices + 1,
            widest: group.widest.max(slice.d_out),
            one_basis: group.one_basis && matches!(slice.input, Factor::Dense { bases: 1 }),
        })
    }

    /// The group of slices with their operands.
    pub(crate) fn with(slices: &Slices<'_>) -> Self {
        Self::of(slices.iter().map(|(slice, _)| *slice))
    }
}

/// Blocks that share a tile, so that a launch has about `wanted` blocks. There are at most `most` of them, and at most one for each group
/// of columns.
pub(crate) fn sharing(op: &CodebookGemm, group: Group, wanted: u64, most: u64) -> u64 {
    let tiles = op.tokens.div_ceil(ROWS).max(1) * group.slices;
    (wanted / tiles).clamp(1, most.min(group.widest.div_ceil(GROUP)))
}

/// The most slices of one launch. Launches should have about equally many.
fn at_once(slices: usize) -> usize {
    slices.div_ceil(slices.div_ceil(GROUPED).max(1)).max(1)
}

/// Calls `launch` with the slices of each launch: all that share it if their rows are whole multiples of 16 bytes, one otherwise.
pub(crate) fn each_group(op: &CodebookGemm, args: &CodebookGemmArgs<Cuda>, mut launch: impl FnMut(&Slices<'_>) -> Result<()>) -> Result<()> {
    let slices: Vec<_> = op.slices.iter().zip(&args.slices).collect();
    let most = at_once(slices.len());
    for group in slices.chunks(most) {
        let together = group.iter().all(|(slice, of)| whole(&tile_params(op, args, slice, of, 1)));
        group.chunks(if together { most } else { 1 }).try_for_each(&mut launch)?;
    }
    Ok(())
}

/// Whether [`whole`] may hold: all rows are whole multiples of 16 bytes where the operands start at such multiples.
pub(crate) fn may_be_whole(op: &CodebookGemm, slice: &CodebookSlice) -> bool {
    [op.x_stride, slice.y_stride, slice.rank, op.d_in, slice.d_out].iter().all(|count| count.is_multiple_of(8))
}

/// The launches that [`each_group`] may make, wherever the operands lie, and whether all rows of each are whole.
pub(crate) fn forms(op: &CodebookGemm) -> Vec<(Group, bool)> {
    let mut forms = Vec::new();
    for group in op.slices.chunks(at_once(op.slices.len())) {
        if group.len() > 1 && group.iter().all(|slice| may_be_whole(op, slice)) {
            forms.push((Group::of(group), true));
        }
        for slice in group {
            forms.push((Group::of([slice]), false));
            if may_be_whole(op, slice) {
                forms.push((Group::of([slice]), true));
            }
        }
    }
    forms
}

/// The parameters of one launch of several slices.
pub(crate) fn tile_group(first: &TileParams, slices: &[TileParams]) -> TileGroup {
    let own = |params: &TileParams| TileSlice {
        y: params.y,
        core: params.core,
        values: params.input.values,
        basis_of: params.input.basis_of,
        codes: params.output.codes,
        codebooks: params.output.codebooks,
        y_stride: params.y_stride,
        d_out: params.output.d,
        rank: params.output.rank,
        bits: params.output.bits,
        words_per_adapter: params.output.words_per_adapter,
        unused: 0,
    };
    let mut group = TileGroup {
        x: first.x,
        index: first.index,
        scaling: first.scaling,
        tokens: first.tokens,
        x_stride: first.x_stride,
        d_in: first.input.d,
        accumulate: first.accumulate,
        blocks: first.blocks,
        x_early: first.x_early,
        y_early: first.y_early,
        scaled_by_token: first.scaled_by_token,
        unused: 0,
        slices: [own(first); GROUPED],
    };
    group.slices.iter_mut().zip(slices).for_each(|(slice, params)| *slice = own(params));
    group
}

/// Enqueues one launch of `slices`, with the kernel for that many.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn launch_group(queue: &mut Queue, plan: &Plan<CodebookGemm>, slices: &[TileParams], entry: Entry, launch: &Launch) -> Result<()> {
    match slices {
        [] => Ok(()),
        // SAFETY: the caller's promise.
        [one] => unsafe { plan.launch(queue, entry.name(), launch, one) },
        [first, ..] => {
            let group = tile_group(first, slices);
            let launch = Launch { grid: [launch.grid[0], slices.len() as u32, 1], ..*launch };
            // SAFETY: as above; the grid has as many rows as there are slices.
            unsafe { plan.launch(queue, entry.name(), &launch, &group) }
        }
    }
}

/// The address ranges that the sm90 kernel reads before its PDL wait. Indices are left out, since no launch writes them.
pub(crate) fn read_early(args: &CodebookGemmArgs<Cuda>, of: &CodebookSliceArgs<Cuda>) -> Vec<std::ops::Range<u64>> {
    let mut reads = vec![range(&args.scaling)];
    for factor in [&of.input, &of.output] {
        reads.push(match factor {
            FactorArgs::Dense { values, .. } => range(values),
            FactorArgs::Coded { codebooks, .. } => range(codebooks),
        });
    }
    reads
}
