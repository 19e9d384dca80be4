//! The sampler on the host.

use std::cmp::Ordering;

use super::noise::noise;
use super::params::SamplingParams;
use crate::error::{Error, Result, ensure};

/// Candidates that are sorted first, when as many are needed as reach a probability.
const FIRST_SORTED: usize = 256;

/// The tokens before the one to choose.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// Ids of the prompt.
    pub prompt: &'a [u32],
    /// Ids of the answer so far.
    pub answer: &'a [u32],
}

impl History<'_> {
    /// The place of the token to choose in its sequence.
    pub fn position(&self) -> usize {
        self.prompt.len() + self.answer.len()
    }
}

/// A token, and how probable it was.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The token's id.
    pub token: u32,
    /// The natural logarithm of its probability in the model's own distribution: softmax of the logits as they came.
    pub log_probability: f64,
    /// The most probable tokens of that distribution, [`SamplingParams::top`] of them: ids and logarithms, highest first, equal ones by id.
    pub top: Vec<(u32, f64)>,
}

/// A token that may be drawn, and its logit.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f64,
}

impl Candidate {
    /// Zeros compare equal whatever their sign.
    fn new(id: u32, logit: f64) -> Self {
        Self { id, logit: logit + 0.0 }
    }

    /// Highest logit first, equal ones by id.
    fn order(&self, other: &Self) -> Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

/// Chooses a token from `logits`, one for each id of the vocabulary.
///
/// 1. Repetition applies once to each token of the history; then frequency and presence are taken, the bias is added, and tokens whose bit in
///    `mask` is 0 are ruled out. The mask has bit `id % 32` of word `id / 32`.
/// 2. At temperature 0 the highest logit wins. Else the logits are divided by the temperature.
/// 3. `top_k` keeps the highest logits; `min_p` those that reach its part of the highest probability; `top_p` the first of what is left, in
///    falling order, that reach its part of the probability of what is left. Equal logits go by id, the lowest first. At least one token stays.
/// 4. Of what is left, the highest sum of logit and [`noise`] wins.
///
/// # Errors
/// Parameters out of range; no logits; a NaN or plus infinity among them; a mask or a history that does not fit the vocabulary; every token ruled
/// out.
pub fn sample(logits: &[f32], params: &SamplingParams, history: History<'_>, mask: Option<&[u32]>) -> Result<Choice> {
    let token = choose(logits, params, history, mask)?;
    Ok(describe(logits, token, params.top as usize))
}

/// The token alone that [`sample`] chooses, in less time.
///
/// # Errors
/// Those of [`sample`].
pub fn choose(logits: &[f32], params: &SamplingParams, history: History<'_>, mask: Option<&[u32]>) -> Result<u32> {
    params.validate(logits.len())?;
    let bad = logits.iter().zip(0u32..).find(|(logit, _)| logit.is_nan() || **logit == f32::INFINITY);
    if let Some((logit, id)) = bad {
        return Err(Error::invalid(
            "logits",
            "finite numbers, or minus infinity: where a model's values do not fit f16, take bf16 or f32",
            format!("{logit} for token {id}"),
        ));
    }
    if let Some(mask) = mask {
        let words = logits.len().div_ceil(32);
        ensure(mask.len() == words, "mask", format_args!("{words} words for a vocabulary of {}", logits.len()), mask.len())?;
    }
    let position = u32::try_from(history.position()).map_err(|_| Error::invalid("history", "less than 2^32 tokens", history.position()))?;

    let mut adjusted: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
    penalise(&mut adjusted, params, history)?;
    for (id, amount) in &params.bias {
        adjusted[*id as usize] += f64::from(*amount);
    }
    let allowed = |id: u32| mask.is_none_or(|mask| mask[id as usize / 32] >> (id % 32) & 1 == 1);
    let candidates = adjusted.into_iter().zip(0u32..).map(|(logit, id)| Candidate::new(id, logit));
    let mut candidates: Vec<Candidate> = candidates.filter(|candidate| candidate.logit > f64::NEG_INFINITY && allowed(candidate.id)).collect();

    if !params.is_greedy() {
        candidates.iter_mut().for_each(|candidate| candidate.logit /= f64::from(params.temperature));
        threshold(&mut candidates, params);
        candidates.iter_mut().for_each(|candidate| candidate.logit += noise(params.seed, position, candidate.id));
    }
    let Some(best) = candidates.iter().min_by(|a, b| a.order(b)) else {
        return Err(Error::invalid("sampling", "a token that may be drawn", "mask, bias and logits that rule out every token"));
    };
    Ok(best.id)
}

/// Applies what depends on the history.
fn penalise(logits: &mut [f64], params: &SamplingParams, history: History<'_>) -> Result<()> {
    if !params.has_penalties() {
        return Ok(());
    }
    let [mut all, mut answer] = [[history.prompt, history.answer].concat(), history.answer.to_vec()];
    [&mut all, &mut answer].into_iter().for_each(|ids| ids.sort_unstable());
    if let Some(id) = all.last().filter(|id| **id as usize >= logits.len()) {
        return Err(Error::invalid("history", format!("ids less than the vocabulary of {}", logits.len()), id));
    }
    let repetition = f64::from(params.repetition);
    for same in all.chunk_by(|a, b| a == b) {
        let logit = &mut logits[same[0] as usize];
        *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
    }
    for same in answer.chunk_by(|a, b| a == b) {
        logits[same[0] as usize] -= f64::from(params.frequency) * same.len() as f64 + f64::from(params.presence);
    }
    Ok(())
}

/// Leaves the tokens that may be drawn, in falling order where a threshold cuts.
fn threshold(candidates: &mut Vec<Candidate>, params: &SamplingParams) {
    if params.top_k > 0 && (params.top_k as usize) < candidates.len() {
        candidates.select_nth_unstable_by(params.top_k as usize - 1, Candidate::order);
        candidates.truncate(params.top_k as usize);
    }
    let highest = candidates.iter().map(|candidate| candidate.logit).fold(f64::NEG_INFINITY, f64::max);
    if params.min_p > 0.0 {
        let least = highest + f64::from(params.min_p).ln();
        candidates.retain(|candidate| candidate.logit >= least);
    }
    if params.top_p < 1.0 {
        let mass = |candidate: &Candidate| (candidate.logit - highest).exp();
        let wanted = f64::from(params.top_p) * candidates.iter().map(mass).sum::<f64>();
        // Few tokens hold most of it: more are sorted only where they are needed.
        let (mut kept, mut reached, mut sorted) = (0, 0.0, 0);
        while kept < candidates.len() && (kept == 0 || reached < wanted) {
            if kept == sorted {
                let more = FIRST_SORTED.max(7 * sorted).min(candidates.len() - sorted);
                let rest = &mut candidates[sorted..];
                if more < rest.len() {
                    rest.select_nth_unstable_by(more, Candidate::order);
                }
                rest[..more].sort_unstable_by(Candidate::order);
                sorted += more;
            }
            reached += mass(&candidates[kept]);
            kept += 1;
        }
        candidates.truncate(kept);
    }
}

/// The chosen token's probability, and the most probable tokens.
pub fn describe(logits: &[f32], token: u32, top: usize) -> Choice {
    let highest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - highest).exp()).sum();
    // In this order, as the logarithm of the sum may vanish beside large logits.
    let log_probability = |logit: f64| logit - highest - sum.ln();
    let mut all: Vec<Candidate> = Vec::new();
    if top > 0 {
        all.extend(logits.iter().zip(0u32..).map(|(logit, id)| Candidate::new(id, f64::from(*logit))));
        if top < all.len() {
            all.select_nth_unstable_by(top, Candidate::order);
        }
        all.truncate(top);
        all.sort_unstable_by(Candidate::order);
    }
    let top = all.into_iter().map(|candidate| (candidate.id, log_probability(candidate.logit))).collect();
    Choice { token, log_probability: log_probability(f64::from(logits[token as usize])), top }
}
