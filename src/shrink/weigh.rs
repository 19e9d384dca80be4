//! What an error at the outputs of each projection is worth, in nats a token, where no gradients are known.
//!
//! One projection at a time is truncated, and the divergence of the model's forecasts from those before is measured on the same few tokens. A divergence
//! has no first-order part: it grows with the square of the error, and few tokens measure it well. Divergence over error is the projection's worth.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::prelude::*;

use super::factor::{Factors, Method};
use super::kept::{Kept, Made, rank_of};
use super::moments::Moments;
use super::plan::Curve;
use super::store::Pairs;
use crate::adapters::encode::linalg::widen;
use crate::adapters::encoded::Matrix;
use crate::backend::Backend;
use crate::error::{Error, Result, ensure};
use crate::llm::{Config, Model, WeightSource};

/// Projections that are factored at once.
const AT_ONCE: usize = 32;

/// A model whose projections are to be factored.
pub struct Subject<'a> {
    /// Its sizes.
    pub config: &'a Config,
    /// Its weights.
    pub source: &'a dyn WeightSource,
    /// What is known of what its projections read.
    pub moments: &'a Moments,
    /// How directions are ordered.
    pub method: Method,
    /// Factors that were made, so that none is made twice: of these weights, moments and method alone.
    pub kept: Kept,
}

/// A projection that is to be factored, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The module path.
    pub path: String,
    /// Its layer.
    pub layer: usize,
    /// Its number in [`Config::projections`].
    pub number: usize,
}

impl Subject<'_> {
    /// The projections that `wanted` says yes to.
    pub fn chosen(&self, wanted: &dyn Fn(&str) -> bool) -> Vec<Chosen> {
        let of = |layer: usize| self.config.projections(layer).into_iter().enumerate().map(move |(number, (path, _))| Chosen { path, layer, number });
        (0..self.config.layers).flat_map(of).filter(|one| wanted(&one.path)).collect()
    }

    /// The weight of a projection.
    ///
    /// # Errors
    /// One that cannot be read.
    pub fn weight(&self, path: &str) -> Result<Matrix> {
        let [rows, cols] = self.shape(path)?;
        Matrix::new(rows, cols, self.source.values(&format!("{path}.weight"), &[rows as u64, cols as u64])?)
    }

    /// The outputs and inputs of a projection.
    fn shape(&self, path: &str) -> Result<[usize; 2]> {
        let shape = self.config.projection(path).ok_or_else(|| Error::invalid("projection", "one of the model", path))?;
        Ok(shape.map(|size| size as usize))
    }
}

/// The curve of a projection whose error is worth `worth` nats for each unit.
fn curve(one: &Chosen, shape: [u64; 2], loss: &[f64], worth: f64) -> Curve {
    Curve { path: one.path.clone(), shape, loss: loss.iter().map(|loss| worth * loss).collect() }
}

/// The curves of projections, with what a unit of error is worth measured on `windows`: each in its turn truncated to the share `keep`. `step` is called
/// after each. The model has its own weights again afterwards, also where an error ended the work.
///
/// # Errors
/// No windows; a device that fails; what `step` returns.
pub fn weigh<D: Backend>(
    model: &mut Model<D>,
    subject: &Subject<'_>,
    chosen: &[Chosen],
    windows: &[Vec<u32>],
    keep: f64,
    step: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<Curve>> {
    let longest = windows.iter().map(Vec::len).max().unwrap_or(0);
    ensure(longest > 1, "windows to weigh by", "at least one of two tokens", longest)?;
    let mut context = model.context(longest)?;
    let before = windows.iter().map(|window| model.forecasts(&mut context, window)).collect::<Result<Vec<_>>>()?;
    let mut curves = Vec::new();
    for some in chosen.chunks(AT_ONCE) {
        // What needs no device is done for some at once.
        let made = together(subject, some, &|_| 1, &|_, shape, made| {
            let rank = rank_of(shape, keep).min(made.loss.len() - 1);
            (made.product(rank), made.loss[rank], made.loss.clone())
        })?;
        for (one, (truncated, error, loss)) in some.iter().zip(made) {
            let whole = subject.weight(&one.path)?;
            model.replace(&one.path, &truncated)?;
            let mut measure = || -> Result<f64> {
                let (mut sum, mut count) = (0.0, 0);
                for (window, before) in windows.iter().zip(&before) {
                    let differences = model.differences(&mut context, window, before)?;
                    sum += differences.iter().map(|difference| difference.divergence).sum::<f64>();
                    count += differences.len();
                }
                Ok(sum / count as f64)
            };
            let measured = measure();
            model.replace(&one.path, &whole.data)?;
            let measured = measured?;
            let worth = if error > 0.0 { measured / error } else { 0.0 };
            curves.push(curve(one, [whole.rows as u64, whole.cols as u64], &loss, worth));
            step()?;
        }
    }
    Ok(curves)
}

/// What a unit of error is worth where nothing was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worth {
    /// A nat, since gradients are known.
    Nat,
    /// A share of the outputs: errors are relative to their mean square. That ranks matrices badly, and is no loss of the model.
    Share,
}

