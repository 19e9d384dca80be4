//! What the kernels for dense factors on both sides share, as LoRA is trained: parameters, sizes and units.
//!
//! A unit is up to [`ROWS`] tokens of one adapter. A block has a unit and a share of a factor.

use super::entry::Entry;
use super::factor::scaled_by_token;
use super::launch::{self, Slices};
use crate::backends::cuda::jit::{Source, Unit};
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Target, address, address_of};
use crate::device::Slice;
use crate::dtype::DType;
use crate::ops::codebook_gemm::{CodebookSlice, CodebookSliceArgs, Factor, FactorArgs};
use crate::ops::{CodebookGemm, CodebookGemmArgs};

params! {
    /// What slices of one launch do not share.
    DenseSlice {
        y: [element],
        input: [const element],
        input_of: [const i32],
        output: [const element],
        output_of: [const i32],
        y_stride: u64,
        d_out: u32,
        rank: u32,
    }
}

params! {
    /// Parameters of a launch.
    DenseParams {
        x: [const element],
        /// The words of the token index.
        index: [const i32],
        scaling: [const f32],
        /// h in the workspace: for each slice, each share of d_in, and each token in the index's order.
        shrunk: [f32],
        x_stride: u64,
        tokens: u32,
        d_in: u32,
        /// The most units that there may be.
        units: u32,
        /// Shares of d_in, and of the columns of the widest slice.
        shares: u32,
        pieces: u32,
        accumulate: u32,
        /// Whether each token has a scaling of its own.
        scaled_by_token: u32,
        unused: u32,
        slices: [DenseSlice; 8],
    }
}

/// The most slices of one launch.
pub(crate) const TOGETHER: usize = 8;
/// Constants of `kernels/codebook_gemm/dense.cuh`.
pub(crate) const ROWS: u64 = 16;
/// Columns of both factors that kernels are compiled for.
pub(crate) const RANKS: [u64; 5] = [16, 32, 64, 128, 256];

/// The rank that the kernels for an operation are compiled for.
pub(crate) fn rank_of(op: &CodebookGemm) -> u64 {
    let rank = op.slices.iter().map(|slice| slice.rank).max().unwrap_or(0);
    RANKS.into_iter().find(|&padded| rank <= padded).unwrap_or(RANKS[RANKS.len() - 1])
}

/// Elements of a factor in a share, by which kernels are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) rank: u64,
    pub(crate) elements: u64,
}

/// Elements of a share: 32 KiB, so that the blocks of two launches fill an SM. One adapter of a small rank has few blocks, and twice as many
/// are sooner done. Rows of the largest rank are long.
const SHARE: u64 = 16 << 10;

impl Form {
    /// Every form.
    pub(crate) const ALL: [Self; 6] = [
        Self { rank: 16, elements: SHARE / 2 },
        Self { rank: 16, elements: SHARE },
        Self { rank: 32, elements: SHARE },
        Self { rank: 64, elements: SHARE },
        Self { rank: 128, elements: SHARE },
        Self { rank: 256, elements: 2 * SHARE },
    ];

    /// The form of an operation. The order in which h is summed depends on it, so it may not depend on the batch.
    pub(crate) fn of(op: &CodebookGemm) -> Self {
        let rank = rank_of(op);
        let elements = match rank {
            16 if op.adapters == 1 => SHARE / 2,
            256 => 2 * SHARE,
            _ => SHARE,
        };
        Self { rank, elements }
    }

    /// Rows of a factor in a share.
    const fn rows(self) -> u64 {
        self.elements / self.rank
    }

    /// Bytes of a share.
    pub(crate) const fn share_bytes(self) -> u64 {
        self.elements * 2
    }

    /// Bytes of an expand block's shared memory.
    pub(crate) const fn expand_bytes(self) -> u64 {
        self.share_bytes() + self.coefficient_bytes()
    }

    /// Bytes of what a unit's tokens are multiplied with on the output side.
    pub(crate) const fn coefficient_bytes(self) -> u64 {
        ROWS * (self.rank + 8) * 2
    }

    /// The unit of kernel `entry` for this form, whose blocks have `warps` warps and `shared_bytes` of shared memory.
    pub(crate) fn unit(self, entry: Entry, variant: &str, source: Source, dtype: DType, warps: u64, shared_bytes: u64) -> Unit {
        let name = format!("codebook_gemm/{variant} {dtype} rank {} shares of {}", self.rank, self.rows());
        let base = Unit {
            headers: vec![("codebook_gemm/dense_params.cuh", [DenseSlice::cuda(), DenseParams::cuda()].concat())],
            defines: vec![
                ("ELEMENT", dtype.name().into()),
                ("RANK", self.rank.to_string()),
                ("SHARE_ELEMENTS", self.elements.to_string()),
                ("WARPS", format!("{warps}u")),
                ("SHARED_BYTES", shared_bytes.to_string()),
                ("EXPAND_BYTES", self.expand_bytes().to_string()),
            ],
            ..Unit::new(name, source)
        };
        entry.unit(base, "codebook_gemm_sgmv_dense", shared_bytes as u32)
    }
}

/// The most units that there may be.
pub(crate) fn most_units(op: &CodebookGemm) -> u64 {
    let segments = op.tokens.min(op.adapters.into());
    segments + (op.tokens - segments) / ROWS
}

/// Shares of d_in.
pub(crate) fn shares(op: &CodebookGemm) -> u64 {
    op.d_in.div_ceil(Form::of(op).rows())
}

/// Shares of the columns of the widest slice.
pub(crate) fn pieces(op: &CodebookGemm) -> u64 {
    op.slices.iter().map(|slice| slice.d_out).max().unwrap_or(1).div_ceil(Form::of(op).rows())
}

