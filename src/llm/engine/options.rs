//! How an engine is set up, and what it is asked.

use std::sync::Arc;

use crate::device::Hints;
use crate::error::{Result, ensure};
use crate::llm::grammar::Grammar;
use crate::llm::sample::SamplingParams;
use crate::ops::setters::setters;

/// Tokens of a page where the device does not care.
const PAGE: u32 = 16;

/// How an engine is set up.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Tokens of a page of K and V. `None` is 16, or as many as attention on the device reads at once of a model's heads. Prefixes are shared in whole
    /// pages.
    pub page: Option<u32>,
    /// Bytes of device memory for K and V; `None` takes what all seats need with a context each, at most half of the device's memory, or 1 GiB
    /// where the device does not tell how much it has.
    pub cache_bytes: Option<u64>,
    /// The most tokens of a sequence, prompt and answer together; `None` is what the model was made for.
    pub context: Option<usize>,
    /// The most requests that run at once; 64.
    pub seats: u32,
    /// The most tokens of a step; 512. A longer prompt is computed in parts.
    pub budget: usize,
    /// Whether a request has the same bits alone, in any batch, cut into parts, from the prefix cache, and preempted; false. Steps then have 16 rows
    /// at least and one form of attention, so that no sum takes another order where there are few rows. It holds on `cpu` and `wgpu`; on `cuda`
    /// some kernels still sum in an order that the rows of a step decide. Where it is false, bits may differ, and the least steps are faster.
    pub invariant: bool,
    /// Whether a step is planned and launched before the tokens of the one before it are read, where the host has no part in between; `None` is where the
    /// device says that it works beside the host. An answer that ends by a stop token then costs the next step a row.
    pub ahead: Option<bool>,
    /// The most adapters that running requests may have at once; 64.
    pub adapters: u32,
    /// Adapters that device memory is kept free for beyond those of the source; 0. Adding as many, of forms that are there, captures no graph anew.
    pub reserve: u32,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { page: None, cache_bytes: None, context: None, seats: 64, budget: 512, invariant: false, ahead: None, adapters: 64, reserve: 0 }
    }
}

impl EngineOptions {
    setters! {
        with_page: page <- Option<u32>;
        with_cache_bytes: cache_bytes <- Option<u64>;
        with_context: context <- Option<usize>;
        with_seats: seats = u32;
        with_budget: budget = usize;
        with_invariant: invariant = bool;
        with_ahead: ahead <- Option<bool>;
        with_adapters: adapters = u32;
        with_reserve: reserve = u32;
    }

    /// Tokens of a page, for a model with so many heads of keys.
    pub(super) fn page_of(&self, kv_heads: u64, hints: Hints) -> u32 {
        // Heads that are read together: a power of two that divides them.
        let together = 1 << kv_heads.trailing_zeros().min(3);
        self.page.unwrap_or_else(|| hints.page_rows.map_or(PAGE, |rows| (rows / together).max(PAGE)))
    }

    /// Checks what the scheduler does not.
    pub(super) fn validate(&self) -> Result<()> {
        ensure(self.page != Some(0), "engine: page", "at least 1 token", 0)?;
        ensure(self.seats > 0, "engine: seats", "at least 1", self.seats)?;
        ensure(self.adapters > 0, "engine: adapters", "at least 1", self.adapters)
    }
}

/// What an engine is asked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// Ids of the prompt's tokens; at least one.
    pub prompt: Vec<u32>,
    /// The most tokens to generate; at least one.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Ids that end the text, such as [`Files::ends`](crate::llm::Files). The id itself counts as generated.
    pub stop: Vec<u32>,
    /// The name of an adapter; `None` is the base model.
    pub adapter: Option<String>,
    /// A salt that keeps the request's prefixes from requests without it: see [`seed`](crate::llm::cache::seed).
    pub salt: Option<Vec<u8>>,
    /// Whether to tell how probable the prompt's tokens were ([`Output::Prompt`](super::Output)), each with as many of the most probable ones. Such a
    /// prompt is computed from its beginning.
    pub prompt_logprobs: Option<u32>,
    /// What the answer is held to; `None` is any text.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// The time from which on the request has ended, in the unit of the time that [`step`](super::Engine::step) gets.
    pub deadline: Option<u64>,
}

impl Request {
    /// A request of the base model that takes the most probable token, always.
    pub fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        let sampling = SamplingParams::greedy();
        Self { prompt, max_tokens, sampling, stop: Vec::new(), adapter: None, salt: None, prompt_logprobs: None, grammar: None, deadline: None }
    }

    setters! {
        with_sampling: sampling = SamplingParams;
        with_stop: stop = Vec<u32>;
        with_adapter: adapter <- Option<String>;
        with_salt: salt <- Option<Vec<u8>>;
        with_prompt_logprobs: prompt_logprobs <- Option<u32>;
        with_grammar: grammar <- Option<Arc<dyn Grammar>>;
        with_deadline: deadline <- Option<u64>;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_hold_what_is_read_at_once() {
        let page = |kv_heads, page_rows| EngineOptions::default().page_of(kv_heads, Hints { page_rows, ..Hints::default() });
        assert_eq!([32, 8, 4, 6, 3, 1].map(|heads| page(heads, Some(128))), [16, 16, 32, 64, 128, 128]);
        assert_eq!((page(3, None), EngineOptions::default().with_page(7).page_of(3, Hints { page_rows: Some(128), ..Hints::default() })), (16, 7));
    }
}
