//! `sample`: a token for each row of logits, a row at a time.

use std::cmp::Ordering;

use rayon::prelude::*;

use super::element::{Element, by_dtype};
use super::view::View;
use super::{Cpu, Queue, math, sole_variant};
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::Result;
use crate::ops::sample::{RowParams, philox4x32};
use crate::ops::{Sample, SampleArgs};

const VARIANT: &str = "rows";
/// Candidates that are sorted first, where as many are wanted as reach a probability: few hold most of it.
const FIRST_SORTED: usize = 256;

/// A planned sampler.
#[derive(Clone)]
pub struct Plan {
    op: Sample,
}

impl Kernel<Sample> for Cpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        &[VARIANT]
    }

    fn plan(&self, op: &Sample, only: Option<&str>) -> Result<Plan> {
        sole_variant("sample", VARIANT, only)?;
        Ok(Plan { op: op.clone() })
    }

    fn workspace_bytes(_plan: &Plan) -> u64 {
        0
    }

    fn variant(_plan: &Plan) -> &'static str {
        VARIANT
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, _workspace: &Slice<Self>, args: &SampleArgs<Self>) -> Result<()> {
        let op = plan.op.clone();
        // SAFETY: `check` accepted the operands, and the queue holds their buffers while the work runs.
        queue.put(&plan.op, None, args, move |args| by_dtype!(op.dtype, T => unsafe { run::<T>(&op, args) }))
    }
}

/// Runs the operation.
///
/// # Safety
/// [`crate::ops::check`] accepted `args`, and they are held.
unsafe fn run<E: Element>(op: &Sample, args: &SampleArgs<Cpu>) -> Result<()> {
    let (rows, words) = (op.rows as usize, op.mask_words() as usize);
    let (logits, params) = (View::<E>::new(&args.logits), View::<u32>::new(&args.params));
    let mask = args.mask.as_ref().map(View::<u32>::new);
    let (ids, logarithms) = (View::<i32>::new(&args.ids), View::<f32>::new(&args.log_probability));
    let vocabulary = op.vocabulary as usize;
    (0..rows).into_par_iter().for_each(|row| {
        let mut wide = Vec::new();
        // SAFETY: as this function's contract: the operands have that row, and no other piece of work writes it.
        unsafe {
            let logits = logits.read(row * op.stride as usize, vocabulary);
            let logits = E::as_f32(logits).unwrap_or_else(|| {
                wide.resize(vocabulary, 0.0);
                E::widen(logits, &mut wide);
                &wide
            });
            let params = params.read(row * size_of::<RowParams>() / 4, size_of::<RowParams>() / 4);
            let mask = mask.map(|mask| mask.read(row * words, words));
            let token = choose(logits, &bytemuck::pod_read_unaligned(bytemuck::cast_slice(params)), mask);
            ids.write(row, 1)[0] = token.map_or(-1, |id| id as i32);
            logarithms.write(row, 1)[0] = token.map_or(f32::NEG_INFINITY, |id| log_probability(logits, logits[id as usize]));
        }
    });
    Ok(())
}

/// A token that may be drawn.
#[derive(Clone, Copy)]
struct Candidate {
    logit: f32,
    id: u32,
}

impl Candidate {
    /// Highest logit first, equal ones by id.
    fn order(&self, other: &Self) -> Ordering {
        // There is no NaN here, and zeros of both signs are equal.
        other.logit.partial_cmp(&self.logit).unwrap_or(Ordering::Equal).then(self.id.cmp(&other.id))
    }
}

/// The logarithm of the probability of a token with that logit.
fn log_probability(logits: &[f32], logit: f32) -> f32 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum = math::vectorised(|| math::sum(logits, |logit| if logit.is_nan() { 0.0 } else { math::exp(logit - highest) }));
    (logit - highest) - sum.ln()
}

