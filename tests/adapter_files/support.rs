//! Small populations, PEFT files and damaged bundles, all from seeds. The fuzz targets use it too.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::BTreeMap;

use half::f16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use trifuse::adapters::certificate::Certificate;
use trifuse::adapters::encoded::*;
use trifuse::ops::codes::{CodeWidth, pack};

/// A safetensors file: each tensor's name, type, shape and bytes, one after another.
pub fn safetensors(tensors: &[(&str, &str, &[usize], Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend(bytes);
        header.insert((*name).to_owned(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] }));
    }
    with_header(&Value::Object(header).to_string(), &data)
}

/// The same from a header's text.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Little-endian f32.
pub fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// `count` numbers that begin at `first` and alternate in sign.
pub fn ramp(first: f32, count: usize) -> Vec<u8> {
    f32s((0..count).map(|i| (first + i as f32 * 0.125) * if i % 2 == 0 { 1.0 } else { -1.0 }))
}

/// A sound configuration, with changes.
pub fn config(changes: &Value) -> Vec<u8> {
    let mut config = json!({ "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q", "v"], "bias": "none" });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config.to_string().into_bytes()
}

/// A sound adapter's tensors: rank 2, `q` 3 × 4 and `v` 5 × 3.
pub fn adapter_tensors() -> Vec<u8> {
    safetensors(&[
        ("base_model.model.l.0.q.lora_A.weight", "F32", &[2, 4], ramp(1.0, 8)),
        ("base_model.model.l.0.q.lora_B.weight", "F32", &[3, 2], ramp(2.0, 6)),
        ("base_model.model.l.0.v.lora_A.weight", "F16", &[2, 3], vec![0, 0x3c, 0, 0xbc, 0, 0x38, 0, 0, 1, 0, 0, 0x40]),
        ("base_model.model.l.0.v.lora_B.weight", "BF16", &[5, 2], [0x80, 0x3f].repeat(10)),
    ])
}

fn halves(rng: &mut ChaCha8Rng, count: usize) -> Vec<f16> {
    (0..count).map(|_| f16::from_f32(rng.random_range(-1.0..1.0))).collect()
}

fn factor(rng: &mut ChaCha8Rng, d: usize, rank: usize, bases: usize) -> EncodedFactor {
    match rng.random_range(0..4) {
        0 if bases > 0 => EncodedFactor::Shared(rng.random_range(0..bases)),
        1 => EncodedFactor::Plain(Matrix::new(d, rank, halves(rng, d * rank)).unwrap()),
        _ => {
            let columns = (0..rank).map(|_| {
                let width = CodeWidth::ALL[rng.random_range(0..CodeWidth::ALL.len())];
                let first: Vec<u8> = (0..d).map(|_| rng.random_range(0..width.stage1().len().max(1) as u8)).collect();
                let second: Vec<u8> = (0..d).map(|_| rng.random_range(0..width.stage2().len().max(1) as u8)).collect();
                (width, pack(width, &first, &second).unwrap())
            });
            let columns = columns.collect();
            let short = rng.random_bool(0.5);
            let codebook = std::array::from_fn(|_| number(rng, short));
            EncodedFactor::Coded(CodedColumns { d, columns, codebook })
        }
    }
}

/// A number that f16 holds, or one that it does not.
fn number(rng: &mut ChaCha8Rng, short: bool) -> f32 {
    let value = rng.random_range(-2.0f32..2.0);
    if short { f16::from_f32(value).to_f32() } else { value }
}

/// A population of every kind of factor, core and width, small enough to damage at every byte.
pub fn population(seed: u64) -> Population {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let mut projections = BTreeMap::new();
    let mut ranks = BTreeMap::new();
    for module in ["layer.0.key", "layer.0.query", "layer.1.out \"quoted\" é"].into_iter().take(rng.random_range(1..4)) {
        let (d_in, d_out, rank) = (rng.random_range(1..40), rng.random_range(1..40), rng.random_range(1..5));
        let mut bases = |d: usize| {
            // Steps of 1/128 take a byte in the file.
            let (count, in_steps) = (rng.random_range(0..3), rng.random_bool(0.5));
            let step = |value: f16| if in_steps { f16::from_f32((value.to_f32() * 127.0).round() / 128.0) } else { value };
            (0..count).map(|_| Matrix::new(d, rank, halves(rng, d * rank)).unwrap().map(step)).collect::<Vec<_>>()
        };
        let (input_bases, output_bases) = (bases(d_in), bases(d_out));
        projections.insert(module.to_owned(), SharedProjection { d_in, d_out, input_bases, output_bases });
        ranks.insert(module.to_owned(), rank);
    }
    let mut adapters = BTreeMap::new();
    for name in ["rust", "bible kjv", "v1.2"].into_iter().take(rng.random_range(1..4)) {
        let mut encoded = BTreeMap::new();
        for (module, shared) in &projections {
            if rng.random_bool(0.2) {
                continue;
            }
            let rank = ranks[module];
            let core = rng.random_bool(0.5).then(|| {
                let short = rng.random_bool(0.5);
                Matrix::new(rank, rank, (0..rank * rank).map(|_| number(rng, short)).collect()).unwrap()
            });
            let input = factor(rng, shared.d_in, rank, shared.input_bases.len());
            let output = factor(rng, shared.d_out, rank, shared.output_bases.len());
            let certificate = certificate(rng, rank);
            let scaling = rng.random_range(0.1..8.0);
            encoded.insert(module.clone(), EncodedProjection { input, core, output, scaling, certificate });
        }
        let config = json!({ "peft_type": "LORA", "r": 8, "lora_alpha": 16.5, "zeta": 1, "alpha": null, "lora_dropout": 0.1 });
        adapters.insert(name.to_owned(), EncodedAdapter { config, projections: encoded });
    }
    Population { projections, adapters }
}

