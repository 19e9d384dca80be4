//! The answers that a served batch is held against: the exact one of what the bundle decodes to, and uncompressed LoRA's.

use std::collections::BTreeMap;

use rayon::prelude::*;
use trifuse::adapters::bundle::Bundle;
use trifuse::adapters::encoded::{EncodedAdapter, Matrix, SharedProjection};
use trifuse::adapters::peft::LoraAdapter;
use trifuse::{DType, Error, Result};
use trifuse_testkit::oracle::LowRank;
use trifuse_testkit::tolerance::Tolerance;

use super::inputs::Group;

/// Plain LoRA: `A [r, d_in]`, `B [d_out, r]`, and the scale in front.
struct Factors {
    a: Matrix<f64>,
    b: Matrix<f64>,
    scaling: f64,
}

impl Factors {
    fn update(&self) -> LowRank<'_> {
        LowRank { a: &self.a.data, b: &self.b.data, scaling: self.scaling }
    }
}

/// Both references of every adapter.
pub struct Check<'a> {
    dtype: DType,
    shared: BTreeMap<String, SharedProjection>,
    encoded: BTreeMap<String, EncodedAdapter>,
    originals: &'a [LoraAdapter],
}

/// What was found so far.
#[derive(Debug, Default)]
pub struct Totals {
    pub error_over_allowed: f64,
    pub relative_l2: f64,
    pub relative_l2_allowed: f64,
    /// An element outside what is allowed, or a base-only row that changed.
    wrong: usize,
    compared: usize,
    /// ‖difference‖² and ‖uncompressed‖², by adapter.
    lost: BTreeMap<String, (f64, f64)>,
}

impl Totals {
    /// Whether something was compared, and all of it is right.
    pub fn right(&self) -> bool {
        self.compared > 0 && self.wrong == 0
    }

    /// The relative error over all adapters.
    pub fn against_uncompressed(&self) -> f64 {
        let (error, whole) = self.lost.values().fold((0.0, 0.0), |sum, each| (sum.0 + each.0, sum.1 + each.1));
        (error / whole.max(f64::MIN_POSITIVE)).sqrt()
    }

    /// The relative error over the tokens of each adapter.
    pub fn by_adapter(&self) -> BTreeMap<String, f64> {
        self.lost.iter().map(|(name, (error, whole))| (name.clone(), (error / whole.max(f64::MIN_POSITIVE)).sqrt())).collect()
    }
}

impl<'a> Check<'a> {
    /// Reads the bundle whole.
    pub fn new(bundle: &Bundle, originals: &'a [LoraAdapter], dtype: DType) -> Result<Self> {
        let shared = bundle.projections().map(|(path, _)| Ok((path.to_owned(), bundle.shared(path)?))).collect::<Result<_>>()?;
        let encoded = bundle.adapters().map(|name| Ok((name.to_owned(), bundle.adapter(name)?))).collect::<Result<_>>()?;
        Ok(Self { dtype, shared, encoded, originals })
    }

    /// Holds `found [tokens, d_out]`, the output of one projection, against both references.
    pub fn projection(&mut self, path: &str, group: &Group, d_out: usize, names: &[Option<&str>], found: &[f64], totals: &mut Totals) -> Result<()> {
        let mut decoded = BTreeMap::new();
        let mut original = BTreeMap::new();
        for name in names.iter().flatten() {
            if !decoded.contains_key(name) {
                decoded.insert(*name, self.decoded(name, path)?);
                original.insert(*name, self.original(name, path)?);
            }
        }
        let answers = each(group, names, &decoded, |update, x| (update.exact(x), update.stepwise(x, self.dtype)));
        let (mut exact, mut stepwise) = (Vec::new(), Vec::new());
        for (token, answer) in answers.into_iter().enumerate() {
            let Some(answer) = answer else {
                // The base model alone: nothing may have been added, not even a zero of another sign.
                totals.wrong += found[token * d_out..][..d_out].iter().filter(|value| value.to_bits() != 0).count();
                exact.resize(exact.len() + d_out, None);
                stepwise.resize(stepwise.len() + d_out, None);
                continue;
            };
            exact.extend(answer.0.into_iter().map(Some));
            stepwise.extend(answer.1.into_iter().map(Some));
        }
        let metrics = Tolerance::new(self.dtype, &exact, &stepwise, 0.0).compare(&exact, found)?;
        totals.compared += exact.iter().flatten().count();
        totals.wrong += usize::from(!metrics.accepted());
        let over = metrics.max_abs / metrics.tolerance.max_abs.max(f64::MIN_POSITIVE);
        // `max` would lose a NaN.
        totals.error_over_allowed = if over > totals.error_over_allowed || over.is_nan() { over } else { totals.error_over_allowed };
        totals.relative_l2 = if metrics.relative_l2 > totals.relative_l2 || metrics.relative_l2.is_nan() { metrics.relative_l2 } else { totals.relative_l2 };
        totals.relative_l2_allowed = metrics.tolerance.relative_l2;
        let uncompressed = each(group, names, &original, |update, x| update.exact(x));
        for (token, (name, lora)) in names.iter().zip(uncompressed).enumerate() {
            let (Some(name), Some(lora)) = (*name, lora) else { continue };
            let sums = totals.lost.entry(name.to_owned()).or_default();
            for (lora, found) in lora.iter().zip(&found[token * d_out..][..d_out]) {
                sums.0 += (lora - found).powi(2);
                sums.1 += lora.powi(2);
            }
        }
        Ok(())
    }

    /// What the bundle decodes to; nothing where the adapter does not touch the projection.
    fn decoded(&self, name: &str, path: &str) -> Result<Option<Factors>> {
        let unknown = || Error::invalid("adapter", "one of the bundle's", format!("{name:?}"));
        let Some(projection) = self.encoded.get(name).ok_or_else(unknown)?.projections.get(path) else { return Ok(None) };
        let shared = self.shared.get(path).ok_or_else(unknown)?;
        let (a, b) = projection.factors(shared)?;
        Ok(Some(Factors { a, b, scaling: f64::from(projection.scaling) }))
    }

    fn original(&self, name: &str, path: &str) -> Result<Option<Factors>> {
        let found = self.originals.iter().find(|adapter| adapter.name == name);
        let adapter = found.ok_or_else(|| Error::invalid("adapter", "one of those that were compressed", format!("{name:?}")))?;
        let factors = |lora: &trifuse::adapters::peft::Lora| Factors { a: lora.a.map(f64::from), b: lora.b.map(f64::from), scaling: f64::from(lora.scaling) };
        Ok(adapter.modules.get(path).map(factors))
    }
}

/// `answer` for every token whose adapter has factors here, on all cores.
fn each<T: Send>(
    group: &Group,
    names: &[Option<&str>],
    factors: &BTreeMap<&str, Option<Factors>>,
    answer: impl Fn(LowRank<'_>, &[f64]) -> T + Sync,
) -> Vec<Option<T>> {
    let tokens = names.par_iter().zip(group.x.par_chunks(group.d_in));
    tokens.map(|(name, x)| Some(answer(factors.get((*name)?)?.as_ref()?.update(), x))).collect()
}
