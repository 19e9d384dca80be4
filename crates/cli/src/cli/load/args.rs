//! What `load` is asked on the command line.

use std::path::PathBuf;

use super::attention;

/// Arguments of `load`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("pace").required(true).args(["rate", "concurrency"]))]
pub struct Args {
    /// The server: http://HOST:PORT
    #[arg(value_name = "URL")]
    pub url: String,
    /// A model or an adapter to ask, drawn anew for each request (may be given again); by default the base model
    #[arg(long = "model", value_name = "NAME")]
    pub models: Vec<String>,
    /// Which adapters to ask, in place of --model
    #[arg(long, value_enum, value_name = "WHICH", conflicts_with = "models")]
    pub adapters: Option<Which>,
    #[command(flatten)]
    pub attention: attention::Options,
    /// What to ask for
    #[arg(long, value_enum, default_value_t = Route::Embeddings)]
    pub route: Route,
    /// Requests a second, which arrive however long the answers take (open loop); several rates run one after another
    #[arg(long, value_name = "R,R", value_delimiter = ',', value_parser = positive)]
    pub rate: Vec<f64>,
    /// Requests under way: each new one waits for an answer (closed loop); several counts run one after another
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub concurrency: Vec<u32>,
    /// How long each rate is measured
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS", value_parser = positive)]
    pub seconds: f64,
    /// How long each rate runs before it is measured
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    pub warmup: f64,
    /// The longest time that an answer may take
    #[arg(long, default_value_t = 60.0, value_name = "SECONDS", value_parser = positive)]
    pub timeout: f64,
    /// Connections, at most; with --rate a request that finds all of them busy is sent late, and counted from when it was due
    #[arg(long, default_value_t = 1024, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub connections: u32,
    /// Texts to ask, one a line, or JSON lines with "text"; by default drawn words
    #[arg(long, value_name = "FILE")]
    pub texts: Option<PathBuf>,
    /// Ask with drawn ids of tokens below N (1000) in place of texts
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "1000", conflicts_with = "texts", value_parser = clap::value_parser!(u32).range(4..))]
    pub ids: Option<u32>,
    /// Words of a drawn text, or ids with --ids; by default drawn from 4 to 48
    #[arg(long, value_name = "N", conflicts_with = "texts", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub length: Option<u32>,
    /// Texts of each request for embeddings
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub inputs: u32,
    /// Tokens to generate, at most, of completions and chats
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Ask for completions and chats as streams, and time their tokens
    #[arg(long)]
    pub stream: bool,
    /// Compare each answer with the first to the same text and model, bit for bit, and those of adapters with the base's; of attention also some rows with float64
    #[arg(long)]
    pub check: bool,
    /// A file that holds a key of the server and nothing else
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// What arrivals, texts, models and tensors are drawn from
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Write the JSON object to this file too
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Draw the percentiles, as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Vectors: /v1/embeddings
    Embeddings,
    /// Text: /v1/completions
    Completions,
    /// An answer of a chat: /v1/chat/completions
    Chat,
    /// Checksums of attention over tensors that lie on the server: /v2/models/op.attention/infer
    Attention,
}

impl Route {
    /// The route's path.
    pub fn path(self) -> &'static str {
        match self {
            Self::Embeddings => "/v1/embeddings",
            Self::Completions => "/v1/completions",
            Self::Chat => "/v1/chat/completions",
            Self::Attention => attention::PATH,
        }
    }
}

/// Which adapters are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Which {
    /// Every one that the server has, and the base
    Mixed,
}

fn number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|value| value.is_finite())
}

/// A number above 0.
pub fn positive(text: &str) -> Result<f64, String> {
    number(text).filter(|value| (1e-3..=1e7).contains(value)).ok_or_else(|| "expected a number of 0.001 to 10000000".into())
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text).filter(|value| (0.0..=1e7).contains(value)).ok_or_else(|| "expected seconds, 0 to 10000000".into())
}
