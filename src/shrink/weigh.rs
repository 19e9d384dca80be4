//! What an error at the outputs of each projection is worth, in nats a token, where no gradients are known.
//!
//! One projection at a time is truncated, and the divergence of the model's forecasts from those before is measured on the same few tokens. A divergence
//! has no first-order part: it grows with the square of the error, and few tokens measure it well. Divergence over error is the projection's worth.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::factor::{Factors, Method};
use super::moments::Moments;
use super::plan::Curve;
use super::store::Pairs;
use crate::adapters::encode::linalg::widen;
use crate::adapters::encoded::Matrix;
use crate::backend::Backend;
use crate::error::{Error, Result, ensure};
use crate::llm::{Config, Model, WeightSource};

/// Projections that are factored at once.
const AT_ONCE: usize = 16;

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
        let shape = self.config.projection(path).ok_or_else(|| Error::invalid("projection", "one of the model", path))?;
        let [rows, cols] = shape.map(|size| size as usize);
        Matrix::new(rows, cols, self.source.values(&format!("{path}.weight"), &shape)?)
    }
}

/// The curve of a projection whose error is worth `worth` nats for each unit.
fn curve(one: &Chosen, weight: &Matrix, factors: &Factors, worth: f64) -> Curve {
    let shape = [weight.rows as u64, weight.cols as u64];
    Curve { path: one.path.clone(), shape, loss: factors.loss().iter().map(|loss| worth * loss).collect() }
}

/// The rank at which a matrix has the share `keep` of its parameters.
fn rank_at(weight: &Matrix, keep: f64) -> usize {
    let [rows, columns] = [weight.rows, weight.cols].map(|size| size as f64);
    ((keep * rows * columns / (rows + columns)) as usize).max(1)
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
        // Factoring takes most of the time, and needs no device: it is done for some at once.
        let made = together(subject, some, &|one, weight, factors| {
            let rank = rank_at(weight, keep).min(factors.loss().len() - 1);
            (weight.data.clone(), factors.product(rank).data, factors.loss()[rank], curve(one, weight, factors, 1.0))
        })?;
        for (one, (whole, truncated, error, curve)) in some.iter().zip(made) {
            model.replace(&one.path, &truncated)?;
            let mut measure = || -> Result<f64> {
                let (mut sum, mut count) = (0.0, 0);
                for (window, before) in windows.iter().zip(&before) {
                    let differences = before.differences(&model.forecasts(&mut context, window)?)?;
                    sum += differences.iter().map(|difference| difference.divergence).sum::<f64>();
                    count += differences.len();
                }
                Ok(sum / count as f64)
            };
            let measured = measure();
            model.replace(&one.path, &whole)?;
            let measured = measured?;
            let worth = if error > 0.0 { measured / error } else { 0.0 };
            curves.push(Curve { loss: curve.loss.iter().map(|loss| worth * loss).collect(), ..curve });
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
    each(subject, chosen, step, &|one, weight, factors| {
        let whole = factors.loss().first().copied().unwrap_or(0.0);
        curve(one, weight, factors, if worth == Worth::Share && whole > 0.0 { 1.0 / whole } else { 1.0 })
    })
}

/// The factors of projections at their ranks. `step` is called after some, with their number.
///
/// # Errors
/// The errors of [`curves`].
pub fn pairs(subject: &Subject<'_>, chosen: &[Chosen], ranks: &BTreeMap<String, u64>, step: &mut dyn FnMut(usize) -> Result<()>) -> Result<Pairs> {
    let chosen: Vec<Chosen> = chosen.iter().filter(|one| ranks.contains_key(&one.path)).cloned().collect();
    let found = each(subject, &chosen, step, &|one, _, factors| {
        let rank = ranks.get(&one.path).copied().unwrap_or(1);
        (one.path.clone(), factors.truncated(rank as usize))
    })?;
    Ok(found.into_iter().collect())
}

/// Factors projections, some at once, and keeps what `of` makes of each.
fn each<T: Send>(
    subject: &Subject<'_>,
    chosen: &[Chosen],
    step: &mut dyn FnMut(usize) -> Result<()>,
    of: &(dyn Fn(&Chosen, &Matrix, &Factors) -> T + Sync),
) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for some in chosen.chunks(AT_ONCE) {
        all.extend(together(subject, some, of)?);
        step(some.len())?;
    }
    Ok(all)
}

/// Factors projections, all at once, and keeps what `of` makes of each.
fn together<T: Send>(subject: &Subject<'_>, some: &[Chosen], of: &(dyn Fn(&Chosen, &Matrix, &Factors) -> T + Sync)) -> Result<Vec<T>> {
    let weights = some.iter().map(|one| subject.weight(&one.path)).collect::<Result<Vec<_>>>()?;
    // A source of weights is for one thread.
    let (config, moments, method) = (subject.config, subject.moments, subject.method);
    let made = some.par_iter().zip(&weights).map(|(one, weight)| {
        let factors = Factors::new(&widen(weight), &moments.of(config, one.layer, one.number), method)?;
        Ok(of(one, weight, &factors))
    });
    made.collect()
}
