//! A server from its start to its end.

mod port;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;
use trifuse::{Error, Result};

use crate::config::Config;
use crate::embedder::EmbeddingModel;
use crate::embeddings::{Embeddings, Shared};
use crate::generate::Generate;
use crate::http::app::{App, Phase};
use crate::http::connection::{accept, connection};
use crate::http::routes::router;
use crate::keys::Keys;
use crate::kserve::attention::NAME as ATTENTION;
use crate::metrics::{Metrics, Now};
use crate::operations::{Operations, OperationsModel};
#[cfg(feature = "otlp")]
use crate::otlp::{Exporter, Told};
use crate::queueing::clock::Monotonic;
use crate::queueing::ledger::Ledger;
use crate::turns::Turns;
use crate::workers::{Ends, Workers};
use port::Port;

/// How often the end of all requests is looked for.
const STEP: Duration = Duration::from_millis(10);
/// How often devices that hang, and prompts that wait for nobody, are looked for.
const WATCH: Duration = Duration::from_millis(50);
/// How long callers have to take what was sent to them at the very end.
const LAST: Duration = Duration::from_secs(2);

/// The server of one model that embeds, of one that generates, of single operations, or of several of them.
#[derive(Debug)]
pub struct Server;

/// What is served.
#[derive(Default)]
pub struct Models {
    /// A model that embeds.
    pub embeddings: Option<EmbeddingModel>,
    /// What generates text.
    pub generator: Option<Arc<dyn Generate>>,
    /// Single operations.
    pub operations: Option<OperationsModel>,
}

/// A server that runs.
pub struct Handle {
    addr: SocketAddr,
    #[cfg(feature = "grpc")]
    grpc_addr: Option<SocketAddr>,
    app: Arc<App>,
    runtime: Runtime,
    drain: watch::Sender<bool>,
    supervisor: tokio::task::JoinHandle<()>,
    workers: Ends,
    devices: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts a server of models alone; see [`serve`](Self::serve).
    ///
    /// # Errors
    /// Those of [`serve`](Self::serve).
    pub fn start(config: Config, embeddings: Option<EmbeddingModel>, generator: Option<Arc<dyn Generate>>) -> Result<Handle> {
        Self::serve(config, Models { embeddings, generator, operations: None })
    }

    /// Starts a server, and returns once it answers. The port is taken first, and opened when the models are there.
    ///
    /// # Errors
    /// An address that cannot be had; a model that cannot be opened; two names that are the same.
    pub fn serve(config: Config, models: Models) -> Result<Handle> {
        let Models { embeddings, generator, operations } = models;
        let threads = config.threads.max(1);
        let (workers, ends) = Workers::start(threads)?;
        let workers = Arc::new(workers);
        // It accepts connections, looks after what waits, and has the threads that tokenize.
        let runtime = Builder::new_multi_thread().worker_threads(1).max_blocking_threads(threads).thread_name("serve").enable_all().build();
        let runtime = runtime.map_err(Error::io("threads of the server", "start"))?;
        let port = Port::take(config.listen)?;
        #[cfg(feature = "grpc")]
        let grpc = config.grpc_listen.map(Port::take).transpose()?;
        let ledger = Arc::new(Ledger::default());
        let mut metrics = Metrics::new(Arc::clone(&ledger));
        #[cfg(feature = "otlp")]
        let exporter = match config.traces.clone() {
            Some(endpoint) => {
                let [sent, dropped] = metrics.tell_of_traces();
                Some(Arc::new(Exporter::start(endpoint, Told { sent, dropped })?))
            }
            None => None,
        };
        let generator = generator.map(|generator| {
            let told = Arc::clone(&metrics.written);
            Arc::new(Turns::new(generator, told)) as Arc<dyn Generate>
        });
        if let Some(generator) = generator.as_ref().filter(|_| config.vllm_metrics) {
            let own = Arc::clone(generator);
            let now = move || Now { cache_use: own.cache_use().unwrap_or(0.0), seats: own.seats(), adapters: own.adapters_asked() };
            metrics.tell_as_vllm(generator.keeper().base(), Box::new(now));
        }
        let shared = Shared { limits: config.queue, clock: Arc::new(Monotonic::default()), metrics: Arc::new(metrics), ledger };
        let started = embeddings.map(|model| Embeddings::start(model, &shared)).transpose()?;
        let (embeddings, mut devices) = started.map_or((None, Vec::new()), |(embeddings, devices)| (Some(embeddings), devices));
        if let Some(generator) = &generator {
            shared.metrics.tell_of(generator.keeper().base(), &generator.replicas());
        }
        check_names(embeddings.as_ref(), generator.as_deref(), operations.is_some())?;
        let operations = match operations {
            Some(model) => {
                let (operations, device) = Operations::start(model, &shared)?;
                devices.push(device);
                Some(operations)
            }
            None => None,
        };
        let (listener, addr) = port.open(&runtime)?;
        #[cfg(feature = "grpc")]
        let grpc = grpc.map(|port| port.open(&runtime)).transpose()?;
        let room = Arc::new(Semaphore::new(config.limits.connections.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize))));
        let app = App::new(config, shared, runtime.handle().clone(), embeddings, generator, operations);
        #[cfg(feature = "otlp")]
        let app = app.traced(exporter);
        let app = Arc::new(app);
        let (phases, phase) = watch::channel(Phase::Ready);
        let routes = router(Arc::clone(&app));
        let serve = move |stream, app, phase| connection(stream, app, routes.clone(), phase);
        let http = runtime.spawn(accept(listener, Arc::clone(&app), Arc::clone(&workers), Arc::clone(&room), phase.clone(), serve));
        #[cfg(feature = "grpc")]
        let (grpc_addr, grpc) = grpc
            .map(|(listener, addr)| (addr, runtime.spawn(accept(listener, Arc::clone(&app), workers, Arc::clone(&room), phase, crate::grpc::connection))))
            .unzip();
        #[cfg(not(feature = "grpc"))]
        let grpc = None;
        let accepting: Vec<_> = [Some(http), grpc].into_iter().flatten().collect();
        let (drain, asked) = watch::channel(false);
        runtime.spawn(watch(Arc::clone(&app)));
        let supervisor = runtime.spawn(supervise(Arc::clone(&app), asked, phases, accepting, room));
        Ok(Handle {
            addr,
            #[cfg(feature = "grpc")]
            grpc_addr,
            app,
            runtime,
            drain,
            supervisor,
            workers: ends,
            devices,
        })
    }
}

