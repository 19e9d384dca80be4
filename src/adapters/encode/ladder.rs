//! The ladder of one projection: which rung each adapter stands on, chosen by bytes among those that keep what is asked.
//!
//! The rungs, cheapest first where they hold: one input basis for all; several; an output basis; both factors private
//! and coded; plain f16. A basis is paid for once by all that use it, so the choice is made for the population.

use super::allocate::{Goal, State, allocate, totals};
use super::basis::{Basis, basis_bytes, cluster};
use super::draft::{Draft, Member, Setting, plain};
use super::metric::Metric;
use super::options::{DEFAULT_BITS, DEFAULT_RANK, EncodeOptions};
use super::terms::{Side, Terms, leading, lost};
use crate::adapters::encoded::{EncodedProjection, Rung, SharedProjection};
use crate::error::{Error, Result};
use crate::ops::codes::CodeWidth;

/// Columns of a basis that the search goes up to: beyond, the kernels gain nothing over private factors.
const MAX_RANK: usize = 128;

/// Widths and what they lose of a Gaussian (Max 1960; the last is two stages refined jointly), for estimates.
const GAUSSIAN: [(CodeWidth, f64); 5] =
    [(CodeWidth::Zero, 1.0), (CodeWidth::Two, 0.1175), (CodeWidth::Three, 0.0345), (CodeWidth::Four, 0.0095), (CodeWidth::FourThree, 0.0004)];

/// A projection of a population, encoded: one entry for each member.
pub(crate) struct Encoded {
    /// The bases that are used.
    pub shared: SharedProjection,
    /// In the members' order.
    pub projections: Vec<EncodedProjection>,
}

/// A candidate for the bases of a projection.
struct Plan {
    side: Side,
    rank: usize,
    bytes: f64,
}

