//! How kernels receive the adapters' factors.

use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, address, address_of};
use crate::ops::CodebookGemm;
use crate::ops::codebook_gemm::{Factor, FactorArgs, ScaledBy};
use crate::ops::index::{Index, TokenAdapters};

params! {
    /// A factor of compressed adapters: dense (`values`, `basis_of`) or coded (`codes`, `codebooks`).
    FactorParams {
        values: [const element],
        basis_of: [const i32],
        codes: [const u32],
        codebooks: [const f32],
        d: u64,
        rank: u32,
        coded: u32,
        /// Bits of a field of codes; 255 where every column names its own.
        bits: u32,
        words_per_adapter: u32,
    }
}

impl FactorParams {
    /// The parameters of an operation without adapters.
    pub(crate) const NONE: Self = Self { values: 0, basis_of: 0, codes: 0, codebooks: 0, d: 0, rank: 0, coded: 0, bits: 0, words_per_adapter: 0 };
}

/// The header with [`FactorParams`], which `kernels/tile/codes.cuh` includes.
pub(crate) fn factor_header() -> (&'static str, String) {
    ("tile/factor.cuh", FactorParams::cuda())
}

/// The parameters of a factor of `d` rows and `rank` columns, given as `args`.
pub(crate) fn factor(factor: Factor, args: &FactorArgs<Cuda>, d: u64, rank: u64) -> FactorParams {
    let common = FactorParams { d, rank: rank as u32, ..FactorParams::NONE };
    match (factor, args) {
        (Factor::Coded { width, words_per_adapter }, FactorArgs::Coded { codes, codebooks }) => FactorParams {
            codes: address(codes.slice()),
            codebooks: address(codebooks),
            coded: 1,
            bits: width.map_or(255, |width| width.bits()),
            words_per_adapter,
            ..common
        },
        (_, FactorArgs::Dense { values, basis_of }) => {
            FactorParams { values: address(values), basis_of: address_of(basis_of.as_ref().map(|index| index.slice())), ..common }
        }
        // `check` has refused the other pairings.
        (_, FactorArgs::Coded { .. }) => common,
    }
}

/// The address at which the index holds each token's adapter: behind two counts.
pub(crate) fn adapter_of_token(index: &Index<TokenAdapters, Cuda>) -> u64 {
    address(index.slice()) + 8
}

/// Whether each token has a scaling of its own, as kernels receive it.
pub(crate) fn scaled_by_token(op: &CodebookGemm) -> u32 {
    u32::from(op.scaled_by == ScaledBy::Token)
}
