use std::borrow::Cow;

use super::HostIndex;
use crate::error::{Error, Result};

/// The adapter that each token uses; −1 is the base model alone.
///
/// Words, for `T` tokens: `[0]` segments `S`; `[1]` tokens with an adapter, `A`; then four lists: `adapter[T]` as given; `order[T]`, the
/// tokens with an adapter sorted by it (ties in token order), then −1; `segment_adapter[T]`, the adapter of each run of `order` that shares
/// one, then −1; `segment_start[T + 1]`, where in `order` each run starts, then `A`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAdapters {
    /// The words, laid out when the index is made. A caller may make it while the device still works on the batch before.
    words: Vec<i32>,
    tokens: usize,
    adapters: u32,
}

/// Words before the ids.
const FIRST: usize = 2;

/// What the device's copy is sized and checked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenShape {
    /// Tokens in the batch.
    pub tokens: u64,
    /// The number of adapters: ids lie in `-1..adapters`.
    pub adapters: u32,
}

impl TokenAdapters {
    /// An index from the id of each token: an adapter below `adapters`, or −1 for none.
    ///
    /// # Errors
    /// An id outside `-1..adapters`.
    pub fn new(ids: &[i32], adapters: u32) -> Result<Self> {
        check(ids, adapters)?;
        let (order, segments) = grouped(ids, adapters as usize);
        let (tokens, adapted) = (ids.len(), order.len());
        let mut words = Vec::with_capacity(3 + 4 * tokens);
        words.extend([segments.len() as i32, adapted as i32]);
        words.extend_from_slice(ids);
        words.extend(order);
        words.resize(2 + 2 * tokens, -1);
        words.extend(segments.iter().map(|segment| segment.0));
        words.resize(2 + 3 * tokens, -1);
        words.extend(segments.iter().map(|segment| segment.1));
        words.resize(3 + 4 * tokens, adapted as i32);
        Ok(Self { words, tokens, adapters })
    }

    /// The ids of rows of a table, or −1, for what looks nothing but those up. They are not grouped: an operation with adapters takes none of them for one.
    ///
    /// # Errors
    /// An id outside `-1..rows`.
    #[cfg(feature = "model")]
    pub(crate) fn rows(ids: &[i32], rows: u32) -> Result<Self> {
        check(ids, rows)?;
        let mut words = Vec::with_capacity(3 + 4 * ids.len());
        words.extend([0, 0]);
        words.extend_from_slice(ids);
        words.resize(2 + 3 * ids.len(), -1);
        words.resize(3 + 4 * ids.len(), 0);
        Ok(Self { words, tokens: ids.len(), adapters: rows })
    }

    /// Bytes before the ids, which lie one behind the other.
    #[cfg(feature = "llm")]
    pub(crate) const fn first_id() -> u64 {
        4 * FIRST as u64
    }

    /// The ids, one a token.
    pub fn ids(&self) -> &[i32] {
        &self.words[FIRST..FIRST + self.tokens]
    }
}

/// Checks that ids lie in `-1..bound`, and that words hold their number.
fn check(ids: &[i32], bound: u32) -> Result<()> {
    // All at once, and the first one only where there is one.
    let outside = |id: i32| id < -1 || i64::from(id) >= i64::from(bound);
    if ids.iter().fold(false, |any, &id| any | outside(id))
        && let Some((token, id)) = ids.iter().enumerate().find(|&(_, &id)| outside(id))
    {
        return Err(Error::invalid("token_adapter", format!("ids from -1 to {}", i64::from(bound) - 1), format!("{id} at token {token}")));
    }
    super::word("token_adapter: tokens", ids.len() as u64).map(drop)
}

/// The tokens with an adapter, sorted by it, and the runs as `(adapter, start in the order)`.
fn grouped(ids: &[i32], adapters: usize) -> (Vec<i32>, Vec<(i32, i32)>) {
    let adapted = (0..).zip(ids).filter(|&(_, &id)| id >= 0);
    let mut order: Vec<i32> = Vec::with_capacity(ids.len());
    if adapters <= 4 * ids.len() {
        // A place for each adapter costs less than comparisons. A batch is sorted before each forward pass.
        let mut places = vec![0u32; adapters + 1];
        adapted.clone().for_each(|(_, &id)| places[id as usize + 1] += 1);
        (1..places.len()).for_each(|id| places[id] += places[id - 1]);
        order.resize(places[adapters] as usize, 0);
        for (token, &id) in adapted {
            order[places[id as usize] as usize] = token;
            places[id as usize] += 1;
        }
    } else {
        order.extend(adapted.map(|(token, _)| token));
        order.sort_by_key(|&token: &i32| ids[token as usize]);
    }
    let mut segments: Vec<(i32, i32)> = Vec::new();
    for (place, &token) in order.iter().enumerate() {
        let adapter = ids[token as usize];
        if segments.last().is_none_or(|&(last, _)| last != adapter) {
            segments.push((adapter, place as i32));
        }
    }
    (order, segments)
}

impl HostIndex for TokenAdapters {
    const NAME: &'static str = "token_adapter";
    type Shape = TokenShape;

    fn shape(&self) -> TokenShape {
        TokenShape { tokens: self.tokens as u64, adapters: self.adapters }
    }

    fn words(&self) -> Cow<'_, [i32]> {
        self.words.as_slice().into()
    }

    fn capacity(shape: &TokenShape) -> u64 {
        3 + 4 * shape.tokens
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn words_group_tokens_by_adapter() {
        let index = TokenAdapters::new(&[2, -1, 0, 2], 3).unwrap();
        let words = index.words();
        assert_eq!(words.len() as u64, TokenAdapters::capacity(&index.shape()));
        assert_eq!(*words, [2, 3, /* adapter */ 2, -1, 0, 2, /* order */ 2, 0, 3, -1, /* adapters */ 0, 2, -1, -1, /* starts */ 0, 1, 3, 3, 3]);
    }

    #[cfg(feature = "model")]
    #[test]
    fn rows_are_ids_of_no_adapter() {
        let rows = TokenAdapters::rows(&[2, -1, 0, 2], 3).unwrap();
        let words = rows.words();
        assert_eq!((words.len() as u64, rows.ids()), (TokenAdapters::capacity(&rows.shape()), &[2, -1, 0, 2][..]));
        let adapted = TokenAdapters::new(&[-1; 4], 3).unwrap();
        let but_ids = |words: &[i32]| [&words[..2], &words[6..]].concat();
        assert_eq!(but_ids(&words), but_ids(&adapted.words()), "as of tokens without an adapter");
        assert!(TokenAdapters::rows(&[3], 3).is_err() && TokenAdapters::rows(&[-2], 3).is_err());
    }

    #[test]
    fn both_ways_of_sorting_agree() {
        let ids: Vec<i32> = (0..500).map(|at| (at * 7919 + 3) % 41 - 1).collect();
        assert_eq!(grouped(&ids, 40), grouped(&ids, 1 << 20));
    }

    #[test]
    fn an_id_out_of_range_is_refused() {
        assert!(TokenAdapters::new(&[0, 3], 3).is_err());
        assert!(TokenAdapters::new(&[-2], 3).is_err());
        assert!(TokenAdapters::new(&[], 0).is_ok());
    }
}
