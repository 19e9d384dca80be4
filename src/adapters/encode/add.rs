//! The addition of one more adapter to a population that is encoded already.
//!
//! A basis fitted to some adapters keeps little of another. What its projection alone would lose is measured and reported, and the newcomer
//! climbs the ladder until it is kept as well as was asked.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::basis::{Basis, basis_bytes};
use super::draft::{Draft, Member, Setting, plain};
use super::ladder::metric;
use super::linalg::{Mat, mul, scale_columns, thin_svd};
use super::metric::Metric;
use super::options::EncodeOptions;
use super::room::Room;
use super::sources::{Source, check, member};
use super::terms::Side;
use crate::adapters::certificate::Certificate;
use crate::adapters::encoded::{EncodedAdapter, EncodedFactor, EncodedProjection, Matrix, Population, Rung, SharedProjection};
use crate::error::{Error, Result, ensure};
use crate::ops::codes::CodeWidth;

/// What adding an adapter gave in one projection.
#[derive(Clone, Debug)]
pub struct Added {
    /// The measures of the adapter on the existing bases, at the best that codes on them reach; `None` where there were none.
    pub projected: Option<Certificate>,
    /// The measures of the adapter as it is kept.
    pub kept: Certificate,
    /// Columns that the basis gained for the adapter. The other adapters decode to what they did.
    pub columns_gained: usize,
}

/// Encodes `source` into `population`, which is unchanged where this fails. Without a required fidelity the newcomer must be kept as well
/// as the population's worst adapter, projection by projection.
///
/// # Errors
/// A name that is taken, shapes that do not fit the population, values that are not finite, options out of range;
/// [`Error::Missed`] where the allowed rungs do not keep what is asked.
pub fn add_adapter(population: &mut Population, source: Source<'_>, options: &EncodeOptions) -> Result<BTreeMap<String, Added>> {
    options.validate()?;
    if let Some(calibration) = &options.calibration {
        calibration.check_names(source.modules.keys().map(String::as_str))?;
    }
    ensure(!population.adapters.contains_key(source.name), "population", "an adapter of a new name", format_args!("{:?}", source.name))?;
    let paths: Vec<_> = source.modules.iter().collect();
    let found: Vec<Result<Newcomer>> = paths.par_iter().map(|(path, lora)| newcomer(population, path, source.name, lora, options)).collect();
    let found = found.into_iter().collect::<Result<Vec<_>>>()?;

    let mut encoded = EncodedAdapter { config: source.config.clone(), projections: BTreeMap::new() };
    let mut report = BTreeMap::new();
    for ((path, _), newcomer) in paths.into_iter().zip(found) {
        let columns_gained = newcomer.extended.as_ref().map_or(0, |(side, shared)| extend(population, path, *side, shared));
        population.projections.entry(path.clone()).or_insert(newcomer.shared);
        report.insert(path.clone(), Added { projected: newcomer.projected, kept: newcomer.projection.certificate.clone(), columns_gained });
        encoded.projections.insert(path.clone(), newcomer.projection);
    }
    population.adapters.insert(source.name.to_string(), encoded);
    Ok(report)
}

struct Newcomer {
    shared: SharedProjection,
    projection: EncodedProjection,
    projected: Option<Certificate>,
    extended: Option<(Side, SharedProjection)>,
}

