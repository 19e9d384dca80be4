//! Rotary positions (arXiv:2104.09864): how far each pair of a head turns from a token to the next, in the forms that longer contexts use.

use std::f64::consts::TAU;

use serde_json::{Map, Value};

use super::keys::Keys;
use crate::error::{Error, Result};

/// How rotary positions are stretched past the context that a model was first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// Positions are divided by a factor (arXiv:2306.15595).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// The form of Llama 3: slow pairs are divided by a factor, fast ones not, and those between in part.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Turns in the first context below which a pair is slow.
        low: f64,
        /// Turns in the first context above which a pair is fast.
        high: f64,
        /// Tokens of the first context.
        original: f64,
    },
    /// YaRN (arXiv:2309.00071): the same idea by a ramp over pairs, and sharper scores.
    Yarn {
        /// The factor.
        factor: f64,
        /// Tokens of the first context.
        original: f64,
        /// Turns in the first context at the fast end of the ramp.
        fast: f64,
        /// Turns in the first context at the slow end of the ramp.
        slow: f64,
        /// Whether the ends of the ramp are whole pairs.
        truncate: bool,
        /// The factor in front of q, and of k.
        attention: f64,
    },
    /// A divisor for each pair, as GGUF files hold them.
    Divided(Vec<f32>),
}

impl Scaling {
    /// The base and the scaling that a configuration names, in `rope_parameters` or in `rope_theta` and `rope_scaling`.
    ///
    /// # Errors
    /// A scaling that is none of these, or lacks a number.
    pub fn of(keys: &Keys<'_>, context: usize) -> Result<(f64, Self)> {
        let object = |key: &str| keys.map.get(key).filter(|value| !value.is_null());
        let (key, given) = match (object("rope_parameters"), object("rope_scaling")) {
            (Some(given), _) => ("rope_parameters", given),
            (None, Some(given)) => ("rope_scaling", given),
            (None, None) => return Ok((keys.number("rope_theta")?.unwrap_or(1e4), Self::None)),
        };
        let fault = |problem: String| Error::input_item(keys.path, key, problem);
        let Value::Object(map) = given else { return Err(fault(format!("expected an object, found {given}"))) };
        let own = Keys { path: keys.path, map };
        let base = own.number("rope_theta")?.or(keys.number("rope_theta")?).unwrap_or(1e4);
        let kind = map.get("rope_type").or_else(|| map.get("type")).and_then(Value::as_str).unwrap_or("default");
        let number = |name: &str| own.number(name).and_then(|number| number.ok_or_else(|| fault(format!("expected {name}, found no such key"))));
        let known = ["default", "linear", "llama3", "yarn"];
        Ok((
            base,
            match kind {
                "default" => Self::None,
                "linear" => Self::Linear { factor: number("factor")? },
                "llama3" => {
                    let [factor, low, high, original] = ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"].map(number);
                    Self::Llama3 { factor: factor?, low: low?, high: high?, original: original? }
                }
                "yarn" => Self::yarn(&own, map, context)?,
                other => return Err(fault(format!("expected a rope_type of {known:?}, found {other:?}"))),
            },
        ))
    }

    fn yarn(own: &Keys<'_>, map: &Map<String, Value>, context: usize) -> Result<Self> {
        let original = own.number("original_max_position_embeddings")?.unwrap_or(context as f64);
        let factor = own.number("factor")?.unwrap_or(context as f64 / original);
        let sharp = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
        let attention = match (own.number("attention_factor")?, own.number("mscale")?, own.number("mscale_all_dim")?) {
            (Some(given), ..) => given,
            (None, Some(some), Some(all)) => sharp(some) / sharp(all),
            _ => sharp(1.0),
        };
        let [fast, slow] = [own.number("beta_fast")?.unwrap_or(32.0), own.number("beta_slow")?.unwrap_or(1.0)];
        let truncate = map.get("truncate").and_then(Value::as_bool).unwrap_or(true);
        Ok(Self::Yarn { factor, original, fast, slow, truncate, attention })
    }