fn certificate(rng: &mut ChaCha8Rng, rank: usize) -> Certificate {
    const RUNGS: [Rung; 5] = [Rung::SharedInput, Rung::ClusteredInput, Rung::SharedOutput, Rung::PrivateCoded, Rung::Plain];
    Certificate {
        rung: RUNGS[rng.random_range(0..RUNGS.len())],
        rank,
        basis_energy: rng.random(),
        cos_factor: rng.random(),
        cos_delta: rng.random(),
        output_error_gaussian: rng.random(),
        output_error_held_out: rng.random_bool(0.5).then(|| rng.random()),
        calibrated: rng.random(),
        bits_per_element: 3.5,
        bytes: rng.random_range(0..100_000),
        bytes_before: rng.random_range(0..100_000),
    }
}

/// Changes one to four things of `bytes`: a bit, a byte, a run copied elsewhere, a cut, an insertion.
pub fn mutate(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.random_range(1..5) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..6) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => bytes[at] = *b"0123456789-[]{}\",:e.nul".get(rng.random_range(0..23)).unwrap(),
            3 => bytes.truncate(at),
            4 => bytes.insert(at, rng.random()),
            _ => {
                let length = rng.random_range(0..=(bytes.len() - at).min(16));
                let run = bytes[at..at + length].to_vec();
                let to = rng.random_range(0..=bytes.len() - length);
                bytes[to..to + length].copy_from_slice(&run);
            }
        }
    }
}

/// Makes every checksum of a damaged bundle right again, as a forger would, where its header can still be read.
pub fn forge(bytes: &[u8]) -> Option<Vec<u8>> {
    let length = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let end = usize::try_from(length).ok()?.checked_add(8)?;
    let mut header: Value = serde_json::from_slice(bytes.get(8..end)?).ok()?;
    let data = &bytes[end..];
    let mut inner: Value = serde_json::from_str(header["__metadata__"]["s2lc"].as_str()?).ok()?;
    let tensor = |name: String| -> Vec<u8> {
        let place = |side: usize| header.get(&name)?["data_offsets"][side].as_u64();
        let range = place(0).zip(place(1)).and_then(|(start, end)| data.get(start as usize..end as usize));
        range.unwrap_or_default().to_vec()
    };
    let digest = |names: &[String]| {
        let mut digest = Sha256::new();
        names.iter().for_each(|name| digest.update(tensor(name.clone())));
        digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    for (name, entry) in inner.get_mut("adapters")?.as_object_mut()? {
        *entry.get_mut("sha256")? = digest(&["values32", "codes", "values", "index"].map(|part| format!("adapters.{name}.{part}"))).into();
    }
    for (name, entry) in inner.get_mut("projections")?.as_object_mut()? {
        if let Some(sum) = entry.get_mut("sha256") {
            *sum = digest(&["input", "output"].map(|side| format!("shared.{name}.{side}"))).into();
        }
    }
    let metadata = header.get_mut("__metadata__")?.as_object_mut()?;
    metadata.insert("s2lc".into(), inner.to_string().into());
    metadata.insert("header_sha256".into(), "0".repeat(64).into());
    let header = header.to_string();
    let mut sealed = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let sum: String = Sha256::digest(&sealed).iter().map(|byte| format!("{byte:02x}")).collect();
    let key = r#""header_sha256":""#;
    let slot = 8 + header.find(key)? + key.len();
    sealed.get_mut(slot..slot + 64)?.copy_from_slice(sum.as_bytes());
    sealed.extend(data);
    Some(sealed)
}
