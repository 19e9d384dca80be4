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
    /// Columns that its second factor reads, where it has two factors: the rank, rounded up to 16 bytes.
    pub rank: Option<u64>,
    /// Elements from a row of its second factor to the next, and columns between the factors that are its own.
    pub room: u64,
}

/// Bytes of a line of a GPU's L2 cache.
const LINE: u64 = 128;
/// The share of `rank` columns that may be added so that rows start on lines: 1 of so many.
const ADDED: u64 = 32;

/// The columns that `rank` columns between two factors take. Where rows start inside a line, what a product reads of them at a time lies in two: second
/// factors of 512 rows took a quarter longer (`lab/language-models.md`).
fn room(dtype: DType, rank: u64) -> u64 {
    let lines = rank.checked_next_multiple_of(LINE / dtype.size()).unwrap_or(rank);
    if lines - rank <= rank / ADDED { lines } else { rank }
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
        let latent = config.latent && group.start == 0;
        let of = |(path, [d_out, _]): &(String, [u64; 2])| {
            let rank = config.inner_rank(path).map(|rank| dtype.row_stride(rank));
            // What pages hold is not to grow.
            Part { d_out: *d_out, rank, room: rank.map_or(0, |rank| if latent { rank } else { room(dtype, rank) }) }
        };
        let parts: Vec<Part> = projections.iter().map(of).collect();
        let fill = dtype.row_stride(projections.iter().filter_map(|(path, _)| config.fill(path)).map(Fill::rows).sum());
        let whole = !apart && parts.iter().all(|part| part.rank.is_none());
        let parts = if whole { vec![Part { d_out: parts.iter().map(|part| part.d_out).sum(), rank: None, room: 0 }] } else { parts };
        let norm = [QKV, GATE_UP].contains(&group).then(|| config.norm_eps.to_bits());
        Self { d_in, parts, fill, latent, bias, residual, norm, gated: group == GATE_UP }
    }

    /// Whether every part has two factors.
    pub fn factored(&self) -> bool {
        self.parts.iter().all(|part| part.rank.is_some())
    }

    /// Columns between the factors of all parts, side by side.
    pub fn ranks(&self) -> u64 {
        self.parts.iter().map(|part| part.room).sum()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_between_factors_start_on_lines_where_that_adds_little() {
        for (rank, columns) in [(1440, 1472), (1640, 1664), (2392, 2432), (2232, 2240), (576, 576), (1032, 1032), (992, 992), (1000, 1024), (8, 8), (64, 64)] {
            assert_eq!(room(DType::F16, rank), columns, "{rank}");
        }
        assert_eq!([room(DType::F32, 1640), room(DType::F32, 996)], [1664, 1024]);
    }
}
