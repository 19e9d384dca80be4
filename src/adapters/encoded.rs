//! What an encoded population is made of: shared bases, and for each adapter and projection two factors and a core.
//!
//! `ΔW = scaling · O · Qᵀ · Iᵀ`, with `I [d_in, R]`, `Q [R, R]`, `O [d_out, R]`: the terms of
//! [`crate::ops::codebook_gemm`]. Which factors are shared, coded or plain is the rung of the ladder.

use std::collections::BTreeMap;

use half::f16;

use super::certificate::Certificate;
use crate::ops::codes::{CODEBOOK_LEN, CodeWidth};

/// A host matrix, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix<T = f32> {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// `rows · cols` elements.
    pub data: Vec<T>,
}

/// A compressed population.
#[derive(Clone, Debug, PartialEq)]
pub struct Population {
    /// By module path (`encoder.layer.0.attention.self.query`).
    pub projections: BTreeMap<String, SharedProjection>,
    /// By adapter name.
    pub adapters: BTreeMap<String, EncodedAdapter>,
}

/// What all adapters of a population share in one projection.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedProjection {
    /// Columns of the weight.
    pub d_in: usize,
    /// Rows of the weight.
    pub d_out: usize,
    /// Input bases `V`, each `[d_in, R]`; every one of the same R.
    pub input_bases: Vec<Matrix<f16>>,
    /// Output bases, each `[d_out, R]`; every one of the same R.
    pub output_bases: Vec<Matrix<f16>>,
}

/// One adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedAdapter {
    /// The `adapter_config.json` it came with, so that it can be given back.
    pub config: serde_json::Value,
    /// By module path. A projection that the adapter does not touch is absent.
    pub projections: BTreeMap<String, EncodedProjection>,
}

/// One adapter in one projection.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedProjection {
    /// `I`.
    pub input: EncodedFactor,
    /// `Q`, `[R, R]`: `g[j] = Σ_i h[i] · Q[i, j]`.
    pub core: Option<Matrix<f32>>,
    /// `O`.
    pub output: EncodedFactor,
    /// The scale in front of the product (LoRA's own, where it is not folded into the factors).
    pub scaling: f32,
    /// What was kept.
    pub certificate: Certificate,
}

/// One factor of one adapter in one projection.
#[derive(Clone, Debug, PartialEq)]
pub enum EncodedFactor {
    /// The shared basis of that number.
    Shared(usize),
    /// Codes: a packed column for each of the R columns (see [`crate::ops::codes`]).
    Coded(CodedColumns),
    /// The adapter's own, plain, `[d, r]`.
    Plain(Matrix<f16>),
}

/// Packed columns and the codebook that they index.
#[derive(Clone, Debug, PartialEq)]
pub struct CodedColumns {
    /// Elements of a column.
    pub d: usize,
    /// The width and words of each column.
    pub columns: Vec<(CodeWidth, Vec<u32>)>,
    /// Entries that no width in use indexes are 0.
    pub codebook: [f32; CODEBOOK_LEN],
}

/// The rungs of the ladder, cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// One input basis for all, output codes: S2LC as published.
    SharedInput,
    /// One of several input bases, output codes.
    ClusteredInput,
    /// One output basis for all, input codes.
    SharedOutput,
    /// Both factors private, both coded.
    PrivateCoded,
    /// Plain f16 LoRA: nothing lost but the rounding.
    Plain,
}
