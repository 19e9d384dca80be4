//! Test 6: K and V of a shared prefix kept as codes over a basis, rebuilt on the device, whole by an engine and tile by tile inside
//! attention, and what attention makes of them.

use std::path::Path;

use safetensors::{Dtype, SafeTensors};

use super::Findings;
use super::served::{apply, cosine};
use crate::adapters::encode::prefix::{EncodedPrefix, KEY, PREFIX, VALUE, encode_prefix};
use crate::adapters::encoded::Matrix;
use crate::adapters::engine::{Engine, EngineOptions};
use crate::adapters::prefix::DevicePrefix;
use crate::backend::Backend;
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};
use crate::ops::attention::AttentionIndex;
use crate::ops::{Attention, AttentionArgs};
use crate::session::Session;

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
    /// From a safetensors file with `q`, `k` and `v` in fp16.
    ///
    /// # Errors
    /// Another shape, type or name; values that are not finite. `path` is named in them.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| Error::input(path, format!("expected a safetensors file: {error}")))?;
        let mut shape = None;
        let mut read = |name: &str| -> Result<Vec<f64>> {
            let tensor = file.tensor(name).map_err(|error| Error::input_item(path, name, error.to_string()))?;
            let wrong =
                |found: String| Error::input_item(path, name, format!("expected finite F16 [tokens, heads, head_dim], the same for all, found {found}"));
            let &[tokens, heads, head_dim] = tensor.shape() else { return Err(wrong(format!("{:?}", tensor.shape()))) };
            if tensor.dtype() != Dtype::F16 || *shape.get_or_insert([tokens, heads, head_dim]) != [tokens, heads, head_dim] {
                return Err(wrong(format!("{:?} {:?}", tensor.dtype(), tensor.shape())));
            }
            let values = DTYPE.decode(tensor.data());
            if values.iter().all(|value| value.is_finite()) { Ok(values) } else { Err(wrong("NaN or an infinity".into())) }
        };
        let (q, k, v) = (read("q")?, read("k")?, read("v")?);
        let [tokens, heads, head_dim] = shape.unwrap_or_default();
        Ok(Self { tokens, heads, head_dim, q, k, v })
    }
}

pub fn findings<D: Backend>(session: &mut Session<D>, prefix: &Prefix) -> Result<Findings> {
    let width = prefix.heads * prefix.head_dim;
    ensure(prefix.tokens > 0 && width > 0, "prefix", "tokens, heads and head_dim of at least 1", format!("{} × {width}", prefix.tokens))?;
    let matrix = |cache: &[f64]| Matrix { rows: prefix.tokens, cols: width, data: cache.iter().map(|v| *v as f32).collect() };
    let EncodedPrefix { population, bytes, plain_bytes, .. } = encode_prefix(&matrix(&prefix.k), &matrix(&prefix.v), 0.995)?;

    // Attention that rebuilds them itself, tile by tile.
    let device = DevicePrefix::new(session, &population, DTYPE)?;
    let (device_bytes, inside) = (device.bytes(), attend_inside(session, prefix, &device)?);

    // Whole, by an engine: x is the identity, so that row t of y is row t of the cache.
    let mut engine = Engine::open(session, Box::new(population), EngineOptions { dtype: DTYPE, pool_bytes: None })?;
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
    session.run(&plan, &AttentionArgs { q, k, v, index: AttentionIndex::None, o: o.clone(), lse: None })?;
    Ok(DTYPE.decode(&session.read(&o)?))
}
