//! The encoding of keys and values of a prefix that many sequences share, as codes over a basis. The cache of one layer is encoded as an
//! adapter.
//!
//! `K = 1·K` is a LoRA whose A is the identity and whose B is `Kᵀ`. Its output side is then a basis of the keys, and its input side a row
//! of coefficients for each token. Attention reads it as a [`DevicePrefix`](crate::adapters::prefix::DevicePrefix). An engine rebuilds
//! whole rows as it applies an adapter, where x holds rows of the identity.

use std::collections::BTreeMap;

use super::{EncodeOptions, Source, encode, payload_bytes};
use crate::adapters::encoded::{Matrix, Population, Rung};
use crate::adapters::peft::Lora;
use crate::dtype::DType;
use crate::error::{Result, ensure};

pub use crate::adapters::prefix::{KEY, PREFIX, VALUE};

/// A prefix of one layer, as codes over bases.
#[derive(Clone, Debug)]
pub struct EncodedPrefix {
    /// The population of one adapter, [`PREFIX`], with the projections [`KEY`] and [`VALUE`], `[tokens, width]` each. It is for an engine,
    /// or a bundle.
    pub population: Population,
    /// Bytes of codes, codebooks, coefficients and bases.
    pub bytes: u64,
    /// Bytes of K and V in f16.
    pub plain_bytes: u64,
    /// The cosines cos(K, K̂) and cos(V, V̂), measured on what is held.
    pub cosines: [f64; 2],
}

/// Encodes `k` and `v [tokens, width]`, all heads of a token side by side, so that each keeps a cosine of at least `least_cosine`. The side
/// that is coded, and its basis, are those that take the fewest bytes.
///
/// # Errors
/// K and V of different shapes, or empty; values that are not finite; a cosine that no form keeps.
pub fn encode_prefix(k: &Matrix<f32>, v: &Matrix<f32>, least_cosine: f64) -> Result<EncodedPrefix> {
    let [of_k, of_v] = [k, v].map(|cache| [cache.rows, cache.cols]);
    ensure(of_k == of_v && of_k.iter().all(|&size| size > 0), "prefix", "K and V of one shape, at least [1, 1]", format_args!("{of_k:?} and {of_v:?}"))?;
    let finite = [k, v].iter().all(|cache| cache.data.iter().all(|value| value.is_finite()));
    ensure(finite, "prefix", "finite values", "NaN or an infinity")?;
    let tokens = k.rows;
    let lora = |cache: &Matrix<f32>| {
        let identity = (0..tokens * tokens).map(|at| if at % (tokens + 1) == 0 { 1.0 } else { 0.0 }).collect();
        Lora { a: Matrix { rows: tokens, cols: tokens, data: identity }, b: cache.transposed(), scaling: 1.0, dtype: DType::F16 }
    };
    let modules = BTreeMap::from([(KEY.to_owned(), lora(k)), (VALUE.to_owned(), lora(v))]);
    let source = Source { name: PREFIX, config: &serde_json::Value::Null, modules: &modules };
    let rungs = Some(vec![Rung::SharedInput, Rung::SharedOutput, Rung::PrivateCoded]);
    let population = encode(&[source], &EncodeOptions { min_cosine: Some(least_cosine), rungs, ..EncodeOptions::default() }, &|_, _| ())?;
    let kept = |path: &str| population.adapters.get(PREFIX).and_then(|adapter| adapter.projections.get(path)).map_or(f64::NAN, |p| p.certificate.cos_delta);
    let cosines = [kept(KEY), kept(VALUE)];
    let (_, bytes) = payload_bytes(&population);
    Ok(EncodedPrefix { population, bytes, plain_bytes: 2 * (k.data.len() + v.data.len()) as u64, cosines })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use trifuse_testkit::cases::Draw;

    use super::*;

    fn cache(seed: &str, rank: usize) -> Matrix<f32> {
        let mut draw = Draw::seeded(seed);
        let (tokens, width) = (40, 96);
        let [left, right] = [tokens * rank, rank * width].map(|count| (0..count).map(|_| draw.gaussian()).collect::<Vec<_>>());
        let at = |t: usize, c: usize| (0..rank).map(|r| left[t * rank + r] * right[r * width + c]).sum::<f64>() as f32;
        Matrix { rows: tokens, cols: width, data: (0..tokens * width).map(|i| at(i / width, i % width)).collect() }
    }

    #[test]
    fn a_cache_of_few_directions_takes_few_bytes_and_keeps_what_was_asked() {
        let (k, v) = (cache("keys", 4), cache("values", 3));
        let made = encode_prefix(&k, &v, 0.99).unwrap();
        assert_eq!(made.plain_bytes, 2 * 2 * 40 * 96);
        assert!(made.bytes > 0 && 2 * made.bytes < made.plain_bytes, "{} of {}", made.bytes, made.plain_bytes);
        for (path, cache, told) in [(KEY, &k, made.cosines[0]), (VALUE, &v, made.cosines[1])] {
            let delta = made.population.adapters[PREFIX].projections[path].delta(&made.population.projections[path]).unwrap();
            // The change of a weight is [width, tokens].
            let rebuilt = |i: usize| delta.data[i % 96 * 40 + i / 96];
            let products = |f: &dyn Fn(usize) -> f64| (0..40 * 96).map(f).sum::<f64>();
            let dot = products(&|i| f64::from(cache.data[i]) * rebuilt(i));
            let norms = products(&|i| f64::from(cache.data[i]).powi(2)).sqrt() * products(&|i| rebuilt(i).powi(2)).sqrt();
            assert!(dot / norms >= 0.99 && (dot / norms - told).abs() < 1e-4, "{} told {told}", dot / norms);
        }
    }

    #[test]
    fn what_is_no_cache_is_refused() {
        let (k, short) = (cache("keys", 4), Matrix { rows: 1, cols: 96, data: vec![1.0; 96] });
        assert!(encode_prefix(&k, &short, 0.99).is_err());
        let mut broken = k.clone();
        broken.data[7] = f32::NAN;
        assert!(encode_prefix(&k, &broken, 0.99).is_err());
    }
}
