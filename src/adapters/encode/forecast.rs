//! Estimates of what rungs would take: bytes and losses if columns were Gaussian. They choose which bases to try. What is kept is measured
//! afterwards.

use faer::MatRef;

use super::allocate::{Goal, State, allocate, totals};
use super::draft::Member;
use super::linalg::Mat;
use super::options::{DEFAULT_BITS, DEFAULT_RANK, EncodeOptions};
use super::terms::{Side, Terms, leading, lost};
use crate::adapters::encoded::Rung;
use crate::error::Result;
use crate::ops::codes::CodeWidth;

/// The most columns of a basis in the search. With more, the kernels gain nothing over private factors.
pub(crate) const MAX_RANK: usize = 128;
/// About the bytes of an adapter's centroids in a projection.
const CENTROIDS: f64 = 60.0;

/// Widths and their loss on a Gaussian (Max 1960; the last is two stages refined jointly).
const GAUSSIAN: [(CodeWidth, f64); 5] =
    [(CodeWidth::Zero, 1.0), (CodeWidth::Two, 0.1175), (CodeWidth::Three, 0.0345), (CodeWidth::Four, 0.0095), (CodeWidth::FourThree, 0.0004)];

/// A candidate for the basis of a projection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub side: Side,
    pub rank: usize,
    /// The cost by which candidates are compared, in bytes or loss.
    cost: f64,
}

