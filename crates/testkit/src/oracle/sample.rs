//! The choice of a token from logits, by the definition: everything sorted, in float64.

use super::{Define, Output, Rounding, expect_len, pitched_len, reversed};
use trifuse::dtype::DType;
use trifuse::error::{Result, ensure};
use trifuse::ops::Sample;
use trifuse::ops::sample::{RowParams, philox4x32};

/// The operands on the host; see [`trifuse::ops::SampleArgs`].
#[derive(Clone, Debug)]
pub struct Host {
    /// `[rows, vocabulary]`, from the first element to the last.
    pub logits: Vec<f64>,
    /// `[rows]`.
    pub params: Vec<RowParams>,
    /// `[rows, vocabulary / 32 rounded up]`.
    pub mask: Option<Vec<u32>>,
}

impl Host {
    /// Row `r`: its logits, and its words of the mask.
    pub fn row(&self, op: &Sample, r: usize) -> (&[f64], Option<&[u32]>) {
        let words = op.mask_words() as usize;
        (&self.logits[r * op.stride as usize..][..op.vocabulary as usize], self.mask.as_ref().map(|mask| &mask[r * words..][..words]))
    }
}

/// A token, and by how much its score is above the next one's: without bound where no other may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Winner {
    /// The token's id.
    pub id: usize,
    /// The lead over the next one; 0 for equal ones.
    pub lead: f64,
}

/// Gumbel noise of a token.
fn noise(params: &RowParams, id: usize) -> f64 {
    let words = philox4x32([id as u32 / 4, params.position, 0, 0], params.seed);
    let u = (f64::from(words[id % 4]) + 0.5) / 2f64.powi(32);
    -(-(-u).ln_1p()).ln()
}

/// The token that a row draws; `None` where none may be drawn.
pub fn choose(logits: &[f64], params: &RowParams, mask: Option<&[u32]>) -> Option<Winner> {
    let [temperature, top_p, min_p] = [params.temperature, params.top_p, params.min_p].map(f64::from);
    let allowed = |id: usize| mask.is_none_or(|mask| mask[id / 32] >> (id % 32) & 1 == 1);
    let mut kept: Vec<(usize, f64)> = logits.iter().copied().enumerate().filter(|(id, logit)| *logit > f64::NEG_INFINITY && allowed(*id)).collect();
    // A stable sort: equal logits stay in the order of their ids.
    kept.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(std::cmp::Ordering::Equal));
    let highest = kept.first()?.1;
    if temperature > 0.0 {
        let probability = |logit: f64| ((logit - highest) / temperature).exp();
        if params.top_k > 0 {
            kept.truncate(params.top_k as usize);
        }
        let least = if min_p > 0.0 { min_p } else { 0.0 };
        let reach = kept.iter().take_while(|(_, logit)| probability(*logit) >= least).count();
        kept.truncate(reach.max(1));
        if top_p < 1.0 {
            let wanted = top_p * kept.iter().map(|(_, logit)| probability(*logit)).sum::<f64>();
            let mut reached = 0.0;
            let needed = kept.iter().take_while(|(_, logit)| {
                let before = reached;
                reached += probability(*logit);
                before < wanted
            });
            let needed = needed.count();
            kept.truncate(needed.max(1));
        }
        kept.iter_mut().for_each(|(id, logit)| *logit = *logit / temperature + noise(params, *id));
        kept.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap_or(std::cmp::Ordering::Equal).then(a.0.cmp(&b.0)));
    }
    let (id, best) = kept[0];
    Some(Winner { id, lead: kept.get(1).map_or(f64::INFINITY, |next| best - next.1) })
}

/// The logarithm of a token's probability.
fn log_probability<R: Rounding>(logits: &[f64], id: usize, rounding: R) -> f64 {
    let numbers = || logits.iter().copied().filter(|logit| !logit.is_nan());
    let highest = numbers().fold(f64::NEG_INFINITY, f64::max);
    let sum = numbers().fold(0.0, |sum, logit| rounding.step(sum + rounding.step(rounding.step(logit - highest).exp())));
    rounding.step(rounding.step(logits[id] - highest) - rounding.step(sum.ln()))
}

impl Define for Sample {
    type Host = Host;

    fn dtype(&self) -> DType {
        DType::F32
    }

    fn evaluate<R: Rounding>(&self, host: &Host, rounding: R) -> Result<Vec<Output>> {
        use trifuse::ops::Op;
        self.validate()?;
        expect_len("sample: logits", &host.logits, pitched_len(self.rows, self.vocabulary, self.stride))?;
        let (rows, words) = (host.params.len() as u64, host.mask.as_ref().map(|mask| mask.len() as u64));
        ensure(rows == self.rows, "sample: params", format_args!("{} rows", self.rows), rows)?;
        let expected = self.mask.then_some(self.rows * self.mask_words());
        ensure(words == expected, "sample: mask", format_args!("{expected:?} words"), format_args!("{words:?}"))?;
        let (mut ids, mut logarithms) = (Vec::new(), Vec::new());
        for (r, params) in host.params.iter().enumerate() {
            let (logits, mask) = host.row(self, r);
            // A choice is right or wrong: there is no rounding in it.
            let winner = choose(logits, params, mask);
            ids.push(winner.map_or(-1.0, |winner| winner.id as f64));
            logarithms.push(winner.map_or(f64::NEG_INFINITY, |winner| rounding.keep(log_probability(logits, winner.id, rounding))));
        }
        let logarithms = Output { least: 8.0, ..Output::packed("log_probability", DType::F32, logarithms) };
        Ok(vec![Output { integers: true, ..Output::packed("ids", DType::F32, ids) }, logarithms])
    }

    fn disordered(&self, host: &Host) -> Vec<(&'static str, Host)> {
        reversed(&host.logits).map(|logits| ("logits", Host { logits, ..host.clone() })).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(temperature: f32, top_k: u32, top_p: f32, min_p: f32) -> RowParams {
        RowParams { temperature, top_p, min_p, top_k, seed: [7, 9], position: 3, reserved: 0 }
    }

    #[test]
    fn what_is_kept_is_what_was_worked_out_by_hand() {
        // Probabilities of 1/8, 1/2, 1/4 and 1/8.
        let logits = [0.125f64, 0.5, 0.25, 0.125].map(f64::ln);
        let kept = |top_k, top_p, min_p| {
            let drawn = (0..500).map(|position| choose(&logits, &RowParams { position, ..params(1.0, top_k, top_p, min_p) }, None).map(|winner| winner.id));
            drawn.flatten().collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        assert_eq!(kept(0, 1.0, 0.0), [0, 1, 2, 3]);
        assert_eq!(kept(3, 1.0, 0.0), [0, 1, 2], "of equal ones the lowest id");
        assert_eq!(kept(0, 0.51, 0.0), [1, 2]);
        assert_eq!(kept(2, 0.7, 0.0), [1, 2], "two thirds are not enough");
        assert_eq!(kept(2, 0.66, 0.0), [1]);
        assert_eq!(kept(0, 1.0, 0.26), [1, 2]);
        assert_eq!(kept(0, 0.0, 2.0), [1]);
        assert_eq!(choose(&logits, &params(0.0, 0, 1.0, 0.0), Some(&[0b1001])), Some(Winner { id: 0, lead: 0.0 }));
        assert_eq!(choose(&logits, &params(1.0, 0, 1.0, 0.0), Some(&[0])), None);
        assert_eq!(choose(&[f64::NAN, f64::NEG_INFINITY], &params(0.0, 0, 1.0, 0.0), None), None);
    }
}
