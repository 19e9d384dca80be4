//! How far to compress: what a bundle's size costs in embeddings and in retrieval. Prints the tables of `docs/adapters.md`.
//!
//! `cargo run --release --example recall -- PAIRS ADAPTERS [MODEL] [BACKEND] [TEXT]`: PAIRS are JSON lines with `d` (domain),
//! `a` and `b` (a passage and the next of the same document); ADAPTERS holds a folder POPULATION/NAME an adapter, NAME a
//! domain or not. Every fourth pair of a domain calibrates and is not judged; where TEXT is given, its lines calibrate instead.
//!
//! Recall@1 of a domain: the share of its passages `a` whose nearest of its passages `b` is its own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use trifuse::adapters::bundle::to_bytes;
use trifuse::adapters::encode::calibration::Calibration;
use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::encoded::{Population, Rung};
use trifuse::adapters::peft::{LoraAdapter, open_all};
use trifuse::backend::Backend;
use trifuse::backends::{Choice, Visit};
use trifuse::model::calibrate::calibrate;
use trifuse::model::{Encoder, EncoderOptions, Row, Text, find};
use trifuse::{DType, Error, Result};

/// Rows of inputs that a projection is calibrated with.
const CALIBRATION_ROWS: usize = 2048;
/// Sentences of a batch.
const BATCH: usize = 100;

#[derive(serde::Deserialize)]
struct Pair {
    d: String,
    a: String,
    b: String,
}

/// Token ids of a domain's passages: all `a`, then all `b`.
type Domains = BTreeMap<String, Vec<Vec<i32>>>;

struct Table {
    pairs: PathBuf,
    adapters: PathBuf,
    model: PathBuf,
    calibration: Option<PathBuf>,
}

/// The model, and what it is judged on.
struct Bench<B: Backend> {
    encoder: Encoder<B>,
    domains: Domains,
}

/// Embeddings of a domain, `[2 · pairs, hidden]`.
type Vectors = Vec<Vec<f32>>;

impl<B: Backend> Bench<B> {
    fn embed(&mut self, domain: &str, adapter: Option<&str>) -> Result<Vectors> {
        let adapter = adapter.map(|name| self.encoder.adapter(name)).transpose()?;
        let mut order: Vec<&Vec<i32>> = self.domains[domain].iter().collect();
        let mut places: Vec<usize> = (0..order.len()).collect();
        places.sort_by_key(|&place| order[place].len());
        let mut out = vec![Vec::new(); order.len()];
        order.sort_by_key(|ids| ids.len());
        for (ids, places) in order.chunks(BATCH).zip(places.chunks(BATCH)) {
            let rows: Vec<Row<'_>> = ids.iter().map(|ids| Row { ids, adapter }).collect();
            let values = self.encoder.embed(&rows)?;
            for (vector, &place) in values.chunks_exact(values.len() / places.len()).zip(places) {
                out[place] = vector.to_vec();
            }
        }
        Ok(out)
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn recall(vectors: &Vectors) -> f64 {
    let (a, b) = vectors.split_at(vectors.len() / 2);
    let hits = a.iter().enumerate().filter(|(own, a)| {
        let scores: Vec<f64> = b.iter().map(|b| dot(a, b)).collect();
        scores.iter().enumerate().all(|(other, score)| other == *own || *score < scores[*own])
    });
    hits.count() as f64 / a.len() as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn sources(adapters: &[LoraAdapter]) -> Vec<Source<'_>> {
    adapters.iter().map(Source::from).collect()
}

/// The settings of the table, from nothing lost to little kept.
fn settings() -> Vec<(String, EncodeOptions)> {
    let mut all = vec![("--min-cosine 0.99".to_owned(), EncodeOptions { min_cosine: Some(0.99), ..Default::default() })];
    all.push(("--rank 16 --bits 4".into(), EncodeOptions { rank: Some(16), bits: Some(4.0), ..Default::default() }));
    for times in [5, 8, 12, 20, 40] {
        let options = EncodeOptions { max_ratio: Some(1.0 / f64::from(times)), ..Default::default() };
        all.push((format!("--max-ratio {times}"), options));
    }
    all
}

impl<B: Backend> Bench<B> {
    /// One population at every setting.
    fn population(&mut self, name: &str, adapters: &[LoraAdapter], calibration: &Calibration) -> Result<()> {
        let before: u64 = adapters.iter().flat_map(|a| a.modules.values()).map(|lora| lora.bytes()).sum();
        let judged: Vec<String> = adapters.iter().map(|a| a.name.clone()).filter(|name| self.domains.contains_key(name)).collect();
        let base = judged.iter().map(|domain| Ok(recall(&self.embed(domain, None)?))).collect::<Result<Vec<f64>>>()?;
        let plain = EncodeOptions { rungs: Some(vec![Rung::Plain]), ..Default::default() };
        self.encoder.attach(Box::new(encode(&sources(adapters), &plain, &|_, _| {})?))?;
        let originals = judged.iter().map(|domain| self.embed(domain, Some(domain))).collect::<Result<Vec<_>>>()?;
        let own: Vec<f64> = originals.iter().map(recall).collect();
        println!("\n{name}: {} adapters, judged on {}", adapters.len(), judged.join(", "));
        println!("| bundle | bytes an adapter | smaller | cos(ΔW) | embedding cosine, mean | least | recall@1 |");
        println!("|---|---|---|---|---|---|---|");
        println!("| base model alone | 0 | | | | | {:.3} |", mean(&base));
        println!("| the adapters themselves | {} | 1 | 1 | 1 | 1 | {:.3} |", before / adapters.len() as u64, mean(&own));
        for (title, options) in settings() {
            for calibrated in [false, true] {
                // A cosine is a measure of the weights: inputs do not enter.
                if calibrated && options.min_cosine.is_some() {
                    continue;
                }
                let options = EncodeOptions { calibration: calibrated.then(|| calibration.clone()), ..options.clone() };
                let population = encode(&sources(adapters), &options, &|_, _| {})?;
                let title = if calibrated { format!("{title}, calibrated") } else { title.clone() };
                self.row(&title, before, adapters.len(), population, &judged, &originals)?;
            }
        }
        Ok(())
    }

    fn row(&mut self, title: &str, before: u64, count: usize, population: Population, judged: &[String], originals: &[Vectors]) -> Result<()> {
        let bytes = to_bytes(&population)?.len() as u64;
        let kept: Vec<f64> = population.adapters.values().flat_map(|a| a.projections.values()).map(|p| p.certificate.cos_delta).collect();
        self.encoder.attach(Box::new(population))?;
        let (mut cosines, mut recalls) = (Vec::new(), Vec::new());
        for (domain, original) in judged.iter().zip(originals) {
            let vectors = self.embed(domain, Some(domain))?;
            cosines.extend(vectors.iter().zip(original).map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()));
            recalls.push(recall(&vectors));
        }
        let least = cosines.iter().copied().fold(1.0, f64::min);
        println!(
            "| `{title}` | {} | {:.1} | {:.3} | {:.4} | {least:.4} | {:.3} |",
            bytes / count as u64,
            before as f64 / bytes as f64,
            mean(&kept),
            mean(&cosines),
            mean(&recalls)
        );
        Ok(())
    }
}

impl Visit for Table {
    type Out = ();

