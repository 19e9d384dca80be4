use std::borrow::Cow;

use super::{BlockKind, BlockShape, HostIndex, Index};
use crate::device::{Device, Slice};
use crate::error::{Result, ensure};

/// A map of the present blocks of the score matrix, with a byte for each block, as whoever scores blocks leaves them.
///
/// Bytes are `[patterns, q_blocks, kv_blocks]`, filled up to whole words. 0 is absent, 2 is present under the causal mask, any other value
/// is present in full. Every byte is legal. So other work on the device may write them ([`Index::bytes`]) before each launch, in the same
/// captured graph. Backends make the lists of blocks that their kernels walk from the map that is then on the device. Where the host knows
/// the blocks, a [`BlockMask`](super::BlockMask) spares that work, and has masks inside blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockMap {
    bytes: Vec<u8>,
    shape: MapShape,
}

/// What the device's copy is sized and read by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MapShape {
    /// Queries and keys of a block: 64 or 128.
    pub block: u32,
    /// Blocks along the queries: `q_len / block`, rounded up.
    pub q_blocks: u32,
    /// Blocks along the keys.
    pub kv_blocks: u32,
    /// The number of patterns: 1 (shared by all), `heads` (shared by the batch), or `batch · heads`.
    pub patterns: u32,
}

impl MapShape {
    /// Blocks of all patterns.
    pub fn blocks(&self) -> u64 {
        (u64::from(self.q_blocks) * u64::from(self.kv_blocks)).saturating_mul(u64::from(self.patterns))
    }

    /// The shape of lists with room for every block. There are fewer than 2^31 blocks, as [`Attention`](crate::ops::Attention) checks.
    pub(crate) fn lists(&self) -> BlockShape {
        let Self { block, q_blocks, kv_blocks, patterns } = *self;
        BlockShape { block, q_blocks, kv_blocks, patterns, capacity: u32::try_from(self.blocks()).unwrap_or(u32::MAX), masks: 0 }
    }
}

impl BlockMap {
    /// A map from `bytes[patterns, q_blocks, kv_blocks]`.
    ///
    /// # Errors
    /// Another number of bytes, 2^31 of them, or a block that is neither 64 nor 128 long.
    pub fn new(bytes: &[u8], shape: MapShape) -> Result<Self> {
        ensure(shape.block == 64 || shape.block == 128, "block", "64 or 128", shape.block)?;
        ensure(shape.blocks() < 1 << 31, "block map", "fewer than 2^31 blocks", shape.blocks())?;
        ensure(bytes.len() as u64 == shape.blocks(), "block map", format_args!("{} bytes", shape.blocks()), bytes.len())?;
        Ok(Self { bytes: bytes.to_vec(), shape })
    }

    /// The bytes, one a block: `[patterns, q_blocks, kv_blocks]`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The kind of block that a byte marks; none where the block is absent.
    pub(crate) const fn kind(byte: u8) -> Option<BlockKind> {
        match byte {
            0 => None,
            2 => Some(BlockKind::Causal),
            _ => Some(BlockKind::Full),
        }
    }

    /// The kind of the block in a row and column; none where it is absent.
    ///
    /// # Panics
    /// The map has no such block.
    pub fn block(&self, pattern: usize, row: usize, column: usize) -> Option<BlockKind> {
        let place = (pattern * self.shape.q_blocks as usize + row) * self.shape.kv_blocks as usize + column;
        Self::kind(self.bytes[place])
    }
}

impl<D: Device> Index<BlockMap, D> {
    /// The map's bytes, which other work may write.
    pub fn bytes(&self) -> &Slice<D> {
        self.slice()
    }
}

impl HostIndex for BlockMap {
    const NAME: &'static str = "block map";
    type Shape = MapShape;

    fn shape(&self) -> MapShape {
        self.shape
    }

    fn words(&self) -> Cow<'_, [i32]> {
        let whole = self.bytes.chunks_exact(4);
        let mut last = [0; 4];
        let rest = whole.remainder();
        last[..rest.len()].copy_from_slice(rest);
        let last = if rest.is_empty() { None } else { Some(i32::from_le_bytes(last)) };
        whole.map(|word| i32::from_le_bytes([word[0], word[1], word[2], word[3]])).chain(last).collect()
    }

    fn capacity(shape: &MapShape) -> u64 {
        shape.blocks().div_ceil(4)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SHAPE: MapShape = MapShape { block: 64, q_blocks: 2, kv_blocks: 3, patterns: 1 };

    #[test]
    fn bytes_are_laid_out_as_documented() {
        let map = BlockMap::new(&[1, 0, 2, 255, 0, 7], SHAPE).unwrap();
        assert_eq!(*map.words(), [0xff02_0001_u32 as i32, 0x0700]);
        assert_eq!(map.words().len() as u64, BlockMap::capacity(&SHAPE));
        let row = |row| [0, 1, 2].map(|column| map.block(0, row, column));
        assert_eq!(row(0), [Some(BlockKind::Full), None, Some(BlockKind::Causal)]);
        assert_eq!(row(1), [Some(BlockKind::Full), None, Some(BlockKind::Full)]);
        assert_eq!(SHAPE.lists().capacity, 6);
    }

    #[test]
    fn another_number_of_bytes_is_refused() {
        assert!(BlockMap::new(&[0; 5], SHAPE).is_err() && BlockMap::new(&[0; 7], SHAPE).is_err());
        assert!(BlockMap::new(&[0; 6], MapShape { block: 32, ..SHAPE }).is_err());
    }
}
