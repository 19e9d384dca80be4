use std::borrow::Cow;

use super::HostIndex;
use crate::error::{Error, Result, ensure};

/// Sequences of different lengths, end to end, with no padding between.
///
/// Words: `cu_q[batch + 1]`, then `cu_kv[batch + 1]`. They say where each sequence's queries and keys start, then the totals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Varlen {
    cu_q: Vec<i32>,
    cu_kv: Vec<i32>,
    shape: VarlenShape,
}

/// What the device's copy is sized and read by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VarlenShape {
    /// Sequences.
    pub batch: u64,
    /// Queries of all sequences.
    pub total_q: u64,
    /// Keys of all sequences.
    pub total_kv: u64,
    /// The most queries of a sequence.
    pub max_q: u64,
    /// The most keys of a sequence.
    pub max_kv: u64,
}

impl Varlen {
    /// Lengths from cumulative sums, `batch + 1` each. `max_q` and `max_kv` bound the lengths, so that a plan may rely on them.
    ///
    /// # Errors
    /// Sums that do not start at 0, or that fall; a sequence longer than its bound; lists of different length.
    pub fn new(cu_q: &[i32], cu_kv: &[i32], max_q: u64, max_kv: u64) -> Result<Self> {
        let check = |name: &str, cu: &[i32], max: u64| -> Result<u64> {
            ensure(cu.len() >= 2, name, "batch + 1 running totals, two or more", format_args!("{} numbers", cu.len()))?;
            ensure(cu[0] == 0, name, "running totals that start at 0", cu[0])?;
            for (i, pair) in cu.windows(2).enumerate() {
                let length = i64::from(pair[1]) - i64::from(pair[0]);
                if length < 0 || length as u64 > max {
                    return Err(Error::invalid(name, format!("lengths from 0 to {max}"), format!("{length} at sequence {i}")));
                }
            }
            Ok(cu[cu.len() - 1] as u64)
        };
        let (total_q, total_kv) = (check("cu_seqlens_q", cu_q, max_q)?, check("cu_seqlens_k", cu_kv, max_kv)?);
        ensure(cu_q.len() == cu_kv.len(), "cu_seqlens_k", format_args!("{} numbers, as cu_seqlens_q", cu_q.len()), cu_kv.len())?;
        let shape = VarlenShape { batch: cu_q.len() as u64 - 1, total_q, total_kv, max_q, max_kv };
        Ok(Self { cu_q: cu_q.to_vec(), cu_kv: cu_kv.to_vec(), shape })
    }

    /// The cumulative sums of the queries' lengths.
    pub fn cu_q(&self) -> &[i32] {
        &self.cu_q
    }

    /// The cumulative sums of the keys' lengths.
    pub fn cu_kv(&self) -> &[i32] {
        &self.cu_kv
    }
}

impl HostIndex for Varlen {
    const NAME: &'static str = "cu_seqlens";
    type Shape = VarlenShape;

    fn shape(&self) -> VarlenShape {
        self.shape
    }

    fn words(&self) -> Cow<'_, [i32]> {
        [self.cu_q.as_slice(), &self.cu_kv].concat().into()
    }

    fn capacity(shape: &VarlenShape) -> u64 {
        2 * (shape.batch + 1)
    }
}
