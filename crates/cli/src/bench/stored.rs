//! A report that was stored, read again: what tables, pictures and comparisons are made from.

use std::ops::RangeInclusive;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

pub use super::rates::{Ceilings, Rates};
use super::report::SuiteReport;
pub use super::report::{Environment, Part, Parts};
pub use super::sample::{Checked, Memory, Registered};
pub use trifuse::device::Clocks;
use trifuse::error::{Error, Result};
pub use trifuse::ops::Cost;
use trifuse::read::read_file;

/// The schema that this reads. The command line writes it into every object, and raises it when a field changes its meaning or goes; new
/// fields do not raise it.
pub const SCHEMA_VERSION: u32 = 1;

/// Longest report that is read, in bytes. Those of whole suites have some millions.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// A suite on one device, as far as it is needed again. Fields as in [`SuiteReport`].
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as in the report")]
pub struct Stored {
    pub suite: String,
    pub backend: String,
    pub device: Device,
    pub environment: Environment,
    pub timing: Timing,
    #[serde(default)]
    pub clocks: Option<Clocks>,
    pub ceilings: Ceilings,
    #[serde(default = "yes")]
    pub complete: bool,
    pub results: Vec<Entry>,
}

/// Times in seconds, up to the age of a machine; one run may be shorter than a tick of the clock.
const SECONDS: RangeInclusive<f64> = 0.0..=1e9;
/// What runs take in the middle.
pub(super) const MEDIANS: RangeInclusive<f64> = 1e-12..=1e9;
/// Operations or bytes a second of a device.
const RATES: RangeInclusive<f64> = 1.0..=1e24;
/// Operations or bytes, and what a shape takes of them a second; none of a launch that does nothing.
const COUNTS: RangeInclusive<f64> = 0.0..=1e24;

/// The item and what is wrong with it, where one of `values` is outside `range`.
fn inside(item: &str, name: &str, values: impl IntoIterator<Item = f64>, range: RangeInclusive<f64>) -> Result<(), (String, String)> {
    match values.into_iter().find(|value| !range.contains(value)) {
        Some(odd) => Err((item.into(), format!("{name}: expected {:e} to {:e}, found {odd:e}; measure again", range.start(), range.end()))),
        None => Ok(()),
    }
}

fn yes() -> bool {
    true
}

/// Who measured.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as in the report")]
pub struct Device {
    pub name: String,
    pub driver: String,
    pub kind: String,
    #[serde(alias = "units")]
    pub multiprocessors: u32,
    pub clock_hz: Option<u64>,
}

/// How.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as in the report")]
pub struct Timing {
    pub warmup: u32,
    pub iterations: u32,
    pub limit_seconds: f64,
    pub clock: String,
    pub flush_bytes: u64,
}

/// One shape.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as in the report")]
pub struct Entry {
    pub name: String,
    pub op: String,
    pub dtype: String,
    pub status: String,
    pub why: Option<String>,
    pub aligned: Option<Aligned>,
    /// Variant, times and rates, where the shape was measured.
    #[serde(flatten)]
    pub measured: Option<Measured>,
    /// The shape's sizes, and what else is there.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Against the next aligned size.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as in the report")]
pub struct Aligned {
    pub neighbour: String,
    pub slowdown: f64,
}

/// A shape's times and rates.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as in the report")]
pub struct Measured {
    pub variant: String,
    /// Of a variant that has several; older reports have none.
    #[serde(default)]
    pub config: Option<String>,
    pub launches: usize,
    pub launch_seconds: f64,
    pub launch_host_seconds: f64,
    pub checked: Checked,
    pub cost: Cost,
    pub memory: Option<Memory>,
    pub parts: Option<Parts>,
    pub cold: Times,
    pub warm: Times,
    pub rates: Rates,
    pub flags: Vec<String>,
}

/// Times in seconds.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as in the report")]
pub struct Times {
    pub mean: f64,
    pub std: f64,
    pub min: f64,
    pub max: f64,
    pub median: f64,
    pub p95: f64,
    pub p99: f64,
    pub median_interval95: [f64; 2],
    pub samples: Vec<f64>,
}

impl Stored {
    /// Reads what `trifuse bench SUITE --json` wrote.
    ///
    /// # Errors
    /// No file, no JSON, another schema, another command's object, fields that are missing, numbers that no run gives.
    pub fn read(path: &Path) -> Result<Self> {
        Self::from_bytes(path, &read_file(path, MAX_FILE_BYTES)?)
    }

    /// Reads a report that is already in memory. Errors name `path`.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read), but those of the system.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| Error::input(path, format!("expected a report of `trifuse bench SUITE --json`: {error}")))?;
        if value["command"] != "bench" || value["results"].is_null() {
            return Err(Error::input(path, "expected a report of `trifuse bench SUITE --json`, found something else"));
        }
        if value["schema_version"] != SCHEMA_VERSION {
            return Err(Error::input(path, format!("expected schema version {SCHEMA_VERSION}, found {}", value["schema_version"])));
        }
        let stored = Self::from_value(value).map_err(|error| Error::input(path, format!("it lacks what a report holds today, measure again: {error}")))?;
        stored.check().map_err(|(item, problem)| Error::input_item(path, item, problem))?;
        Ok(stored)
    }

