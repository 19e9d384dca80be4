//! The sizes of the tensors that are asked for.

use serde::Serialize;
use trifuse::{Error, Result};

/// Options of attention alone.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Options {
    /// Sets of tensors that lie on the server with --route attention, of which each request names one; by default 128
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub sets: Option<u32>,
    /// Queries and keys of a set; by default 8064
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=262_144))]
    pub tokens: Option<u32>,
    /// Heads of a set; by default 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub heads: Option<u32>,
    /// Elements of a head; by default 64
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub head_dim: Option<u32>,
    /// Blocks of the score matrix that are present for each head, the diagonal among them; 0 for all without a map; by default 800, or as many as there may be
    #[arg(long, value_name = "N")]
    pub blocks: Option<u32>,
    /// Queries and keys of a block, 64 or 128; by default 128
    #[arg(long, value_name = "N", value_parser = block)]
    pub block: Option<u32>,
}

fn block(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|block| [64, 128].contains(block)).ok_or_else(|| "expected 64 or 128".into())
}

/// The most elements of a tensor, so that one of each is held here.
const MOST: u64 = 1 << 28;
/// Elements of a tensor are a multiple of these, so that each begins at 16 bytes.
const STEP: u64 = 8;

/// The sizes of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    pub sets: u64,
    pub tokens: u64,
    pub heads: u64,
    pub head_dim: u64,
    /// Blocks of each head that are present; 0 where all are, without a map.
    pub blocks: u64,
    pub block: u64,
}

impl Options {
    /// Whether any is given.
    pub fn given(&self) -> Option<&'static str> {
        let Self { sets, tokens, heads, head_dim, blocks, block } = self;
        let all = [("--sets", sets), ("--tokens", tokens), ("--heads", heads), ("--head-dim", head_dim), ("--blocks", blocks), ("--block", block)];
        all.into_iter().find_map(|(name, value)| value.map(|_| name))
    }

    /// The sizes that they give.
    ///
    /// # Errors
    /// Sizes that no tensor has, and blocks that a map of these sizes does not have.
    pub fn shape(&self) -> Result<Shape> {
        let or = |value: Option<u32>, default: u32| u64::from(value.unwrap_or(default));
        let (tokens, heads, head_dim) = (or(self.tokens, 8064), or(self.heads, 1), or(self.head_dim, 64));
        let elements = tokens * heads * head_dim;
        if elements > MOST || !elements.is_multiple_of(STEP) {
            return Err(Error::invalid("--tokens · --heads · --head-dim", format!("a multiple of {STEP}, at most {MOST}"), elements));
        }
        let block = or(self.block, 128);
        let along = tokens.div_ceil(block);
        let (least, most) = (along, along * along);
        let blocks = self.blocks.map_or_else(|| 800.clamp(least, most), u64::from);
        if blocks == 0 && self.block.is_some() {
            return Err(Error::invalid("--block", "a map that it belongs to", "--blocks 0"));
        }
        if blocks != 0 && !(least..=most).contains(&blocks) {
            return Err(Error::invalid("--blocks", format!("0, or {least} to {most} of {along} x {along}, as the diagonal is present"), blocks));
        }
        Ok(Shape { sets: or(self.sets, 128), tokens, heads, head_dim, blocks, block })
    }
}

impl Shape {
    /// Elements of one of the tensors of a set.
    pub fn elements(&self) -> u64 {
        self.tokens * self.heads * self.head_dim
    }

    /// Bytes of one of the tensors of a set, in f16.
    pub fn bytes(&self) -> u64 {
        2 * self.elements()
    }

    /// Blocks along the queries, and as many along the keys.
    pub fn along(&self) -> u64 {
        self.tokens.div_ceil(self.block)
    }

    /// Bytes of the map of a set, which has a pattern for each head; none where all blocks are present.
    pub fn map_bytes(&self) -> u64 {
        if self.blocks == 0 { 0 } else { self.heads * self.along() * self.along() }
    }

    /// Bytes from one map to the next. A device copies whole words.
    pub fn map_stride(&self) -> u64 {
        self.map_bytes().next_multiple_of(16)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_options_or_what_suits_them() {
        let whole = Options::default().shape().unwrap();
        assert_eq!(whole, Shape { sets: 128, tokens: 8064, heads: 1, head_dim: 64, blocks: 800, block: 128 });
        assert_eq!((whole.bytes(), whole.along(), whole.map_bytes(), whole.map_stride()), (1_032_192, 63, 3969, 3984));
        let with = |change: &dyn Fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            options.shape()
        };
        assert_eq!(with(&|options| options.tokens = Some(200)).unwrap().blocks, 4, "all of 2 x 2");
        let dense = with(&|options| (options.tokens, options.blocks) = (Some(8), Some(0))).unwrap();
        assert_eq!((dense.map_bytes(), dense.map_stride(), dense.bytes()), (0, 0, 1024));
        for (change, told) in [
            (&(|options: &mut Options| options.blocks = Some(62)) as &dyn Fn(&mut Options), "63 to 3969"),
            (&|options| options.blocks = Some(3970), "63 to 3969"),
            (&|options| (options.blocks, options.block) = (Some(0), Some(64)), "--block"),
            (&|options| (options.tokens, options.head_dim) = (Some(7), Some(3)), "multiple of 8"),
            (&|options| (options.tokens, options.heads) = (Some(1 << 18), Some(1024)), "at most"),
        ] {
            let error = with(change).unwrap_err();
            assert!(error.to_string().contains(told) && error.exit_status() == 2, "{error}");
        }
        assert_eq!((Options::default().given(), block("32").is_err(), block("64")), (None, true, Ok(64)));
    }
}
