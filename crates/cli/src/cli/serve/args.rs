//! What `serve` is asked on the command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use trifuse::DType;

use super::again::OnLoss;
use crate::cli::values;

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("served").args(["model", "operations"]).required(true).multiple(true)))]
pub struct Args {
    /// The model, an encoder or a language model: a folder, a GGUF file, or organisation/name in the local cache of Hugging Face's libraries
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Serve the operation op.attention by the open inference protocol, beside a model or alone
    #[arg(long)]
    pub operations: bool,
    /// Bytes of the device that regions may have, all together: tensors that queries of op.attention name
    #[arg(long, default_value_t = 1 << 30, value_name = "BYTES", requires = "operations")]
    pub region_bytes: u64,
    /// Let callers name shared memory of this machine, below /dev/shm, that this program may read and write
    #[arg(long)]
    pub allow_client_shm: bool,
    /// A bundle of adapters; or adapter folders, as `compress` takes them: [NAME=]DIR (may be given again)
    #[arg(long, value_name = "PATH", requires = "model")]
    pub adapters: Vec<PathBuf>,
    /// A folder whose adapters may be loaded and unloaded over HTTP while the server runs, by a key with :admin where there are keys
    #[arg(long, value_name = "DIR")]
    pub adapter_root: Option<PathBuf>,
    /// Load an adapter below --adapter-root when a request first names its folder; at most --adapter-room of them are there at once
    #[arg(long, requires = "adapter_root")]
    pub load_on_demand: bool,
    /// Adapters that device memory is kept free for with --adapter-root; for more it grows, while requests wait
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub adapter_room: u32,
    /// The model's name in requests; by default the last part of --model
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where to listen; port 0 takes any that is free
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Where to listen for gRPC, by which the open inference protocol is spoken as well
    #[cfg(feature = "grpc")]
    #[arg(long, value_name = "ADDRESS")]
    pub grpc_listen: Option<SocketAddr>,
    /// A collector of OpenTelemetry, which gets a trace of every request over HTTP: http://HOST[:PORT][/PATH]
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<trifuse_serve::Endpoint>,
    /// Who may ask: a file of lines NAME:SHA256 of a key, which :admin or :share=N may follow; without it everybody may
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Ask for a key for /metrics too
    #[arg(long, requires = "api_key_file")]
    pub metrics_key: bool,
    /// What the model computes in; by default f16 on cuda, f32 elsewhere
    #[arg(long, value_name = "DTYPE", value_parser = values::dtype())]
    pub dtype: Option<DType>,
    /// Tokens of a batch, at most, or of a step of a language model; by default what suits the device
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_tokens: Option<u32>,
    /// Requests of a language model that run at once, at most
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub seats: u32,
    /// Tokens of a prompt and its answer together, at most; by default what the language model was made for, 4096 at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    pub context: Option<u32>,
    /// Give each request of a language model the bits that it has alone, whatever runs beside it (slower where few run)
    #[arg(long)]
    pub invariant: bool,
    /// Make all that requests need before the port opens: plans, compiled code, graphs, memory. An encoder on a GPU does so without it
    #[arg(long)]
    pub warm: bool,
    /// The longest estimated wait, in seconds, at which a request is let in; behind it the answer is 429
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS", value_parser = seconds)]
    pub max_wait: f64,
    /// Tell of a language model in /metrics by the names of another server too, which dashboards know
    #[arg(long, value_enum, value_name = "SERVER")]
    pub metrics_compat: Option<Compat>,
    /// Threads that serve connections, and as many that tokenize; by default one a core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// What becomes of the process once all its devices are lost: it ends, or begins anew by itself where it has served for a minute
    #[arg(long, value_enum, default_value = "exit", value_name = "WHAT")]
    pub on_device_loss: OnLoss,
    /// How long requests are still taken once the program is asked to end, in seconds
    #[arg(long, default_value_t = 5.0, value_name = "SECONDS", value_parser = seconds)]
    pub drain_delay: f64,
    /// How long requests under way may take from then on, in seconds
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = seconds)]
    pub drain_timeout: f64,
}

impl Args {
    /// Adapters that memory is kept free for, where any may come. One that is loaded for a request is there before the one that makes room for it has gone.
    pub fn room(&self) -> Option<u32> {
        self.adapter_root.as_ref().map(|_| self.adapter_room + u32::from(self.load_on_demand))
    }
}

/// A server whose names of metrics are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Compat {
    /// vLLM.
    Vllm,
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|value| (0.0..=86_400.0).contains(value)).ok_or_else(|| "expected seconds, 0 to 86400".into())
}
