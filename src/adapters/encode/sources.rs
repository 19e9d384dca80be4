//! The adapters to encode, by adapter as they came, and by projection as the encoder takes them.

use std::collections::BTreeMap;

use super::draft::{Member, Setting};
use super::ladder::{Encoded, metric};
use super::linalg::{Mat, widen};
use super::options::EncodeOptions;
use super::room::Room;
use super::terms::Terms;
use crate::adapters::encoded::{EncodedAdapter, Population, SharedProjection};
use crate::adapters::peft::{Lora, LoraAdapter};
use crate::error::{Error, Result, ensure};

/// One adapter of a population, as it came.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The adapter's name, which is the key in the population.
    pub name: &'a str,
    /// The adapter's `adapter_config.json`, kept unchanged.
    pub config: &'a serde_json::Value,
    /// The adapter's modules, by module path.
    pub modules: &'a BTreeMap<String, Lora>,
}

impl<'a> From<&'a LoraAdapter> for Source<'a> {
    fn from(adapter: &'a LoraAdapter) -> Self {
        Self { name: &adapter.name, config: &adapter.config, modules: &adapter.modules }
    }
}

/// A callback after each projection, with how many are done and how many there are, from any thread.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

pub(super) type Users<'a> = Vec<(&'a str, &'a Lora)>;

/// The adapters of each projection, in the sources' order.
pub(super) fn gather<'a>(sources: &[Source<'a>]) -> Result<Vec<(&'a str, Users<'a>)>> {
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

/// The encoded projections, in the order of `by_path`, as a population.
pub(super) fn assemble(by_path: &[(&str, Users<'_>)], sources: &[Source<'_>], encoded: Vec<Result<Encoded>>) -> Result<Population> {
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

pub(super) fn shape(lora: &Lora) -> [usize; 2] {
    [lora.b.rows, lora.a.cols]
}

/// Checks the shapes and values of an adapter's update.
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
    // The seed is by name, not by place. An adapter's codes do not depend on the other adapters.
    let seed = name
        .bytes()
        .chain([0])
        .chain(path.bytes())
        .fold(0xcbf2_9ce4_8422_2325 ^ setting.options.seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    Ok(Member { lora, terms, seed })
}

/// The result of `work` on one projection's adapters.
pub(super) fn with_members<T>(
    path: &str,
    users: &Users<'_>,
    options: &EncodeOptions,
    work: impl FnOnce(&[Member<'_>], &mut Setting<'_>) -> Result<T>,
) -> Result<T> {
    let [d_out, d_in] = shape(users[0].1);
    let inputs = options.calibration.as_ref().map(|calibration| calibration.of(path, d_in)).transpose()?.flatten();
    let _room = inputs.map(|inputs| Room::take(d_in, inputs.bytes()));
    let metric = metric(options, inputs)?;
    let shared = SharedProjection { d_in, d_out, input_bases: vec![], output_bases: vec![] };
    let mut setting = Setting { options, metric: &metric, inputs, shared };
    let members = users.iter().map(|(name, lora)| member(lora, name, path, &setting)).collect::<Result<Vec<_>>>()?;
    work(&members, &mut setting).map_err(|error| match error {
        Error::Invalid { subject, expected, found } => Error::Invalid { subject: format!("projection {path:?}: {subject}"), expected, found },
        other => other,
    })
}

pub(super) fn bytes_before(by_path: &[(&str, Users<'_>)]) -> u64 {
    by_path.iter().flat_map(|(_, users)| users).map(|user| user.1.bytes()).sum()
}
