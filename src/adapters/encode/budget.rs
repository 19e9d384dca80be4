//! The most fidelity for a number of bytes. Every adapter loses about equally much in every projection, and the file with its header is no
//! larger than asked.
//!
//! The loss that the bytes allow is estimated over the whole population at once. It says which adapters go on a basis and what each may
//! take. Codes are then allocated within those bytes, counted as the file will hold them.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::basis::Basis;
use super::draft::{Draft, Member, Setting};
use super::forecast::{Forecast, MAX_RANK, Plan, basis_element_bytes, plan_by_bytes, plan_by_loss};
use super::ladder::{Encoded, drop_unused};
use super::options::EncodeOptions;
use super::sources::{Progress, Source, Users, assemble, bytes_before, shape, with_members};
use super::terms::{Side, leading};
use crate::adapters::bundle::file_bytes;
use crate::adapters::bundle::size::{ENTRY_BYTES, basis_frame_bytes, factor_bytes, frame_bytes, projection_bytes};
use crate::adapters::encoded::{Population, Rung};
use crate::error::{Error, Result};

/// Searches for bases, each at the loss that the last one found.
const PLANS: usize = 6;
/// Encodings. A file that is too large all the same is made again for that much less.
const ATTEMPTS: usize = 3;
/// The least loss of the search, as a power of two.
const LEAST_LOSS: f64 = -24.0;

/// The ways to encode one projection.
struct Projection {
    plan: Option<Plan>,
    /// Elements of the basis, and its bytes in the header.
    basis: [f64; 2],
    members: Vec<Choices>,
}

/// One adapter in one projection: without a basis, where that is allowed, and on the basis, where there is one.
struct Choices {
    /// Bytes if nothing is kept.
    least: f64,
    private: Option<Forecast>,
    shared: Option<Forecast>,
}

/// Bytes for the members of a projection, and which members are on the basis.
struct Budget {
    members: Vec<f64>,
    on_basis: Vec<bool>,
    /// Bytes of an element of the basis.
    element: usize,
}

