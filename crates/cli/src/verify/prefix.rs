//! Test 6: K and V of a shared prefix kept as codes over a basis, rebuilt on the device, whole by an engine and tile by tile inside
//! attention, and what attention makes of them.

use std::path::Path;

use super::findings::Findings;
use super::served::{apply, cosine};
use trifuse::adapters::encode::prefix::{EncodedPrefix, KEY, PREFIX, VALUE, encode_prefix};
use trifuse::adapters::encoded::Matrix;
use trifuse::adapters::engine::{Engine, EngineOptions};
use trifuse::adapters::prefix::DevicePrefix;
use trifuse::backend::Backend;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::{Attention, AttentionArgs};
use trifuse::safetensors_file::TensorFile;
use trifuse::session::Session;

const DTYPE: DType = DType::F16;

/// Query, key and value of one layer for the tokens of a prefix, `[tokens, heads, head_dim]`.
#[derive(Clone, Debug)]
pub struct Prefix {
    tokens: usize,
    heads: usize,
    head_dim: usize,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
}

impl Prefix {
    /// Operands from a safetensors file with `q`, `k` and `v` in fp16.
    ///
    /// # Errors
    /// Another shape, type or name; values that are not finite. `path` is named in them.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let file = TensorFile::from_bytes(path, bytes.to_vec())?;
        let read = |name: &str| match file.floats(name)? {
            (DTYPE, shape, values) if shape.len() == 3 => Ok((shape, values.into_iter().map(f64::from).collect())),
            (dtype, shape, _) => Err(Error::input_item(path, name, format!("expected f16 [tokens, heads, head_dim], found {dtype} {shape:?}"))),
        };
        let ((shape, q), (of_k, k), (of_v, v)) = (read("q")?, read("k")?, read("v")?);
        let (&[tokens, heads, head_dim], true) = (shape.as_slice(), shape == of_k && shape == of_v) else {
            return Err(Error::input(path, format!("expected q, k and v of one shape, found {shape:?}, {of_k:?} and {of_v:?}")));
        };
        Ok(Self { tokens, heads, head_dim, q, k, v })
    }
}

pub fn findings<D: Backend>(session: &mut Session<D>, prefix: &Prefix) -> Result<Findings> {
    let width = prefix.heads * prefix.head_dim;
    let matrix = |cache: &[f64]| Matrix { rows: prefix.tokens, cols: width, data: cache.iter().map(|v| *v as f32).collect() };
    let EncodedPrefix { population, bytes, plain_bytes, .. } = encode_prefix(&matrix(&prefix.k), &matrix(&prefix.v), 0.995)?;

    // Attention that rebuilds them itself, tile by tile.
    let device = DevicePrefix::new(session, &population, DTYPE)?;
    let (device_bytes, inside) = (device.bytes(), attend_inside(session, prefix, &device)?);

    // Whole, by an engine: x is the identity, so that row t of y is row t of the cache.
    let mut engine = Engine::open(session, Box::new(population), EngineOptions::new(DTYPE))?;
    let id = engine.adapter(PREFIX)?;
    let batch = engine.batch(session, &vec![Some(id); prefix.tokens])?;
    let one: Vec<f64> = (0..prefix.tokens * prefix.tokens).map(|at| if at % (prefix.tokens + 1) == 0 { 1.0 } else { 0.0 }).collect();
    let zeros = vec![0.0; prefix.tokens * width];
    let rebuilt = apply(session, &mut engine, &batch, DTYPE, &one, &[(KEY, &zeros), (VALUE, &zeros)])?;

    let exact = attend(session, prefix, &prefix.k, &prefix.v)?;
    let approximate = attend(session, prefix, &rebuilt[0], &rebuilt[1])?;
    let mut found = Findings::default();
    for (name, a, b) in [("K", &prefix.k, &rebuilt[0]), ("V", &prefix.v, &rebuilt[1]), ("attention output", &exact, &approximate)] {
        found.at_least(format!("cosine of {name}"), cosine(a.iter().copied(), b.iter().copied()), 0.99);
    }
    let of = |a: &[f64], b: &[f64]| cosine(a.iter().copied(), b.iter().copied());
    found.at_least("cosine of the output where attention rebuilds K and V tile by tile", of(&exact, &inside), 0.99);
    found.at_least("cosine of that with the output over the whole rebuilt K and V", of(&approximate, &inside), 0.9999);
    found.tell("bytes of K and V in f16", plain_bytes as f64);
    found.at_most("bytes as codes and bases, as a share of that", bytes as f64 / plain_bytes as f64, 1.0);
    found.at_most("bytes on the device while attention reads them, as a share of that", device_bytes as f64 / plain_bytes as f64, 1.0);
    Ok(found)
}

/// Attention of the prefix's queries over the prefix as its factors.
fn attend_inside<D: Backend>(session: &mut Session<D>, prefix: &Prefix, device: &DevicePrefix<D>) -> Result<Vec<f64>> {
    let heads = prefix.heads as u64;
    let plan = session.plan(device.attention(1, [heads, heads], prefix.tokens as u64)?)?;
    let q = session.upload(&DTYPE.encode(&prefix.q))?;
    let o = session.upload(&DTYPE.encode(&vec![f64::NAN; prefix.q.len()]))?;
    let lse = session.alloc(plan.op().rows() * 4)?;
    session.run(&plan, &device.args(q, o.clone(), lse))?;
    Ok(DTYPE.decode(&session.read(&o)?))
}

/// Attention of the prefix's queries over a cache, not causal: BERT's.
fn attend<D: Backend>(session: &mut Session<D>, prefix: &Prefix, k: &[f64], v: &[f64]) -> Result<Vec<f64>> {
    let (tokens, heads) = (prefix.tokens as u64, prefix.heads as u64);
    let plan = session.plan(Attention::dense(DTYPE, 1, [heads, heads], [tokens, tokens], prefix.head_dim as u64))?;
    let mut put = |values: &[f64]| session.upload(&DTYPE.encode(values));
    let (q, k, v, o) = (put(&prefix.q)?, put(k)?, put(v)?, put(&vec![f64::NAN; prefix.q.len()])?);
    session.run(&plan, &AttentionArgs::new(q, k, v, o.clone()))?;
    Ok(DTYPE.decode(&session.read(&o)?))
}
