//! What a request wants of its sampler.

use crate::error::{Result, ensure};
use crate::ops::sample::RowParams;

/// How tokens are drawn. The defaults change nothing: the model's own distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 1. At 0 the highest logit wins, and among equal ones the lowest id.
    pub temperature: f32,
    /// The most tokens to draw from; 0, which is all.
    pub top_k: u32,
    /// The probability that the most probable tokens must reach together to be drawn from; 1, which is all.
    pub top_p: f32,
    /// The least probability of a token to draw, as a part of the highest one; 0.
    pub min_p: f32,
    /// Divides positive logits of tokens in the prompt or the answer, and multiplies negative ones; 1.
    pub repetition: f32,
    /// Taken from the logits of tokens in the answer; 0.
    pub presence: f32,
    /// Taken from the logits of tokens in the answer for each time that they are there; 0.
    pub frequency: f32,
    /// Added to the logits of single tokens: ids and amounts. Minus infinity rules a token out.
    pub bias: Vec<(u32, f32)>,
    /// The seed of the random numbers; 0. With the same seed a request draws the same text, whatever is in its batch.
    pub seed: u64,
    /// How many of the most probable tokens to tell; 0.
    pub top: u32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        let (temperature, top_k, top_p, min_p) = (1.0, 0, 1.0, 0.0);
        let (repetition, presence, frequency) = (1.0, 0.0, 0.0);
        Self { temperature, top_k, top_p, min_p, repetition, presence, frequency, bias: Vec::new(), seed: 0, top: 0 }
    }
}

impl SamplingParams {
    /// The least temperature but 0. A logit divided by less may leave the range of float32 on a device.
    pub const LEAST_TEMPERATURE: f32 = 1e-5;

    /// The most probable token, always.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// The parameters of a row of the device's sampler, for the token at `position`. It knows no penalties and no bias.
    pub fn row(&self, position: u32) -> RowParams {
        let seed = [self.seed as u32, (self.seed >> 32) as u32];
        let Self { temperature, top_p, min_p, top_k, .. } = *self;
        RowParams { temperature, top_p, min_p, top_k, seed, position, reserved: 0 }
    }

    /// Whether the choice is the highest logit, without a random number.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether a token's logit depends on the tokens before.
    pub fn has_penalties(&self) -> bool {
        self.repetition != 1.0 || self.presence != 0.0 || self.frequency != 0.0
    }

    /// Checks every value against its range, for a vocabulary of that many tokens.
    ///
    /// # Errors
    /// A value outside its range, named after its field.
    pub fn validate(&self, vocabulary: usize) -> Result<()> {
        let within = |name: &str, value: f32, expected: &str, holds: bool| ensure(holds, format_args!("sampling: {name}"), expected, value);
        let Self { temperature, top_p, min_p, repetition, presence, frequency, .. } = *self;
        let warm = temperature == 0.0 || (temperature >= Self::LEAST_TEMPERATURE && temperature.is_finite());
        within("temperature", temperature, "0, or 1e-5 and more", warm)?;
        within("top_p", top_p, "more than 0, at most 1", top_p > 0.0 && top_p <= 1.0)?;
        within("min_p", min_p, "0 to 1", (0.0..=1.0).contains(&min_p))?;
        within("repetition", repetition, "more than 0", repetition > 0.0 && repetition.is_finite())?;
        within("presence", presence, "a finite number", presence.is_finite())?;
        within("frequency", frequency, "a finite number", frequency.is_finite())?;
        ensure(self.top as usize <= vocabulary, "sampling: top", format_args!("at most the vocabulary of {vocabulary}"), self.top)?;
        for (id, amount) in &self.bias {
            ensure((*id as usize) < vocabulary, "sampling: bias", format_args!("ids less than {vocabulary}"), id)?;
            within("bias", *amount, "a number less than infinity", *amount < f32::INFINITY)?;
        }
        Ok(())
    }
}
