//! Half as much again as the device can do: it does what it can, and the rest is told so at once.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use serde_json::json;
use trifuse::Result;
use trifuse::model::Row;
use trifuse_serve::{Config, Embedder, Handle, Server};

use super::callers::Arrivals;
use super::mutate::Rng;
use super::support::client::Client;
use super::support::tiny;

/// What a batch takes, whatever is in it: the device, and not the machine that the test shares, decides what can be done.
const BATCH: Duration = Duration::from_millis(25);
/// Callers of the closed loop that finds out what can be done: as many as fill two batches.
const CLOSED: usize = 24;
/// Callers of the open loop: more than are ever under way.
const OPEN: usize = 160;
/// How long each loop is measured, behind a part that is not.
const MEASURED: Duration = Duration::from_secs(3);
const WARM: Duration = Duration::from_millis(700);
/// The most that a refusal may take at the 99th percentile on a machine that others use too; on one that is idle it is 5 ms.
const REFUSED_WITHIN: Duration = Duration::from_millis(50);

/// A device whose batches take their time, one after the other: when each of them ends, and how many rows it has.
#[derive(Default)]
struct Steady(VecDeque<(Instant, usize)>);

impl Embedder for Steady {
    fn submit(&mut self, _: &[Row<'_>], wanted: usize) -> Result<()> {
        let begins = self.0.back().map_or_else(Instant::now, |(ends, _)| *ends);
        self.0.push_back((begins + BATCH, wanted));
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<f32>> {
        let (ends, rows) = self.0.pop_front().unwrap();
        std::thread::sleep(ends.saturating_duration_since(Instant::now()));
        Ok(vec![0.5; rows * tiny::WIDTH])
    }
}

/// What became of requests: when each was answered, by which status, and how long that took.
#[derive(Default)]
struct Seen(Mutex<Vec<(Instant, u16, Duration)>>);

impl Seen {
    fn ask(&self, client: &mut Client) {
        let body = json!({"model": tiny::NAME, "input": vec![5; 24], "encoding_format": "base64"}).to_string();
        let sent = Instant::now();
        let answer = client.send("POST", "/v1/embeddings", &[], body.as_bytes()).unwrap_or_else(|error| panic!("without an answer: {error}"));
        let ended = Instant::now();
        self.0.lock().unwrap().push((ended, answer.status, ended - sent));
    }

    /// Answers a second in the time that counts.
    fn goodput(&self, start: Instant) -> f64 {
        let counts = start + WARM..start + WARM + MEASURED;
        let all = self.0.lock().unwrap();
        all.iter().filter(|(ended, status, _)| *status == 200 && counts.contains(ended)).count() as f64 / MEASURED.as_secs_f64()
    }
}

fn start() -> (Handle, tempfile::TempDir) {
    let folder = tiny::folder();
    let model = tiny::model_with(folder.path(), |opened| {
        opened.embedder = Box::<Steady>::default();
        opened.batch_tokens = 256;
    });
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    config.threads = 2;
    config.queue.max_wait = Duration::from_millis(150);
    config.limits.drain_delay = Duration::ZERO;
    (Server::start(config, Some(model), None).unwrap(), folder)
}

/// What the device can do: the rate of a closed loop that never lets it rest.
fn saturation(handle: &Handle) -> f64 {
    let (addr, seen, over, start) = (handle.addr(), Seen::default(), AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..CLOSED {
            scope.spawn(|| {
                let mut client = Client::to(addr).unwrap();
                while !over.load(Ordering::SeqCst) {
                    seen.ask(&mut client);
                }
            });
        }
        std::thread::sleep(WARM + MEASURED);
        over.store(true, Ordering::SeqCst);
    });
    seen.goodput(start)
}

pub fn an_overloaded_device_does_what_it_can_and_the_rest_is_refused_at_once() {
    let _alone = super::alone();
    let (handle, _folder) = start();
    let before = saturation(&handle);
    let (addr, seen, start) = (handle.addr(), Seen::default(), Instant::now());
    let arrivals = Arrivals::new(Rng::seed_from_u64(5), 1.5 * before, |_, mean| mean);
    std::thread::scope(|scope| {
        for _ in 0..OPEN {
            scope.spawn(|| {
                let mut client = Client::to(addr).unwrap();
                while arrivals.next().0 < WARM + MEASURED {
                    seen.ask(&mut client);
                }
            });
        }
    });
    let goodput = seen.goodput(start);
    let after = saturation(&handle);
    let all = seen.0.lock().unwrap();
    let mut refused: Vec<Duration> = all.iter().filter(|(_, status, _)| *status == 429).map(|(.., took)| *took).collect();
    refused.sort_unstable();
    assert!(all.iter().all(|(_, status, _)| [200, 429].contains(status)) && refused.len() > 100, "{} refused of {}", refused.len(), all.len());
    let p99 = refused[refused.len() * 99 / 100];
    println!("{before:.0}/s and {after:.0}/s can be done; at 1.5 of it {goodput:.0}/s of {} are answered, {} refused, p99 {p99:?}", all.len(), refused.len());
    assert!(goodput >= 0.9 * before.min(after), "{goodput}/s are answered of {before}/s and {after}/s that can be");
    assert!(p99 < REFUSED_WITHIN, "a refusal takes {p99:?}");
    drop(all);
    handle.drain();
    handle.wait();
}