fn newcomer(population: &Population, path: &str, name: &str, lora: &crate::adapters::peft::Lora, options: &EncodeOptions) -> Result<Newcomer> {
    check(lora, name, path)?;
    let (d_in, d_out) = (lora.a.cols, lora.b.rows);
    let blank = SharedProjection { d_in, d_out, input_bases: vec![], output_bases: vec![] };
    let shared = population.projections.get(path).cloned().unwrap_or(blank);
    let subject = format!("adapter {name:?}, projection {path:?}");
    ensure((shared.d_out, shared.d_in) == (d_out, d_in), &subject, format_args!("[{}, {}]", shared.d_out, shared.d_in), format_args!("[{d_out}, {d_in}]"))?;

    let mut options = options.clone();
    if !options.requires_fidelity() {
        let others = population.adapters.values().filter_map(|adapter| adapter.projections.get(path));
        let worst = others.map(|p| p.certificate.cos_delta).fold(1.0, f64::min);
        options.min_cosine = Some(worst.clamp(1e-3, 0.99));
    }
    let inputs = options.calibration.as_ref().map(|calibration| calibration.of(path, d_in)).transpose()?.flatten();
    let _room = inputs.map(|inputs| Room::take(d_in, inputs.bytes()));
    let metric = metric(&options, inputs)?;
    let setting = Setting { options: &options, metric: &metric, inputs, shared: shared.clone() };
    let member = member(lora, name, path, &setting)?;
    let met = |p: &EncodedProjection| options.shortfall(&p.certificate) <= 1.0;
    let cheaper = |a: &(u64, EncodedProjection), b: &(u64, EncodedProjection)| a.0.cmp(&b.0);
    let allowed = options.allowed();

    let on_basis = projected(&member, &setting)?;
    let projected = on_basis.iter().map(|p| &p.certificate).max_by(|a, b| a.cos_delta.total_cmp(&b.cos_delta)).cloned();
    let mut choices: Vec<(u64, EncodedProjection)> =
        on_basis.into_iter().filter(|p| allowed.contains(&p.certificate.rung)).map(|p| (p.certificate.bytes, p)).collect();
    if allowed.contains(&Rung::PrivateCoded) {
        let private = Draft::private(&member, &metric).meet(&setting)?;
        choices.push((private.certificate.bytes, private));
    }
    if allowed.contains(&Rung::Plain) && !choices.iter().any(|choice| met(&choice.1)) {
        let plain = plain(&member, &setting)?;
        choices.push((plain.certificate.bytes, plain));
    }
    let mut extended = None;
    let so_far = choices.iter().filter(|choice| met(&choice.1)).map(|choice| choice.0).min();
    if let Some((bytes, projection, side, wider)) = extension(&member, setting, &allowed)?.filter(|found| so_far.is_none_or(|bytes| found.0 < bytes)) {
        choices.push((bytes, projection));
        extended = Some((side, wider));
    }
    let closest = choices.iter().map(|choice| &choice.1.certificate).min_by(|a, b| options.shortfall(a).total_cmp(&options.shortfall(b))).cloned();
    let Some((_, projection)) = choices.into_iter().filter(|choice| met(&choice.1)).min_by(cheaper) else {
        let reached = closest.map_or("nothing".into(), |closest| options.reached(&closest));
        return Err(Error::Missed { subject, asked: options.asked(), reached: format!("{reached}; allow more rungs, or encode the population again with it") });
    };
    Ok(Newcomer { shared, projection, projected, extended })
}

/// The newcomer on each existing basis, with the codes that the requirement takes.
fn projected(member: &Member<'_>, setting: &Setting<'_>) -> Result<Vec<EncodedProjection>> {
    let mut out = Vec::new();
    for (side, bases) in [(Side::Input, &setting.shared.input_bases), (Side::Output, &setting.shared.output_bases)] {
        for (number, stored) in bases.iter().enumerate() {
            let basis = Basis::from_stored(stored.clone(), side, setting.metric)?;
            out.push(Draft::shared(member, side, number, &basis, setting.metric)?.meet(setting)?);
        }
    }
    Ok(out)
}

type Extension = (u64, EncodedProjection, Side, SharedProjection);

