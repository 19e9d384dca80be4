use super::case::{Case, EDGES, OpKind, Posed};
use super::draw::Draw;
use crate::oracle::sample::{Host, choose};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::Sample;
use trifuse::ops::sample::RowParams;

/// The least lead of the token that wins: float32 is exact to some millionths at scores of this size.
const LEAD: f64 = 1e-3;
/// How far a threshold is from cutting elsewhere, as a part of it.
const CLEAR: f32 = 1e-3;

/// How the rows of a case draw, one after the other.
#[derive(Clone, Copy, Debug)]
enum Style {
    /// The highest logit.
    Greedy,
    /// Every token.
    Plain,
    /// The parameters of the row.
    Cut { temperature: f32, top_k: u32, top_p: f32, min_p: f32 },
}

const GREEDY: &[Style] = &[Style::Greedy];
const PLAIN: &[Style] = &[Style::Plain];
const TOP_K: &[Style] = &[cut(1.0, 1, 1.0, 0.0), cut(1.0, 2, 1.0, 0.0), cut(1.5, 20, 1.0, 0.0), cut(0.8, 50, 1.0, 0.0), cut(1.0, u32::MAX, 1.0, 0.0)];
const TOP_P: &[Style] = &[cut(1.0, 0, 0.9, 0.0), cut(0.7, 0, 0.5, 0.0), cut(2.0, 0, 0.97, 0.0), cut(1.0, 0, 0.01, 0.0), cut(1.0, 0, 0.0, 0.0)];
const MIN_P: &[Style] = &[cut(1.0, 0, 1.0, 0.05), cut(1.7, 0, 1.0, 0.2), cut(0.5, 0, 1.0, 0.9), cut(1.0, 0, 1.0, 2.0)];
/// A batch as a server has it: every row draws in its own way.
const MIXED: &[Style] = &[Style::Greedy, Style::Plain, cut(0.7, 40, 0.95, 0.05), cut(1.2, 0, 0.9, 0.02), cut(0.9, 12, 1.0, 0.0), cut(3.0, 100, 0.8, 0.0)];

const fn cut(temperature: f32, top_k: u32, top_p: f32, min_p: f32) -> Style {
    Style::Cut { temperature, top_k, top_p, min_p }
}

/// Whether a row draws the same token where every threshold and score is a little off.
fn steady(logits: &[f64], params: &RowParams, mask: Option<&[u32]>) -> bool {
    let Some(winner) = choose(logits, params, mask) else { return true };
    let near = |by: f32| RowParams { top_p: params.top_p * by, min_p: params.min_p * by, ..*params };
    let same = |by| choose(logits, &near(by), mask).map(|other| other.id) == Some(winner.id);
    // Equal logits are equal on a device too.
    let clear = winner.lead >= LEAD || params.temperature == 0.0;
    // What is no probability cuts nothing, and stays so.
    clear && (params.top_p >= 1.0 && params.min_p <= 0.0 || same(1.0 - CLEAR) && same(1.0 + CLEAR))
}

/// Draws the operands. Logits have that deviation, and are multiples of `step` where it is not 0: many are equal then.
fn pose(op: &Sample, styles: &[Style], deviation: f64, step: f64, draw: &mut Draw) -> Result<Posed<Sample>> {
    let mut host = Host { logits: draw.pitched(op.dtype, [op.rows, op.vocabulary], op.stride, deviation), params: Vec::new(), mask: None };
    if step > 0.0 {
        host.logits.iter_mut().for_each(|logit| *logit = (*logit / step).round() * step);
    }
    // A quarter of the tokens, and in the last row none.
    let words = op.rows * op.mask_words();
    host.mask =
        op.mask.then(|| (0..words).map(|word| if word / op.mask_words() + 1 == op.rows && op.rows > 1 { 0 } else { draw.word() & draw.word() }).collect());
    for r in 0..op.rows as usize {
        let (temperature, top_k, top_p, min_p) = match styles[r % styles.len()] {
            Style::Greedy => (0.0, 0, 1.0, 0.0),
            Style::Plain => (1.0, 0, 1.0, 0.0),
            Style::Cut { temperature, top_k, top_p, min_p } => (temperature, top_k, top_p, min_p),
        };
        let seed = [draw.word(), draw.word()];
        let mut params = RowParams { temperature, top_p, min_p, top_k, seed, position: 0, reserved: u32::MAX };
        let (logits, mask) = host.row(op, r);
        let clear = (0..1000).find_map(|_| {
            params.position = draw.below(1 << 20);
            steady(logits, &params, mask).then_some(params)
        });
        host.params.push(clear.ok_or_else(|| Error::invalid("case", "a position at which a row's choice is clear", format!("none in row {r}")))?);
    }
    Ok(Posed { op: op.clone(), host })
}

fn case(name: impl std::fmt::Display, op: Sample, styles: &'static [Style], deviation: f64, step: f64) -> Case {
    Case::new(OpKind::Sample, name, move |draw| Ok(pose(&op, styles, deviation, step, draw)?.into()))
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for vocabulary in EDGES.into_iter().filter(|vocabulary| *vocabulary > 1) {
        cases.push(case(format!("mixed{vocabulary}"), Sample::new(12, vocabulary), MIXED, 2.0, 0.0));
        cases.push(case(format!("mask{vocabulary}"), Sample::new(7, vocabulary).with_mask(true), MIXED, 2.0, 0.0));
    }
    for (name, styles) in [("greedy", GREEDY), ("plain", PLAIN), ("top_k", TOP_K), ("top_p", TOP_P), ("min_p", MIN_P)] {
        cases.push(case(name, Sample::new(20, 1000), styles, 2.0, 0.0));
        // Few values: thresholds cut among equal logits, and of them the lowest ids stay.
        cases.push(case(format!("{name}_equal"), Sample::new(20, 1000), styles, 1.0, 0.5));
        cases.push(case(format!("{name}_large"), Sample::new(5, 49152), styles, 4.0, 0.0));
    }
    // Rows that begin on no whole line, with other numbers between them.
    cases.push(case("apart", Sample::new(6, 321).with_stride(327).with_mask(true), MIXED, 2.0, 0.0));
    cases.push(case("many_rows", Sample::new(200, 513), MIXED, 2.0, 0.0));
    for dtype in [DType::F16, DType::BF16] {
        // Many logits of so few bits are equal, and rows of an odd length begin within a word.
        cases.push(case(format!("mixed_{dtype}"), Sample::new(12, 1001).with_dtype(dtype), MIXED, 2.0, 0.0));
        cases.push(case(format!("mask_{dtype}"), Sample::new(7, 321).with_dtype(dtype).with_stride(323).with_mask(true), MIXED, 2.0, 0.0));
        cases.push(case(format!("large_{dtype}"), Sample::new(3, 49152).with_dtype(dtype), MIXED, 4.0, 0.0));
        cases.push(case(format!("greedy_{dtype}"), Sample::new(20, 1000).with_dtype(dtype), GREEDY, 2.0, 0.0));
    }
    cases.push(case("flat", Sample::new(6, 50257), MIXED, 0.01, 0.0));
    cases.push(case("one_token", Sample::new(5, 1), MIXED, 1.0, 0.0).zero("a vocabulary of one token, which is always drawn"));
    cases.push(case("no_rows", Sample::new(0, 32), MIXED, 1.0, 0.0).zero("zero rows: nothing is written"));
    cases
}
