//! The blocks of queries on their way to the device.

use std::sync::Arc;

use trifuse::ops::Attention;
use trifuse::ops::attention::Form;
use trifuse::ops::index::{BlockMap, BlockMask, BlockShape, HostIndex, MapShape};
use trifuse::{Error, Result};

/// The blocks of a launch, checked, on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mask {
    /// A byte a block.
    Map(Arc<BlockMap>),
    /// Rows of blocks.
    Rows(BlockMask),
}

impl Mask {
    fn patterns(&self) -> u32 {
        match self {
            Self::Map(map) => map.shape().patterns,
            Self::Rows(rows) => rows.shape().patterns,
        }
    }

    /// The form of an operation with these blocks.
    pub fn form(&self) -> Form {
        match self {
            Self::Map(map) => Form::BlockMap(map.shape()),
            Self::Rows(rows) => Form::Blocks(rows.shape()),
        }
    }

    /// The form of a launch of as many queries like `op`, each with blocks like these and of its own; none where numbers do not hold it.
    pub fn form_of_several(&self, op: &Attention, queries: u64) -> Option<Form> {
        let patterns = u32::try_from(op.heads.checked_mul(op.batch)?.checked_mul(queries)?).ok()?;
        Some(match self {
            Self::Map(map) => Form::BlockMap(MapShape { patterns, ..map.shape() }),
            Self::Rows(rows) => {
                let BlockShape { patterns: own, capacity, .. } = rows.shape();
                let times = patterns.checked_div(own)?;
                Form::Blocks(BlockShape { patterns, capacity: capacity.checked_mul(times)?.checked_next_power_of_two()?, ..rows.shape() })
            }
        })
    }

    /// The blocks of queries like `op` that are one launch: those of the first, where its sequences share them and the others have the same; else
    /// those of each, one behind the other.
    ///
    /// # Errors
    /// No query; blocks of other kinds or sizes.
    pub fn joined(masks: &[Self], op: &Attention) -> Result<Self> {
        let fault = |found: &str| Error::invalid("queries of one launch", "blocks of one kind", found);
        let Some(first) = masks.first() else { return Err(fault("none")) };
        let each = u32::try_from(op.heads * op.batch).map_err(|_| fault("too many"))?;
        let shared = [1, op.heads].contains(&first.patterns().into());
        if masks.len() == 1 || shared && masks.iter().all(|mask| first == mask) {
            return Ok(first.clone());
        }
        let times = each.checked_div(first.patterns()).unwrap_or(1) as usize;
        let patterns = u32::try_from(masks.len()).ok().and_then(|count| count.checked_mul(each)).ok_or_else(|| fault("too many"))?;
        match first {
            Self::Map(map) => {
                let mut bytes = Vec::new();
                for mask in masks {
                    let Self::Map(own) = mask else { return Err(fault("others")) };
                    (0..times).for_each(|_| bytes.extend_from_slice(own.bytes()));
                }
                Ok(Self::Map(Arc::new(BlockMap::new(&bytes, MapShape { patterns, ..map.shape() })?)))
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
