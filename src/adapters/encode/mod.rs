//! Encoding a population of LoRA adapters: every projection by itself, in parallel, the same on any number of threads.

pub mod add;
mod allocate;
mod basis;
mod budget;
pub mod calibration;
mod codebook;
mod draft;
mod factor;
mod forecast;
mod ladder;
pub(crate) mod linalg;
mod metric;
mod options;
pub mod prefix;
mod terms;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::adapters::bundle;
use crate::adapters::encoded::{EncodedAdapter, Population, Rung, SharedProjection};
use crate::adapters::peft::{Lora, LoraAdapter};
use crate::error::{Error, Result, ensure};
use basis::basis_bytes;
use draft::{Member, Setting};
use ladder::{Encoded, climb, metric};
use linalg::{Mat, widen};
pub use options::{DEFAULT_BITS, DEFAULT_RANK, EncodeOptions};
use terms::Terms;

/// One adapter of a population, as it came.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its name: the key in the population.
    pub name: &'a str,
    /// Its `adapter_config.json`, kept as it is.
    pub config: &'a serde_json::Value,
    /// By module path.
    pub modules: &'a BTreeMap<String, Lora>,
}

impl<'a> From<&'a LoraAdapter> for Source<'a> {
    fn from(adapter: &'a LoraAdapter) -> Self {
        Self { name: &adapter.name, config: &adapter.config, modules: &adapter.modules }
    }
}

/// Called after each projection with how many are done and how many there are, from any thread.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// Encodes a population. Deterministic for the options' seed, whatever the number of threads.
///
/// # Errors
/// No adapters, two of one name, shapes that differ between adapters, values that are not finite, options out of range,
/// calibration inputs of another width or of none of the projections;
/// [`Error::Missed`] where the required fidelity cannot be had on the rungs that are allowed, or the required ratio.
pub fn encode(sources: &[Source<'_>], options: &EncodeOptions, progress: Progress<'_>) -> Result<Population> {
    options.validate()?;
    let by_path = gather(sources)?;
    if let Some(calibration) = &options.calibration {
        calibration.check_names(by_path.iter().map(|projection| projection.0))?;
    }
    let most = options.max_ratio.map(|ratio| (ratio * bytes_before(&by_path) as f64) as u64);
    if let Some(most) = most.filter(|_| !options.requires_fidelity() && options.allowed() != [Rung::Plain]) {
        return budget::encode_within(&by_path, sources, options, most, progress);
    }
    let done = AtomicUsize::new(0);
    let encoded = by_path.par_iter().map(|(path, users)| {
        let names: Vec<&str> = users.iter().map(|user| user.0).collect();
        let out = with_members(path, users, options, |members, setting| climb(path, &names, members, setting));
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, by_path.len());
        out
    });
    let population = assemble(&by_path, sources, encoded.collect())?;
    let Some(most) = most else { return Ok(population) };
    let reached = bundle::file_bytes(&population)?;
    if reached <= most {
        return Ok(population);
    }
    let asked = options.asked();
    let kept = if asked.is_empty() { String::new() } else { format!(" with {asked}; ask for less of that") };
    Err(budget::missed(most, bytes_before(&by_path), reached, &kept))
}

/// The encoded projections, in the order of `by_path`, as a population.
fn assemble(by_path: &[(&str, Users<'_>)], sources: &[Source<'_>], encoded: Vec<Result<Encoded>>) -> Result<Population> {
    let blank = |source: &Source<'_>| EncodedAdapter { config: source.config.clone(), projections: BTreeMap::new() };
    let mut adapters: BTreeMap<String, EncodedAdapter> = sources.iter().map(|source| (source.name.to_string(), blank(source))).collect();
    let mut projections = BTreeMap::new();
    for ((path, users), found) in by_path.iter().zip(encoded) {
        let found = found?;
        projections.insert((*path).to_string(), found.shared);
        for ((name, _), projection) in users.iter().zip(found.projections) {
            if let Some(adapter) = adapters.get_mut(*name) {
                adapter.projections.insert((*path).to_string(), projection);
            }
        }
    }
    Ok(Population { projections, adapters })
}

type Users<'a> = Vec<(&'a str, &'a Lora)>;

/// The adapters of each projection, in the sources' order.
fn gather<'a>(sources: &[Source<'a>]) -> Result<Vec<(&'a str, Users<'a>)>> {
    ensure(!sources.is_empty(), "population", "at least one adapter", "none")?;
    let mut by_path: BTreeMap<&str, Users<'a>> = BTreeMap::new();
    let mut names = std::collections::BTreeSet::new();
    for source in sources {
        ensure(names.insert(source.name), "population", "adapters of different names", format_args!("{:?} twice", source.name))?;
        for (path, lora) in source.modules {
            check(lora, source.name, path)?;
            let users = by_path.entry(path).or_default();
            if let Some((other, first)) = users.first() {
                let (expected, found) = (shape(first), shape(lora));
                let subject = format!("adapter {:?}, projection {path:?}", source.name);
                ensure(expected == found, &subject, format_args!("[d_out, d_in] = {expected:?} as in {other:?}"), format_args!("{found:?}"))?;
            }
            users.push((source.name, lora));
        }
    }
    Ok(by_path.into_iter().collect())
}

