//! The products of projections that read the same rows, before anything is planned: which lie in one product, and what lies between two factors.

use std::ops::Range;

use super::config::Config;
use super::fill::Fill;
use crate::dtype::DType;

/// The projections q, k and v, by their numbers in [`Config::projections`].
pub const QKV: Range<usize> = 0..3;
/// The output projection of attention.
pub const OUTPUT: Range<usize> = 3..4;
/// The first products of the MLP.
pub const GATE_UP: Range<usize> = 4..6;
/// The last product of the MLP.
pub const DOWN: Range<usize> = 6..7;

/// The products of some projections of one layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    pub d_in: u64,
    pub parts: Vec<Part>,
    /// Columns of adapters' bases behind those between the factors.
    pub fill: u64,
    /// Whether the last two parts end between their factors: pages hold what lies there.
    pub latent: bool,
    pub bias: bool,
    pub residual: bool,
    /// The eps of the norm of what the projections read, as the bits of an f32, where there is one.
    pub norm: Option<u32>,
    /// Whether the projections are a gate and what it lets through.
    pub gated: bool,
}

/// A product of a [`Form`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    pub d_out: u64,
    /// Columns between its two factors, where it has two: the rank, rounded up to 16 bytes.
    pub rank: Option<u64>,
}

impl Form {
    /// The products of the projections `group` of a layer. Where all are matrices they are one product, unless their results are to lie apart.
    pub fn of(config: &Config, dtype: DType, layer: usize, group: Range<usize>) -> Self {
        let (bias, residual, apart) = match group.start {
            0 => (config.qkv_bias, false, config.apart()),
            3 => (config.output_bias, true, false),
            6 => (false, true, false),
            _ => (false, false, false),
        };
        let projections = &config.projections(layer)[group.clone()];
        let d_in = projections.first().map_or(1, |(_, [_, d_in])| *d_in);
        let parts: Vec<Part> =
            projections.iter().map(|(path, [d_out, _])| Part { d_out: *d_out, rank: config.inner_rank(path).map(|rank| dtype.row_stride(rank)) }).collect();
        let fill = dtype.row_stride(projections.iter().filter_map(|(path, _)| config.fill(path)).map(Fill::rows).sum());
        let whole = !apart && parts.iter().all(|part| part.rank.is_none());
        let parts = if whole { vec![Part { d_out: parts.iter().map(|part| part.d_out).sum(), rank: None }] } else { parts };
        let norm = [QKV, GATE_UP].contains(&group).then(|| config.norm_eps.to_bits());
        Self { d_in, parts, fill, latent: config.latent && group.start == 0, bias, residual, norm, gated: group == GATE_UP }
    }

    /// Columns between the factors of all parts, side by side.
    pub fn ranks(&self) -> u64 {
        self.parts.iter().filter_map(|part| part.rank).sum()
    }

    /// The columns of a token's latents, of its key and of its value, where these are two factors.
    pub fn latents(&self) -> [u64; 2] {
        [1, 2].map(|number: usize| self.parts.get(number).and_then(|part| part.rank).unwrap_or(0))
    }

    /// All columns that a page of latents holds of a token: the latents, and where it is `filled` what adapters' bases give, which lies behind them.
    pub fn kept(&self, filled: bool) -> u64 {
        self.latents().iter().sum::<u64>() + if filled { self.fill } else { 0 }
    }

    /// Columns that the first factors give: those between factors, and those of the bases that they carry.
    pub fn between(&self) -> u64 {
        self.ranks() + self.fill
    }
}