/// The basis with more columns, those that the newcomer misses most, if that meets what is asked. It comes with the bytes of the new
/// columns and the newcomer's own. It exists only where there is one basis, as every basis has the same number of columns.
fn extension(member: &Member<'_>, mut setting: Setting<'_>, allowed: &[Rung]) -> Result<Option<Extension>> {
    let side = match (&setting.shared.input_bases[..], &setting.shared.output_bases[..]) {
        ([_], []) if allowed.contains(&Rung::SharedInput) => Side::Input,
        ([], [_]) if allowed.contains(&Rung::SharedOutput) => Side::Output,
        _ => return Ok(None),
    };
    if setting.options.rank.is_some() || member.terms.energy <= 0.0 {
        return Ok(None);
    }
    let stored = if side == Side::Input { setting.shared.input_bases[0].clone() } else { setting.shared.output_bases[0].clone() };
    let old = Basis::from_stored(stored.clone(), side, setting.metric)?;
    let own = scale_columns(if side == Side::Input { &member.terms.right } else { &member.terms.left }, &member.terms.sigma);
    let inside = mul(old.directions.as_ref(), mul(old.directions.transpose(), own.as_ref()).as_ref());
    let missed = thin_svd((&own - &inside).as_ref())?;
    let energies: Vec<f64> = missed.values.iter().map(|s| s * s / member.terms.energy).collect();
    let loss = setting.options.allowed_loss();
    let mut best: Option<Extension> = None;
    for share in [0.7, 0.35, 0.1] {
        let enough = |&columns: &usize| energies[columns..].iter().sum::<f64>() <= share * loss;
        let Some(columns) = (1..energies.len()).find(enough) else { continue };
        let more = Basis::new(missed.left.subcols(0, columns).to_owned(), side, setting.metric, loss);
        let wider = beside(&stored, &more.stored);
        let gained = basis_bytes(&wider) - basis_bytes(&stored);
        let basis = Basis::from_stored(wider.clone(), side, setting.metric)?;
        match side {
            Side::Input => setting.shared.input_bases = vec![wider],
            Side::Output => setting.shared.output_bases = vec![wider],
        }
        let found = Draft::shared(member, side, 0, &basis, setting.metric)?.meet(&setting)?;
        let bytes = gained + found.certificate.bytes;
        if setting.options.shortfall(&found.certificate) <= 1.0 && best.as_ref().is_none_or(|best| bytes < best.0) {
            best = Some((bytes, found, side, setting.shared.clone()));
        }
    }
    Ok(best)
}

fn beside<T: Copy>(left: &Matrix<T>, right: &Matrix<T>) -> Matrix<T> {
    let row = |i: usize| left.data[i * left.cols..][..left.cols].iter().chain(&right.data[i * right.cols..][..right.cols]);
    Matrix { rows: left.rows, cols: left.cols + right.cols, data: (0..left.rows).flat_map(row).copied().collect() }
}

/// Replaces the basis by the wider one, and returns the columns gained. Adapters on it get empty columns for what is new.
fn extend(population: &mut Population, path: &str, side: Side, shared: &SharedProjection) -> usize {
    let columns = |shared: &SharedProjection| if side == Side::Input { shared.input_bases[0].cols } else { shared.output_bases[0].cols };
    let rank = columns(shared);
    let before = population.projections.get(path).map_or(rank, columns);
    population.projections.insert(path.to_string(), shared.clone());
    for adapter in population.adapters.values_mut() {
        let Some(projection) = adapter.projections.get_mut(path) else { continue };
        let own = match (&projection.input, &mut projection.output) {
            (EncodedFactor::Shared(_), EncodedFactor::Coded(own)) => own,
            (_, EncodedFactor::Shared(_)) => match &mut projection.input {
                EncodedFactor::Coded(own) => own,
                _ => continue,
            },
            _ => continue,
        };
        own.columns.resize(rank, (CodeWidth::Zero, vec![]));
        if let Some(core) = &mut projection.core {
            let at = |i: usize, j: usize| if i < core.rows && j < core.cols { core.data[i * core.cols + j] } else { 0.0 };
            let data = (0..rank * rank).map(|k| at(k / rank, k % rank)).collect();
            *core = Matrix { rows: rank, cols: rank, data };
        }
        projection.certificate.rank = rank;
    }
    rank - before
}

impl Basis {
    /// A basis that is stored already. Its directions are those that it spans.
    pub(crate) fn from_stored(stored: Matrix<half::f16>, side: Side, metric: &Metric) -> Result<Self> {
        let wide = super::linalg::widen(&stored);
        let white = if side == Side::Input { metric.whiten(&wide) } else { wide };
        let svd = thin_svd(white.as_ref())?;
        let least = 1e-6 * svd.values.first().copied().unwrap_or(0.0);
        let n = svd.values.iter().take_while(|&&value| value > least).count();
        let directions: Mat = svd.left.subcols(0, n).to_owned();
        Ok(Self { directions, stored, white })
    }
}
