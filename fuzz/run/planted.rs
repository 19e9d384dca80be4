//! Faults that are there on purpose: each has to be found, and told by an input that shows it again.

use std::hint::black_box;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use rand::Rng as _;

use super::finding::Fault;
use super::mutate::bytes;
use super::options::Options;
use super::race::{LIMITS, Limits, check, run};
use super::subjects::{ALL, Answer, Subject, rng};

const SOUND: &[u8] = b"some sound input";

/// A parser that refuses what does not begin as it should, and has this fault behind that.
fn planted(parse: fn(&[u8]) -> Answer) -> Subject {
    Subject { name: "planted", sound: |_| SOUND.to_vec(), change: |rng, input| bytes(rng, input.to_vec()), parse }
}

fn begins(input: &[u8]) -> Answer {
    if input.starts_with(b"some") { Ok(()) } else { Err("expected some".into()) }
}

fn panics(input: &[u8]) -> Answer {
    begins(input)?;
    assert!(input[4..].iter().all(|&byte| byte != 0xff), "a byte that nobody thought of");
    Ok(())
}

fn panics_by_overflow(input: &[u8]) -> Answer {
    begins(input)?;
    let shorter = input.len() - 4;
    black_box(shorter - 12);
    Ok(())
}

fn holds_too_much(input: &[u8]) -> Answer {
    begins(input)?;
    if input.len() > 17 {
        black_box(vec![0u8; 600 << 20]);
    }
    Ok(())
}

fn holds_too_much_in_pieces(input: &[u8]) -> Answer {
    begins(input)?;
    if input.len() > 17 {
        black_box((0..600).map(|_| Vec::<u8>::with_capacity(1 << 20)).collect::<Vec<_>>());
    }
    Ok(())
}

fn takes_too_long(input: &[u8]) -> Answer {
    begins(input)?;
    if input.len() > 17 {
        (0..300_000_000u64).for_each(|count| _ = black_box(count));
    }
    Ok(())
}

/// The first finding of some thousand inputs, which shows itself again.
fn found(parse: fn(&[u8]) -> Answer, limits: &Limits) -> Result<Fault, Failed> {
    let subject = planted(parse);
    let options = Options { count: 4000, seconds: Duration::from_secs(60), ..Options::default() };
    let tally = run(&subject, &options, limits);
    let Some((number, first)) = tally.findings.into_iter().next() else { return Err("nothing found".into()) };
    let again = run(&subject, &Options { count: number + 1, ..options }, limits);
    let same = again.findings.first().is_some_and(|(other, found)| *other == number && found.input == first.input);
    let shown = check(&subject, &first.input, limits).is_err();
    if same && shown { Ok(first.fault) } else { Err(format!("input {number} is not the same again").into()) }
}

fn must(holds: bool, told: impl std::fmt::Debug) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(format!("{told:?}").into()) }
}

fn a_panic_is_found() -> Result<(), Failed> {
    let fault = found(panics, &LIMITS)?;
    must(matches!(&fault, Fault::Panic(told) if told.contains("nobody thought of") && told.contains("planted.rs")), fault)?;
    let fault = found(panics_by_overflow, &LIMITS)?;
    must(matches!(&fault, Fault::Panic(told) if told.contains("overflow")), fault)
}

fn memory_past_the_limit_is_found() -> Result<(), Failed> {
    for parse in [holds_too_much, holds_too_much_in_pieces] {
        let fault = found(parse, &LIMITS)?;
        must(matches!(fault, Fault::Memory(held) if (600 << 20..700 << 20).contains(&held)), fault)?;
    }
    Ok(())
}

fn time_past_the_limit_is_found() -> Result<(), Failed> {
    let fault = found(takes_too_long, &Limits { time: Duration::from_millis(50), ..LIMITS })?;
    must(matches!(fault, Fault::Time(time) if time >= Duration::from_millis(50)), fault)
}

fn a_sound_parser_has_no_finding() -> Result<(), Failed> {
    let tally = run(&planted(begins), &Options { count: 4000, ..Options::default() }, &LIMITS);
    must(tally.findings.is_empty() && tally.taken > 400 && tally.taken < 3900 && tally.sorts.len() == 2, tally.to_string())
}

/// Else nothing behind a parser's first check is reached.
fn sound_inputs_are_taken_and_changed_ones_reach_far() -> Result<(), Failed> {
    for subject in ALL {
        for number in 0..8 {
            let input = (subject.sound)(&mut rng(1, number));
            let seen = check(subject, &input, &LIMITS);
            must(seen.as_ref().is_ok_and(|seen| seen.answer.is_ok()), (subject.name, seen.map(|seen| seen.answer).map_err(|found| found.to_string())))?;
        }
        let tally = run(subject, &Options { count: 200, seed: rng(2, 0).random(), ..Options::default() }, &LIMITS);
        must(tally.findings.is_empty() && tally.taken > 16 && tally.sorts.len() > 3, (subject.name, tally.to_string()))?;
    }
    Ok(())
}

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("a_panic_is_found", a_panic_is_found),
        Trial::test("memory_past_the_limit_is_found", memory_past_the_limit_is_found),
        Trial::test("time_past_the_limit_is_found", time_past_the_limit_is_found),
        Trial::test("a_sound_parser_has_no_finding", a_sound_parser_has_no_finding),
        Trial::test("sound_inputs_are_taken_and_changed_ones_reach_far", sound_inputs_are_taken_and_changed_ones_reach_far),
    ]
}
