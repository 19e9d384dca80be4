//! What a shared prefix takes as codes over bases, and what attention makes of it: a row of Markdown for each cosine asked.
//!
//! ```text
//! cargo run --release --example prefix_table -- PREFIX.safetensors
//! ```
//!
//! The file is as `scripts/minilm_prefix.py` makes it: query, key and value of one layer, `[tokens, heads, head_dim]`.

use std::error::Error;

use safetensors::SafeTensors;
use trifuse::DType;
use trifuse::adapters::encode::prefix::{KEY, PREFIX, VALUE, encode_prefix};
use trifuse::adapters::encoded::Matrix;

/// `softmax(Q·Kᵀ / √d)·V` of every head, not causal, in float64. All `[tokens, heads · head_dim]`.
fn attend([q, k, v]: [&[f64]; 3], [tokens, heads, head_dim]: [usize; 3]) -> Vec<f64> {
    let row = |of: &[f64], token: usize, head: usize| of[(token * heads + head) * head_dim..][..head_dim].to_vec();
    let mut out = Vec::with_capacity(q.len());
    for (token, head) in (0..tokens).flat_map(|token| (0..heads).map(move |head| (token, head))) {
        let own = row(q, token, head);
        let score = |key: usize| row(k, key, head).iter().zip(&own).map(|(a, b)| a * b).sum::<f64>() / (head_dim as f64).sqrt();
        let scores: Vec<f64> = (0..tokens).map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut sums = vec![0.0; head_dim];
        for (key, weight) in weights.iter().enumerate() {
            sums.iter_mut().zip(row(v, key, head)).for_each(|(sum, value)| *sum += weight / total * value);
        }
        out.extend(sums);
    }
    out
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("expected the path of a prefix")?;
    let bytes = std::fs::read(&path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let shape: [usize; 3] = file.tensor("k")?.shape().try_into()?;
    let read = |name: &str| -> Result<Vec<f64>, Box<dyn Error>> { Ok(DType::F16.decode(file.tensor(name)?.data())) };
    let (q, k, v) = (read("q")?, read("k")?, read("v")?);
    let (tokens, width) = (shape[0], shape[1] * shape[2]);
    let matrix = |values: &[f64]| Matrix { rows: tokens, cols: width, data: values.iter().map(|&value| value as f32).collect() };
    let exact = attend([&q, &k, &v], shape);
    println!("| cosine asked of K and V | bytes | of f16 | cos(K) | cos(V) | cos(attention output) |\n|---|---:|---:|---:|---:|---:|");
    for asked in [0.9, 0.95, 0.98, 0.99, 0.995, 0.999] {
        let made = encode_prefix(&matrix(&k), &matrix(&v), asked)?;
        let rebuilt = |name: &str| -> Result<Vec<f64>, Box<dyn Error>> {
            let delta = made.population.adapters[PREFIX].projections[name].delta(&made.population.projections[name])?;
            // A weight's change is [width, tokens].
            Ok((0..tokens * width).map(|at| delta.data[at % width * tokens + at / width]).collect())
        };
        let output = attend([&q, &rebuilt(KEY)?, &rebuilt(VALUE)?], shape);
        let share = made.bytes as f64 / made.plain_bytes as f64;
        let [of_k, of_v] = made.cosines;
        println!("| {asked} | {} | {:.0} % | {of_k:.4} | {of_v:.4} | {:.4} |", made.bytes, 100.0 * share, cosine(&exact, &output));
    }
    Ok(())
}