fn shape(lora: &Lora) -> [usize; 2] {
    [lora.b.rows, lora.a.cols]
}

/// Checks shapes and values.
pub(super) fn check(lora: &Lora, name: &str, path: &str) -> Result<()> {
    let (a, b) = (&lora.a, &lora.b);
    let whole = a.data.len() == a.rows * a.cols && b.data.len() == b.rows * b.cols;
    let subject = format!("adapter {name:?}, projection {path:?}");
    let fits = whole && a.rows == b.cols && a.rows > 0 && a.cols > 0 && b.rows > 0;
    ensure(fits, &subject, "A [r, d_in] and B [d_out, r]", format_args!("[{}, {}] and [{}, {}]", a.rows, a.cols, b.rows, b.cols))?;
    let finite = a.data.iter().chain(&b.data).all(|value| value.is_finite()) && lora.scaling.is_finite();
    ensure(finite, &subject, "finite values", "NaN or an infinity")
}

/// One adapter in one projection, ready to encode.
pub(super) fn member<'a>(lora: &'a Lora, name: &str, path: &str, setting: &Setting<'_>) -> Result<Member<'a>> {
    let b = widen(&lora.b);
    let scaled = Mat::from_fn(b.nrows(), b.ncols(), |i, j| f64::from(lora.scaling) * b[(i, j)]);
    let terms = Terms::new(&widen(&lora.a), &scaled, setting.metric)?;
    // By name, not by place: an adapter's codes do not depend on who else is there.
    let seed = name
        .bytes()
        .chain([0])
        .chain(path.bytes())
        .fold(0xcbf2_9ce4_8422_2325 ^ setting.options.seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    Ok(Member { lora, terms, seed })
}

/// What `work` makes of one projection's adapters.
fn with_members<T>(path: &str, users: &Users<'_>, options: &EncodeOptions, work: impl FnOnce(&[Member<'_>], &mut Setting<'_>) -> Result<T>) -> Result<T> {
    let [d_out, d_in] = shape(users[0].1);
    let inputs = options.calibration.as_ref().map(|calibration| calibration.of(path, d_in)).transpose()?.flatten();
    let metric = metric(options, inputs)?;
    let shared = SharedProjection { d_in, d_out, input_bases: vec![], output_bases: vec![] };
    let mut setting = Setting { options, metric: &metric, inputs, shared };
    let members = users.iter().map(|(name, lora)| member(lora, name, path, &setting)).collect::<Result<Vec<_>>>()?;
    work(&members, &mut setting).map_err(|error| match error {
        Error::Invalid { subject, expected, found } => Error::Invalid { subject: format!("projection {path:?}: {subject}"), expected, found },
        other => other,
    })
}

fn bytes_before(by_path: &[(&str, Users<'_>)]) -> u64 {
    by_path.iter().flat_map(|(_, users)| users).map(|user| user.1.bytes()).sum()
}

/// Payload bytes of a population before and after: codes, cores and plain values, and the bases; not the headers.
pub fn payload_bytes(population: &Population) -> (u64, u64) {
    let own = population.adapters.values().flat_map(|adapter| adapter.projections.values());
    let (before, after) = own.fold((0, 0), |sum, p| (sum.0 + p.certificate.bytes_before, sum.1 + p.certificate.bytes));
    let bases = population.projections.values().flat_map(|shared| shared.input_bases.iter().chain(&shared.output_bases));
    (before, after + bases.map(basis_bytes).sum::<u64>())
}