/// Whether kernels for dense factors can compute `op`, with `shared` bytes of shared memory a block, or why not.
pub(crate) fn supports(op: &CodebookGemm, target: &Target, shared: u64) -> std::result::Result<(), String> {
    if op.dtype == DType::F32 {
        return Err("f32: the tensor cores would round it to 11 bits".into());
    }
    for slice in &op.slices {
        match (slice.input, slice.output) {
            (Factor::Dense { .. }, Factor::Dense { .. }) => {}
            _ => return Err("a factor of codes: both are dense here".into()),
        }
        if slice.core {
            return Err("a core: it is to be multiplied into a factor".into());
        }
        if slice.rank > RANKS[RANKS.len() - 1] {
            return Err(format!("rank {}, at most {}", slice.rank, RANKS[RANKS.len() - 1]));
        }
    }
    if op.adapters == 0 {
        return Err("no adapters: there is no block that would write y".into());
    }
    let widest = op.slices.iter().map(|slice| slice.d_out).chain([op.d_in, op.tokens]).max().unwrap_or(0);
    let blocks = most_units(op).saturating_mul(shares(op).max(pieces(op)));
    if widest >= 1 << 30 || blocks >= 1 << 31 {
        return Err(format!("{widest} columns or tokens, {blocks} blocks: more than 32 bits count"));
    }
    if shared > target.shared_bytes.into() {
        return Err(format!("{shared} bytes of shared memory, the device has {}", target.shared_bytes));
    }
    Ok(())
}

/// Whether rows of x, of both factors and of y are whole multiples of 16 bytes, and start at such multiples.
pub(crate) fn whole(op: &CodebookGemm, args: &CodebookGemmArgs<Cuda>, slices: &Slices<'_>) -> bool {
    let starts = |slice: &Slice<Cuda>| address(slice).is_multiple_of(16);
    let dense = |factor: &FactorArgs<Cuda>| matches!(factor, FactorArgs::Dense { values, .. } if starts(values));
    may_be_whole(op) && starts(&args.x) && slices.iter().all(|(_, of)| starts(&of.y) && dense(&of.input) && dense(&of.output))
}

/// Whether [`whole`] may hold, wherever operands lie.
pub(crate) fn may_be_whole(op: &CodebookGemm) -> bool {
    op.slices.iter().all(|slice| launch::may_be_whole(op, slice))
}

/// The parameters of a launch of `slices`, at most [`TOGETHER`].
pub(crate) fn params(op: &CodebookGemm, args: &CodebookGemmArgs<Cuda>, slices: &Slices<'_>, shrunk: u64) -> DenseParams {
    let own = |(slice, of): &(&CodebookSlice, &CodebookSliceArgs<Cuda>)| {
        let factor = |factor: &FactorArgs<Cuda>| match factor {
            FactorArgs::Dense { values, basis_of } => (address(values), address_of(basis_of.as_ref().map(|index| index.slice()))),
            // `supports` has refused codes.
            FactorArgs::Coded { .. } => (0, 0),
        };
        let ((input, input_of), (output, output_of)) = (factor(&of.input), factor(&of.output));
        DenseSlice { y: address(&of.y), input, input_of, output, output_of, y_stride: slice.y_stride, d_out: slice.d_out as u32, rank: slice.rank as u32 }
    };
    let none = DenseSlice { y: 0, input: 0, input_of: 0, output: 0, output_of: 0, y_stride: 0, d_out: 0, rank: 0 };
    let mut all = [none; TOGETHER];
    all.iter_mut().zip(slices).for_each(|(to, slice)| *to = own(slice));
    DenseParams {
        x: address(&args.x),
        index: address(args.token_adapter.slice()),
        scaling: address(&args.scaling),
        shrunk,
        x_stride: op.x_stride,
        tokens: op.tokens as u32,
        d_in: op.d_in as u32,
        units: most_units(op) as u32,
        shares: shares(op) as u32,
        pieces: pieces(op) as u32,
        accumulate: u32::from(op.accumulate),
        scaled_by_token: scaled_by_token(op),
        unused: 0,
        slices: all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_one_that_kernels_are_compiled_for() {
        for rank in [1, 8, 16, 17, 32, 64, 100, 128, 200, 256] {
            for adapters in [1, 2, 100] {
                let factor = Factor::Dense { bases: adapters };
                let op = CodebookGemm::s2lc(DType::F16, 7, [4096, 4096, 16], adapters, crate::ops::CodeWidth::FourThree);
                let op = op.with_slices(vec![CodebookSlice::new(4096, rank, factor, factor)]);
                assert!(Form::ALL.contains(&Form::of(&op)), "{rank} {adapters}");
                assert_eq!(shares(&op), 4096 * Form::of(&op).rank / Form::of(&op).elements);
            }
        }
    }

    #[test]
    fn units_are_as_many_as_tokens_can_make() {
        let op = |tokens, adapters| CodebookGemm::s2lc(DType::F16, tokens, [64, 64, 16], adapters, crate::ops::CodeWidth::FourThree);
        for (tokens, adapters, most) in [(0, 5, 0), (1, 5, 1), (16, 1, 1), (17, 1, 2), (256, 100, 109), (1024, 100, 157), (33, 2, 3)] {
            assert_eq!(most_units(&op(tokens, adapters)), most, "{tokens} {adapters}");
        }
    }

    #[test]
    fn parameters_fit_what_every_driver_takes() {
        assert!(size_of::<DenseParams>() <= 4096);
    }
}