/// Refuses a name that leads to a model that embeds and to something else.
fn check_names(embeddings: Option<&Embeddings>, generator: Option<&dyn Generate>, operations: bool) -> Result<()> {
    let Some(embeddings) = embeddings else { return Ok(()) };
    let registry = embeddings.registry();
    let mut names: Vec<String> = Vec::from_iter(operations.then(|| ATTENTION.to_owned()));
    if let Some(generator) = generator {
        let own = generator.keeper().names();
        names.push(own.base().to_owned());
        names.extend(own.adapters().map(|lease| lease.alias.clone()));
    }
    match names.into_iter().find(|name| registry.lease(name).is_ok()) {
        Some(name) => Err(Error::invalid("models", "names of their own", format!("{name:?} twice"))),
        None => Ok(()),
    }
}

/// Gives up devices that hang, and prompts that wait for nobody or for too long, for as long as the server runs.
async fn watch(app: Arc<App>) {
    let most = app.config.limits.hang;
    loop {
        sleep(WATCH).await;
        if let Some(embeddings) = &app.embeddings {
            embeddings.watch(most);
        }
        if let Some(generator) = &app.generator {
            generator.watch(most);
        }
    }
}

/// Waits until the server is to end, and ends it.
async fn supervise(
    app: Arc<App>,
    mut asked: watch::Receiver<bool>,
    phases: watch::Sender<Phase>,
    accepting: Vec<tokio::task::JoinHandle<()>>,
    room: Arc<Semaphore>,
) {
    // A handle that is gone asks too.
    drop(asked.wait_for(|asked| *asked).await);
    let limits = app.config.limits;
    let connections = room.available_permits();
    app.enter(Phase::Ending);
    phases.send_replace(Phase::Ending);
    sleep(limits.drain_delay).await;
    app.enter(Phase::Draining);
    phases.send_replace(Phase::Draining);
    let end = Instant::now() + limits.drain_timeout;
    while app.shared.ledger.open() > 0 && Instant::now() < end {
        sleep(STEP).await;
    }
    if let Some(embeddings) = &app.embeddings {
        embeddings.close(true);
    }
    if let Some(generator) = &app.generator {
        generator.close(true);
    }
    if let Some(operations) = &app.operations {
        operations.close(true);
    }
    drop(phases);
    let all = u32::try_from(connections.max(app.config.limits.connections)).unwrap_or(u32::MAX);
    let last = async {
        for accepting in accepting {
            drop(accepting.await);
        }
        drop(room.acquire_many(all).await);
    };
    drop(tokio::time::timeout(LAST, last).await);
}

impl Handle {
    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where it listens for gRPC, if it does.
    #[cfg(feature = "grpc")]
    pub fn grpc_addr(&self) -> Option<SocketAddr> {
        self.grpc_addr
    }

    /// Lets it end: requests under way are answered, and new ones are refused after a while. Returns at once.
    pub fn drain(&self) {
        self.drain.send_replace(true);
    }

    /// Lets those with these keys ask from here on, and no others. A name that was there before stays the same tenant; what is under way goes on.
    /// A server that was started without keys is open to everybody until then.
    pub fn renew_keys(&self, keys: Keys) {
        self.app.renew(keys);
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.supervisor.is_finished()
    }

    /// Whether its device is lost, so that it answers no more.
    pub fn is_lost(&self) -> bool {
        let App { embeddings, generator, operations, .. } = &*self.app;
        let lost = embeddings.as_ref().is_some_and(|model| model.is_open().is_err())
            || generator.as_ref().is_some_and(|model| model.is_open().is_err())
            || operations.as_ref().is_some_and(|model| model.is_open().is_err());
        !*self.drain.borrow() && lost
    }

    /// What became of its requests.
    pub fn ledger(&self) -> &Ledger {
        &self.app.shared.ledger
    }

    /// Waits for its end.
    pub fn wait(self) {
        let Self { runtime, supervisor, workers, devices, drain, app, .. } = self;
        drop(runtime.block_on(supervisor));
        drop(drain);
        // A thread that is in the middle of a batch ends with the process.
        devices.into_iter().filter(JoinHandle::is_finished).for_each(|device| drop(device.join()));
        workers.wait();
        runtime.shutdown_timeout(Duration::from_millis(100));
        #[cfg(feature = "otlp")]
        if let Some(exporter) = &app.exporter {
            exporter.end();
        }
        drop(app);
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "server on {}", self.addr)
    }
}