    /// Refuses numbers that no run gives: a picture's axis over them has no end.
    fn check(&self) -> Result<(), (String, String)> {
        inside("ceilings", "copy_bytes_per_second", [self.ceilings.copy_bytes_per_second], RATES)?;
        let limits = [self.ceilings.product_flops_per_second, self.ceilings.peak_flops_per_second, self.ceilings.peak_bytes_per_second];
        inside("ceilings", "rates", limits.into_iter().flatten(), RATES)?;
        for (entry, measured) in self.results.iter().filter_map(|entry| entry.measured.as_ref().map(|measured| (entry, measured))) {
            for (name, times) in [("cold", &measured.cold), ("warm", &measured.warm)] {
                let Times { mean, min, max, median, p95, p99, median_interval95: [low, high], ref samples, .. } = *times;
                inside(&entry.name, name, [median], MEDIANS)?;
                inside(&entry.name, name, [mean, min, max], SECONDS)?;
                inside(&entry.name, name, [median, p95, p99, low, high].into_iter().chain(samples.iter().copied()), min..=max)?;
            }
            inside(&entry.name, "cost and rates", [measured.cost.executed_flops, measured.cost.bytes, measured.rates.executed_flops], COUNTS)?;
        }
        Ok(())
    }

    /// The type of its operands; empty where no shape was reached.
    pub fn dtype(&self) -> &str {
        self.results.first().map_or("", |entry| &entry.dtype)
    }

    /// What a report of this run would be read as.
    ///
    /// # Errors
    /// A number that JSON cannot hold.
    pub fn of(report: &SuiteReport) -> Result<Self> {
        let told = |error| Error::invalid("report", "values that JSON can hold", error);
        Self::from_value(serde_json::to_value(report).map_err(told)?).map_err(told)
    }

    pub(super) fn from_value(value: Value) -> serde_json::Result<Self> {
        let stored: Self = serde_json::from_value(value)?;
        // An optional part that is flattened vanishes without a word where one of its fields is missing.
        match stored.results.iter().find(|entry| entry.status == "measured" && entry.measured.is_none()) {
            Some(entry) => Err(serde::de::Error::custom(format!("times of {:?}", entry.name))),
            None => Ok(stored),
        }
    }
}

/// What other programs took on the shapes of a report: what `benches/peers/run.py` writes.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as that program calls them")]
pub struct Peers {
    pub suite: String,
    #[serde(default)]
    pub dtype: Option<String>,
    pub device: String,
    pub results: Vec<PeersOfShape>,
}

/// The peers of one shape.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as that program calls them")]
pub struct PeersOfShape {
    pub name: String,
    pub peers: Vec<Peer>,
}

/// One peer, with its time where it has one.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as that program calls them")]
pub struct Peer {
    pub peer: String,
    pub cold: Option<PeerTimes>,
}

/// Times of a peer, in seconds.
#[derive(Clone, Debug, Deserialize)]
#[allow(missing_docs, reason = "as that program calls them")]
pub struct PeerTimes {
    pub median: f64,
}

impl Peers {
    /// Reads what `benches/peers/run.py` wrote.
    ///
    /// # Errors
    /// No file, or something else; times that no run takes.
    pub fn read(path: &Path) -> Result<Self> {
        Self::from_bytes(path, &read_file(path, MAX_FILE_BYTES)?)
    }

    /// Reads peers that are already in memory. Errors name `path`.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read), but those of the system.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self> {
        let peers: Self = serde_json::from_slice(bytes).map_err(|error| Error::input(path, format!("expected a report of benches/peers/run.py: {error}")))?;
        for (shape, peer) in peers.results.iter().flat_map(|shape| shape.peers.iter().map(move |peer| (shape, peer))) {
            let median = peer.cold.as_ref().map(|times| times.median);
            inside(&shape.name, &peer.peer, median, MEDIANS).map_err(|(item, problem)| Error::input_item(path, item, problem))?;
        }
        Ok(peers)
    }

    /// The peers of a shape of `report`; none where these are of another suite or type.
    pub fn of<'a>(&'a self, report: &Stored, entry: &Entry) -> &'a [Peer] {
        let fits = self.suite == report.suite && self.dtype.as_ref().is_none_or(|dtype| *dtype == entry.dtype);
        let shape = self.results.iter().filter(|_| fits).find(|shape| shape.name == entry.name);
        shape.map_or(&[], |shape| &shape.peers)
    }
}

impl Entry {
    /// A size of the shape, by its field's name.
    pub fn size(&self, field: &str) -> Option<u64> {
        self.more.get(field)?.as_u64()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Stored::read(file.path()).unwrap_err().to_string()
    }

    #[test]
    fn numbers_that_no_run_gives_are_refused_by_name() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/reports/attention.json")).unwrap();
        for (place, number) in [
            ("/ceilings/copy_bytes_per_second", 0.0),
            ("/results/0/cold/median", 0.0),
            ("/results/0/warm/samples/0", -1.0),
            ("/results/0/cost/bytes", 1e300),
            ("/results/0/cold/median", 4097.0),
        ] {
            let mut value: Value = serde_json::from_str(&text).unwrap();
            *value.pointer_mut(place).unwrap() = number.into();
            let problem = refusal(&value.to_string());
            assert!(problem.contains("measure again") && problem.contains(&format!("{number:e}")), "{place}: {problem}");
        }
    }

    #[test]
    fn what_is_no_report_is_refused_with_the_reason() {
        assert!(refusal("not JSON").contains("expected a report"));
        assert!(refusal("{}").contains("something else"));
        assert!(refusal(r#"{"schema_version": 1, "command": "verify", "results": []}"#).contains("something else"));
        assert!(refusal(r#"{"schema_version": 2, "command": "bench", "results": []}"#).contains("schema version 1, found 2"));
        assert!(refusal(r#"{"schema_version": 1, "command": "bench", "results": []}"#).contains("measure again"));
        assert!(Stored::read(Path::new("no/such/report.json")).unwrap_err().to_string().contains("cannot read"));
    }
}
