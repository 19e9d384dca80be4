//! Parameters of a product that adds the part of LoRA adapters to its own sums (`kernels/gemm/adapter_sums.cuh`).

use super::problem::GemmParams;
use crate::backends::cuda::variant::params::params;

params! {
    /// What `kernels/gemm/adapter_sums.cuh` reads of one adapter slice.
    AdapterSlice {
        shrunk: [const element],
        token_scale: [const f32],
        fragments: [const u32],
        table_scale: [const f32],
        basis: [const element],
    }
}

params! {
    /// What a product reads to add the part of adapters to its sums.
    AdapterSums {
        token_adapter: [const i32],
        /// Columns of every slice, and groups of 32 columns.
        columns: u32,
        groups: u32,
        slices: [AdapterSlice; 3],
    }
}

params! {
    /// Parameters of a product that adds the part of adapters.
    AdaptedParams {
        gemm: GemmParams,
        sums: AdapterSums,
    }
}

/// The headers that a kernel with [`AdaptedParams`] includes, beside that of the product.
pub(crate) fn adapted_headers() -> Vec<(&'static str, String)> {
    vec![adapter_header(), ("gemm/adapted_params.cuh", AdaptedParams::cuda())]
}

/// The header that declares [`AdapterSums`].
pub(crate) fn adapter_header() -> (&'static str, String) {
    ("gemm/adapter_params.cuh", [AdapterSlice::cuda(), AdapterSums::cuda()].concat())
}
