//! Queues: nothing is lost, lanes keep their order, and shares are kept.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use trifuse_serve::queueing::queues::{Queues, Tenant};

fn tenant(number: u32, share: u32) -> Tenant {
    Tenant { number, share }
}

proptest! {
    #[test]
    fn nothing_is_lost_and_every_lane_keeps_its_order(deeds in proptest::collection::vec((0u32..4, 0u64..3, 1u64..300, any::<bool>()), 1..300)) {
        let mut queues = Queues::default();
        let (mut sent, mut came) = (HashMap::<(u32, u64), Vec<usize>>::new(), HashMap::<(u32, u64), Vec<usize>>::new());
        let mut take = |queues: &mut Queues<(u32, u64, u64, usize)>| {
            let cost = queues.next_cost();
            let item = queues.pop();
            if let Some((owner, adapter, own, number)) = item {
                assert_eq!(cost, Some(own), "the cost that was told");
                came.entry((owner, adapter)).or_default().push(number);
            }
            item.is_some()
        };
        for (number, (owner, adapter, cost, pop)) in deeds.iter().copied().enumerate() {
            queues.push(tenant(owner, owner), adapter, cost, (owner, adapter, cost, number));
            sent.entry((owner, adapter)).or_default().push(number);
            if pop {
                take(&mut queues);
            }
        }
        // A tenant who is alone has all before it, and none has more than there is.
        prop_assert!((0..5).all(|owner| queues.ahead(tenant(owner, 1)) <= queues.cost()));
        while take(&mut queues) {}
        prop_assert!(queues.is_empty() && queues.next_cost().is_none() && queues.cost() == 0);
        prop_assert_eq!(sent, came);
    }

    #[test]
    fn what_is_taken_out_of_turn_leaves_the_rest_as_it_was(deeds in proptest::collection::vec((0u32..3, 0u64..3, 1u64..300, any::<bool>()), 1..200)) {
        let (mut all, mut kept) = (Queues::default(), Queues::default());
        for (number, (owner, adapter, cost, goes)) in deeds.iter().copied().enumerate() {
            all.push(tenant(owner, owner), adapter, cost, (number, goes));
            if !goes {
                kept.push(tenant(owner, owner), adapter, cost, (number, goes));
            }
        }
        let mut taken: Vec<usize> = all.take_those(|(_, goes)| *goes).into_iter().map(|(number, _)| number).collect();
        taken.sort_unstable();
        let expected: Vec<usize> = (0..deeds.len()).filter(|number| deeds[*number].3).collect();
        prop_assert_eq!(taken, expected);
        prop_assert_eq!((all.len(), all.cost()), (kept.len(), kept.cost()));
        prop_assert!((0..3).all(|owner| all.ahead(tenant(owner, owner)) == kept.ahead(tenant(owner, owner))));
        let rest = |queues: &mut Queues<(usize, bool)>| {
            let mut rest: Vec<usize> = std::iter::from_fn(|| queues.pop()).map(|(number, _)| number).collect();
            rest.sort_unstable();
            rest
        };
        prop_assert_eq!(rest(&mut all), rest(&mut kept));
        prop_assert_eq!((all.len(), all.cost()), (0, 0));
    }

    #[test]
    fn whoever_waits_all_the_time_gets_their_share(costs in proptest::collection::vec(1u64..200, 3), shares in proptest::collection::vec(1u32..5, 3)) {
        let mut queues = Queues::default();
        for owner in 0..3u32 {
            let cost = costs[owner as usize];
            (0..60_000 / cost).for_each(|_| queues.push(tenant(owner, shares[owner as usize]), 0, cost, (owner, cost)));
        }
        let mut got: BTreeMap<u32, u64> = BTreeMap::new();
        let mut all = 0;
        while all < 40_000 {
            let (owner, cost) = queues.pop().unwrap();
            *got.entry(owner).or_default() += cost;
            all += cost;
        }
        let whole: u32 = shares.iter().sum();
        for owner in 0..3u32 {
            let fair = 40_000 * u64::from(shares[owner as usize]) / u64::from(whole);
            // A turn, and an item that could not be paid for, for each of the three.
            let slack = 3 * (64 * 4 + 200);
            prop_assert!(got[&owner].abs_diff(fair) <= slack, "tenant {} got {} of {}", owner, got[&owner], fair);
        }
    }
}

#[test]
fn what_goes_before_a_tenant_is_its_own_and_the_turns_of_others() {
    let mut queues = Queues::default();
    (0..100).for_each(|_| queues.push(tenant(1, 1), 0, 32, ()));
    assert_eq!((queues.cost(), queues.ahead(tenant(1, 1)), queues.ahead(tenant(2, 1))), (3200, 3200, 0));
    (0..10).for_each(|_| queues.push(tenant(2, 1), 0, 32, ()));
    assert_eq!((queues.cost(), queues.ahead(tenant(1, 1)), queues.ahead(tenant(2, 1))), (3520, 3520, 640), "one turn each");
    assert_eq!(queues.ahead(tenant(2, 4)), 400, "four turns to one");
}

#[test]
fn what_had_its_turn_goes_back_before_the_others_of_its_lane() {
    let mut queues = Queues::default();
    (0..4).for_each(|number| queues.push(tenant(1, 1), 7, 10, number));
    let [first, second] = [queues.pop().unwrap(), queues.pop().unwrap()];
    [second, first].into_iter().for_each(|number| queues.push_front(tenant(1, 1), 7, 10, number));
    assert_eq!((queues.len(), queues.cost()), (4, 40));
    assert_eq!(std::iter::from_fn(|| queues.pop()).collect::<Vec<i32>>(), [0, 1, 2, 3]);
    assert_eq!((queues.len(), queues.cost()), (0, 0));
}

#[test]
fn one_tenants_flood_does_not_hold_up_another() {
    let mut queues = Queues::default();
    (0..10_000).for_each(|_| queues.push(tenant(1, 1), 0, 32, "flood"));
    queues.push(tenant(2, 1), 0, 32, "single");
    let before = std::iter::from_fn(|| queues.pop()).position(|item| item == "single").unwrap();
    assert!(before <= 4, "{before} before it");
}

#[test]
fn one_adapters_flood_does_not_hold_up_another_of_the_same_tenant() {
    let mut queues = Queues::default();
    (0..10_000).for_each(|_| queues.push(tenant(1, 1), 7, 32, "flood"));
    queues.push(tenant(1, 1), 8, 32, "single");
    let before = std::iter::from_fn(|| queues.pop()).position(|item| item == "single").unwrap();
    assert!(before <= 4, "{before} before it");
}
