//! Sequences of their own lengths, as a server has them in one launch.

use serde::{Deserialize, Serialize};

use trifuse::error::Result;
use trifuse::ops::index::{PageShape, Varlen};
use trifuse_testkit::cases::Draw;

/// What a prompt is taken in, where keys lie in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Queries of each sequence: its last ones.
    pub queries: u64,
    /// Tokens of a page.
    pub page: u64,
}

/// All sequences of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequences {
    /// Keys of each.
    pub lengths: Vec<u64>,
    /// Keys in pages, for so many queries of each sequence; else all lie end to end, with as many queries as keys.
    pub chunk: Option<Chunk>,
    /// Heads of q.
    pub heads: u64,
    /// Heads of k and v.
    pub kv_heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Whether a query sees no later key.
    pub causal: bool,
}

/// Lengths as a server has them, drawn from nothing but their number: the first one is `longest`, no other is shorter than an eighth of that.
pub fn lengths(count: u64, longest: u64) -> Vec<u64> {
    let mut draw = Draw::seeded("lengths");
    let least = longest.div_ceil(8);
    (0..count).map(|i| if i == 0 { longest } else { least + u64::from(draw.below((longest - least + 1) as u32)) }).collect()
}

/// Running totals.
pub fn starts(lengths: &[u64]) -> Vec<i32> {
    let mut total = 0;
    std::iter::once(0)
        .chain(lengths.iter().map(|length| {
            total += *length as i32;
            total
        }))
        .collect()
}

impl Sequences {
    /// What `--shape` searches.
    pub fn name(&self) -> String {
        let Self { lengths, chunk, heads, kv_heads, head_dim, causal } = self;
        let form = chunk.map_or_else(|| "end to end".to_owned(), |Chunk { queries, page }| format!("q{queries} over pages of {page},"));
        format!("{form} b{} h{heads}/{kv_heads} d{head_dim} to s{}{}", lengths.len(), self.longest(), if *causal { " causal" } else { "" })
    }

    pub fn longest(&self) -> u64 {
        self.lengths.iter().copied().max().unwrap_or(0)
    }

    /// Queries of a sequence.
    pub fn queries(&self, length: u64) -> u64 {
        self.chunk.map_or(length, |chunk| chunk.queries)
    }

    pub fn ends(&self) -> Result<Varlen> {
        let (cu, longest) = (starts(&self.lengths), self.longest());
        Varlen::new(&cu, &cu, longest, longest)
    }

    pub fn cache(&self, page: u64) -> PageShape {
        let used = self.lengths.iter().map(|length| length.div_ceil(page));
        PageShape { batch: self.lengths.len() as u64, pages: self.longest().div_ceil(page), page, pool_pages: used.sum() }
    }

    /// Pages of each sequence in the pool, which are neighbours of each other nowhere.
    pub fn table(cache: PageShape) -> Vec<u64> {
        let pool = cache.pool_pages;
        // A step that has no divisor in common with their number goes to every page once.
        let step = (pool / 2 + 1..).find(|&step| (2..=pool.min(step)).all(|n| !pool.is_multiple_of(n) || !step.is_multiple_of(n))).unwrap_or(1);
        (0..pool).map(|n| n * step % pool.max(1)).collect()
    }
}
