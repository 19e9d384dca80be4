//! How far a model's forecasts are from another's: the Kullback-Leibler divergence of each token, in nats.

use rayon::prelude::*;

use super::context::Context;
use super::model::Model;
use crate::backend::Backend;
use crate::error::{Result, ensure};

/// Tokens whose logits are on the host at once.
const ROWS: usize = 128;

/// A model's forecasts behind each token of a text: logarithms of probabilities.
#[derive(Clone, Debug)]
pub struct Forecasts {
    vocabulary: usize,
    values: Vec<f32>,
}

/// How the forecasts behind one token differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// `Σ p·(ln p − ln q)` in nats, where p is the one model's and q the other's.
    pub divergence: f64,
    /// Whether both hold the same token for the most probable.
    pub same: bool,
}

impl<D: Backend> Model<D> {
    /// The forecasts behind each token of a window but the last. What `context` holds is forgotten.
    ///
    /// # Errors
    /// Fewer than two tokens; the errors of [`run`](Self::run).
    pub fn forecasts(&mut self, context: &mut Context<D>, window: &[u32]) -> Result<Forecasts> {
        ensure(window.len() > 1, "window", "at least two tokens", window.len())?;
        context.truncate(0);
        let vocabulary = self.config().vocabulary as usize;
        let read = &window[..window.len() - 1];
        let mut values = Vec::with_capacity(read.len() * vocabulary);
        for ids in read.chunks(ROWS) {
            let mut logits = self.run(context, ids, ids.len())?;
            logits.par_chunks_exact_mut(vocabulary).for_each(logarithms);
            values.extend(logits);
        }
        Ok(Forecasts { vocabulary, values })
    }

    /// How this model's forecasts behind each token of a window but the last differ from those of another before: what
    /// [`Forecasts::differences`] gives, with no forecasts kept. What `context` holds is forgotten.
    ///
    /// # Errors
    /// Forecasts of another window's length, or of another vocabulary; the errors of [`forecasts`](Self::forecasts).
    pub fn differences(&mut self, context: &mut Context<D>, window: &[u32], before: &Forecasts) -> Result<Vec<Difference>> {
        let vocabulary = self.config().vocabulary as usize;
        let found = [window.len().saturating_sub(1) * vocabulary, vocabulary];
        let wanted = [before.values.len(), before.vocabulary];
        ensure(window.len() > 1 && wanted == found, "forecasts", format_args!("{wanted:?} values of a vocabulary"), format_args!("{found:?}"))?;
        context.truncate(0);
        let mut all = Vec::with_capacity(window.len() - 1);
        let read = &window[..window.len() - 1];
        for (ids, before) in read.chunks(ROWS).zip(before.values.chunks(ROWS * vocabulary)) {
            let mut logits = self.run(context, ids, ids.len())?;
            let rows = before.par_chunks_exact(vocabulary).zip(logits.par_chunks_exact_mut(vocabulary));
            all.par_extend(rows.map(|(p, logits)| {
                logarithms(logits);
                difference(p, logits)
            }));
        }
        Ok(all)
    }
}

/// Turns the logits of a row into logarithms of probabilities.
fn logarithms(logits: &mut [f32]) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    let shift = f64::from(most) + sum.ln();
    logits.iter_mut().for_each(|logit| *logit = (f64::from(*logit) - shift) as f32);
}

impl Forecasts {
    /// The sum of the losses of the tokens of `window` but the first, in nats: what [`Model::loss`] gives.
    ///
    /// # Errors
    /// A window of another length, or an id that is not in the vocabulary.
    pub fn loss(&self, window: &[u32]) -> Result<f64> {
        let rows = self.values.len() / self.vocabulary;
        ensure(window.len() == rows + 1, "window", format_args!("{} tokens", rows + 1), window.len())?;
        let other = window.iter().find(|&&id| id as usize >= self.vocabulary);
        ensure(other.is_none(), "window", format_args!("ids below {}", self.vocabulary), format_args!("{other:?}"))?;
        Ok(self.values.chunks_exact(self.vocabulary).zip(&window[1..]).map(|(row, &id)| -f64::from(row[id as usize])).sum())
    }

    /// How the forecasts of another model behind the same tokens differ from these.
    ///
    /// # Errors
    /// Forecasts of another number, or of another vocabulary.
    pub fn differences(&self, other: &Self) -> Result<Vec<Difference>> {
        let sizes = |of: &Self| [of.values.len(), of.vocabulary];
        ensure(sizes(self) == sizes(other), "forecasts", format_args!("{:?} values of a vocabulary", sizes(self)), format_args!("{:?}", sizes(other)))?;
        let rows = self.values.par_chunks_exact(self.vocabulary).zip(other.values.par_chunks_exact(self.vocabulary));
        Ok(rows.map(|(p, q)| difference(p, q)).collect())
    }
}

/// The difference between two rows of logarithms.
fn difference(p: &[f32], q: &[f32]) -> Difference {
    let divergence: f64 = p.iter().zip(q).map(|(&p, &q)| f64::from(p).exp() * (f64::from(p) - f64::from(q))).sum();
    let first = |row: &[f32]| row.iter().enumerate().fold((0, f32::NEG_INFINITY), |best, (at, &value)| if value > best.1 { (at, value) } else { best }).0;
    // Rounding may leave a little below 0.
    Difference { divergence: if divergence < 0.0 { 0.0 } else { divergence }, same: first(p) == first(q) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn forecasts(rows: &[[f64; 3]]) -> Forecasts {
        Forecasts { vocabulary: 3, values: rows.iter().flatten().map(|share| share.ln() as f32).collect() }
    }

    #[test]
    fn a_divergence_is_the_definition() {
        let (one, other) = (forecasts(&[[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]), forecasts(&[[0.25, 0.5, 0.25], [0.1, 0.2, 0.7]]));
        let found = one.differences(&other).unwrap();
        assert!((found[0].divergence - 0.25 * 2f64.ln()).abs() < 1e-6 && !found[0].same);
        assert!(found[1].divergence.abs() < 1e-9 && found[1].same);
        assert!((one.loss(&[9, 0, 2].map(|id| id % 9)).unwrap() + (0.5f64 * 0.7).ln()).abs() < 1e-6);
        assert!(one.loss(&[0, 0]).is_err() && one.loss(&[0, 3, 0]).is_err());
        assert!(one.differences(&forecasts(&[[0.5, 0.25, 0.25]])).is_err());
    }
}
