//! Machine code of units, from the cache or compiled. A unit is built once, however many threads and processes want it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::built::Built;
use super::cache::Cache;
use super::unit::{Arch, Unit};
use crate::backends::cuda::runtime::library;
use crate::error::{Error, Result};

impl Unit {
    /// The machine code, from `cache`, or compiled and put there. While another thread or process compiles the same unit, the call waits
    /// for it.
    pub fn build(&self, arch: Arch, cache: &Cache) -> Result<Built> {
        let compiler = library::nvrtc();
        let hash = self.hash(arch);
        let kept = |version: Option<(i32, i32)>| cache.get(&hash, version);
        if let Some(built) = kept(compiler.as_ref().ok().copied()) {
            return Ok(built);
        }
        let version = compiler.map_err(|error| {
            // A pack that was refused may have it.
            let reasons = [vec![error.to_string()], cache.refused()].concat().join("; ");
            Error::unsupported(&self.name, format!("it is not compiled ahead for {arch}, and {reasons}"))
        })?;
        Flight::board((cache.folder().map(PathBuf::from), hash.clone())).result(|| {
            // Without a lock, two processes may compile the same unit. Both results are right.
            let _lock = cache.lock(&hash, version);
            if let Some(built) = kept(Some(version)) {
                return Ok(built);
            }
            let built = self.compile(arch, version)?;
            cache.put(&hash, version, &built);
            Ok(built)
        })
    }
}

/// The machine code of every unit, in order, built on all cores. Where some fail, the error of the first of them.
pub fn build_all(units: &[&Unit], arch: Arch, cache: &Cache) -> Result<Vec<Built>> {
    if let [unit] = units {
        return Ok(vec![unit.build(arch, cache)?]);
    }
    let results: Vec<Mutex<Option<Result<Built>>>> = units.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((unit, result)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| units.get(at).zip(results.get(at))) {
            *lock(result) = Some(unit.build(arch, cache));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get()).min(units.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let lost = || Error::invalid("compiling", "a result for every unit", "a thread that ended without one");
    results.into_iter().map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner).ok_or_else(lost)?).collect()
}

/// The folder where a unit is kept, and the unit's hash.
type Key = (Option<PathBuf>, String);
/// A unit's machine code, once some thread has it.
type Place = Arc<Mutex<Option<Built>>>;

/// Units that threads of this process build now, or wait for.
static FLIGHTS: Mutex<BTreeMap<Key, Place>> = Mutex::new(BTreeMap::new());

/// One thread's part in the building of a unit.
struct Flight {
    key: Key,
    place: Place,
}

impl Flight {
    fn board(key: Key) -> Self {
        let place = Arc::clone(lock(&FLIGHTS).entry(key.clone()).or_default());
        Self { key, place }
    }

    /// The result of the thread that came first. `make` is called where this is that thread, or where that one failed.
    fn result(&self, make: impl FnOnce() -> Result<Built>) -> Result<Built> {
        let mut place = lock(&self.place);
        if let Some(built) = &*place {
            return Ok(built.clone());
        }
        let built = make()?;
        // Threads that wait by now read this.
        *place = Some(built.clone());
        Ok(built)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut flights = lock(&FLIGHTS);
        // The map is locked, so no thread joins: the map's reference and this one are the last.
        if Arc::strong_count(&self.place) == 2 {
            flights.remove(&self.key);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(hash: &str) -> Key {
        (Some("flights of this test".into()), hash.into())
    }

    fn built(log: &str) -> Built {
        Built { cubin: Vec::new(), log: log.into() }
    }

    #[test]
    fn threads_wait_for_the_first_and_take_what_it_made() {
        let made = AtomicUsize::new(0);
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let flight = Flight::board(key("one"));
                    start.wait();
                    let result = flight.result(|| {
                        std::thread::sleep(Duration::from_millis(20));
                        made.fetch_add(1, Ordering::SeqCst);
                        Ok(built("made"))
                    });
                    assert_eq!(result.unwrap(), built("made"));
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
        assert!(!lock(&FLIGHTS).contains_key(&key("one")), "nothing is held when all have it");
    }

    #[test]
    fn who_waited_for_one_that_failed_tries_again() {
        let (first, second) = (Flight::board(key("two")), Flight::board(key("two")));
        assert!(first.result(|| Err(Error::invalid("a", "b", "c"))).is_err());
        drop(first);
        assert_eq!(second.result(|| Ok(built("again"))).unwrap(), built("again"));
        drop(second);
        assert!(!lock(&FLIGHTS).contains_key(&key("two")));
    }
}