/// The token of a row; none where none may be drawn.
fn choose(logits: &[f32], params: &RowParams, mask: Option<&[u32]>) -> Option<u32> {
    let allowed = |id: u32| mask.is_none_or(|mask| mask[id as usize / 32] >> (id % 32) & 1 == 1);
    let all = || logits.iter().zip(0u32..).filter(|(logit, id)| **logit > f32::NEG_INFINITY && allowed(*id)).map(|(&logit, id)| Candidate { logit, id });
    let best = all().reduce(|best, other| if other.logit > best.logit { other } else { best })?;
    // NaN is no temperature and no threshold: each is compared the way in which NaN says no.
    let [draws, has_min_p, has_top_p] = [params.temperature > 0.0, params.min_p > 0.0, params.top_p < 1.0];
    if !draws {
        return Some(best.id);
    }
    let mut race = Race::new(params, best);
    if params.top_k > 0 || has_min_p || has_top_p {
        kept(all(), params, best.logit).into_iter().for_each(|candidate| race.enter(candidate));
    } else {
        all().for_each(|candidate| race.enter(candidate));
    }
    Some(race.winner.id)
}

/// The tokens that the thresholds leave.
fn kept(all: impl Iterator<Item = Candidate>, params: &RowParams, highest: f32) -> Vec<Candidate> {
    let probability = |candidate: &Candidate| (f64::from(candidate.logit - highest) / f64::from(params.temperature)).exp();
    let least = if params.min_p > 0.0 { f64::from(params.min_p) } else { 0.0 };
    let may_stay = |candidate: &Candidate| least == 0.0 || candidate.logit == highest || probability(candidate) >= least;
    let mut kept: Vec<Candidate> = all.filter(may_stay).collect();
    if params.top_k > 0 && (params.top_k as usize) < kept.len() {
        kept.select_nth_unstable_by(params.top_k as usize - 1, Candidate::order);
        kept.truncate(params.top_k as usize);
    }
    if params.min_p > 1.0 {
        // No token reaches it: the first of all stays.
        kept.select_nth_unstable_by(0, Candidate::order);
        kept.truncate(1);
    }
    if params.top_p < 1.0 {
        let wanted = f64::from(params.top_p) * kept.iter().map(probability).sum::<f64>();
        let (mut count, mut reached, mut sorted) = (0, 0.0, 0);
        while count < kept.len() && (count == 0 || reached < wanted) {
            if count == sorted {
                let more = FIRST_SORTED.max(7 * sorted).min(kept.len() - sorted);
                let rest = &mut kept[sorted..];
                if more < rest.len() {
                    rest.select_nth_unstable_by(more, Candidate::order);
                }
                rest[..more].sort_unstable_by(Candidate::order);
                sorted += more;
            }
            reached += probability(&kept[count]);
            count += 1;
        }
        kept.truncate(count);
    }
    kept
}

/// The highest score so far. Most tokens cannot win, and that shows before any logarithm is taken.
struct Race<'a> {
    params: &'a RowParams,
    winner: Candidate,
    score: f64,
    /// Four random words, and the tokens divided by 4 that they are for.
    words: Option<(u32, [u32; 4])>,
}

impl<'a> Race<'a> {
    fn new(params: &'a RowParams, first: Candidate) -> Self {
        let mut race = Self { params, winner: first, score: f64::NEG_INFINITY, words: None };
        race.enter(first);
        race
    }

    fn enter(&mut self, candidate: Candidate) {
        let four = candidate.id / 4;
        let words = match self.words {
            Some((of, words)) if of == four => words,
            _ => philox4x32([four, self.params.position, 0, 0], self.params.seed),
        };
        self.words = Some((four, words));
        let u = (f64::from(words[candidate.id as usize % 4]) + 0.5) / 4_294_967_296.0;
        let logit = f64::from(candidate.logit) / f64::from(self.params.temperature);
        // With −ln(1 − u) ≥ u, the noise is −ln u at most, so a token that trails by d wins only where u is below e^−d, which 1 + d + d²/2 bounds.
        let behind = self.score - logit;
        if behind > 0.0 && u * (1.0 + behind + 0.5 * behind * behind) > 1.0 {
            return;
        }
        let score = logit - (-(-u).ln_1p()).ln();
        if score > self.score || (score == self.score && candidate.id < self.winner.id) {
            (self.winner, self.score) = (candidate, score);
        }
    }
}
