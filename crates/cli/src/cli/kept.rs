//! What a bundle kept of its adapters: the figures that `compress`, `inspect` and `demo` print.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use trifuse::Result;
use trifuse::adapters::bundle::Bundle;
use trifuse::adapters::certificate::Certificate;
use trifuse::adapters::encoded::Rung;

use super::output::{Page, Tone, bytes};

/// A whole bundle. Every figure is read from the file's own certificates.
#[derive(Debug, Serialize)]
pub struct Kept {
    /// Bytes of the adapters' factors as plain LoRA; the headers of their files not counted.
    pub bytes_before: u64,
    /// Bytes of the bundle, its header included.
    pub file_bytes: u64,
    /// Bytes of the bases that all adapters share, among `file_bytes`.
    pub shared_bytes: u64,
    /// Bytes of the header, among `file_bytes`.
    pub header_bytes: u64,
    /// `file_bytes` over `bytes_before`: what `--max-ratio` bounds.
    pub ratio: f64,
    /// Mean over adapters and projections.
    pub cos_delta_mean: f64,
    /// Least over adapters and projections.
    pub cos_delta_min: f64,
    /// The adapters, by name.
    pub adapters: Vec<Adapter>,
}

/// One adapter.
#[derive(Debug, Serialize)]
pub struct Adapter {
    pub name: String,
    /// Bytes of the adapter's factors as plain LoRA.
    pub bytes_before: u64,
    /// Bytes of the adapter's own in the bundle: codes, cores, codebooks and its index.
    pub bytes: u64,
    /// The adapter's share of the bases in bytes, the same for every adapter.
    pub shared_bytes: u64,
    pub cos_delta_mean: f64,
    pub cos_delta_min: f64,
    /// Mean over the projections.
    pub output_error_gaussian: f64,
    /// Mean over the projections that were measured on held-out activations.
    pub output_error_held_out: Option<f64>,
    /// Mean over the projections.
    pub bits_per_element: f64,
    /// How many projections are on each rung.
    pub rungs: BTreeMap<Rung, usize>,
    pub projections: Vec<Projection>,
}

/// One adapter in one projection.
#[derive(Debug, Serialize)]
pub struct Projection {
    pub path: String,
    pub certificate: Certificate,
}

impl Kept {
    /// Reads and checks every adapter of the bundle.
    pub fn of(bundle: &Bundle) -> Result<Self> {
        let share = bundle.shared_bytes() / bundle.adapters().len().max(1) as u64;
        let mut adapters = Vec::new();
        for name in bundle.adapters() {
            let projections = bundle.adapter(name)?.projections.into_iter();
            let projections = projections.map(|(path, projection)| Projection { path, certificate: projection.certificate });
            adapters.push(Adapter::new(name, bundle.adapter_bytes(name), share, projections.collect()));
        }
        let bytes_before = adapters.iter().map(|adapter| adapter.bytes_before).sum();
        let (file_bytes, shared_bytes) = (bundle.file_bytes(), bundle.shared_bytes());
        let own: u64 = adapters.iter().map(|adapter| adapter.bytes).sum();
        let cosines = || adapters.iter().flat_map(|adapter| &adapter.projections).map(|projection| projection.certificate.cos_delta);
        let (cos_delta_mean, cos_delta_min) = (mean(cosines()).unwrap_or(1.0), least(cosines()));
        Ok(Self {
            bytes_before,
            file_bytes,
            shared_bytes,
            header_bytes: file_bytes.saturating_sub(shared_bytes + own),
            ratio: file_bytes as f64 / (bytes_before as f64).max(1.0),
            cos_delta_mean,
            cos_delta_min,
            adapters,
        })
    }

    /// Mean output error on held-out activations, where there were any.
    pub fn held_out(&self) -> Option<f64> {
        mean(self.adapters.iter().filter_map(|adapter| adapter.output_error_held_out))
    }

    /// The projections, sorted, that some adapter has and that were measured on no activations.
    pub fn unmeasured(&self) -> Vec<String> {
        let projections = self.adapters.iter().flat_map(|adapter| &adapter.projections);
        let paths = projections.filter(|projection| projection.certificate.output_error_held_out.is_none()).map(|projection| &projection.path);
        paths.collect::<BTreeSet<_>>().into_iter().cloned().collect()
    }

