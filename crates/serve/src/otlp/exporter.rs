//! The thread that sends spans. Requests wait for nothing of it: a span that finds no room is dropped and counted.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prost::Message;
use trifuse::{Error, Result};

use super::endpoint::Endpoint;
use super::messages::{AnyValue, Export, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span, Value};
use super::post::post;
use super::span::Record;

/// The spans that wait, at most.
const WAITING: usize = 2048;
/// The spans that are sent at once, at most.
const BATCH: usize = 512;
/// How long the first of them waits for others.
const DELAY: Duration = Duration::from_secs(1);
/// How long the last spans have at the end.
const LAST: Duration = Duration::from_secs(2);
/// How often the end is tried where there is no room.
const STEP: Duration = Duration::from_millis(10);

/// How many spans there were.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Those that the collector has taken.
    pub sent: Counter,
    /// Those that found no room, or that the collector did not take.
    pub dropped: Counter,
}

enum Deed {
    Span(Box<Record>),
    /// Nothing comes behind this; whoever asks waits until what is given here is dropped.
    End(Sender<()>),
}

/// What sends spans.
#[derive(Debug)]
pub struct Exporter {
    deeds: SyncSender<Deed>,
    told: Told,
}

impl Exporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub fn start(endpoint: Endpoint, told: Told) -> Result<Self> {
        let (deeds, done) = sync_channel(WAITING);
        let own = told.clone();
        let run = move || run(&done, &endpoint, &own);
        std::thread::Builder::new().name("traces".into()).spawn(run).map_err(Error::io("thread of the traces", "start"))?;
        Ok(Self { deeds, told })
    }

    /// Sends a span some time.
    pub fn send(&self, record: Record) {
        if self.deeds.try_send(Deed::Span(Box::new(record))).is_err() {
            self.told.dropped.inc();
        }
    }

    /// Sends what waits, and takes no more. A collector that is not there is not waited for.
    pub fn end(&self) {
        let (done, ended) = channel();
        let end = Instant::now() + LAST;
        let mut deed = Deed::End(done);
        while let Err(TrySendError::Full(again)) = self.deeds.try_send(deed) {
            if Instant::now() > end {
                return;
            }
            deed = again;
            std::thread::sleep(STEP);
        }
        // Nothing is given there: what is waited for is that the other end is gone.
        let _ = ended.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

/// Sends spans until there come no more.
fn run(deeds: &Receiver<Deed>, endpoint: &Endpoint, told: &Told) {
    while let Ok(first) = deeds.recv() {
        let until = Instant::now() + DELAY;
        let (mut spans, mut next, mut end) = (Vec::new(), Ok(first), None);
        loop {
            match next {
                Ok(Deed::Span(record)) => spans.push(Span::from(*record)),
                Ok(Deed::End(done)) => end = Some(done),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
            if spans.len() == BATCH || end.is_some() {
                break;
            }
            next = deeds.recv_timeout(until.saturating_duration_since(Instant::now()));
        }
        let count = spans.len() as u64;
        if count > 0 {
            let sent = post(endpoint, &export(spans).encode_to_vec()).is_ok();
            let counter = if sent { &told.sent } else { &told.dropped };
            counter.inc_by(count);
        }
        if end.is_some() {
            return;
        }
    }
}

/// The spans with what made them.
fn export(spans: Vec<Span>) -> Export {
    let text = |key: &str, value: &str| KeyValue { key: key.into(), value: Some(AnyValue { value: Some(Value::Text(value.into())) }) };
    let (name, version) = ("trifuse", env!("CARGO_PKG_VERSION"));
    let resource = Resource { attributes: vec![text("service.name", name), text("service.version", version)] };
    let scope = Scope { name: name.into(), version: version.into() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
    Export { resource_spans: vec![ResourceSpans { resource: Some(resource), scope_spans }] }
}