/// The curves of projections. `step` is called after some, with their number.
///
/// # Errors
/// A weight that cannot be read; moments that the method lacks; what `step` returns.
pub fn curves(subject: &Subject<'_>, chosen: &[Chosen], worth: Worth, step: &mut dyn FnMut(usize) -> Result<()>) -> Result<Vec<Curve>> {
    each(subject, chosen, step, &|_| 1, &|one, shape, made| {
        let whole = made.loss.first().copied().unwrap_or(0.0);
        let worth = if worth == Worth::Share && whole > 0.0 { 1.0 / whole } else { 1.0 };
        curve(one, shape.map(|size| size as u64), &made.loss, worth)
    })
}

/// The factors of projections at their ranks. `step` is called after some, with their number.
///
/// # Errors
/// The errors of [`curves`].
pub fn pairs(subject: &Subject<'_>, chosen: &[Chosen], ranks: &BTreeMap<String, u64>, step: &mut dyn FnMut(usize) -> Result<()>) -> Result<Pairs> {
    let chosen: Vec<Chosen> = chosen.iter().filter(|one| ranks.contains_key(&one.path)).cloned().collect();
    let rank = |one: &Chosen| ranks.get(&one.path).copied().unwrap_or(1) as usize;
    let found = each(subject, &chosen, step, &rank, &|one, _, made| (one.path.clone(), made.truncated(rank(one))))?;
    Ok(found.into_iter().collect())
}

/// What is kept of the factors of a projection of that shape.
type Of<'a, T> = dyn Fn(&Chosen, [usize; 2], &Made) -> T + Sync + 'a;

/// Factors projections at least up to a rank, some at once, and keeps what `of` makes of each.
fn each<T: Send>(
    subject: &Subject<'_>,
    chosen: &[Chosen],
    step: &mut dyn FnMut(usize) -> Result<()>,
    rank: &(dyn Fn(&Chosen) -> usize + Sync),
    of: &Of<'_, T>,
) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for some in chosen.chunks(AT_ONCE) {
        all.extend(together(subject, some, rank, of)?);
        step(some.len())?;
    }
    Ok(all)
}

/// What there is of a projection: its factors, or the matrix that they are to be made of.
enum Found {
    Made(Arc<Made>),
    Weight(Matrix),
}

/// Factors projections at least up to a rank, all at once where they are not kept, and keeps what `of` makes of each.
fn together<T: Send>(subject: &Subject<'_>, some: &[Chosen], rank: &(dyn Fn(&Chosen) -> usize + Sync), of: &Of<'_, T>) -> Result<Vec<T>> {
    let (config, moments, method, kept) = (subject.config, subject.moments, subject.method, &subject.kept);
    // A source of weights is for one thread.
    let found = some.iter().map(|one| match kept.get(&one.path, rank(one)) {
        Some(made) => Ok((subject.shape(&one.path)?, Found::Made(made))),
        None => Ok((subject.shape(&one.path)?, Found::Weight(subject.weight(&one.path)?))),
    });
    let found = found.collect::<Result<Vec<_>>>()?;
    let made = some.par_iter().zip(found).map(|(one, (shape, found))| {
        let made = match found {
            Found::Made(made) => made,
            Found::Weight(weight) => {
                let factors = Factors::new(&widen(&weight), &moments.of(config, one.layer, one.number), method)?;
                let made = Arc::new(Made::new(&factors, shape, rank(one)));
                kept.put(&one.path, &made);
                made
            }
        };
        Ok(of(one, shape, &made))
    });
    made.collect()
}
