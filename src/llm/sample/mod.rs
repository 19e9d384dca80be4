//! The choice of a token from logits, on the host and in float64: the definition that a device's sampler is held to.
//!
//! A token's score is its logit, after penalties, bias and mask, divided by the temperature, plus Gumbel noise; the highest score wins. That draws
//! each token with the probability that softmax gives it. The noise is a function of the request's seed, the position and the token's id
//! alone, so neither the batch nor the order of any sum or sort changes the choice.

mod host;
mod noise;
mod params;

pub use host::{Choice, History, choose, describe, sample};
pub use noise::noise;
pub use params::SamplingParams;
