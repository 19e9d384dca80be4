//! A target of cargo-fuzz from a subject: libFuzzer chooses what to change, and the subject's mutator changes it.

#[path = "../mutate/mod.rs"]
pub mod mutate;
#[path = "../subjects/mod.rs"]
pub mod subjects;

use subjects::{ALL, Subject, rng};

/// The subject of that name.
pub fn subject(name: &str) -> &'static Subject {
    ALL.iter().find(|subject| subject.name == name).expect("a subject of that name")
}

/// Changes the first `size` bytes of `data` in place, and gives the new size.
pub fn change(name: &str, data: &mut [u8], size: usize, most: usize, seed: u32) -> usize {
    let (subject, rng) = (subject(name), &mut rng(u64::from(seed), 0));
    // An empty corpus begins with one byte.
    let changed = if size < 2 { (subject.sound)(rng) } else { (subject.change)(rng, &data[..size]) };
    let length = changed.len().min(most);
    data[..length].copy_from_slice(&changed[..length]);
    length
}

macro_rules! target {
    ($name:literal) => {
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            let _ = (target::subject($name).parse)(bytes);
        });
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, most: usize, seed: u32| { target::change($name, data, size, most, seed) });
    };
}
