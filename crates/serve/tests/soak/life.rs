//! One server from its start to its end, among all its clients.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Scope;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use trifuse_serve::queueing::ledger::Outcome;
use trifuse_serve::{AdapterRoot, Config, Handle, Models, Opened, Server};

use super::adapters::{History, NAMES};
use super::attention::operations;
use super::callers::{self, Arrivals};
use super::changes::change_adapters;
use super::counts::Counts;
use super::device::device;
use super::faults::{Faults, Told};
use super::hostile;
use super::killed::kill_clients;
use super::mutants;
use super::mutate::Rng;
use super::pace;
use super::support::{backend, tiny, writer};
use super::world::World;

/// Callers of the open loop, each with a connection: more than are ever under way.
const CALLERS: usize = 96;
/// Callers of the closed loop that finds out what can be done.
const CLOSED: usize = 24;
/// How long that is measured, behind a part that is not.
const MEASURED: Duration = Duration::from_millis(1500);
const WARM: Duration = Duration::from_millis(300);
/// How long a server may take to end: what is under way has a part of a second to go.
const LONGEST_END: Duration = Duration::from_secs(40);

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As by SIGTERM, under load.
    Drained,
    /// The same, behind a time in which no name of an adapter that comes and goes is left, and the devices have forgotten all of them.
    Cleared,
    /// The device fails under load, and then it is ended as `trifuse serve` ends it.
    Lost,
}

/// A server's life, as all its clients see it.
pub struct Life<'a> {
    pub world: &'a World,
    pub counts: Arc<Counts>,
    pub addr: Mutex<Option<SocketAddr>>,
    /// What names of adapters have led to.
    pub history: History,
    /// Whether the region that all callers share is there.
    pub shared: AtomicBool,
    seed: u64,
    told: Arc<Told>,
    clearing: AtomicBool,
    ending: AtomicBool,
    over: AtomicBool,
}

/// The defaults, but for times: what is slow is given up soon enough to be seen.
fn config() -> Config {
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    config.threads = 2;
    config.queue.max_wait = Duration::from_millis(400);
    config.limits.header = Duration::from_millis(700);
    config.limits.body = Duration::from_millis(700);
    config.limits.drain_delay = Duration::from_millis(60);
    config
}

/// A server of these models, which loads adapters from `root`.
pub fn server(root: Option<AdapterRoot>, models: Models) -> Handle {
    Server::serve(Config { adapter_root: root, ..config() }, models).unwrap()
}

impl<'a> Life<'a> {
    pub fn new(seed: u64, world: &'a World) -> Self {
        let (counts, told) = (Arc::default(), Arc::default());
        let [shared, clearing, ending, over] = [false; 4].map(AtomicBool::new);
        Self { world, counts, addr: Mutex::new(None), history: History::new(), shared, seed, told, clearing, ending, over }
    }

    /// Where the server is.
    pub fn addr(&self) -> SocketAddr {
        self.addr.lock().unwrap().unwrap()
    }

    /// Whether the server was told to end.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Whether its device is to fail.
    pub fn is_lost(&self) -> bool {
        self.told.lost.load(Ordering::SeqCst)
    }

    /// Whether adapters that come and go are to go.
    pub fn is_clearing(&self) -> bool {
        self.clearing.load(Ordering::SeqCst)
    }

    /// Whether the server has ended.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// A number of its own for the client `number`.
    pub fn rng(&self, number: u64) -> Rng {
        Rng::seed_from_u64(self.seed.wrapping_mul(1009).wrapping_add(number))
    }

