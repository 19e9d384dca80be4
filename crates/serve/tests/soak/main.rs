//! A server that is asked without an end, by clients of every sort, on a device that fails: nothing is lost, nothing is wrong, and all is given back.
//!
//! `TRIFUSE_SOAK_SECONDS` says how long (15), and `TRIFUSE_SOAK_SEED` what is drawn (1).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adapters;
mod attention;
mod callers;
#[path = "../kserve/case.rs"]
mod case;
mod changes;
mod counts;
mod device;
mod faults;
mod figures;
mod hostile;
mod kserve;
mod late;
mod life;
mod mutants;
#[path = "../../../../fuzz/mutate/mod.rs"]
#[allow(dead_code, unused_imports, reason = "requests are changed as text and as bytes")]
mod mutate;
mod overload;
#[path = "../support/mod.rs"]
mod support;
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use counts::Counts;
use figures::Figures;
use life::{Ending, Life};
use world::World;

/// Lives after which the level of memory and descriptors is that of a program that has seen all.
const WARM: u64 = 3;
/// The fewest lives.
const FEWEST: u64 = 5;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: expected a whole number, found {text:?}")))
}

/// One test at a time: each of them counts what the process holds, or how fast it is.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_server_loses_nothing_and_answers_nothing_wrong() {
    let _alone = alone();
    let (seconds, seed) = (setting("TRIFUSE_SOAK_SECONDS", 15), setting("TRIFUSE_SOAK_SEED", 1));
    let (world, began, all) = (World::new(), Instant::now(), Counts::default());
    let (mut level, mut number) = (None, 0);
    while number < FEWEST || began.elapsed() < Duration::from_secs(seconds) {
        let ending = [Ending::Drained, Ending::Lost, Ending::Cleared][number as usize % 3];
        // Longer lives where there is time for them, and never a whole number of anything.
        let length = Duration::from_millis(1300 + 170 * (number % 7)).mul_f64((seconds as f64 / 15.0).clamp(1.0, 4.0));
        let life = Life::new(seed.wrapping_mul(1_000_003).wrapping_add(number), &world);
        life.run(length, ending);
        all.add(&life.counts);
        number += 1;
        if number == WARM {
            level = Some(Figures::settled());
        }
    }
    let (before, after) = (level.unwrap(), Figures::settled());
    println!("seed {seed}: {number} lives in {:.1} s: {all}; {before} after {WARM} lives, {after} at the end", began.elapsed().as_secs_f64());
    all.check_every_sort();
    after.check(&before);
}