    /// How far each pair of a head of `head_dim` turns from a token to the next, in radians.
    pub fn frequencies(&self, base: f64, head_dim: u64) -> Vec<f32> {
        let d = head_dim as f64;
        let plain = |j: u64| base.powf(-2.0 * j as f64 / d);
        let each = |of: &dyn Fn(u64) -> f64| (0..head_dim / 2).map(|j| of(j) as f32).collect();
        match self {
            Self::None => each(&plain),
            Self::Linear { factor } => each(&|j| plain(j) / factor),
            Self::Divided(by) => each(&|j| plain(j) / f64::from(by.get(j as usize).copied().unwrap_or(1.0))),
            Self::Llama3 { factor, low, high, original } => each(&|j| {
                let turns = original * plain(j) / TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                plain(j) * (kept + (1.0 - kept) / factor)
            }),
            Self::Yarn { factor, original, fast, slow, truncate, .. } => {
                // The pair that turns so often in the first context, as a number that need not be whole.
                let pair = |turns: f64| d * (original / (turns * TAU)).ln() / (2.0 * base.ln());
                let (mut first, mut last) = (pair(*fast), pair(*slow));
                if *truncate {
                    (first, last) = (first.floor(), last.ceil());
                }
                (first, last) = (first.max(0.0), last.min(d - 1.0));
                let width = if first == last { 0.001 } else { last - first };
                each(&|j| {
                    let slowed = ((j as f64 - first) / width).clamp(0.0, 1.0);
                    plain(j) * (slowed / factor + 1.0 - slowed)
                })
            }
        }
    }

    /// The factor in front of the scores, beside the usual one.
    pub fn sharpness(&self) -> f64 {
        if let Self::Yarn { attention, .. } = self { attention * attention } else { 1.0 }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn scaling(value: Value) -> Result<(f64, Scaling)> {
        let keys = json!({"rope_theta": 500_000.0, "rope_scaling": value});
        Scaling::of(&Keys { path: Path::new("config.json"), map: keys.as_object().unwrap() }, 131_072)
    }

    #[test]
    fn llama3_keeps_fast_pairs_and_slows_others() {
        let (base, scaling) = scaling(json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}))
        .unwrap();
        let (plain, slowed) = (Scaling::None.frequencies(base, 128), scaling.frequencies(base, 128));
        assert_eq!(plain[..20], slowed[..20]);
        assert!((40..64).all(|j| (slowed[j] * 8.0 / plain[j] - 1.0).abs() < 1e-6));
        // Pair 32 of the reference implementation: wavelength 4442.9, so 1.8438 turns, and 0.28128 of it is kept.
        assert!((f64::from(slowed[32]) / f64::from(plain[32]) - (0.28128 + 0.71872 / 8.0)).abs() < 1e-4, "{}", slowed[32] / plain[32]);
    }

    #[test]
    fn yarn_ramps_between_whole_pairs() {
        let (base, scaling) = scaling(json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768})).unwrap();
        let (plain, slowed) = (Scaling::None.frequencies(base, 128), scaling.frequencies(base, 128));
        // Pairs 24.8 and 41.7 turn 32 times and once in 32,768 tokens: the ramp runs from 24 to 42.
        assert_eq!(plain[..25], slowed[..25]);
        assert!((42..64).all(|j| (slowed[j] * 4.0 / plain[j] - 1.0).abs() < 1e-6));
        let middle = 9.0 / 18.0;
        assert!((slowed[33] / plain[33] - (middle / 4.0 + 1.0 - middle)).abs() < 1e-6);
        assert!((scaling.sharpness() - (0.1 * 4f64.ln() + 1.0).powi(2)).abs() < 1e-12);
    }

    #[test]
    fn a_scaling_that_lacks_a_number_or_is_unknown_is_refused() {
        assert_eq!(scaling(json!(null)).unwrap().1, Scaling::None);
        assert_eq!(scaling(json!({"type": "linear", "factor": 2.0})).unwrap().1, Scaling::Linear { factor: 2.0 });
        assert_eq!(Scaling::Linear { factor: 2.0 }.frequencies(1e4, 4), [0.5, 0.005]);
        assert_eq!(Scaling::Divided(vec![1.0, 4.0]).frequencies(1e4, 4), [1.0, 0.0025]);
        for (value, word) in [(json!({"type": "linear"}), "factor"), (json!({"rope_type": "longrope"}), "longrope"), (json!(3), "an object")] {
            let error = scaling(value).unwrap_err().to_string();
            assert!(error.contains(word) && error.contains("rope_scaling"), "{error}");
        }
    }
}