    fn visit<B: Backend>(self, backend: B) -> Result<()> {
        let folder = find(&self.model)?;
        let dtype = backend.hints().dtype.unwrap_or(DType::F32);
        let encoder = Encoder::open(Arc::new(backend), &folder, EncoderOptions { dtype, ..Default::default() })?;
        let text = Text::open(&folder, encoder.config())?;
        let lines = std::fs::read_to_string(&self.pairs).map_err(Error::io(&self.pairs, "read"))?;
        let pairs: Vec<Pair> =
            lines.lines().map(serde_json::from_str).collect::<Result<_, _>>().map_err(|error| Error::input(&self.pairs, error.to_string()))?;
        let mut texts: BTreeMap<String, [Vec<&str>; 2]> = BTreeMap::new();
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let mut calibrating = Vec::new();
        for pair in &pairs {
            let number = seen.entry(&pair.d).or_default();
            *number += 1;
            if number.is_multiple_of(4) {
                calibrating.extend([pair.a.as_str(), &pair.b]);
                continue;
            }
            let [a, b] = texts.entry(pair.d.clone()).or_default();
            a.push(&pair.a);
            b.push(&pair.b);
        }
        let ids = |texts: &[&str]| Ok(text.tokens(texts)?.into_iter().map(|tokens| tokens.ids).collect::<Vec<_>>());
        let domains: Domains = texts.iter().map(|(name, [a, b])| Ok((name.clone(), ids(&[a.as_slice(), b].concat())?))).collect::<Result<_>>()?;
        let populations: Vec<(String, Vec<LoraAdapter>)> = ["A", "B"]
            .iter()
            .filter(|name| self.adapters.join(name).is_dir())
            .map(|name| Ok(((*name).to_owned(), open_all(&[self.adapters.join(name)])?)))
            .collect::<Result<_>>()?;
        let mut bench = Bench { encoder, domains };
        let own = match &self.calibration {
            Some(file) => std::fs::read_to_string(file).map_err(Error::io(file, "read"))?,
            None => String::new(),
        };
        let calibrating = if self.calibration.is_some() { own.lines().filter(|line| !line.trim().is_empty()).collect() } else { calibrating };
        let sentences: Vec<Vec<i32>> = text.tokens(&calibrating)?.into_iter().map(|tokens| tokens.ids).collect();
        println!("calibrated on {} passages, {} tokens of them", sentences.len(), CALIBRATION_ROWS);
        let calibration = calibrate(&mut bench.encoder, &sentences, CALIBRATION_ROWS, &|_| {})?;
        for (name, adapters) in &populations {
            bench.population(name, adapters, &calibration)?;
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |fallback: Option<&str>, what: &str| {
        let given = arguments.next().or_else(|| fallback.map(str::to_owned));
        given.ok_or_else(|| Error::invalid("arguments", what, "none"))
    };
    let (pairs, adapters) = (next(None, "PAIRS")?, next(None, "ADAPTERS")?);
    let (model, backend) = (next(Some(".minilm"), "MODEL")?, next(Some("cpu"), "BACKEND")?);
    let calibration = next(Some(""), "TEXT")?;
    let calibration = (!calibration.is_empty()).then(|| calibration.into());
    let backend: Choice = backend.parse()?;
    backend.open(Table { pairs: pairs.into(), adapters: adapters.into(), model: model.into(), calibration })
}