/// Encodes for [`EncodeOptions::max_ratio`] where no fidelity is required. `most` is the bytes of the whole file.
pub(super) fn encode_within(
    by_path: &[(&str, Users<'_>)],
    sources: &[Source<'_>],
    options: &EncodeOptions,
    most: u64,
    progress: Progress<'_>,
) -> Result<Population> {
    let adapters = sources.iter().map(|source| (source.name, source.config));
    let frame = frame_bytes(adapters, by_path.iter().map(|(path, users)| (*path, shape(users[0].1))))?;
    let mut left = most as f64 - frame as f64;
    let (projections, mut loss) = planned(by_path, options, left)?;
    let least = projections.iter().map(|projection| projection.bytes(1.0)).sum::<f64>().ceil() as u64 + frame;
    if least > most {
        let bases = projections.iter().map(|projection| projection.basis_bytes(1.0)).sum::<f64>() as u64;
        let fixed = format!("{} bytes of header, configurations and certificates", least - bases);
        let bases = if bases > 0 { format!(" and {bases} of bases") } else { String::new() };
        return Err(missed(most, bytes_before(by_path), least, &format!(" at the least, as {fixed}{bases} cannot shrink")));
    }
    let mut reached = most;
    for attempt in 0..ATTEMPTS {
        let budgets = budgets(&projections, loss, left);
        let done = AtomicUsize::new(0);
        let encoded = by_path.par_iter().zip(projections.par_iter().zip(&budgets)).map(|((path, users), (projection, budget))| {
            let out = with_members(path, users, options, |members, setting| spend(path, members, setting, projection.plan, budget));
            if attempt == 0 {
                progress(done.fetch_add(1, Ordering::Relaxed) + 1, by_path.len());
            }
            out
        });
        let population = assemble(by_path, sources, encoded.collect())?;
        reached = file_bytes(&population)?;
        if reached <= most {
            return Ok(population);
        }
        left -= (reached - most) as f64 + 64.0;
        loss = level(&projections, left);
    }
    Err(missed(most, bytes_before(by_path), reached, ""))
}

/// The error for a file of too many bytes. `why` follows what was reached.
pub(super) fn missed(most: u64, before: u64, reached: u64, why: &str) -> Error {
    let times = |bytes: u64| format!("{:.3} times smaller", before as f64 / (bytes as f64).max(1.0));
    Error::Missed {
        subject: "the file".into(),
        asked: format!("at most {most} of {before} bytes ({})", times(most)),
        reached: format!("{reached} bytes ({}){why}", times(reached)),
    }
}

/// The plan of a projection with these users and members, where it has one of its own.
type Planner<'a> = dyn Fn(&Users<'_>, &[Member<'_>]) -> Result<Option<Plan>> + Sync + 'a;

/// The ways to encode each projection, and the loss that `left` bytes allow.
fn planned(by_path: &[(&str, Users<'_>)], options: &EncodeOptions, left: f64) -> Result<(Vec<Projection>, f64)> {
    let allowed = options.allowed();
    let every = |plan: &Planner<'_>| -> Result<Vec<Projection>> {
        let made = by_path
            .par_iter()
            .map(|(path, users)| with_members(path, users, options, |members, _| Projection::new(path, members, plan(users, members)?, options, &allowed)));
        made.collect::<Vec<_>>().into_iter().collect()
    };
    if !allowed.contains(&Rung::PrivateCoded) {
        let before = bytes_before(by_path) as f64;
        let least = |(path, users): &(&str, Users<'_>)| users.len() as f64 * least(MAX_RANK) + basis_frame_bytes(path) as f64;
        let codes = left - by_path.iter().map(least).sum::<f64>();
        let part = |users: &Users<'_>| codes * users.iter().map(|user| user.1.bytes() as f64).sum::<f64>() / before;
        let projections = every(&|users, members| plan_by_loss(members, Some(part(users)), options, &allowed))?;
        let loss = level(&projections, left);
        return Ok((projections, loss));
    }
    let mut projections = every(&|_, _| Ok(None))?;
    let mut loss = level(&projections, left);
    if allowed == [Rung::PrivateCoded] {
        return Ok((projections, loss));
    }
    for _ in 0..PLANS {
        projections = every(&|_, members| {
            let private: Vec<f64> = members.iter().map(|member| Forecast::private(member, options).bytes_about(loss)).collect();
            plan_by_bytes(members, &private, loss, options, &allowed)
        })?;
        let last = loss;
        loss = level(&projections, left);
        if (loss / last).ln().abs() < 0.1 {
            break;
        }
    }
    Ok((projections, loss))
}

/// The least loss at which the projections take no more than `bytes`; 1, with nothing kept, where there is none.
fn level(projections: &[Projection], bytes: f64) -> f64 {
    let (mut low, mut high) = (LEAST_LOSS, 0.0);
    for _ in 0..24 {
        let middle = 0.5 * (low + high);
        let fits = projections.iter().map(|projection| projection.bytes(f64::exp2(middle))).sum::<f64>() <= bytes;
        if fits { high = middle } else { low = middle }
    }
    f64::exp2(high)
}

/// The bytes of each projection at this loss. What is left over is shared in proportion.
fn budgets(projections: &[Projection], loss: f64, bytes: f64) -> Vec<Budget> {
    let mut budgets: Vec<Budget> = projections.iter().map(|projection| projection.budget(loss)).collect();
    let codes = |projection: &Projection, budget: &Budget| projection.members.iter().zip(&budget.members).map(|(m, b)| b - m.least).sum::<f64>();
    let spare = bytes - projections.iter().map(|projection| projection.bytes(loss)).sum::<f64>();
    let all: f64 = projections.iter().zip(&budgets).map(|(projection, budget)| codes(projection, budget)).sum();
    let stretch = if all > 0.0 { spare / all } else { 0.0 };
    for (projection, budget) in projections.iter().zip(&mut budgets) {
        for (member, bytes) in projection.members.iter().zip(&mut budget.members) {
            *bytes += stretch * (*bytes - member.least);
        }
    }
    budgets
}

impl Choices {
    /// Bytes without a basis and on the basis. A basis that loses too much by itself is taken only where nothing else is allowed.
    fn bytes(&self, loss: f64) -> [f64; 2] {
        match (&self.private, &self.shared) {
            (None, None) => [f64::INFINITY; 2],
            (None, Some(shared)) => [f64::INFINITY, shared.bytes_about(loss)],
            (Some(private), None) => [private.bytes_about(loss), f64::INFINITY],
            (Some(private), Some(shared)) => [private.bytes_about(loss), shared.bytes_within(loss)],
        }
    }
}

/// Bytes of an adapter in a projection if nothing is kept.
fn least(rank: usize) -> f64 {
    (ENTRY_BYTES + 2 * factor_bytes(std::iter::empty(), rank)) as f64
}

impl Projection {
    fn new(path: &str, members: &[Member<'_>], plan: Option<Plan>, options: &EncodeOptions, allowed: &[Rung]) -> Result<Self> {
        let basis =
            plan.map(|plan| leading(&members.iter().map(|m| &m.terms).collect::<Vec<_>>(), &vec![1.0; members.len()], plan.side, plan.rank)).transpose()?;
        let choices = |member: &Member<'_>| {
            let private = (allowed.contains(&Rung::PrivateCoded) || plan.is_none()).then(|| Forecast::private(member, options));
            let on = |(plan, basis): (Plan, &_)| Forecast::shared(member, plan.side, member.terms.coordinates(plan.side, basis).as_ref(), options);
            let shared = plan.zip(basis.as_ref()).map(on).transpose()?;
            Ok(Choices { least: least(plan.map_or(1, |plan| plan.rank)), private, shared })
        };
        let members = members.iter().map(choices).collect::<Result<_>>()?;
        let size = basis.as_ref().map_or([0.0; 2], |basis| [(basis.nrows() * basis.ncols()) as f64, basis_frame_bytes(path) as f64]);
        Ok(Self { plan, basis: size, members })
    }

    fn budget(&self, loss: f64) -> Budget {
        let element = basis_element_bytes(loss);
        let bytes: Vec<[f64; 2]> = self.members.iter().map(|member| member.bytes(loss)).collect();
        let alone: f64 = bytes.iter().map(|each| each[0]).sum();
        let together = self.basis_size(element) + bytes.iter().map(|each| each[0].min(each[1])).sum::<f64>();
        let on_basis: Vec<bool> = bytes.iter().map(|each| together < alone && each[1] < each[0]).collect();
        let members = self.members.iter().zip(bytes.iter().zip(&on_basis)).map(|(member, (each, &shared))| member.least + each[usize::from(shared)]);
        Budget { members: members.collect(), on_basis, element }
    }

    fn basis_size(&self, element: usize) -> f64 {
        self.basis[0] * element as f64 + self.basis[1]
    }

    fn basis_bytes(&self, loss: f64) -> f64 {
        let budget = self.budget(loss);
        if budget.on_basis.contains(&true) { self.basis_size(budget.element) } else { 0.0 }
    }

    fn bytes(&self, loss: f64) -> f64 {
        self.budget(loss).members.iter().sum::<f64>() + self.basis_bytes(loss)
    }
}

/// Encodes one projection. Each member has its budget and what those before it left of theirs.
fn spend(path: &str, members: &[Member<'_>], setting: &mut Setting<'_>, plan: Option<Plan>, budget: &Budget) -> Result<Encoded> {
    let plan = plan.filter(|_| budget.on_basis.contains(&true));
    let mut basis = None;
    if let Some(Plan { side, rank, .. }) = plan {
        let directions = leading(&members.iter().map(|m| &m.terms).collect::<Vec<_>>(), &vec![1.0; members.len()], side, rank)?;
        // The kind of element that the basis takes is a part of the budget.
        let made = Basis::new(directions, side, setting.metric, if budget.element == 1 { f64::INFINITY } else { 0.0 });
        match side {
            Side::Input => setting.shared.input_bases = vec![made.stored.clone()],
            Side::Output => setting.shared.output_bases = vec![made.stored.clone()],
        }
        basis = Some((side, made));
    }
    let mut left = 0.0;
    let mut projections = Vec::with_capacity(members.len());
    for (member, (bytes, on_basis)) in members.iter().zip(budget.members.iter().zip(&budget.on_basis)) {
        left += bytes;
        let draft = match &basis {
            Some((side, basis)) if *on_basis => Draft::shared(member, *side, 0, basis, setting.metric)?,
            _ => Draft::private(member, setting.metric),
        };
        let found = draft.spend(left, setting)?;
        left -= projection_bytes(path, &found)? as f64;
        projections.push(found);
    }
    drop_unused(&projections, &mut setting.shared);
    Ok(Encoded { shared: setting.shared.clone(), projections })
}
