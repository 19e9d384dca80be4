//! How a server is set up.

use std::net::SocketAddr;
use std::time::Duration;

use crate::adapter_root::AdapterRoot;
use crate::keys::Keys;
use crate::queueing::admit;

/// What a server allows, and where it listens.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// Where to listen for gRPC; `None` does not.
    #[cfg(feature = "grpc")]
    pub grpc_listen: Option<SocketAddr>,
    /// Where a collector takes traces; `None` makes none.
    #[cfg(feature = "otlp")]
    pub traces: Option<crate::otlp::Endpoint>,
    /// Who may ask; without keys everybody.
    pub keys: Keys,
    /// Whether metrics ask for a key too, where there are keys.
    pub metrics_key: bool,
    /// Bounds of sizes and times.
    pub limits: Limits,
    /// Where adapters lie that may be loaded while the server runs; `None` loads none.
    pub adapter_root: Option<AdapterRoot>,
    /// How many adapters below the adapter root are there at once, of each model, where they are loaded when a request names them; `None` loads none by itself.
    pub on_demand: Option<usize>,
    /// Bounds of what waits for the device.
    pub queue: admit::Limits,
    /// The threads that serve connections; and as many that tokenize.
    pub threads: usize,
    /// Whether callers may name shared memory of this machine.
    pub client_shm: bool,
    /// Whether metrics of a language model are told by the names of vLLM too.
    pub vllm_metrics: bool,
}

/// Bounds of one request and of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most bytes of a body.
    pub body_bytes: usize,
    /// The most bytes of a body of embeddings.
    pub embeddings_bytes: usize,
    /// The most bytes of a body that goes into a region.
    pub region_bytes: usize,
    /// The most bytes of bodies that are held at once, of all requests together.
    pub held_bytes: usize,
    /// The most inputs of a request.
    pub inputs: usize,
    /// The most time from the first byte of a request to the end of its header.
    pub header: Duration,
    /// The most time that a body takes.
    pub body: Duration,
    /// The most time between two requests of a connection.
    pub idle: Duration,
    /// The most time in which a caller takes nothing of an answer.
    pub stalled: Duration,
    /// How long a device may work on one batch until it is given up, where another works, or until `/health` says that it hangs.
    pub hang: Duration,
    /// The most connections at once; more wait to be accepted.
    pub connections: usize,
    /// How long requests are still taken once the server is told to end, so that others learn of it first.
    pub drain_delay: Duration,
    /// How long requests under way may take from then on.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 8 << 20,
            embeddings_bytes: 2 << 20,
            region_bytes: 64 << 20,
            held_bytes: 256 << 20,
            inputs: 256,
            header: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            stalled: Duration::from_secs(30),
            hang: Duration::from_secs(60),
            connections: 4096,
            drain_delay: Duration::from_secs(5),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

impl Config {
    /// The defaults on this address, for everybody.
    pub fn new(listen: SocketAddr) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            listen,
            #[cfg(feature = "grpc")]
            grpc_listen: None,
            #[cfg(feature = "otlp")]
            traces: None,
            keys: Keys::default(),
            metrics_key: false,
            limits: Limits::default(),
            adapter_root: None,
            on_demand: None,
            queue: admit::Limits::default(),
            threads,
            client_shm: false,
            vllm_metrics: false,
        }
    }
}
