//! What a speed is measured of: requests with drawn prompts, and adapters in turn.

use trifuse::Result;
use trifuse::backends::AnyDevice;
use trifuse::llm::engine::{Engine, Request};
use trifuse::llm::step::RequestId;

use super::drawn::Adapters;

/// What is measured.
#[derive(Debug, clap::Args)]
pub struct Load {
    /// Requests that run at once, for the suite speed
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64], value_name = "N,N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: Vec<u32>,
    /// Tokens of each prompt, for the suite speed
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt: u32,
    /// Tokens of each answer, for the suite speed
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub answer: u32,
    /// Tokens of a step, at most, for the suite speed
    #[arg(long, default_value_t = 2048, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub budget: u32,
    /// Adapters that requests have in turn, for the suite speed; their values are drawn. 0 is the model alone
    #[arg(long, value_delimiter = ',', default_values_t = [0], value_name = "N,N", value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub drawn_adapters: Vec<u32>,
    /// Their rank
    #[arg(long, default_value_t = 16, value_name = "R", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub rank: u32,
    /// The projections that they change, by the ends of their paths
    #[arg(long, value_delimiter = ',', default_values_t = ["q_proj", "k_proj", "v_proj", "o_proj"].map(String::from), value_name = "NAME,NAME")]
    pub targets: Vec<String>,
    /// Tokens of a page of keys and values, for the suite speed; by default as many as suit the device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub page: Option<u32>,
    /// Whether a request's bits are to be the same in any batch, for the suite speed
    #[arg(long)]
    pub invariant: bool,
    /// How many times each launch of a step is timed by itself, for the suite speed; 0 times none
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub launches: u32,
}

/// Submits a batch of drawn prompts. A salt of its own keeps it from the pages of those before.
pub fn submit(engine: &mut Engine<AnyDevice>, load: &Load, (batch, adapters): (u32, u32), salt: u64) -> Result<Vec<RequestId>> {
    let vocabulary = engine.model().config().vocabulary;
    let mut state = 0x9E37_79B9_7F4A_7C15 ^ salt;
    let mut id = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % u64::from(vocabulary)) as u32
    };
    let mut requests = Vec::new();
    for number in 0..batch {
        let prompt = (0..load.prompt).map(|_| id()).collect();
        let adapter = number.checked_rem(adapters).map(Adapters::name);
        requests.push(engine.submit(Request::new(prompt, load.answer as usize).with_salt(Some(salt.to_le_bytes().to_vec())).with_adapter(adapter))?);
    }
    Ok(requests)
}
