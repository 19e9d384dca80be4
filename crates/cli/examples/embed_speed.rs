//! Sentences a second of the encoder: the base model, one adapter, many adapters mixed; 128 tokens each, and the lengths of
//! real text. `benches/peers/embed.py` measures the same with PyTorch and PEFT.
//!
//! `cargo run --profile dist --example embed_speed -- MODEL ADAPTERS BACKEND DTYPE [PAIRS]`: ADAPTERS holds adapter folders, which
//! are repeated under other names until there are 24; PAIRS are JSON lines with `a` and `b`, whose lengths are taken.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::encoded::Rung;
use trifuse::adapters::peft::open_all;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, Visit};
use trifuse::model::{Encoder, EncoderOptions, Row, Text};
use trifuse::{DType, Error, Result};

/// Adapters of the mixed batch.
const ADAPTERS: usize = 24;
/// Seconds that each figure is measured for.
const SECONDS: f64 = 1.0;

struct Speed {
    model: PathBuf,
    adapters: PathBuf,
    dtype: DType,
    pairs: Option<PathBuf>,
}

/// Pseudo-random numbers: an order that is the same every time.
fn draw(number: usize) -> usize {
    let mixed = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) as usize
}

/// Sentences a second: of the device alone, and with the host's part before each batch.
fn rate<B: Backend>(encoder: &mut Encoder<B>, rows: &[Row<'_>]) -> Result<[f64; 2]> {
    let prepared = encoder.prepare(rows)?;
    for _ in 0..3 {
        encoder.run(&prepared)?;
    }
    let first = encoder.read(&prepared)?;
    let clock = Instant::now();
    let mut runs = 0;
    while clock.elapsed().as_secs_f64() < SECONDS {
        for _ in 0..10 {
            encoder.run(&prepared)?;
        }
        encoder.session().synchronize()?;
        runs += 10;
    }
    let device = (runs * rows.len()) as f64 / clock.elapsed().as_secs_f64();
    if encoder.read(&prepared)? != first {
        return Err(Error::invalid("embeddings", "the same from every run", "others"));
    }
    let clock = Instant::now();
    let mut runs = 0;
    while clock.elapsed().as_secs_f64() < SECONDS {
        encoder.embed(rows)?;
        runs += 1;
    }
    Ok([device, (runs * rows.len()) as f64 / clock.elapsed().as_secs_f64()])
}

impl Speed {
    /// Lengths of sentences, the marks at both ends included.
    fn lengths(&self, text: &Text) -> Result<Option<Vec<usize>>> {
        let Some(path) = &self.pairs else { return Ok(None) };
        let lines = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
        let pairs: Vec<serde_json::Value> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>().map_err(|e| Error::input(path, e.to_string()))?;
        let texts: Vec<&str> = pairs.iter().flat_map(|pair| ["a", "b"].map(|side| pair[side].as_str().unwrap_or(" "))).collect();
        Ok(Some(text.tokens(&texts)?.into_iter().map(|tokens| tokens.ids.len()).collect()))
    }

    fn table<B: Backend>(&self, encoder: &mut Encoder<B>, what: &str, names: &[Option<String>], real: Option<&[usize]>) -> Result<()> {
        let ids: Vec<i32> = (0..128).map(|at| 1000 + (draw(at) % 29_000) as i32).collect();
        for count in [32, 256, 1024] {
            for (title, lengths) in [("128 tokens", None), ("real lengths", real)] {
                if title != "128 tokens" && lengths.is_none() {
                    continue;
                }
                let length = |row: usize| lengths.map_or(128, |lengths| lengths[draw(row) % lengths.len()]);
                let mut rows = Vec::new();
                for row in 0..count {
                    let adapter = names[draw(row + 7) % names.len()].as_deref().map(|name| encoder.adapter(name)).transpose()?;
                    rows.push(Row { ids: &ids[..length(row)], adapter });
                }
                let [device, whole] = rate(encoder, &rows)?;
                println!("{what:34} b{count:<5}{title:13}{device:10.0} sentences/s on the device {whole:10.0} with the host");
            }
        }
        Ok(())
    }
}

impl Visit for Speed {
    type Out = ();

    fn visit<B: Backend>(self, backend: B) -> Result<()> {
        let device = Arc::new(backend);
        let open = |ride| Encoder::open(device.clone(), &self.model, EncoderOptions { dtype: self.dtype, ride, ..EncoderOptions::default() });
        let mut encoder = open(None)?;
        let real = self.lengths(&Text::open(&self.model, encoder.config())?)?;
        self.table(&mut encoder, "base", &[None], real.as_deref())?;
        let own = open_all(&[&self.adapters])?;
        let names: Vec<String> = (0..ADAPTERS).map(|number| format!("{number:02}-{}", own[number % own.len()].name)).collect();
        let sources: Vec<Source<'_>> = names.iter().zip(own.iter().cycle()).map(|(name, a)| Source { name, config: &a.config, modules: &a.modules }).collect();
        let forms = [
            ("rank 16, 4 bits", EncodeOptions { rank: Some(16), ..EncodeOptions::default() }),
            ("cosine 0.99", EncodeOptions { min_cosine: Some(0.99), ..EncodeOptions::default() }),
            ("plain", EncodeOptions { rungs: Some(vec![Rung::Plain]), ..EncodeOptions::default() }),
        ];
        for (form, options) in forms {
            let population = encode(&sources, &options, &|_, _| {})?;
            for ride in [true, false] {
                let mut encoder = open(Some(ride))?;
                encoder.attach(Box::new(population.clone()))?;
                let how = if ride { "in the product" } else { "apart" };
                self.table(&mut encoder, &format!("one adapter, {form}, {how}"), &[Some(names[0].clone())], None)?;
                let all: Vec<Option<String>> = names.iter().cloned().map(Some).collect();
                self.table(&mut encoder, &format!("{ADAPTERS} mixed, {form}, {how}"), &all, real.as_deref().filter(|_| ride))?;
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what: &str| arguments.next().ok_or_else(|| Error::invalid("arguments", what, "none"));
    let (model, adapters) = (next("MODEL")?.into(), next("ADAPTERS")?.into());
    let backend: Choice = next("BACKEND")?.parse()?;
    let dtype = next("DTYPE")?.parse()?;
    backend.open(Speed { model, adapters, dtype, pairs: arguments.next().map(PathBuf::from) })
}
