//! Whether outputs are right: some rows of some sets against the definition in float64.

use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use trifuse::Result;
use trifuse::ops::Attention;
use trifuse::ops::attention::Form;
use trifuse::ops::checksum::checksum;
use trifuse::ops::index::{BlockMap, MapShape};
use trifuse_testkit::cases::{Posed, Problem};
use trifuse_testkit::oracle::attention::{Host, HostForm};
use trifuse_testkit::tolerance::{Metrics, expect};

use super::super::caller::Stop;
use super::resident::Resident;
use super::sets::{DTYPE, Part, Sets};

/// One set of so many is looked at, and two of a few.
const ONE_OF: u64 = 16;
const FEWEST: u64 = 2;
/// Places of an output that are looked at, and rows of each.
const PLACES: u64 = 4;
const ROWS: u64 = 16;
/// The stream that sets and places are drawn from, behind those of all sets.
const STREAM: u64 = u64::MAX;

/// What was looked at, and what was wrong.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Proven {
    pub sets: u64,
    /// Rows of all heads together.
    pub rows: u64,
    pub wrong: Vec<String>,
}

/// Reads the output of some sets back; `first` tells whether a checksum is the one that came first for its set.
///
/// # Errors
/// A server that does not answer.
pub fn prove(resident: &mut Resident<'_>, seed: u64, time: Duration, first: &dyn Fn(u64, &[u8]) -> Option<u64>) -> Result<Proven, Stop> {
    let sets = resident.sets();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(STREAM);
    let mut proven = Proven::default();
    let count = sets.shape.sets.div_ceil(ONE_OF).max(FEWEST).min(sets.shape.sets);
    for set in sets.some(count, &mut random) {
        let (answer, output) = resident.output(set, time)?;
        let own = checksum(&output);
        match first(set, &answer) {
            Some(told) if told == own => {}
            told => proven
                .wrong
                .push(format!("set {set}: the output's checksum is {own}, the answer says {}", told.map_or("another".into(), |told| told.to_string()))),
        }
        let tensors = Part::TENSORS.map(|part| DTYPE.decode(&sets.draw(set, part)));
        let map = if sets.shape.blocks > 0 { sets.draw(set, Part::Map) } else { Vec::new() };
        for _ in 0..PLACES {
            let from = sets.token(&mut random);
            let to = (from + ROWS).min((from / sets.shape.block + 1) * sets.shape.block).min(sets.shape.tokens);
            let metrics = compared(&sets, &tensors, &map, [from, to], &output)?;
            proven.rows += (to - from) * sets.shape.heads;
            if !metrics.accepted() {
                proven.wrong.push(format!("set {set}, rows {from} to {}: {metrics}", to - 1));
            }
        }
        proven.sets += 1;
    }
    Ok(proven)
}

/// Compares rows that lie in one block, of all heads, with those of an operation that has them alone.
fn compared(sets: &Sets, [q, k, v]: &[Vec<f64>; 3], map: &[u8], [from, to]: [u64; 2], output: &[u8]) -> Result<Metrics> {
    let shape = sets.shape;
    let wide = (shape.heads * shape.head_dim) as usize;
    let (first, last) = (from as usize * wide, to as usize * wide);
    let mut op = Attention::dense(DTYPE, 1, [shape.heads; 2], [to - from, shape.tokens], shape.head_dim);
    let mut index = HostForm::None;
    if shape.blocks > 0 {
        let (along, row) = (shape.along() as usize, (from / shape.block) as usize);
        let rows: Vec<u8> = map.chunks(along * along).flat_map(|head| &head[row * along..][..along]).copied().collect();
        let of_rows = MapShape { block: shape.block as u32, q_blocks: 1, kv_blocks: along as u32, patterns: shape.heads as u32 };
        op = op.with_form(Form::BlockMap(of_rows));
        index = HostForm::BlockMap(BlockMap::new(&rows, of_rows)?);
    }
    let host = Host { q: q[first..last].to_vec(), k: k.clone(), v: v.clone(), index, slots: None };
    let expected = expect(&Problem::Attention(Posed { op, host }))?.remove(0);
    expected.tolerance.compare(&expected.elements, &DTYPE.decode(&output[2 * first..2 * last]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::options::Shape;
    use super::*;

    /// The output of a set by softmax as it is written, for all of its tokens.
    fn plain(sets: &Sets, [q, k, v]: &[Vec<f64>; 3], map: &[u8]) -> Vec<u8> {
        let Shape { tokens, heads, head_dim, block, .. } = sets.shape;
        let [tokens, heads, dim, block, along] = [tokens, heads, head_dim, block, sets.shape.along()].map(|size| size as usize);
        let at = |token: usize, head: usize| (token * heads + head) * dim;
        let mut o = vec![0.0; q.len()];
        for (token, head) in (0..tokens).flat_map(|token| (0..heads).map(move |head| (token, head))) {
            let sees = |key: &usize| map.is_empty() || map[(head * along + token / block) * along + key / block] == 1;
            let score = |key: usize| (0..dim).map(|at_d| q[at(token, head) + at_d] * k[at(key, head) + at_d]).sum::<f64>() / (dim as f64).sqrt();
            let weights: Vec<(usize, f64)> = (0..tokens).filter(sees).map(|key| (key, score(key).exp())).collect();
            let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
            for d in 0..dim {
                o[at(token, head) + d] = weights.iter().map(|(key, weight)| weight / sum * v[at(*key, head) + d]).sum();
            }
        }
        DTYPE.encode(&o)
    }

    #[test]
    fn a_right_output_is_accepted_and_one_of_another_map_or_set_is_not() {
        for shape in [
            Shape { sets: 2, tokens: 200, heads: 2, head_dim: 16, blocks: 6, block: 64 },
            Shape { sets: 2, tokens: 40, heads: 1, head_dim: 8, blocks: 0, block: 128 },
        ] {
            let sets = Sets::new(shape, 3);
            let of =
                |set: u64| (Part::TENSORS.map(|part| DTYPE.decode(&sets.draw(set, part))), if shape.blocks > 0 { sets.draw(set, Part::Map) } else { vec![] });
            let ((tensors, map), (others, other_map)) = (of(0), of(1));
            let (right, wrong) = (plain(&sets, &tensors, &map), plain(&sets, &others, &map));
            let judge = |output: &[u8], rows: [u64; 2]| compared(&sets, &tensors, &map, rows, output).unwrap().accepted();
            let last = shape.tokens;
            for rows in [[0, 16], [last - 5, last]] {
                assert!(judge(&right, rows) && !judge(&wrong, rows), "{rows:?}");
            }
            if shape.blocks > 0 {
                let moved = plain(&sets, &tensors, &other_map);
                let rows = |row: u64| [row * 64, (row * 64 + 8).min(last)];
                let of_row = |map: &[u8], row: u64| -> Vec<u8> { map.chunks(16).flat_map(|head| &head[row as usize * 4..][..4]).copied().collect() };
                let differ: Vec<u64> = (0..4).filter(|row| of_row(&map, *row) != of_row(&other_map, *row)).collect();
                assert!(!differ.is_empty(), "the maps of two sets are not the same");
                differ.iter().for_each(|row| assert!(!judge(&moved, rows(*row)), "row {row}"));
            }
        }
    }
}
