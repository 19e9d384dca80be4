//! What every route has at hand.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::demand::Demand;
use super::fault::Fault;
use super::meters::{Meter, Meters};
use crate::account::Account;
use crate::config::Config;
use crate::embeddings::{Embeddings, Shared};
use crate::generate::Generate;
use crate::keys::Keys;
use crate::operations::Operations;
use crate::queueing::queues::Tenant;
use crate::shm::Shm;
use crate::stats::Stats;

/// The bytes of a permit of [`App::room`].
pub const UNIT: usize = 1 << 10;

/// How far a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// It answers.
    Ready,
    /// It is to end and still answers, while others learn of it.
    Ending,
    /// It takes no request any more, and ends those under way.
    Draining,
}

/// What is the same for all requests of a kind.
#[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "traces alone tell it"))]
pub struct About {
    /// What they are called.
    pub name: String,
    /// How they are described.
    pub labels: Vec<(&'static str, String)>,
}

/// A server's models and rules.
pub struct App {
    /// What it allows. Its keys are those of the start.
    pub config: Config,
    /// Who may ask now.
    keys: RwLock<Keys>,
    /// What they have asked for.
    pub meters: Meters,
    /// Which adapters were loaded, and asked for last.
    pub demand: Demand,
    /// Clock, metrics and ledger.
    pub shared: Shared,
    /// The runtime that has threads for work that takes its time.
    runtime: Handle,
    /// The model that embeds, where there is one.
    pub embeddings: Option<Embeddings>,
    /// What generates text, where there is something.
    pub generator: Option<Arc<dyn Generate>>,
    /// Held by whoever changes what is served: one change at a time.
    pub changes: tokio::sync::Mutex<()>,
    /// Single operations, where they are served.
    pub operations: Option<Operations>,
    /// Shared memory of this machine that callers have named.
    pub shm: Shm,
    /// What models have answered by the open inference protocol.
    pub stats: Stats,
    /// What sends traces, where they are made.
    #[cfg(feature = "otlp")]
    pub exporter: Option<Arc<crate::otlp::Exporter>>,
    /// Room for bodies, in units of [`UNIT`] bytes.
    pub room: Arc<Semaphore>,
    /// When it was started, in seconds since 1970.
    pub started: u64,
    phase: AtomicU8,
    /// The first half of the ids of requests, which another server does not have; and how many there were.
    ids: (u64, AtomicU64),
}

impl App {
    /// A server that is ready.
    pub fn new(
        config: Config,
        shared: Shared,
        runtime: Handle,
        embeddings: Option<Embeddings>,
        generator: Option<Arc<dyn Generate>>,
        operations: Option<Operations>,
    ) -> Self {
        use std::hash::BuildHasher;
        let started = SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO).as_secs();
        let own = std::hash::RandomState::new().hash_one(started);
        let room = Arc::new(Semaphore::new((config.limits.held_bytes / UNIT).min(Semaphore::MAX_PERMITS)));
        let changes = tokio::sync::Mutex::new(());
        let (shm, stats) = (Shm::default(), Stats::default());
        let phase = AtomicU8::new(Phase::Ready as u8);
        let keys = RwLock::new(config.keys.clone());
        Self {
            config,
            keys,
            meters: Meters::default(),
            demand: Demand::default(),
            shared,
            runtime,
            embeddings,
            generator,
            changes,
            operations,
            shm,
            stats,
            #[cfg(feature = "otlp")]
            exporter: None,
            room,
            started,
            phase,
            ids: (own, AtomicU64::new(0)),
        }
    }

    /// Does work that takes its time beside the threads of connections.
    ///
    /// # Errors
    /// Work that panics.
    pub async fn aside<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
        self.runtime.spawn_blocking(work).await.map_err(|_| Fault::internal())
    }

    /// The server, whose traces `exporter` sends where there is one.
    #[cfg(feature = "otlp")]
    #[must_use]
    pub fn traced(self, exporter: Option<Arc<crate::otlp::Exporter>>) -> Self {
        Self { exporter, ..self }
    }

    /// What a tenant has asked for, where its key is bounded.
    pub fn meter(&self, tenant: Tenant) -> Option<Arc<Meter>> {
        self.meters.of(tenant, self.keys().rates(tenant), &self.shared.clock)
    }

    /// Who may ask, for a moment.
    pub fn keys(&self) -> RwLockReadGuard<'_, Keys> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets others ask from here on.
    pub fn renew(&self, keys: Keys) {
        let mut own = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        *own = keys.in_place_of(&own);
    }

    /// How far it is.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Ready,
            1 => Phase::Ending,
            _ => Phase::Draining,
        }
    }

    /// Goes on to `phase`.
    pub fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::AcqRel);
    }

    /// The seconds since 1970.
    pub fn now(&self) -> u64 {
        SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO).as_secs()
    }

    /// What will be known of a request with these headers, which `about` names and describes where it is traced.
    pub fn account(&self, headers: &HeaderMap, about: impl FnOnce() -> About) -> Account {
        #[cfg(feature = "otlp")]
        if let Some(exporter) = &self.exporter {
            let context = crate::otlp::Context::of(headers);
            if context.is_sampled() {
                let (exporter, start, About { name, labels }) = (Arc::clone(exporter), SystemTime::now(), about());
                let told = move |facts| exporter.send(crate::otlp::Record { name, context, labels, times: [start, SystemTime::now()], facts });
                return Account::told_to(told);
            }
        }
        #[cfg(not(feature = "otlp"))]
        let _ = (headers, about);
        Account::default()
    }

    /// An id that no other request has.
    pub fn request_id(&self) -> String {
        format!("{:016x}{:08x}", self.ids.0, self.ids.1.fetch_add(1, Ordering::Relaxed))
    }
}
