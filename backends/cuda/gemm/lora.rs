//! What a product takes of adapters so as to add their part to its sums itself (`kernels/gemm/adapter_sums.cuh`).

use super::problem::GemmParams;
use crate::backends::cuda::variant::params::params;

params! {
    /// Of a slice, what `kernels/gemm/adapter_sums.cuh` reads.
    AdapterSlice {
        shrunk: [const element],
        token_scale: [const f32],
        fragments: [const u32],
        table_scale: [const f32],
        basis: [const element],
    }
}

params! {
    /// What a product reads to add what adapters do to its sums.
    AdapterSums {
        token_adapter: [const i32],
        /// Of each slice, all alike; and groups of 32 of them.
        columns: u32,
        groups: u32,
        slices: [AdapterSlice; 3],
    }
}

params! {
    /// Of a product with what adapters add.
    AdaptedParams {
        gemm: GemmParams,
        sums: AdapterSums,
    }
}

/// The headers of [`AdaptedParams`], beside that of the product.
pub(crate) fn adapted_headers() -> Vec<(&'static str, String)> {
    vec![adapter_header(), ("gemm/adapted_params.cuh", AdaptedParams::cuda())]
}

/// The header of [`AdapterSums`].
pub(crate) fn adapter_header() -> (&'static str, String) {
    ("gemm/adapter_params.cuh", [AdapterSlice::cuda(), AdapterSums::cuda()].concat())
}