    /// What opens the encoder on a device with these faults.
    fn opens(&self, faults: Faults) -> impl FnOnce(&mut Opened) + Send + 'static {
        let (begin, device) = (self.world.shelf.begin(), device(faults, NAMES, &self.told, &self.counts));
        move |opened| {
            begin(opened);
            device(opened);
        }
    }

    /// A server, every second one with two devices, of which one fails on the way; where it is not to be `spared`, its devices have faults.
    fn start(&self, spared: bool) -> Handle {
        let faults = if spared { Faults::none() } else { Faults::new(self.seed) };
        let mut model = tiny::model_with(self.world.encoder.path(), self.opens(faults));
        if !spared && self.seed.is_multiple_of(2) {
            model = model.and(backend::name(), tiny::opens(self.world.encoder.path(), self.opens(Faults::short(self.seed + 1))));
        }
        let models = Models {
            embeddings: Some(model),
            generator: Some(Arc::new(writer::model(self.world.writer.path()))),
            operations: Some(operations((!spared).then_some(self.seed + 2), &self.told, &self.counts)),
        };
        let handle = server(Some(self.world.shelf.root()), models);
        *self.addr.lock().unwrap() = Some(handle.addr());
        handle
    }

    /// What a server can do of what callers ask, a second: a closed loop never lets it rest, and nothing goes wrong.
    pub fn can_do(&self) -> f64 {
        let handle = self.start(true);
        let arrivals = Arrivals::new(self.rng(0), f64::INFINITY, |_, mean| mean);
        let mut done = 0.0;
        std::thread::scope(|scope| {
            self.ask(scope, CLOSED, &arrivals);
            std::thread::sleep(WARM);
            let before = self.counts.right.get();
            std::thread::sleep(MEASURED);
            done = (self.counts.right.get() - before) as f64 / MEASURED.as_secs_f64();
            self.end(&handle);
        });
        self.check_books(&handle);
        handle.wait();
        done
    }

    /// Lives for about so long, ends, and holds the server's books against those of the clients. `can` is what it can do.
    pub fn run(&self, length: Duration, ending: Ending, can: f64) {
        let handle = self.start(false);
        let arrivals = Arrivals::new(self.rng(0), can, pace::rate);
        let changed = Arrivals::new(self.rng(1), mutants::RATE, |_, mean| mean);
        std::thread::scope(|scope| {
            self.ask(scope, CALLERS, &arrivals);
            for _ in 0..mutants::CONNECTIONS {
                scope.spawn(|| mutants::send_until_the_end(self, &changed));
            }
            hostile::spawn(self, scope);
            scope.spawn(|| kill_clients(self));
            let changes = scope.spawn(|| change_adapters(self));
            std::thread::sleep(length);
            if ending == Ending::Cleared {
                self.clearing.store(true, Ordering::SeqCst);
                changes.join().unwrap();
                until("the devices forget every adapter that went", || self.told.held.load(Ordering::SeqCst) == 0);
                self.counts.cleared.one();
            }
            if ending == Ending::Lost {
                self.told.lost.store(true, Ordering::SeqCst);
                until("the loss is seen", || handle.is_lost());
                std::thread::sleep(Duration::from_millis(100));
            }
            let lived = arrivals.elapsed().as_secs_f64();
            self.counts.due.many(pace::due(lived, can) as u64);
            self.counts.mutants_due.many((mutants::RATE * lived) as u64);
            self.end(&handle);
        });
        self.check_books(&handle);
        handle.wait();
    }

    /// Lets so many callers ask until the server is gone.
    fn ask<'scope, 'env: 'scope>(&'env self, scope: &'scope Scope<'scope, 'env>, callers: usize, arrivals: &'env Arrivals) {
        for number in 0..callers {
            scope.spawn(move || callers::ask_until_the_end(self, arrivals, number));
        }
    }

    /// Ends the server, as by SIGTERM.
    fn end(&self, handle: &Handle) {
        self.ending.store(true, Ordering::SeqCst);
        handle.drain();
        until("the server ends", || handle.is_finished());
        self.over.store(true, Ordering::SeqCst);
    }

    fn check_books(&self, handle: &Handle) {
        let (ledger, counts) = (handle.ledger(), &self.counts);
        let [finished, failed, cancelled, expired] = Outcome::ALL.map(|outcome| ledger.ended(outcome));
        let told = format!("{ledger:?}; {counts}; seed {}", self.seed);
        assert_eq!((ledger.open(), ledger.accepted()), (0, finished + failed + cancelled + expired), "{told}");
        let strange = counts.strange.get();
        // What hostile clients asked for may have been let in or not, and have ended in any way.
        let within = |server: u64, client: u64, more: u64| (client..=client + more + strange).contains(&server);
        // A task that the device of operations has no room for has its answer all the same.
        assert!(within(finished, counts.right.get() + counts.denied.get(), counts.unsure.get()), "answers: {told}");
        assert!(within(failed, counts.failed.get(), counts.lost.get()), "failures: {told}");
        assert!(within(expired, counts.expired.get(), 0) && cancelled <= strange, "ends: {told}");
        assert!(counts.failed.get() <= counts.blamed.get(), "more failed than was planned: {told}");
        counts.accepted.many(ledger.accepted());
        counts.cancelled.many(cancelled);
    }
}

/// Waits until `holds`.
fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONGEST_END, "{what}: it does not come");
        std::thread::sleep(Duration::from_millis(3));
    }
}
