//! Sentences by their tokens, as tensors give them: rows of one length with what is used of each, or all tokens one after another.

use trifuse::{Error, Result};

/// What sentences may be.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Sentences, at most.
    pub inputs: usize,
    /// Tokens of a sentence, at most.
    pub tokens: usize,
    /// Ids lie below this.
    pub vocabulary: u32,
}

/// The sentences of `ids [n, longest]`, of which `lengths [n]` are used (all, without it), or of `ids [tokens]`, which `lengths [n]` cuts up.
///
/// # Errors
/// Another shape; lengths that do not fit it; sentences outside of the bounds.
pub fn sentences(shape: &[u64], ids: &[i32], lengths: Option<&[i32]>, bounds: Bounds) -> Result<Vec<Vec<i32>>> {
    let expected = "[n, longest], or [tokens] with an input lengths [n]";
    let shape_fault = || Error::invalid("input \"ids\": shape", expected, format_args!("{shape:?}"));
    let (count, row) = match (shape, lengths) {
        (&[count, longest], _) => (usize::try_from(count).map_err(|_| shape_fault())?, Some(usize::try_from(longest).map_err(|_| shape_fault())?)),
        (&[_], Some(lengths)) => (lengths.len(), None),
        _ => return Err(shape_fault()),
    };
    if !(1..=bounds.inputs).contains(&count) {
        return Err(Error::invalid("inputs", format!("1 to {} sentences", bounds.inputs), count));
    }
    if lengths.is_some_and(|lengths| lengths.len() != count) {
        return Err(Error::invalid("input \"lengths\": shape", format!("[{count}]"), lengths.map_or(0, <[i32]>::len)));
    }
    let mut all = Vec::with_capacity(count);
    let mut at = 0;
    for sentence in 0..count {
        let length = match lengths {
            Some(lengths) => lengths[sentence],
            None => row.and_then(|row| i32::try_from(row).ok()).unwrap_or(-1),
        };
        let most = row.unwrap_or(bounds.tokens).min(bounds.tokens);
        let length = usize::try_from(length).ok().filter(|length| (1..=most).contains(length));
        let length = length.ok_or_else(|| {
            Error::invalid(
                format!("length of sentence {sentence}"),
                format!("1 to {most} tokens"),
                lengths.map_or(row.unwrap_or(0) as i64, |lengths| lengths[sentence].into()),
            )
        })?;
        let start = row.map_or(at, |row| sentence * row);
        let own = ids.get(start..start + length).ok_or_else(|| Error::invalid("input \"ids\"", "as many ids as lengths say", ids.len()))?;
        if let Some(id) = own.iter().find(|id| u32::try_from(**id).map_or(true, |id| id >= bounds.vocabulary)) {
            return Err(Error::invalid(format!("input \"ids\": sentence {sentence}"), format!("ids below {}", bounds.vocabulary), id));
        }
        all.push(own.to_vec());
        at += length;
    }
    if row.is_none() && at != ids.len() {
        return Err(Error::invalid("input \"ids\"", format!("{at} ids, as lengths say"), ids.len()));
    }
    Ok(all)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { inputs: 3, tokens: 4, vocabulary: 10 };

    #[test]
    fn both_forms_give_the_same_sentences() {
        let expected = vec![vec![1, 2], vec![3]];
        assert_eq!(sentences(&[2, 3], &[1, 2, 0, 3, -1, 99], Some(&[2, 1]), BOUNDS).unwrap(), expected);
        assert_eq!(sentences(&[3], &[1, 2, 3], Some(&[2, 1]), BOUNDS).unwrap(), expected);
        assert_eq!(sentences(&[1, 3], &[1, 2, 3], None, BOUNDS).unwrap(), [[1, 2, 3]]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (shape, ids, lengths) in [
            (&[2, 2][..], &[1, 2, 3, 4][..], Some(&[3, 1][..])),
            (&[2, 2], &[1, 2, 3, 4], Some(&[0, 1])),
            (&[2, 2], &[1, 2, 3, 4], Some(&[-1, 1])),
            (&[2, 2], &[1, 2, 3, 4], Some(&[1])),
            (&[2, 2], &[1, 10, 3, 4], None),
            (&[2, 2], &[1, -1, 3, 4], None),
            (&[4], &[1, 2, 3, 4], Some(&[1, 2])),
            (&[4], &[1, 2, 3, 4], Some(&[3, 2])),
            (&[4], &[1, 2, 3, 4], None),
            (&[4], &[1, 2, 3, 4], Some(&[])),
            (&[4], &[1; 4], Some(&[1, 1, 1, 1])),
            (&[1, 5], &[1; 5], None),
            (&[5], &[1; 5], Some(&[5])),
            (&[0, 4], &[], None),
            (&[1, 0], &[], None),
            (&[1, 2, 2], &[1; 4], None),
            (&[], &[1], None),
        ] {
            assert!(sentences(shape, ids, lengths, BOUNDS).is_err(), "{shape:?} {ids:?} {lengths:?}");
        }
    }
}
