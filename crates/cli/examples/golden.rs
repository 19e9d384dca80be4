//! Holds the encoder against reference outputs: the file that `TRIFUSE_GOLDEN` names, or the first argument.
//!
//! `cargo run --release --example golden -- GOLDEN MODEL ADAPTERS BACKEND DTYPE`: `input_ids` and `attention_mask`
//! `[rows, length]`, `emb.base` and `emb.POPULATION.NAME` `[rows, hidden]`; ADAPTERS holds a folder POPULATION/NAME each. Where the
//! file has them, also states inside the first block: `hidden.input_ids`, `hidden.attention_mask` `[2, length]`, and
//! `hidden.base.embeddings_out`, `hidden.TAG.layer0_attention_out`, `hidden.TAG.layer0_ffn_out` `[2, length, hidden]`.
//! `TRIFUSE_SETS=base,POPULATION.NAME` takes those sets alone.
//!
//! It fails where an embedding is further away than 1e-5 in f32, 2e-3 in f16 or 2e-2 in bf16, or a row or a replay has other bits than
//! the row alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::encoded::Rung;
use trifuse::adapters::engine::AdapterId;
use trifuse::adapters::peft::LoraAdapter;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, Visit};
use trifuse::model::{Encoder, EncoderOptions, Row};
use trifuse::safetensors_file::TensorFile;
use trifuse::{DType, Error, Result};

struct Check {
    golden: PathBuf,
    model: PathBuf,
    adapters: PathBuf,
    dtype: DType,
}

/// The whole numbers of a tensor, and its rows.
fn integers(file: &TensorFile, name: &str) -> Result<(usize, Vec<i64>)> {
    let (info, bytes) = file.bytes(name)?;
    Ok((info.shape[0], bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect()))
}

/// Rows of ids without their padding.
fn sentences(file: &TensorFile, part: &str) -> Result<Vec<Vec<i32>>> {
    let (rows, ids) = integers(file, &format!("{part}input_ids"))?;
    let (_, mask) = integers(file, &format!("{part}attention_mask"))?;
    let length = ids.len() / rows;
    Ok((0..rows).map(|row| (0..length).filter(|at| mask[row * length + at] != 0).map(|at| ids[row * length + at] as i32).collect()).collect())
}

/// Compares what the projections read with the states that the file has for `tag`: the first block's input, its MLP's input, and the
/// second block's input.
fn states<B: Backend>(golden: &TensorFile, encoder: &mut Encoder<B>, tag: &str, adapter: Option<AdapterId>) -> Result<()> {
    let wanted = [("embeddings_out", "0.attention.self.query"), ("layer0_attention_out", "0.intermediate.dense"), ("layer0_ffn_out", "1.attention.self.query")];
    let sentences = sentences(golden, "hidden.")?;
    let rows: Vec<Row<'_>> = sentences.iter().map(|ids| Row { ids, adapter }).collect();
    let mut seen: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    encoder.embed_watched(&rows, &mut |path, _, values| {
        seen.insert(path.to_owned(), values.to_vec());
        Ok(())
    })?;
    for (name, path) in wanted {
        let name = format!("hidden.{tag}.{name}");
        let Some(info) = golden.info(&name) else { continue };
        let (length, hidden) = (info.shape[1], info.shape[2]);
        let expected: Vec<f64> = golden.bytes(&name)?.1.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
        let found = seen.get(&format!("encoder.layer.{path}")).ok_or_else(|| Error::invalid("projection", path, "none that was seen"))?;
        let real = sentences.iter().enumerate().flat_map(|(row, ids)| expected[row * length * hidden..][..ids.len() * hidden].iter());
        let most = real.zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        println!("{name:38} max {most:.2e}");
    }
    Ok(())
}

impl Visit for Check {
    type Out = ();

    fn visit<B: Backend>(self, backend: B) -> Result<()> {
        let golden = TensorFile::open(&self.golden)?;
        let sentences = sentences(&golden, "")?;
        let rows = sentences.len();
        let ride = std::env::var_os("TRIFUSE_RIDE").map(|ride| ride == "1");
        let mut encoder = Encoder::open(Arc::new(backend), &self.model, EncoderOptions { dtype: self.dtype, ride, ..Default::default() })?;
        let mut names: Vec<String> = golden.names().into_iter().filter(|name| name.starts_with("emb.")).collect();
        names.sort_by_key(|name| name != "emb.base");
        if let Ok(sets) = std::env::var("TRIFUSE_SETS") {
            names.retain(|name| sets.split(',').any(|set| name.trim_start_matches("emb.") == set));
        }
        let allowed = match self.dtype {
            DType::F32 => 1e-5,
            DType::F16 => 2e-3,
            _ => 2e-2,
        };
        let mut wrong = Vec::new();
        for name in names {
            let adapter = match name.as_str() {
                "emb.base" => None,
                other => {
                    let folder = self.adapters.join(other.trim_start_matches("emb.").replacen('.', "/", 1));
                    let lora = LoraAdapter::open(folder)?;
                    let source = Source::from(&lora);
                    let options = EncodeOptions { rungs: Some(vec![Rung::Plain]), ..Default::default() };
                    encoder.attach(Box::new(encode(&[source], &options, &|_, _| {})?))?;
                    Some(encoder.adapter(&lora.name)?)
                }
            };
            let batch: Vec<Row<'_>> = sentences.iter().map(|ids| Row { ids, adapter }).collect();
            let found = encoder.embed(&batch)?;
            let again = encoder.embed(&batch)?;
            let replayed = encoder.embed(&batch)?;
            let (_, _, expected) = golden.floats(&name)?;
            let columns = expected.len() / rows;
            let most = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let cosine = found.chunks(columns).zip(expected.chunks(columns)).map(|(a, b)| {
                let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
            });
            let cosine = cosine.fold(1.0, f64::min);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let mut alone = 0;
            for (row, one) in batch.iter().enumerate().step_by(7) {
                let own = encoder.embed(&[*one])?;
                alone += usize::from(bits(&own) != bits(&found[row * columns..][..columns]));
            }
            let same = bits(&found) == bits(&again) && bits(&found) == bits(&replayed);
            if golden.info("hidden.input_ids").is_some() {
                states(&golden, &mut encoder, name.trim_start_matches("emb."), adapter)?;
            }
            println!("{name:24} {} max {most:.2e} cosine {cosine:.8} replay same {same} rows that differ alone {alone}", self.dtype);
            // Not the other way round: NaN is no small difference.
            if !(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= allowed) && same && alone == 0) {
                wrong.push(name);
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(Error::invalid("embeddings", format!("those of the references, to {allowed:e}"), wrong.join(", "))) }
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let golden = std::env::var("TRIFUSE_GOLDEN").ok().or_else(|| arguments.next());
    let mut next = |what: &str| arguments.next().ok_or_else(|| Error::invalid("arguments", what, "none"));
    let golden = golden.ok_or_else(|| Error::invalid("arguments", "GOLDEN MODEL ADAPTERS BACKEND DTYPE", "none"))?;
    let (model, adapters) = (next("MODEL")?, next("ADAPTERS")?);
    let backend: Choice = next("BACKEND")?.parse()?;
    let check = Check { golden: golden.into(), model: Path::new(&model).into(), adapters: adapters.into(), dtype: next("DTYPE")?.parse()? };
    backend.open(check)
}
