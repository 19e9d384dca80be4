//! Test 5: adapters as the experts of a mixture; wherever each expert lies on the device, the answer has the same bits.

use std::collections::BTreeMap;

use super::served::{apply, deltas, encode_all, one_layer, times};
use super::{Findings, Samples};
use crate::adapters::encode::EncodeOptions;
use crate::adapters::encoded::Population;
use crate::adapters::engine::{AdapterId, Engine, EngineOptions};
use crate::backend::Backend;
use crate::cases::Draw;
use crate::dtype::DType;
use crate::error::Result;
use crate::session::Session;
use crate::tolerance::Tolerance;

const TOKENS: usize = 19;
const EXPERTS: usize = 4;
const TOP: usize = 2;
const DTYPE: DType = DType::F16;

/// Which experts each token goes to, and with what weight.
struct Routing {
    expert: Vec<[usize; TOP]>,
    gate: Vec<[f64; TOP]>,
}

pub fn findings<D: Backend>(session: &mut Session<D>, samples: &Samples) -> Result<Findings> {
    let mut adapters = one_layer(&samples.adapters);
    adapters.truncate(EXPERTS);
    let population = encode_all(&adapters, &EncodeOptions { rank: Some(8), ..EncodeOptions::default() })?;
    let names: Vec<String> = population.adapters.keys().cloned().collect();
    let mut found = Findings::default();
    let Some((path, shared)) = population.projections.iter().next() else { return Ok(found) };
    let mut draw = Draw::seeded("experts");
    let routing = route(&mut draw, names.len());
    let x = draw.normal(DTYPE, (TOKENS * shared.d_in) as u64, 1.0);

    let mut answers: Vec<Vec<f64>> = Vec::new();
    for placement in permutations(names.len()) {
        answers.push(mixture(session, &population, &names, &placement, path, &routing, &x)?);
    }
    found.at_least("placements tried", answers.len() as f64, (1..=names.len()).product::<usize>() as f64);
    let different = answers.iter().filter(|answer| !answer.iter().zip(&answers[0]).all(|(a, b)| a.to_bits() == b.to_bits())).count();
    found.at_most("placements whose bits differ from the first's", different as f64, 0.0);

    let deltas = deltas(&population, path)?;
    let (mut reference, mut plain) = (Vec::new(), Vec::new());
    for token in 0..TOKENS {
        let mut sums = vec![(0.0, 0.0); shared.d_out];
        for (expert, gate) in routing.expert[token].iter().zip(routing.gate[token]) {
            let row: Vec<f64> = x[token * shared.d_in..(token + 1) * shared.d_in].iter().map(|v| DTYPE.round(v * gate)).collect();
            for (sum, value) in sums.iter_mut().zip(times(&deltas[&names[*expert]], &row)) {
                *sum = (sum.0 + value, sum.1 + DTYPE.round(value));
            }
        }
        reference.extend(sums.iter().map(|sum| Some(sum.0)));
        plain.extend(sums.iter().map(|sum| Some(sum.1)));
    }
    let metrics = Tolerance::new(DTYPE, &reference, &plain, 0.0).compare(&reference, &answers[0])?;
    found.at_most("greatest error over what is allowed", metrics.max_abs / metrics.tolerance.max_abs, 1.0);
    found.at_most("relative L2 error", metrics.relative_l2, 1e-3);
    Ok(found)
}

/// The top two of random scores for each token, weighted by a softmax over the two.
fn route(draw: &mut Draw, experts: usize) -> Routing {
    let (mut expert, mut gate) = (Vec::new(), Vec::new());
    for _ in 0..TOKENS {
        let mut scores: Vec<(f64, usize)> = (0..experts).map(|e| (draw.gaussian(), e)).collect();
        scores.sort_by(|a, b| b.0.total_cmp(&a.0));
        let total: f64 = scores[..TOP].iter().map(|(score, _)| score.exp()).sum();
        expert.push([scores[0].1, scores[1].1]);
        gate.push([scores[0].0.exp() / total, scores[1].0.exp() / total]);
    }
    Routing { expert, gate }
}

/// Every order of `0..count`.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    (0..count).fold(vec![Vec::new()], |orders, next| {
        orders.iter().flat_map(|order: &Vec<usize>| (0..=order.len()).map(|at| [&order[..at], &[next], &order[at..]].concat()).collect::<Vec<_>>()).collect()
    })
}

/// The mixture with expert `e` in place `placement[e]`: a row for each pair of token and expert, x times the gate;
/// rows of a token are added in the order of its routing.
fn mixture<D: Backend>(
    session: &mut Session<D>,
    population: &Population,
    names: &[String],
    placement: &[usize],
    path: &str,
    routing: &Routing,
    x: &[f64],
) -> Result<Vec<f64>> {
    // Places follow the names, so a new name is a new place.
    let placed = |expert: usize| format!("{}", placement[expert]);
    let adapters: BTreeMap<_, _> = names.iter().enumerate().map(|(expert, name)| (placed(expert), population.adapters[name].clone())).collect();
    let moved = Population { projections: population.projections.clone(), adapters };
    let mut engine = Engine::open(session, Box::new(moved), EngineOptions { dtype: DTYPE, pool_bytes: None })?;
    let ids: Vec<AdapterId> = (0..names.len()).map(|expert| engine.adapter(&placed(expert))).collect::<Result<_>>()?;
    let (d_in, d_out) = (x.len() / TOKENS, population.projections[path].d_out);
    let mut rows = Vec::with_capacity(TOKENS * TOP * d_in);
    let mut row_ids = Vec::with_capacity(TOKENS * TOP);
    for token in 0..TOKENS {
        for (expert, gate) in routing.expert[token].iter().zip(routing.gate[token]) {
            rows.extend(x[token * d_in..(token + 1) * d_in].iter().map(|v| v * gate));
            row_ids.push(Some(ids[*expert]));
        }
    }
    let batch = engine.batch(session, &row_ids)?;
    let zeros = vec![0.0; TOKENS * TOP * d_out];
    let y = apply(session, &mut engine, &batch, DTYPE, &rows, &[(path, &zeros)])?.remove(0);
    Ok(y.chunks_exact(TOP * d_out).flat_map(|pair| (0..d_out).map(|o| pair[o] + pair[d_out + o])).collect())
}
