//! The ladder of one projection: each adapter's rung, chosen by bytes among those that keep what is asked.
//!
//! The rungs, cheapest first where they hold: one input basis for all; several; an output basis; both factors private and coded; plain f16.
//! All that use a basis pay for it once, so the choice is made for the population.

use super::basis::{Basis, basis_bytes, cluster};
use super::draft::{Draft, Member, Setting, plain};
use super::forecast::{plan_by_bytes, plan_by_loss};
use super::metric::Metric;
use super::options::EncodeOptions;
use super::terms::{Side, Terms, leading};
use crate::adapters::encoded::{EncodedProjection, Rung, SharedProjection};
use crate::error::{Error, Result};

/// An encoded projection of a population, with one entry for each member.
pub(crate) struct Encoded {
    /// The bases that are used.
    pub shared: SharedProjection,
    /// The encoded projections, in the members' order.
    pub projections: Vec<EncodedProjection>,
}

/// Chooses rungs and encodes. `names` are the members' names, for errors; `path` is the projection's.
pub(crate) fn climb(path: &str, names: &[&str], members: &[Member<'_>], setting: &mut Setting<'_>) -> Result<Encoded> {
    let options = setting.options;
    let allowed = options.allowed();
    if !options.requires_fidelity() {
        return without_requirement(members, setting, &allowed);
    }
    let fallback: Vec<Option<EncodedProjection>> = members.iter().map(|member| fallback(member, setting, &allowed)).collect::<Result<_>>()?;
    let mut projections = fallback;
    let private: Vec<f64> = projections.iter().map(|each| each.as_ref().map_or(f64::INFINITY, |each| each.certificate.bytes as f64)).collect();
    if let Some(plan) = plan_by_bytes(members, &private, options.allowed_loss(), options, &allowed)? {
        let directions = leading(&members.iter().map(|m| &m.terms).collect::<Vec<_>>(), &vec![1.0; members.len()], plan.side, plan.rank)?;
        let mut shared = vec![(directions, (0..members.len()).collect::<Vec<_>>())];
        let mut tried = encode_on(&shared, plan.side, members, setting)?;
        // Several bases are tried while one of them is not enough and nothing else may be used.
        let mut clusters = 2;
        while plan.side == Side::Input && allowed.contains(&Rung::ClusteredInput) && clusters <= members.len() {
            if !unmet(&tried, &projections, options) {
                break;
            }
            shared = clustered(members, plan.rank, clusters, options.seed)?;
            tried = encode_on(&shared, plan.side, members, setting)?;
            clusters *= 2;
        }
        projections = cheapest(tried, projections, setting);
    }
    let (projections, shared) = finish(projections, path, names, setting)?;
    Ok(Encoded { shared, projections })
}

fn unmet(tried: &[EncodedProjection], fallback: &[Option<EncodedProjection>], options: &EncodeOptions) -> bool {
    let meets = |projection: &EncodedProjection| options.shortfall(&projection.certificate) <= 1.0;
    tried.iter().zip(fallback).any(|(tried, fallback)| !meets(tried) && !fallback.as_ref().is_some_and(meets))
}

/// The best encoding without a basis: both factors coded, or where that misses, plain. `None` where neither may be used.
fn fallback(member: &Member<'_>, setting: &Setting<'_>, allowed: &[Rung]) -> Result<Option<EncodedProjection>> {
    let mut best: Option<EncodedProjection> = None;
    if allowed.contains(&Rung::PrivateCoded) {
        best = Some(Draft::private(member, setting.metric).meet(setting)?);
    }
    let met = |best: &EncodedProjection| setting.options.shortfall(&best.certificate) <= 1.0;
    if allowed.contains(&Rung::Plain) && !best.as_ref().is_some_and(met) {
        let last = plain(member, setting)?;
        let closer = best.as_ref().is_none_or(|best| setting.options.shortfall(&last.certificate) <= setting.options.shortfall(&best.certificate));
        if closer {
            best = Some(last);
        }
    }
    Ok(best)
}

/// The directions of each basis, and the members on it.
type Bases = Vec<(super::linalg::Mat, Vec<usize>)>;

fn clustered(members: &[Member<'_>], rank: usize, clusters: usize, seed: u64) -> Result<Bases> {
    let terms: Vec<&Terms> = members.iter().map(|m| &m.terms).collect();
    let (places, bases) = cluster(&terms, Side::Input, rank, clusters, seed)?;
    let columns = bases.iter().map(|basis| basis.ncols()).max().unwrap_or(0);
    let pad = |basis: super::linalg::Mat| super::linalg::Mat::from_fn(basis.nrows(), columns, |i, j| if j < basis.ncols() { basis[(i, j)] } else { 0.0 });
    let of = |c: usize| (0..members.len()).filter(|&k| places[k] == c).collect::<Vec<_>>();
    Ok(bases.into_iter().enumerate().map(|(c, basis)| (pad(basis), of(c))).filter(|basis| !basis.1.is_empty()).collect())
}

/// Encodes every member on its basis. The setting then holds these bases.
fn encode_on(bases: &Bases, side: Side, members: &[Member<'_>], setting: &mut Setting<'_>) -> Result<Vec<EncodedProjection>> {
    let rounded: Vec<Basis> = bases.iter().map(|basis| Basis::new(basis.0.clone(), side, setting.metric, setting.options.allowed_loss())).collect();
    let stored = rounded.iter().map(|basis| basis.stored.clone()).collect();
    match side {
        Side::Input => (setting.shared.input_bases, setting.shared.output_bases) = (stored, vec![]),
        Side::Output => (setting.shared.input_bases, setting.shared.output_bases) = (vec![], stored),
    }
    let mut out: Vec<Option<EncodedProjection>> = members.iter().map(|_| None).collect();
    for (number, (basis, (_, places))) in rounded.iter().zip(bases).enumerate() {
        for &k in places {
            out[k] = Some(Draft::shared(&members[k], side, number, basis, setting.metric)?.meet(setting)?);
        }
    }
    // Every member is in one cluster, so none is left out.
    Ok(out.into_iter().flatten().collect())
}

/// For each member, the cheaper encoding that meets the requirement. All are without the basis where that is cheaper in all.
fn cheapest(tried: Vec<EncodedProjection>, fallback: Vec<Option<EncodedProjection>>, setting: &mut Setting<'_>) -> Vec<Option<EncodedProjection>> {
    let met = |p: &EncodedProjection| setting.options.shortfall(&p.certificate) <= 1.0;
    let basis: u64 = setting.shared.input_bases.iter().chain(&setting.shared.output_bases).map(basis_bytes).sum();
    let alone = fallback.iter().map(|each| each.as_ref().filter(|p| met(p)).map(|p| p.certificate.bytes)).sum::<Option<u64>>();
    let mixed: Vec<Option<EncodedProjection>> = tried
        .into_iter()
        .zip(&fallback)
        .map(|(on_basis, own)| match own {
            Some(own) if met(own) && (!met(&on_basis) || own.certificate.bytes <= on_basis.certificate.bytes) => Some(own.clone()),
            Some(own) if !met(&on_basis) && setting.options.shortfall(&own.certificate) < setting.options.shortfall(&on_basis.certificate) => Some(own.clone()),
            _ => Some(on_basis),
        })
        .collect();
    let together = basis + mixed.iter().flatten().map(|p| p.certificate.bytes).sum::<u64>();
    match alone {
        Some(alone) if alone <= together => fallback,
        _ => mixed,
    }
}

/// Checks that every requirement is met, and drops bases that nobody uses.
fn finish(found: Vec<Option<EncodedProjection>>, path: &str, names: &[&str], setting: &mut Setting<'_>) -> Result<(Vec<EncodedProjection>, SharedProjection)> {
    let options = setting.options;
    let mut out = Vec::with_capacity(found.len());
    for (projection, name) in found.into_iter().zip(names) {
        let missed = |reached: String| Error::Missed { subject: format!("adapter {name:?}, projection {path:?}"), asked: options.asked(), reached };
        let Some(projection) = projection else {
            return Err(missed("nothing: no rung that is allowed can hold it; allow more rungs".into()));
        };
        if options.shortfall(&projection.certificate) > 1.0 {
            return Err(missed(format!("{}; allow more rungs, a higher rank or more bits", options.reached(&projection.certificate))));
        }
        out.push(projection);
    }
    drop_unused(&out, &mut setting.shared);
    Ok((out, setting.shared.clone()))
}

pub(crate) fn drop_unused(projections: &[EncodedProjection], shared: &mut SharedProjection) {
    use crate::adapters::encoded::EncodedFactor::Shared;
    if !projections.iter().any(|p| matches!(p.input, Shared(_))) {
        shared.input_bases.clear();
    }
    if !projections.iter().any(|p| matches!(p.output, Shared(_))) {
        shared.output_bases.clear();
    }
}

/// An encoding without a required fidelity: the published form, or what the asked rank, bits and rungs make of it.
fn without_requirement(members: &[Member<'_>], setting: &mut Setting<'_>, allowed: &[Rung]) -> Result<Encoded> {
    let options = setting.options;
    if allowed == [Rung::Plain] {
        let projections = members.iter().map(|member| plain(member, setting)).collect::<Result<_>>()?;
        return Ok(Encoded { shared: setting.shared.clone(), projections });
    }
    let Some(plan) = plan_by_loss(members, None, options, allowed)? else {
        let projections = members.iter().map(|member| Draft::private(member, setting.metric).meet(setting)).collect::<Result<_>>()?;
        return Ok(Encoded { shared: setting.shared.clone(), projections });
    };
    let directions = leading(&members.iter().map(|m| &m.terms).collect::<Vec<_>>(), &vec![1.0; members.len()], plan.side, plan.rank)?;
    let projections = encode_on(&vec![(directions, (0..members.len()).collect())], plan.side, members, setting)?;
    Ok(Encoded { shared: setting.shared.clone(), projections })
}

/// The metric of an encoding: see [`EncodeOptions::calibration`].
pub(crate) fn metric(options: &EncodeOptions, inputs: Option<&super::calibration::Inputs>) -> Result<Metric> {
    let weighs = options.min_cosine.is_none() && !options.calibration.as_ref().is_some_and(|calibration| calibration.only_measures());
    match inputs.filter(|_| weighs) {
        None => Ok(Metric::identity()),
        Some(inputs) => inputs.few_rows().map_or_else(|| Metric::of(inputs.moment()?), Metric::of_rows),
    }
}
