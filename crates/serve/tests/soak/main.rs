//! A server that is asked without an end, by clients of every sort, on a device that fails: nothing is lost, nothing is wrong, and all is given back.
//!
//! `TRIFUSE_SOAK_SECONDS` says how long (15), and `TRIFUSE_SOAK_SEED` what is drawn (1). `TRIFUSE_BACKEND` names the device behind the faults (cpu): the encoder,
//! the language model and attention all run there, in the type that it serves models in, or in `TRIFUSE_SOAK_DTYPE`.
//!
//! Right answers are computed on that device before the load, each alone, and compared bit for bit. That holds on a GPU by settings: the encoder has room for its
//! adapters from the start (`support/backend.rs`), the language model's engine is invariant (`support/writer.rs`), and a query of attention with blocks is
//! computed in the way of several queries, with others or without (`attention.rs`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adapters;
mod attention;
mod callers;
#[path = "../server/kserve/case.rs"]
#[allow(dead_code, reason = "the server's own tests ask the library beside a server")]
mod case;
mod changes;
mod counts;
mod device;
mod faults;
mod figures;
mod hostile;
mod killed;
mod kserve;
mod late;
mod life;
mod mutants;
#[path = "../../../../fuzz/mutate/mod.rs"]
#[allow(dead_code, unused_imports, reason = "requests are changed as text and as bytes")]
mod mutate;
mod overload;
mod pace;
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use counts::Counts;
use figures::Figures;
use libtest_mimic::{Arguments, Trial};
use life::{Ending, Life};
use world::World;

#[global_allocator]
static ALLOCATOR: figures::Counting = figures::Counting;

/// Lives after which the level of memory and descriptors is that of a program that has seen all: each way to end, with one device and with two.
const WARM: u64 = 6;
/// The fewest lives.
const FEWEST: u64 = 8;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: expected a whole number, found {text:?}")))
}

/// One test at a time: each of them counts what the process holds, or how fast it is.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn main() {
    if killed::was_client() {
        return;
    }
    #[cfg(target_os = "linux")]
    in_one_arena();
    let trial = |name: &str, test: fn()| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(name, run)
    };
    let trials = vec![
        trial("a_server_loses_nothing_and_answers_nothing_wrong", a_server_loses_nothing_and_answers_nothing_wrong),
        trial(
            "an_overloaded_device_does_what_it_can_and_the_rest_is_refused_at_once",
            overload::an_overloaded_device_does_what_it_can_and_the_rest_is_refused_at_once,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Begins this program anew with one arena of glibc's allocator. Threads that happen to meet make more of them, which keep memory that nobody holds: beside
/// that of a hundred clients what a server does not give back would not be seen.
#[cfg(target_os = "linux")]
fn in_one_arena() {
    use std::os::unix::process::CommandExt as _;
    const ARENAS: &str = "MALLOC_ARENA_MAX";
    if std::env::var_os(ARENAS).is_none() {
        let error = std::process::Command::new(std::env::current_exe().unwrap()).args(std::env::args_os().skip(1)).env(ARENAS, "1").exec();
        panic!("the program cannot be begun anew: {error}");
    }
}

fn a_server_loses_nothing_and_answers_nothing_wrong() {
    let _alone = alone();
    let (seconds, seed) = (setting("TRIFUSE_SOAK_SECONDS", 15), setting("TRIFUSE_SOAK_SEED", 1));
    let (world, began, all) = (World::new(), Instant::now(), Counts::default());
    let can = Life::new(seed, &world).can_do();
    let (mut level, mut number) = (None, 0);
    while number < FEWEST || began.elapsed() < Duration::from_secs(seconds) {
        let ending = [Ending::Drained, Ending::Lost, Ending::Cleared][number as usize % 3];
        // Longer lives where there is time for them, and never a whole number of anything.
        let length = Duration::from_millis(900 + 130 * (number % 7)).mul_f64((seconds as f64 / 15.0).clamp(1.0, 4.0));
        let life = Life::new(seed.wrapping_mul(1_000_003).wrapping_add(number), &world);
        life.run(length, ending, can);
        all.add(&life.counts);
        number += 1;
        if number == WARM {
            level = Some(Figures::settled());
        }
    }
    let (before, after) = (level.unwrap(), Figures::settled());
    let lived = began.elapsed().as_secs_f64();
    let (device, dtype) = (&world.device, support::backend::dtype(&world.device));
    println!(
        "{device:?} in {dtype}, seed {seed}: {can:.0}/s can be done; {number} lives in {lived:.1} s: {all}; {before} after {WARM} lives, {after} at the end"
    );
    all.check_every_sort();
    all.check_pace();
    after.check(&before);
}
