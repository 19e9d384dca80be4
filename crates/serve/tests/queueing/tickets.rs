//! Exactly one answer, whatever is done with a ticket or with its parts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use trifuse_serve::queueing::admit::{Admission, Limits};
use trifuse_serve::queueing::gather::parts;
use trifuse_serve::queueing::ledger::{Ledger, Outcome};
use trifuse_serve::queueing::ticket::{Failure, Ticket, Waiter, accept};

type Answers<A> = Arc<Mutex<Vec<Result<A, Failure>>>>;

fn ticket<A: Send + 'static>(ledger: &Arc<Ledger>) -> (Ticket<A>, Waiter, Answers<A>) {
    let answers = Answers::default();
    let into = Arc::clone(&answers);
    let (ticket, waiter) = accept(ledger, move |answer| into.lock().unwrap().push(answer));
    (ticket, waiter, answers)
}

fn counts(ledger: &Ledger) -> [u64; 4] {
    Outcome::ALL.map(|outcome| ledger.ended(outcome))
}

#[test]
fn a_ticket_is_answered_once_by_whatever_ends_it() {
    let ledger = Arc::new(Ledger::default());
    let (first, _first, finished) = ticket::<u32>(&ledger);
    let (second, _second, expired) = ticket::<u32>(&ledger);
    let (third, _third, dropped) = ticket::<u32>(&ledger);
    let (fourth, gone, cancelled) = ticket::<u32>(&ledger);
    assert_eq!((ledger.accepted(), ledger.open()), (4, 4));
    first.finish(7);
    second.fail(Failure::Expired);
    drop(third);
    assert!(!fourth.is_cancelled());
    drop(gone);
    assert!(fourth.is_cancelled());
    fourth.finish(8);
    assert_eq!(*finished.lock().unwrap(), [Ok(7)]);
    assert_eq!(*expired.lock().unwrap(), [Err(Failure::Expired)]);
    assert_eq!(*dropped.lock().unwrap(), [Err(Failure::Forgotten)]);
    assert_eq!(cancelled.lock().unwrap().len(), 1);
    assert_eq!((counts(&ledger), ledger.open()), ([1, 1, 1, 1], 0));
}

proptest! {
    #[test]
    fn parts_in_any_order_give_one_answer(deeds in proptest::collection::vec((0u8..8, any::<u16>()), 1..12)) {
        let ledger = Arc::new(Ledger::default());
        let (ticket, _waiter, answers) = ticket::<Vec<usize>>(&ledger);
        let mut left: Vec<_> = parts(ticket, deeds.len()).into_iter().enumerate().collect();
        let mut first_failure = None;
        for (deed, pick) in &deeds {
            let (place, part) = left.remove(usize::from(*pick) % left.len());
            prop_assert_eq!(part.is_cancelled(), first_failure.is_some());
            let failure = match deed {
                0 => { part.fail(Failure::Expired); Some(Failure::Expired) }
                1 => { drop(part); Some(Failure::Forgotten) }
                _ => { part.finish(place); None }
            };
            first_failure = first_failure.or(failure);
        }
        let expected = first_failure.map_or_else(|| Ok((0..deeds.len()).collect::<Vec<_>>()), Err);
        prop_assert_eq!(&*answers.lock().unwrap(), &[expected]);
        prop_assert_eq!((ledger.accepted(), ledger.open()), (1, 0));
    }

    #[test]
    fn who_is_let_in_waits_no_longer_than_was_said(costs in proptest::collection::vec(1u64..500, 1..200), rate in 100u64..100_000) {
        let limits = Limits { max_wait: Duration::from_secs(2), max_tokens: 20_000 };
        let mut admission = Admission::new(limits);
        admission.measured(rate, Duration::from_secs(1));
        let mut inside = 0;
        for cost in costs {
            let wait = inside as f64 / rate as f64;
            let held = inside == 0 || (wait <= 2.0 && inside + cost <= 20_000);
            let said = admission.admit(cost, None);
            prop_assert_eq!(said.is_ok(), held, "{} tokens inside at {} a second", inside, rate);
            if let Err(refused) = said {
                prop_assert!((refused.retry_after.as_secs_f64() - wait).abs() < 1e-6);
            }
            inside += if held { cost } else { 0 };
            prop_assert_eq!(admission.tokens(), inside);
        }
        admission.leave(inside);
        prop_assert_eq!(admission.wait(), Duration::ZERO);
    }
}

#[test]
fn a_deadline_nearer_than_the_wait_is_refused_at_once() {
    let mut admission = Admission::new(Limits::default());
    assert!(admission.admit(100, Some(Duration::ZERO)).is_ok(), "nothing is before it");
    admission.measured(100, Duration::from_secs(1));
    assert!(admission.admit(1, Some(Duration::from_millis(900))).is_err());
    assert!(admission.admit(1, Some(Duration::from_millis(1100))).is_ok());
}

#[test]
fn the_rate_follows_the_last_batches() {
    let mut admission = Admission::new(Limits::default());
    assert_eq!(admission.tokens_per_second(), None);
    (0..10).for_each(|_| admission.measured(256, Duration::from_millis(10)));
    assert!((admission.tokens_per_second().unwrap() - 25_600.0).abs() < 1.0);
    (0..200).for_each(|_| admission.measured(256, Duration::from_millis(100)));
    assert!((2_560.0..2_700.0).contains(&admission.tokens_per_second().unwrap()));
}
