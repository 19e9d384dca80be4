//! Perplexity: how well a model foretells a text, in nats a token.
//!
//! Documents are joined by the token that ends a text, and cut into windows of one length that do not overlap. The first token of a window
//! is not scored. Losses are summed in f64.

use rayon::prelude::*;

use super::context::Context;
use super::model::Model;
use crate::backend::Backend;
use crate::error::{Error, Result, ensure};

/// Tokens whose logits are on the host at once.
const ROWS: usize = 128;
/// Draws of the interval.
const DRAWS: u64 = 2000;

/// What a window of a text cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Tokens that were scored.
    pub tokens: usize,
    /// The sum of their losses, in nats.
    pub nats: f64,
}

/// The mean of losses a token, and where 95 of 100 such means lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// Nats a token. The perplexity is its exponential.
    pub nats: f64,
    /// The interval of 95 %, by a bootstrap over windows.
    pub interval: [f64; 2],
}

/// Documents as one list of tokens, `end` behind each, in windows of `length`; what is left at the end is no window.
pub fn windows(documents: &[Vec<u32>], end: u32, length: usize) -> Vec<Vec<u32>> {
    let all: Vec<u32> = documents.iter().flat_map(|ids| ids.iter().copied().chain([end])).collect();
    all.chunks_exact(length.max(1)).map(<[u32]>::to_vec).collect()
}

impl<D: Backend> Model<D> {
    /// The loss of all tokens of a window but the first. What `context` holds is forgotten.
    ///
    /// # Errors
    /// Fewer than two tokens; the errors of [`run`](Self::run).
    pub fn loss(&mut self, context: &mut Context<D>, window: &[u32]) -> Result<Loss> {
        ensure(window.len() > 1, "window", "at least two tokens", window.len())?;
        context.truncate(0);
        let vocabulary = self.config().vocabulary as usize;
        let read = &window[..window.len() - 1];
        let mut nats = 0.0;
        for (ids, next) in read.chunks(ROWS).zip(window[1..].chunks(ROWS)) {
            let logits = self.run(context, ids, ids.len())?;
            let each: Vec<f64> = logits.par_chunks_exact(vocabulary).zip(next).map(|(logits, &id)| surprise(logits, id)).collect();
            nats += each.iter().sum::<f64>();
        }
        if nats.is_finite() { Ok(Loss { tokens: read.len(), nats }) } else { Err(Error::invalid("losses", "finite numbers; take bf16 or f32", nats)) }
    }
}

/// `−ln` of the probability of a token.
fn surprise(logits: &[f32], id: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    sum.ln() + f64::from(most) - logits.get(id as usize).map_or(f64::NAN, |&logit| f64::from(logit))
}

/// The mean of some windows' losses, with an interval that the same windows always give.
///
/// # Errors
/// No windows.
pub fn mean(losses: &[Loss]) -> Result<Mean> {
    ensure(!losses.is_empty(), "losses", "at least one window", 0)?;
    let of = |nats: f64, tokens: usize| nats / tokens.max(1) as f64;
    let nats = of(losses.iter().map(|loss| loss.nats).sum(), losses.iter().map(|loss| loss.tokens).sum());
    let mut means: Vec<f64> = (0..DRAWS)
        .map(|draw| {
            let drawn = (0..losses.len() as u64).map(|at| losses[(mixed(draw << 32 | at) % losses.len() as u64) as usize]);
            let (nats, tokens) = drawn.fold((0.0, 0), |(nats, tokens), loss| (nats + loss.nats, tokens + loss.tokens));
            of(nats, tokens)
        })
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| means[((means.len() - 1) as f64 * share).round() as usize];
    Ok(Mean { nats, interval: [at(0.025), at(0.975)] })
}

/// A number that looks drawn, and is the same for the same `number`: the last step of SplitMix64.
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn documents_lie_end_to_end_in_whole_windows() {
        assert_eq!(windows(&[vec![1, 2, 3], vec![4], vec![5, 6]], 0, 4), [[1, 2, 3, 0], [4, 0, 5, 6]]);
        assert!(windows(&[vec![1]], 0, 4).is_empty());
    }

    #[test]
    fn a_loss_is_the_logarithm_of_a_probability() {
        let logits = [1f32.ln(), 3f32.ln(), 6f32.ln()];
        assert!((surprise(&logits, 1) - (10f64 / 3.0).ln()).abs() < 1e-6);
        assert!((surprise(&[1000.0, 1000.0], 0) - 2f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn the_interval_narrows_with_the_windows() {
        let losses = |count: usize| (0..count).map(|at| Loss { tokens: 10, nats: 20.0 + (mixed(at as u64) % 11) as f64 }).collect::<Vec<_>>();
        let (few, many) = (mean(&losses(10)).unwrap(), mean(&losses(1000)).unwrap());
        for mean in [few, many] {
            assert!(mean.interval[0] < mean.nats && mean.nats < mean.interval[1], "{mean:?}");
        }
        // The deviation of a window is 0.316 nats a token, and 1.96 of it over √n lie on each side.
        let width = |mean: Mean| mean.interval[1] - mean.interval[0];
        assert!((width(many) - 2.0 * 1.96 * 0.316 / 1000f64.sqrt()).abs() < 0.006, "{many:?}");
        assert!(width(few) > 5.0 * width(many));
        assert_eq!(mean(&losses(10)).unwrap(), few);
        assert!(mean(&[]).is_err());
    }
}
