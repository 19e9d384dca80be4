//! The blocks of queries on their way to the device.

use trifuse::ops::Attention;
use trifuse::ops::attention::Form;
use trifuse::ops::index::{BlockMap, BlockMask, BlockShape, HostIndex, MapShape};
use trifuse::{Error, Result};

use super::regions::Part;

/// The blocks of a launch.
#[derive(Clone, Debug)]
pub enum Mask {
    /// A byte a block, on the host.
    Map(BlockMap),
    /// Rows of blocks, checked, on the host.
    Rows(BlockMask),
    /// A byte a block, on the device: the parts one behind the other, all of them equally long. Every byte is legal, so that the host need not see them.
    There(Vec<Part>, MapShape),
}

impl Mask {
    /// Whether these are the blocks of `other`. What lies on the device may have changed.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Map(own), Self::Map(other)) => own == other,
            (Self::Rows(own), Self::Rows(other)) => own == other,
            _ => false,
        }
    }

    /// Whether a launch may read these blocks in place of `other`.
    fn serves_for(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::There(own, _), Self::There(other, _)) => own.len() == other.len() && own.iter().zip(other).all(|(own, other)| own.is(other)),
            _ => self.is(other),
        }
    }

    fn patterns(&self) -> u32 {
        match self {
            Self::Map(map) => map.shape().patterns,
            Self::Rows(rows) => rows.shape().patterns,
            Self::There(_, shape) => shape.patterns,
        }
    }

    /// The form of an operation with these blocks.
    pub fn form(&self) -> Form {
        match self {
            Self::Map(map) => Form::BlockMap(map.shape()),
            Self::Rows(rows) => Form::Blocks(rows.shape()),
            Self::There(_, shape) => Form::BlockMap(*shape),
        }
    }

    /// The blocks of queries like `op` that are one launch: those of the first, where its sequences share them and the others have the same; else
    /// those of each, one behind the other.
    ///
    /// # Errors
    /// No query; blocks of other kinds or sizes; on the device, blocks that the sequences of a query share and the others do not have.
    pub fn joined(masks: &[Self], op: &Attention) -> Result<Self> {
        let fault = |found: &str| Error::invalid("queries of one launch", "blocks of one kind", found);
        let Some(first) = masks.first() else { return Err(fault("none")) };
        let each = u32::try_from(op.heads * op.batch).map_err(|_| fault("too many"))?;
        let shared = [1, op.heads].contains(&first.patterns().into());
        if masks.len() == 1 || shared && masks.iter().all(|mask| first.serves_for(mask)) {
            return Ok(first.clone());
        }
        let times = each.checked_div(first.patterns()).unwrap_or(1) as usize;
        let patterns = u32::try_from(masks.len()).ok().and_then(|count| count.checked_mul(each)).ok_or_else(|| fault("too many"))?;
        match first {
            Self::Map(map) => {
                let mut bytes = Vec::new();
                for mask in masks {
                    let Self::Map(own) = mask else { return Err(fault("others")) };
                    let words: Vec<u8> = own.words().iter().flat_map(|word| word.to_le_bytes()).collect();
                    let own = words.get(..own.shape().blocks() as usize).ok_or_else(|| fault("fewer"))?;
                    bytes.extend_from_slice(&own.repeat(times));
                }
                Ok(Self::Map(BlockMap::new(&bytes, MapShape { patterns, ..map.shape() })?))
            }
            Self::Rows(rows) => {
                let (mut starts, mut columns) = (Vec::new(), Vec::new());
                for mask in masks {
                    let Self::Rows(own) = mask else { return Err(fault("others")) };
                    let BlockShape { patterns, q_blocks, .. } = own.shape();
                    let before = i32::try_from(columns.len()).map_err(|_| fault("too many"))?;
                    let words = own.words();
                    let (own_starts, rest) = words.split_at_checked(patterns as usize * (q_blocks as usize + 1)).ok_or_else(|| fault("fewer"))?;
                    let own_starts: Vec<i32> = own_starts.iter().map(|start| before + start).collect();
                    starts.extend_from_slice(&own_starts.repeat(times));
                    columns.extend_from_slice(rest.get(..own.nnz()).ok_or_else(|| fault("fewer"))?);
                }
                Ok(Self::Rows(listed(&starts, &columns, BlockShape { patterns, ..rows.shape() })?))
            }
            Self::There(_, shape) if times == 1 => {
                let mut all = Vec::with_capacity(masks.len());
                for mask in masks {
                    let Self::There(parts, _) = mask else { return Err(fault("others")) };
                    all.extend_from_slice(parts);
                }
                Ok(Self::There(all, MapShape { patterns, ..*shape }))
            }
            Self::There(..) => Err(fault("blocks of each, which sequences share")),
        }
    }
}

/// Rows of blocks. A plan is made for a capacity, so that lists of about the same length share one.
///
/// # Errors
/// The errors of [`BlockMask::new`].
pub fn listed(starts: &[i32], columns: &[i32], shape: BlockShape) -> Result<BlockMask> {
    let capacity = u32::try_from(columns.len().max(1).next_power_of_two()).unwrap_or(u32::MAX);
    BlockMask::new(starts, columns, &[], &[], BlockShape { capacity, masks: 0, ..shape })
}