/// The basis that promises the fewest bytes in all at this loss. `None` where `private` factors, given as bytes by member, promise fewer.
pub(crate) fn plan_by_bytes(members: &[Member<'_>], private: &[f64], loss: f64, options: &EncodeOptions, allowed: &[Rung]) -> Result<Option<Plan>> {
    let mut best: Option<Plan> = None;
    let total: f64 = private.iter().sum();
    for side in sides(allowed) {
        let basis = basis_of(members, side, options)?;
        if basis.ncols() == 0 {
            continue;
        }
        let coordinates: Vec<_> = members.iter().map(|m| m.terms.coordinates(side, &basis)).collect();
        for rank in ranks(options, members, &coordinates, basis.ncols()) {
            let mut bytes = (basis.nrows() * rank * basis_element_bytes(loss)) as f64;
            let limit = best.as_ref().map_or(total, |best| best.cost);
            for (member, (coordinates, &private)) in members.iter().zip(coordinates.iter().zip(private)) {
                if bytes >= limit && limit.is_finite() {
                    break;
                }
                let own = Forecast::shared(member, side, coordinates.subcols(0, rank), options)?.bytes_within(loss);
                bytes += own.min(private).min(1e15);
            }
            if best.as_ref().is_none_or(|best| bytes < best.cost) && bytes < total {
                best = Some(Plan { side, rank, cost: bytes });
            }
        }
    }
    Ok(best)
}

/// The basis that promises the least loss in these bytes, or at the asked bits where no bytes are given. `None` where no rung with a basis
/// is allowed, or nothing is to be kept.
pub(crate) fn plan_by_loss(members: &[Member<'_>], budget: Option<f64>, options: &EncodeOptions, allowed: &[Rung]) -> Result<Option<Plan>> {
    let mut best: Option<Plan> = None;
    let before: f64 = members.iter().map(|m| m.lora.bytes() as f64).sum();
    for side in sides(allowed) {
        let basis = basis_of(members, side, options)?;
        let coordinates: Vec<_> = members.iter().map(|m| m.terms.coordinates(side, &basis)).collect();
        let candidates = match (options.rank, options.energy, budget) {
            (None, None, None) => vec![DEFAULT_RANK.min(basis.ncols())],
            _ => ranks(options, members, &coordinates, basis.ncols()),
        };
        for rank in candidates.into_iter().filter(|&rank| rank > 0) {
            let left = budget.map(|budget| budget - (basis.nrows() * rank) as f64);
            let mut cost = 0.0;
            for (member, coordinates) in members.iter().zip(&coordinates) {
                let share = left.map(|left| left * member.lora.bytes() as f64 / before);
                cost += Forecast::shared(member, side, coordinates.subcols(0, rank), options)?.loss_of(share);
            }
            if best.as_ref().is_none_or(|best| cost < best.cost) {
                best = Some(Plan { side, rank, cost });
            }
        }
    }
    Ok(best)
}

fn basis_of(members: &[Member<'_>], side: Side, options: &EncodeOptions) -> Result<Mat> {
    leading(&members.iter().map(|m| &m.terms).collect::<Vec<_>>(), &vec![1.0; members.len()], side, options.rank.unwrap_or(MAX_RANK))
}

/// Bytes of an element of a basis at this loss. Steps of 1/128 are fine enough where more than they cost is lost anyway.
pub(crate) fn basis_element_bytes(loss: f64) -> usize {
    if loss > 5e-3 { 1 } else { 2 }
}

fn sides(allowed: &[Rung]) -> Vec<Side> {
    let input = allowed.contains(&Rung::SharedInput) || allowed.contains(&Rung::ClusteredInput);
    let output = allowed.contains(&Rung::SharedOutput);
    [(input, Side::Input), (output, Side::Output)].into_iter().filter(|each| each.0).map(|each| each.1).collect()
}

/// The ranks that a search tries.
fn ranks(options: &EncodeOptions, members: &[Member<'_>], coordinates: &[Mat], most: usize) -> Vec<usize> {
    if let Some(rank) = options.rank {
        return vec![rank.min(most)];
    }
    if let Some(energy) = options.energy {
        return vec![rank_for_energy(members.iter().map(|m| &m.terms), coordinates, energy, most)];
    }
    let step = |rank: usize| if rank < 32 { 2 } else { 8 };
    std::iter::successors(Some(2usize), |&rank| Some(rank + step(rank))).take_while(|&rank| rank < most).chain([most]).collect()
}

/// The smallest rank that keeps this share of the energy. All adapters count alike.
fn rank_for_energy<'a>(terms: impl Iterator<Item = &'a Terms> + Clone, coordinates: &[Mat], energy: f64, most: usize) -> usize {
    let lost = |rank: usize| terms.clone().zip(coordinates).map(|(t, c)| lost(t, c.subcols(0, rank))).sum::<f64>() / coordinates.len().max(1) as f64;
    (1..most).find(|&rank| 1.0 - lost(rank) >= energy).unwrap_or(most)
}

/// The forecast of one adapter in one projection on one rung.
pub(crate) struct Forecast {
    items: Vec<Vec<State>>,
    /// The share of the energy that the basis loses.
    lost: f64,
    energy: f64,
    /// Bytes of codes and core at the asked bits, or at the bits that are used where none are asked.
    at_bits: f64,
    /// The most bytes of codes and core: those at the asked bits where bits are asked, else without a limit.
    most: f64,
}

impl Forecast {
    /// The forecast on a basis, from the coordinates on it.
    pub(crate) fn shared(member: &Member<'_>, side: Side, coordinates: MatRef<'_, f64>, options: &EncodeOptions) -> Result<Self> {
        let terms = &member.terms;
        let d = if side == Side::Input { terms.left.nrows() } else { terms.right.nrows() };
        let items = items(&terms.project_energies(coordinates)?, d, coordinates.ncols(), |share| share);
        Ok(Self::new(items, [d, coordinates.ncols()], lost(terms, coordinates), terms.energy, options))
    }

    /// The forecast with both factors coded.
    pub(crate) fn private(member: &Member<'_>, options: &EncodeOptions) -> Self {
        let terms = &member.terms;
        let d = terms.left.nrows() + terms.right.nrows();
        let energies: Vec<f64> = terms.sigma.iter().map(|s| s * s).collect();
        let items = items(&energies, d, energies.len(), |share| share * (2.0 - share));
        Self::new(items, [d, energies.len()], 0.0, terms.energy, options)
    }

    fn new(items: Vec<Vec<State>>, [d, rank]: [usize; 2], lost: f64, energy: f64, options: &EncodeOptions) -> Self {
        let column = options.bits.unwrap_or(DEFAULT_BITS) * 4.0 * d.div_ceil(32) as f64;
        let at_bits = items.len() as f64 * (column + 2.0 * rank as f64);
        Self { items, lost, energy, at_bits, most: if options.bits.is_some() { at_bits } else { f64::INFINITY } }
    }

    /// Bytes at which no more than `loss` is lost; infinite where that is impossible.
    pub(crate) fn bytes_within(&self, loss: f64) -> f64 {
        let left = (loss - self.lost) * self.energy;
        if left < 0.0 {
            return f64::INFINITY;
        }
        let (chosen, met) = allocate(&self.items, Goal::Loss(left));
        let bytes = totals(&self.items, &chosen).0;
        if met && bytes <= self.most { with_centroids(bytes) } else { f64::INFINITY }
    }

    /// Bytes for about this loss. Where the basis alone loses as much, the codes lose a quarter of it on top.
    pub(crate) fn bytes_about(&self, loss: f64) -> f64 {
        let left = (loss - self.lost).max(0.25 * loss * (1.0 - self.lost));
        let (chosen, _) = allocate(&self.items, Goal::Loss(left * self.energy));
        with_centroids(totals(&self.items, &chosen).0.min(self.most))
    }

    /// The share that is lost with these bytes, or at the asked bits.
    fn loss_of(&self, bytes: Option<f64>) -> f64 {
        if self.energy <= 0.0 {
            return 0.0;
        }
        let most = bytes.map_or(self.at_bits, |bytes| (bytes - CENTROIDS).min(self.most));
        let (chosen, _) = allocate(&self.items, Goal::Bytes(most));
        self.lost + totals(&self.items, &chosen).1 / self.energy
    }
}

fn with_centroids(bytes: f64) -> f64 {
    if bytes > 0.0 { bytes + CENTROIDS } else { 0.0 }
}

fn items(energies: &[f64], d: usize, rank: usize, both: impl Fn(f64) -> f64) -> Vec<Vec<State>> {
    let state = |energy: f64, (width, share): (CodeWidth, f64)| {
        let core = if width == CodeWidth::Zero { 0.0 } else { 2.0 * rank as f64 };
        State { bytes: 4.0 * width.column_words(d as u64) as f64 + core, loss: energy * both(share) }
    };
    energies.iter().map(|&energy| GAUSSIAN.map(|width| state(energy, width)).to_vec()).collect()
}
