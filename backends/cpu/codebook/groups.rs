//! Tokens grouped by the adapter or basis that they share.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::ops::index::TokenShape;

/// The tokens of a batch, sorted by adapter.
pub struct Groups<'a> {
    /// The adapter of each token, or −1.
    ids: &'a [i32],
    order: &'a [i32],
    adapters: &'a [i32],
    starts: &'a [i32],
}

/// Tokens that share the values of a factor.
pub struct Group {
    /// The adapter or basis, as [`Factor::key`](super::factor::Factor::key) returns it.
    pub key: usize,
    /// The tokens, in rising order within an adapter.
    pub tokens: Vec<usize>,
}

impl<'a> Groups<'a> {
    /// Groups from the words of a [`TokenAdapters`](crate::ops::index::TokenAdapters) index. Every word is checked: threads write rows by
    /// them, each row once.
    pub fn read(words: &'a [i32], shape: TokenShape) -> Result<Self> {
        let spoiled = || Error::invalid("token_adapter", "the words that the index was made with", "other words (was its memory written to?)");
        let tokens = shape.tokens as usize;
        let (head, rest) = words.split_at_checked(2).ok_or_else(spoiled)?;
        let (ids, rest) = rest.split_at_checked(tokens).ok_or_else(spoiled)?;
        let (order, rest) = rest.split_at_checked(tokens).ok_or_else(spoiled)?;
        let (adapters, starts) = rest.split_at_checked(tokens).ok_or_else(spoiled)?;
        let segments = usize::try_from(head[0]).ok().filter(|&segments| segments <= tokens && starts.len() > segments).ok_or_else(spoiled)?;
        let groups = Self { ids, order, adapters: &adapters[..segments], starts: &starts[..=segments] };
        let rising = |list: &[i32]| list.windows(2).all(|pair| pair[0] < pair[1]);
        let in_range = |id: i32| id >= -1 && i64::from(id) < i64::from(shape.adapters);
        let sound = ids.iter().all(|&id| in_range(id))
            && rising(groups.adapters)
            && (0..segments).all(|segment| {
                groups.segment(segment).is_some_and(|run| {
                    let own = |token: i32| usize::try_from(token).is_ok_and(|token| ids.get(token) == Some(&groups.adapters[segment]));
                    groups.adapters[segment] >= 0 && rising(run) && run.iter().all(|&token| own(token))
                })
            });
        if sound { Ok(groups) } else { Err(spoiled()) }
    }

    fn segment(&self, segment: usize) -> Option<&'a [i32]> {
        let bounds = (usize::try_from(self.starts[segment]).ok()?, usize::try_from(self.starts[segment + 1]).ok()?);
        self.order.get(bounds.0..bounds.1)
    }

    /// The adapter of a token, if it has one.
    pub fn adapter(&self, token: usize) -> Option<usize> {
        self.ids.get(token).and_then(|&id| usize::try_from(id).ok())
    }

    /// The tokens of `block` that have an adapter, grouped by the key of their adapters, at most `most` in a group.
    pub fn by_key(&self, block: &Range<usize>, most: usize, key: impl Fn(usize) -> usize) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (segment, &adapter) in self.adapters.iter().enumerate() {
            let run = self.segment(segment).unwrap_or_default();
            let first = run.partition_point(|&token| (token as usize) < block.start);
            let last = run.partition_point(|&token| (token as usize) < block.end);
            let key = key(adapter as usize);
            for &token in &run[first..last] {
                match groups.last_mut() {
                    Some(group) if group.key == key && group.tokens.len() < most => group.tokens.push(token as usize),
                    _ => groups.push(Group { key, tokens: vec![token as usize] }),
                }
            }
        }
        groups
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ops::index::{HostIndex, TokenAdapters};

    #[test]
    fn groups_are_cut_at_blocks_keys_and_sizes() {
        let index = TokenAdapters::new(&[2, -1, 0, 2, 0, 1, 2], 3).unwrap();
        let (words, shape) = (index.words(), index.shape());
        let groups = Groups::read(&words, shape).unwrap();
        let list = |groups: Vec<Group>| groups.into_iter().map(|group| (group.key, group.tokens)).collect::<Vec<_>>();
        assert_eq!(list(groups.by_key(&(0..7), 8, |adapter| adapter)), [(0, vec![2, 4]), (1, vec![5]), (2, vec![0, 3, 6])]);
        assert_eq!(list(groups.by_key(&(1..6), 8, |adapter| adapter / 2)), [(0, vec![2, 4, 5]), (1, vec![3])]);
        assert_eq!(list(groups.by_key(&(0..7), 2, |_| 0)), [(0, vec![2, 4]), (0, vec![5, 0]), (0, vec![3, 6])]);
    }

    #[test]
    fn spoiled_words_are_refused() {
        let index = TokenAdapters::new(&[1, 0, 1], 2).unwrap();
        for at in 0..index.words().len() {
            for value in [-7, 100] {
                let mut words = index.words().into_owned();
                words[at] = value;
                // The count of tokens and the unused tails are not read.
                if let Ok(groups) = Groups::read(&words, index.shape()) {
                    assert!(groups.by_key(&(0..3), 8, |adapter| adapter).iter().all(|group| group.key < 2 && group.tokens.iter().all(|&token| token < 3)));
                }
            }
        }
    }
}