/// Chooses and encodes. `names` are the members', for errors; `path` is the projection's.
pub(crate) fn climb(path: &str, names: &[&str], members: &[Member<'_>], setting: &mut Setting<'_>) -> Result<Encoded> {
    let options = setting.options;
    let allowed = options.allowed();
    if !options.requires_fidelity() {
        return without_requirement(members, setting, &allowed);
    }
    let fallback: Vec<Option<EncodedProjection>> = members.iter().map(|member| fallback(member, setting, &allowed)).collect::<Result<_>>()?;
    let mut projections = fallback;
    if let Some(plan) = best_plan(members, &projections, setting, &allowed)? {
        let directions = leading(&members.iter().map(|m| &m.terms).collect::<Vec<_>>(), &vec![1.0; members.len()], plan.side, plan.rank)?;
        let mut shared = vec![(directions, (0..members.len()).collect::<Vec<_>>())];
        let mut tried = encode_on(&shared, plan.side, members, setting)?;
        // Several bases, while one of them is not enough and nothing else may be used.
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

/// The best that needs no basis: both factors coded, or where that misses, plain. Nothing where neither may be used.
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

/// The bases that promise the fewest bytes in all, by estimate; nothing where private factors promise fewer.
fn best_plan(members: &[Member<'_>], fallback: &[Option<EncodedProjection>], setting: &Setting<'_>, allowed: &[Rung]) -> Result<Option<Plan>> {
    let options = setting.options;
    let loss = options.allowed_loss();
    let private: Vec<f64> = fallback.iter().map(|each| each.as_ref().map_or(f64::INFINITY, |each| each.certificate.bytes as f64)).collect();
    let mut best: Option<Plan> = None;
    let total: f64 = private.iter().sum();
    for side in sides(allowed) {
        let basis_all = leading(&members.iter().map(|m| &m.terms).collect::<Vec<_>>(), &vec![1.0; members.len()], side, options.rank.unwrap_or(MAX_RANK))?;
        if basis_all.ncols() == 0 {
            continue;
        }
        let d = basis_all.nrows();
        let coordinates: Vec<_> = members.iter().map(|m| m.terms.coordinates(side, &basis_all)).collect();
        for rank in ranks(options, members, &coordinates, basis_all.ncols()) {
            let mut bytes = (d * rank) as f64 * if loss > 5e-3 { 1.0 } else { 2.0 };
            let limit = best.as_ref().map_or(total, |best| best.bytes);
            for (member, (coordinates, &private)) in members.iter().zip(coordinates.iter().zip(&private)) {
                if bytes >= limit && limit.is_finite() {
                    break;
                }
                let own = estimate(member, coordinates.subcols(0, rank), side, loss, options.bits)?;
                bytes += own.min(private).min(1e15);
            }
            if best.as_ref().is_none_or(|best| bytes < best.bytes) && bytes < total {
                best = Some(Plan { side, rank, bytes });
            }
        }
    }
    Ok(best)
}

fn sides(allowed: &[Rung]) -> Vec<Side> {
    let input = allowed.contains(&Rung::SharedInput) || allowed.contains(&Rung::ClusteredInput);
    let output = allowed.contains(&Rung::SharedOutput);
    [(input, Side::Input), (output, Side::Output)].into_iter().filter(|each| each.0).map(|each| each.1).collect()
}

/// The ranks that the search tries.
fn ranks(options: &EncodeOptions, members: &[Member<'_>], coordinates: &[super::linalg::Mat], most: usize) -> Vec<usize> {
    if let Some(rank) = options.rank {
        return vec![rank.min(most)];
    }
    if let Some(energy) = options.energy {
        return vec![rank_for_energy(members.iter().map(|m| &m.terms), coordinates, energy, most)];
    }
    let step = |rank: usize| if rank < 32 { 2 } else { 8 };
    std::iter::successors(Some(2usize), |&rank| Some(rank + step(rank))).take_while(|&rank| rank < most).chain([most]).collect()
}

/// The smallest rank that keeps that share of the energy, all adapters counting alike.
fn rank_for_energy<'a>(terms: impl Iterator<Item = &'a Terms> + Clone, coordinates: &[super::linalg::Mat], energy: f64, most: usize) -> usize {
    let lost = |rank: usize| terms.clone().zip(coordinates).map(|(t, c)| lost(t, c.subcols(0, rank))).sum::<f64>() / coordinates.len().max(1) as f64;
    (1..most).find(|&rank| 1.0 - lost(rank) >= energy).unwrap_or(most)
}

/// Bytes of one adapter on a basis, as Gaussian columns would take them; infinite where the basis alone loses too much.
fn estimate(member: &Member<'_>, coordinates: faer::MatRef<'_, f64>, side: Side, loss: f64, bits: Option<f64>) -> Result<f64> {
    let terms = &member.terms;
    let own_d = if side == Side::Input { terms.left.nrows() } else { terms.right.nrows() };
    let left = (loss - lost(terms, coordinates)) * terms.energy;
    if left < 0.0 {
        return Ok(f64::INFINITY);
    }
    let items = gaussian_items(&terms.project(side, &coordinates.to_owned())?.energies, own_d, coordinates.ncols());
    if let Some(bits) = bits {
        let most = bits * items.len() as f64 * 4.0 * own_d.div_ceil(32) as f64;
        let (chosen, _) = allocate(&items, Goal::Bytes(most));
        let (bytes, lost) = totals(&items, &chosen);
        return Ok(if lost <= left { bytes } else { f64::INFINITY });
    }
    let (chosen, met) = allocate(&items, Goal::Loss(left));
    Ok(if met { totals(&items, &chosen).0 + 60.0 } else { f64::INFINITY })
}

fn gaussian_items(energies: &[f64], d: usize, rank: usize) -> Vec<Vec<State>> {
    let state = |energy: f64, (width, share): (CodeWidth, f64)| {
        let core = if width == CodeWidth::Zero { 0.0 } else { 2.0 * rank as f64 };
        State { bytes: 4.0 * width.column_words(d as u64) as f64 + core, loss: energy * share }
    };
    energies.iter().map(|&energy| GAUSSIAN.map(|width| state(energy, width)).to_vec()).collect()
}

/// Directions of each basis, and the members on it.
type Bases = Vec<(super::linalg::Mat, Vec<usize>)>;

fn clustered(members: &[Member<'_>], rank: usize, clusters: usize, seed: u64) -> Result<Bases> {
    let terms: Vec<&Terms> = members.iter().map(|m| &m.terms).collect();
    let (places, bases) = cluster(&terms, Side::Input, rank, clusters, seed)?;
    let columns = bases.iter().map(|basis| basis.ncols()).max().unwrap_or(0);
    let pad = |basis: super::linalg::Mat| super::linalg::Mat::from_fn(basis.nrows(), columns, |i, j| if j < basis.ncols() { basis[(i, j)] } else { 0.0 });
    let of = |c: usize| (0..members.len()).filter(|&k| places[k] == c).collect::<Vec<_>>();
    Ok(bases.into_iter().enumerate().map(|(c, basis)| (pad(basis), of(c))).filter(|basis| !basis.1.is_empty()).collect())
}

/// Every member on its basis; the setting then holds these bases.
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

/// For each member the cheaper of what meets the requirement; all without the basis where that is cheaper in all.
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

/// Checks that all is met, and drops bases that nobody uses.
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

fn drop_unused(projections: &[EncodedProjection], shared: &mut SharedProjection) {
    use crate::adapters::encoded::EncodedFactor::Shared;
    if !projections.iter().any(|p| matches!(p.input, Shared(_))) {
        shared.input_bases.clear();
    }
    if !projections.iter().any(|p| matches!(p.output, Shared(_))) {
        shared.output_bases.clear();
    }
}

/// Nothing required: the published form, or the most fidelity that the asked bytes buy.
fn without_requirement(members: &[Member<'_>], setting: &mut Setting<'_>, allowed: &[Rung]) -> Result<Encoded> {
    let options = setting.options;
    let terms: Vec<&Terms> = members.iter().map(|m| &m.terms).collect();
    let weights = vec![1.0; members.len()];
    let budget = options.max_ratio.map(|ratio| ratio * members.iter().map(|m| m.lora.bytes() as f64).sum::<f64>());
    let mut best: Option<(f64, Option<(Side, usize)>)> = None;
    if let Some(budget) = budget.filter(|_| allowed.contains(&Rung::PrivateCoded)) {
        let mut loss = 0.0;
        for member in members {
            loss += private_loss(member, share_of(budget, member, members));
        }
        best = Some((loss, None));
    }
    for side in sides(allowed) {
        let basis = leading(&terms, &weights, side, options.rank.unwrap_or(MAX_RANK))?;
        let coordinates: Vec<_> = terms.iter().map(|t| t.coordinates(side, &basis)).collect();
        let candidates = match (options.rank, options.energy, budget) {
            (None, None, None) => vec![DEFAULT_RANK.min(basis.ncols())],
            _ => ranks(options, members, &coordinates, basis.ncols()),
        };
        for rank in candidates.into_iter().filter(|&rank| rank > 0) {
            let left = budget.map(|budget| budget - (basis.nrows() * rank) as f64);
            let mut loss = 0.0;
            for (member, coordinates) in members.iter().zip(&coordinates) {
                loss += shared_loss(member, coordinates.subcols(0, rank), side, left.map(|left| share_of(left, member, members)), options)?;
            }
            if best.as_ref().is_none_or(|best| loss < best.0) {
                best = Some((loss, Some((side, rank))));
            }
        }
    }
    if allowed == [Rung::Plain] {
        let projections = members.iter().map(|member| plain(member, setting)).collect::<Result<_>>()?;
        return Ok(Encoded { shared: setting.shared.clone(), projections });
    }
    let Some((_, Some((side, rank)))) = best else {
        let each = |member: &Member<'_>| match budget {
            Some(budget) => Draft::private(member, setting.metric).spend(share_of(budget, member, members), setting),
            None => Draft::private(member, setting.metric).meet(setting),
        };
        let projections = members.iter().map(each).collect::<Result<_>>()?;
        return Ok(Encoded { shared: setting.shared.clone(), projections });
    };
    let directions = leading(&terms, &weights, side, rank)?;
    let basis = Basis::new(directions, side, setting.metric, options.allowed_loss());
    let bases = vec![basis.stored.clone()];
    if side == Side::Input {
        setting.shared.input_bases = bases
    } else {
        setting.shared.output_bases = bases
    }
    let left = budget.map(|budget| budget - basis.bytes() as f64);
    let each = |member: &Member<'_>| {
        let draft = Draft::shared(member, side, 0, &basis, setting.metric)?;
        match left {
            Some(left) => draft.spend(share_of(left, member, members), setting),
            None => draft.meet(setting),
        }
    };
    let projections = members.iter().map(each).collect::<Result<_>>()?;
    Ok(Encoded { shared: setting.shared.clone(), projections })
}

/// A member's part of some bytes, by what it took before.
fn share_of(bytes: f64, member: &Member<'_>, members: &[Member<'_>]) -> f64 {
    bytes * member.lora.bytes() as f64 / members.iter().map(|m| m.lora.bytes() as f64).sum::<f64>()
}

/// The share lost by private factors of that many bytes, by estimate.
fn private_loss(member: &Member<'_>, bytes: f64) -> f64 {
    let terms = &member.terms;
    let n = terms.sigma.len() as f64;
    let energies: Vec<f64> = terms.sigma.iter().map(|s| s * s).collect();
    // Both factors at the same widths lose about twice what one does.
    let mut items = gaussian_items(&energies, terms.left.nrows() + terms.right.nrows(), n as usize);
    for states in &mut items {
        for state in &mut states[1..] {
            state.loss *= 2.0;
        }
    }
    let (chosen, _) = allocate(&items, Goal::Bytes(bytes - 120.0));
    if terms.energy > 0.0 { totals(&items, &chosen).1 / terms.energy } else { 0.0 }
}

/// The share lost on a basis, with that many bytes for the codes or the asked bits.
fn shared_loss(member: &Member<'_>, coordinates: faer::MatRef<'_, f64>, side: Side, bytes: Option<f64>, options: &EncodeOptions) -> Result<f64> {
    let terms = &member.terms;
    if terms.energy <= 0.0 {
        return Ok(0.0);
    }
    let d = if side == Side::Input { terms.left.nrows() } else { terms.right.nrows() };
    let energies = terms.project(side, &coordinates.to_owned())?.energies;
    let items = gaussian_items(&energies, d, coordinates.ncols());
    let asked = options.bits.unwrap_or(DEFAULT_BITS) * 4.0 * d.div_ceil(32) as f64 + 2.0 * coordinates.ncols() as f64;
    let (chosen, _) = allocate(&items, Goal::Bytes(bytes.unwrap_or(asked * energies.len() as f64) - 60.0));
    Ok(lost(terms, coordinates) + totals(&items, &chosen).1 / terms.energy)
}

/// The metric that an encoding is made in: see [`EncodeOptions::calibration`].
pub(crate) fn metric(options: &EncodeOptions, inputs: Option<&super::calibration::Inputs>) -> Result<Metric> {
    let weighs = options.min_cosine.is_none() && !options.calibration.as_ref().is_some_and(|calibration| calibration.only_measures());
    inputs.filter(|_| weighs).map_or_else(|| Ok(Metric::identity()), |inputs| Metric::of(inputs.moment()?.as_ref()))
}