    /// A line an adapter. `extra` is a last column: its head, and its cell by name.
    pub fn table(&self, page: &mut Page, extra: Option<(&str, &BTreeMap<String, String>)>) -> fmt::Result {
        let held_out = self.held_out().is_some();
        let mut head = vec!["adapter", "before", "after", "+ basis", "cos(ΔW) mean", "least", "output error"];
        head.extend(held_out.then_some("held out"));
        head.extend(extra.map(|(head, _)| head));
        let numbers: Vec<usize> = (1..head.len()).collect();
        head.push("rungs");
        let rows = self.adapters.iter().map(|adapter| {
            let mut row = vec![
                adapter.name.clone(),
                bytes(adapter.bytes_before),
                bytes(adapter.bytes),
                bytes(adapter.shared_bytes),
                cosine(page, adapter.cos_delta_mean),
                cosine(page, adapter.cos_delta_min),
                share(adapter.output_error_gaussian),
            ];
            if held_out {
                row.push(adapter.output_error_held_out.map_or_else(|| "-".into(), share));
            }
            row.extend(extra.map(|(_, cells)| cells.get(&adapter.name).cloned().unwrap_or_else(|| "-".into())));
            row.push(rungs(&adapter.rungs));
            row
        });
        let rows: Vec<Vec<String>> = rows.collect();
        page.table(&head, &numbers, rows)
    }

    /// The whole in one line.
    pub fn total(&self, page: &Page) -> String {
        let own = self.file_bytes - self.shared_bytes - self.header_bytes;
        let parts = format!("adapters {}, bases {}, header {}", bytes(own), bytes(self.shared_bytes), bytes(self.header_bytes));
        let times = page.tone(Tone::Strong, format_args!("{:.2} times smaller", 1.0 / self.ratio.max(f64::MIN_POSITIVE)));
        format!("{} of {}: {times} ({parts})", bytes(self.file_bytes), bytes(self.bytes_before))
    }
}

impl Adapter {
    /// The figures of the adapter's projections.
    pub fn new(name: &str, bytes: u64, shared_bytes: u64, projections: Vec<Projection>) -> Self {
        let certificates = || projections.iter().map(|projection| &projection.certificate);
        let mut rungs = BTreeMap::new();
        for certificate in certificates() {
            *rungs.entry(certificate.rung).or_default() += 1;
        }
        Self {
            name: name.into(),
            bytes_before: certificates().map(|c| c.bytes_before).sum(),
            bytes,
            shared_bytes,
            cos_delta_mean: mean(certificates().map(|c| c.cos_delta)).unwrap_or(1.0),
            cos_delta_min: least(certificates().map(|c| c.cos_delta)),
            output_error_gaussian: mean(certificates().map(|c| c.output_error_gaussian)).unwrap_or(0.0),
            output_error_held_out: mean(certificates().filter_map(|c| c.output_error_held_out)),
            bits_per_element: mean(certificates().map(|c| c.bits_per_element)).unwrap_or(0.0),
            rungs,
            projections,
        }
    }
}

/// A cosine, in the colour of what it is worth.
pub fn cosine(page: &Page, value: f64) -> String {
    let text = format!("{value:.4}");
    match value {
        0.99.. => page.tone(Tone::Good, text),
        0.9.. => text,
        _ => page.tone(Tone::Warning, text),
    }
}

/// A relative error in per cent.
pub fn share(value: f64) -> String {
    format!("{:.2} %", 100.0 * value)
}

/// The rungs that were used, most used first.
pub fn rungs(counts: &BTreeMap<Rung, usize>) -> String {
    let mut counts: Vec<_> = counts.iter().collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let one = counts.len() == 1;
    let words = counts.into_iter().map(|(&rung, count)| if one { rung_name(rung).to_owned() } else { format!("{count} {}", rung_name(rung)) });
    words.collect::<Vec<_>>().join(", ")
}

/// A rung in words.
pub fn rung_name(rung: Rung) -> &'static str {
    match rung {
        Rung::SharedInput => "shared input",
        Rung::ClusteredInput => "clustered input",
        Rung::SharedOutput => "shared output",
        Rung::PrivateCoded => "private coded",
        Rung::Plain => "plain f16",
    }
}

/// The mean; nothing of nothing.
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

fn least(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(1.0, f64::min)
}
