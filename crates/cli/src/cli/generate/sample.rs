//! The choice of a token by its logits.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use trifuse::{Error, Result};

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// What logits are divided by; 0 takes the greatest.
    pub temperature: f64,
    /// The most tokens that are drawn from; 0 for all.
    pub top_k: usize,
    /// The share of the probability that is drawn from, the most probable tokens first.
    pub top_p: f64,
}

/// The next token. Of equal logits the lowest id counts as the greatest.
///
/// # Errors
/// A logit that is not a number.
pub fn next(logits: &[f32], sampling: &Sampling, random: &mut ChaCha8Rng) -> Result<u32> {
    if logits.iter().any(|logit| logit.is_nan()) {
        return Err(Error::invalid("logits", "numbers", "NaN: the model's values do not fit this type; take --dtype bf16 or f32"));
    }
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let greatest_first = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if sampling.temperature == 0.0 {
        return order.into_iter().min_by(greatest_first).ok_or_else(|| Error::invalid("logits", "at least one", "none"));
    }
    if sampling.top_k > 0 && sampling.top_k < order.len() {
        order.select_nth_unstable_by(sampling.top_k - 1, greatest_first);
        order.truncate(sampling.top_k);
    }
    order.sort_unstable_by(greatest_first);
    let most = order.first().map_or(0.0, |&id| f64::from(logits[id as usize]));
    let weights: Vec<f64> = order.iter().map(|&id| ((f64::from(logits[id as usize]) - most) / sampling.temperature).exp()).collect();
    let all: f64 = weights.iter().sum();
    let before = weights.iter().scan(0.0, |sum, weight| Some(std::mem::replace(sum, *sum + weight)));
    let kept = before.take_while(|&before| before < sampling.top_p * all).count().max(1);
    let mut left = random.random::<f64>() * weights[..kept].iter().sum::<f64>();
    let at = weights[..kept].iter().position(|weight| {
        left -= weight;
        left < 0.0
    });
    Ok(order[at.unwrap_or(kept - 1)])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn counts(sampling: Sampling) -> [usize; 4] {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        let mut counts = [0; 4];
        for _ in 0..4000 {
            // Probabilities 4/10, 3/10, 2/10 and 1/10.
            let logits = [2f32.ln(), 4f32.ln(), 1f32.ln(), 3f32.ln()];
            counts[next(&logits, &sampling, &mut random).unwrap() as usize] += 1;
        }
        counts
    }

    #[test]
    fn tokens_come_as_often_as_their_probability_says() {
        let all = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0 };
        let close = |found: [usize; 4], want: [f64; 4]| found.iter().zip(want).all(|(&found, want)| (found as f64 - 4000.0 * want).abs() < 130.0);
        assert!(close(counts(all), [0.2, 0.4, 0.1, 0.3]), "{:?}", counts(all));
        assert!(close(counts(Sampling { top_k: 2, ..all }), [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]));
        assert!(close(counts(Sampling { top_p: 0.7, ..all }), [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]));
        assert!(close(counts(Sampling { temperature: 0.5, ..all }), [4.0 / 30.0, 16.0 / 30.0, 1.0 / 30.0, 9.0 / 30.0]));
        assert_eq!(counts(Sampling { temperature: 0.0, ..all }), [0, 4000, 0, 0]);
        assert_eq!(counts(all), counts(all), "a seed gives the same text");
    }

    #[test]
    fn of_equal_logits_the_lowest_id_is_taken_and_none_of_what_is_no_number() {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        let greedy = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0 };
        assert_eq!(next(&[1.0, 7.0, 7.0], &greedy, &mut random).unwrap(), 1);
        assert!(next(&[1.0, f32::NAN], &greedy, &mut random).is_err());
    }
}
