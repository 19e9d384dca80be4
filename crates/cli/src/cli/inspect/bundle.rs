//! A bundle: what it holds, and the certificates.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use trifuse::adapters::bundle::Bundle;
use trifuse::adapters::certificate::Certificate;
use trifuse::adapters::encoded::Rung;
use trifuse::{Error, Result};

use crate::cli::Outcome;
use crate::cli::kept::{Adapter, Kept, cosine, mean, rung_name, rungs, share};
use crate::cli::output::{Output, Page, Report, bytes};
use crate::cli::progress::Progress;

/// The result.
#[derive(Debug, Serialize)]
struct Bundled<'a> {
    kind: &'static str,
    path: &'a Path,
    /// The projections, by module path.
    projections: Vec<Shared>,
    #[serde(flatten)]
    kept: Kept,
    /// The adapter whose certificates are printed for people; programs get all.
    #[serde(skip)]
    only: Option<&'a str>,
}

/// What the population shares in one projection.
#[derive(Debug, Serialize)]
struct Shared {
    path: String,
    d_in: usize,
    d_out: usize,
    /// How many bases on the input side, and their columns.
    input_bases: usize,
    input_rank: usize,
    output_bases: usize,
    output_rank: usize,
}

/// Reads every byte of the bundle and shows what it says.
pub fn run(path: &Path, only: Option<&str>, output: &Output) -> Result<Outcome> {
    let bundle = Bundle::open(path)?;
    if let Some(name) = only
        && !bundle.adapters().any(|known| known == name)
    {
        let known: Vec<&str> = bundle.adapters().take(20).collect();
        return Err(Error::invalid("--adapter", format!("one of the bundle's, such as {}", known.join(", ")), format!("{name:?}")));
    }
    let progress = Progress::new(output, "reading", 0);
    let projections = bundle.projections().map(|(path, shape)| {
        // Reads and checks the bases too: what is shown is of a file that is whole.
        bundle.shared(path)?;
        let [input_bases, input_rank] = shape.input;
        let [output_bases, output_rank] = shape.output;
        Ok(Shared { path: path.into(), d_in: shape.d_in, d_out: shape.d_out, input_bases, input_rank, output_bases, output_rank })
    });
    let projections = projections.collect::<Result<_>>()?;
    let kept = Kept::of(&bundle)?;
    drop(progress);
    output.report(&Bundled { kind: "bundle", path, projections, kept, only })?;
    Ok(Outcome::Right)
}

impl Report for Bundled<'_> {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        if let Some(adapter) = self.kept.adapters.iter().find(|adapter| Some(adapter.name.as_str()) == self.only) {
            return certificates(page, adapter);
        }
        let head = ["projection", "[d_out, d_in]", "shared bases", "cos(ΔW) mean", "least", "rungs"];
        // Looked up for each projection, of which there may be thousands.
        let mut certificates: BTreeMap<&str, Vec<&Certificate>> = BTreeMap::new();
        for projection in self.kept.adapters.iter().flat_map(|adapter| &adapter.projections) {
            certificates.entry(&projection.path).or_default().push(&projection.certificate);
        }
        let of = |shared: &Shared| certificates.get(shared.path.as_str()).map_or(&[][..], Vec::as_slice);
        let rows: Vec<Vec<String>> = self.projections.iter().map(|shared| shared.row(page, of(shared))).collect();
        page.table(&head, &[3, 4], rows)?;
        self.kept.table(page, None)?;
        let total = self.kept.total(page);
        page.line(format_args!("{}: {total}; every byte is sound, every tensor is used", self.path.display()))?;
        page.line("certificates of one adapter: --adapter NAME; of all: --json")
    }
}

impl Shared {
    /// The projection over all adapters, whose certificates these are.
    fn row(&self, page: &Page, certificates: &[&Certificate]) -> Vec<String> {
        let shared = self;
        let mut counts = BTreeMap::<Rung, usize>::new();
        for certificate in certificates {
            *counts.entry(certificate.rung).or_default() += 1;
        }
        let side = |name: &str, bases: usize, rank: usize, d: usize| (bases > 0).then(|| format!("{bases} {name} [{d}, {rank}]"));
        let bases = [side("input", shared.input_bases, shared.input_rank, shared.d_in), side("output", shared.output_bases, shared.output_rank, shared.d_out)];
        let bases: Vec<String> = bases.into_iter().flatten().collect();
        vec![
            shared.path.clone(),
            format!("[{}, {}]", shared.d_out, shared.d_in),
            if bases.is_empty() { "none".into() } else { bases.join(", ") },
            cosine(page, mean(certificates.iter().map(|c| c.cos_delta)).unwrap_or(1.0)),
            cosine(page, certificates.iter().map(|c| c.cos_delta).fold(1.0, f64::min)),
            rungs(&counts),
        ]
    }
}

/// One adapter, a projection a line.
fn certificates(page: &mut Page, adapter: &Adapter) -> std::fmt::Result {
    let head = ["projection", "rung", "R", "before", "after", "bits", "basis keeps", "cos(U, Û)", "cos(ΔW)", "output error", "held out"];
    let rows: Vec<Vec<String>> = adapter
        .projections
        .iter()
        .map(|projection| {
            let c = &projection.certificate;
            vec![
                projection.path.clone(),
                rung_name(c.rung).into(),
                c.rank.to_string(),
                bytes(c.bytes_before),
                bytes(c.bytes),
                format!("{:.2}", c.bits_per_element),
                share(c.basis_energy),
                cosine(page, c.cos_factor),
                cosine(page, c.cos_delta),
                share(c.output_error_gaussian),
                c.output_error_held_out.map_or_else(|| "-".into(), share),
            ]
        })
        .collect();
    page.table(&head, &[2, 3, 4, 5, 6, 7, 8, 9, 10], rows)?;
    page.line(format_args!(
        "{}: {} before, {} after and {} of the shared bases",
        adapter.name,
        bytes(adapter.bytes_before),
        bytes(adapter.bytes),
        bytes(adapter.shared_bytes)
    ))
}
