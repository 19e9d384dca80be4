//! The scheduler: random loads under every rule, and the rules that need a load of their own.

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use trifuse::Error;
use trifuse::llm::cache::Digest;
use trifuse::llm::schedule::{Adapter, AdapterId, Finish, Finished, Load, Options, Plan, Request, Sampled, Scheduler};
use trifuse::llm::step::RequestId;

use crate::load::{Arrival, Event, Met, run};

fn options(pages: u32, page: u32, context: usize) -> Options {
    Options::new(Digest::of(b"model"), pages, page, context)
}

fn arrival() -> impl Strategy<Value = Event> {
    let prompt = (0..3u32, 1..40usize, 0..3u32);
    let who = (prop::option::weighted(0.6, 0..6u64), any::<bool>(), prop::bool::weighted(0.4));
    (prompt, 1..30usize, who, prop::option::weighted(0.1, 0..40u64)).prop_map(|((family, length, variant), max_tokens, (adapter, tenant, stops), deadline)| {
        Event::Arrive(Arrival { family, length, variant, max_tokens, adapter, tenant, stops, deadline })
    })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Plan),
        2 => arrival(),
        1 => prop::bool::weighted(0.9).prop_map(|worked| Event::Loaded { worked }),
        1 => prop::option::weighted(0.3, 0..20usize).prop_map(|back| back.map_or(Event::Plan, Event::Cancel)),
    ]
}

fn sizes() -> impl Strategy<Value = (Options, usize)> {
    let policy = (0..4u32, prop_oneof![3 => Just(0), 1 => Just(5), 1 => Just(1000)], prop_oneof![1 => 1..4usize, 3 => Just(256)]);
    (1..30u32, 1..6u32, 2..70usize, (1..8u32, 0..40usize), (1..5u32, 1..3u32), policy, 1..4usize).prop_map(
        |(pages, page, context, (seats, more), (slots, loads), (patience, reserve, lookahead), depth)| {
            let mut options = options(pages, page, context);
            (options.seats, options.budget, options.slots, options.loads) = (seats, seats as usize + more, slots, loads);
            (options.patience, options.reserve, options.lookahead) = (patience, reserve, lookahead);
            (options, depth)
        },
    )
}

#[test]
fn every_rule_holds_over_a_hundred_thousand_random_plans() {
    let config = Config { cases: 2500, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let sum = Cell::new(Met::default());
    let tested = runner.run(&(sizes(), prop::collection::vec(event(), 1..160)), |((options, depth), events)| {
        let (met, mut all) = (run(options, depth, &events), sum.get());
        all.plans += met.plans;
        all.preemptions += met.preemptions;
        all.cached += met.cached;
        all.replaced += met.replaced;
        all.sampled_rows += met.sampled_rows;
        all.chunks += met.chunks;
        all.shared_pages += met.shared_pages;
        all.ends.iter_mut().zip(met.ends).for_each(|(all, ends)| *all += ends);
        sum.set(all);
        Ok(())
    });
    tested.unwrap();
    let met = sum.get();
    println!("{met:?}");
    assert!(met.plans >= 100_000, "{met:?}");
    // A load that never meets a rule proves nothing about it.
    let counts = [met.preemptions, met.cached, met.replaced, met.sampled_rows, met.chunks, met.shared_pages];
    assert!(counts.into_iter().chain(met.ends).all(|count| count >= 200), "{met:?}");
}

/// A scheduler, and what came out of it.
struct Bench {
    scheduler: Scheduler,
    plan: Plan,
    ends: Vec<Finished>,
}

impl Bench {
    fn new(options: Options) -> Self {
        Self { scheduler: Scheduler::new(options).unwrap(), plan: Plan::default(), ends: Vec::new() }
    }

    fn submit(&mut self, length: usize, max_tokens: usize, adapter: Option<u64>) -> RequestId {
        let mut request = Request::new((0..length as u32).collect(), max_tokens);
        request.adapter = adapter.map(|id| Adapter { id: AdapterId(id), content: Digest::of(&id.to_le_bytes()) });
        self.scheduler.submit(request).unwrap()
    }

    /// Plans a step, reports it with token 9 for all, ends its loads, and returns how many rows each request had.
    fn step(&mut self, now: u64) -> Vec<(RequestId, usize)> {
        self.scheduler.plan(now, &mut self.plan, &mut self.ends).unwrap();
        let sampled: Vec<Sampled> = self.plan.step.sample.iter().map(|row| Sampled { request: row.request, token: 9 }).collect();
        if self.plan.number > 0 {
            self.scheduler.report(self.plan.number, &sampled, &mut self.ends).unwrap();
        }
        for load in &self.plan.loads {
            self.scheduler.adapter_loaded(load.adapter).unwrap();
        }
        self.plan.step.sequences.iter().map(|span| (span.request, span.rows.len())).collect()
    }
}

#[test]
fn a_long_prompt_is_computed_in_parts_beside_requests_that_decode() {
    let mut bench = Bench::new(Options { budget: 10, seats: 4, ..options(64, 4, 256) });
    let short = bench.submit(3, 20, None);
    let long = bench.submit(23, 2, None);
    let late = bench.submit(4, 2, None);
    assert_eq!(bench.step(0), [(short, 3), (long, 7)]);
    assert_eq!(bench.plan.step.sample.len(), 1, "the long one is not done");
    assert_eq!(bench.step(1), [(short, 1), (long, 9)]);
    assert_eq!(bench.step(2), [(short, 1), (long, 7), (late, 2)]);
    assert_eq!(bench.step(3), [(short, 1), (long, 1), (late, 2)]);
    assert_eq!(bench.ends, [Finished { request: long, reason: Finish::Length, generated: 2, cached: 0, preemptions: 0 }]);
}

#[test]
fn the_latest_is_preempted_and_finds_its_pages_again() {
    // 6 pages of 4: two requests of 8 tokens fit, their answers do not.
    let mut bench = Bench::new(options(6, 4, 256));
    let first = bench.submit(8, 12, None);
    let second = bench.scheduler.submit(Request::new((100..108).collect(), 12)).unwrap();
    let mut rows = Vec::new();
    let mut preempted = Vec::new();
    for now in 0..40 {
        rows.extend(bench.step(now));
        preempted.extend(bench.plan.preempted.clone());
    }
    assert_eq!(preempted, [second]);
    let ended: Vec<_> = bench.ends.iter().map(|end| (end.request, end.generated, end.reason, end.preemptions)).collect();
    assert_eq!(ended, [(first, 12, Finish::Length, 0), (second, 12, Finish::Length, 1)]);
    let computed = |of| rows.iter().filter(|(request, _)| *request == of).map(|(_, count)| count).sum::<usize>();
    assert_eq!(computed(first), 19);
    // It lost its pages at 12 tokens, and the first took two of the three; those at the end of its text went first.
    assert_eq!(computed(second), 19 + 8);
}

#[test]
fn a_request_that_fills_the_pool_ends_with_length() {
    let mut bench = Bench::new(options(3, 4, 256));
    let request = bench.submit(5, 100, None);
    (0..20).for_each(|now| _ = bench.step(now));
    assert_eq!(bench.ends, [Finished { request, reason: Finish::Length, generated: 8, cached: 0, preemptions: 0 }]);
    let told = bench.scheduler.submit(Request::new(vec![0; 13], 1)).unwrap_err().to_string();
    assert_eq!(told, "prompt: expected at most 12 tokens, which is all of the pool: 3 pages of 4, found 13");
}

#[test]
fn a_prompt_is_shared_with_equal_adapters_only() {
    let mut bench = Bench::new(Options { slots: 2, ..options(64, 4, 256) });
    let cached = |bench: &mut Bench, adapter| {
        bench.ends.clear();
        bench.submit(20, 1, adapter);
        (0..4).for_each(|now| _ = bench.step(now));
        bench.ends[0].cached
    };
    let adapters = [None, None, Some(1), Some(1), Some(2), None, Some(2)];
    // The last token is always computed, and a page in part is no hit: 4 of 5 pages.
    assert_eq!(adapters.map(|adapter| cached(&mut bench, adapter)), [0, 16, 0, 16, 0, 16, 16]);
}

/// What a step that failed was to fill is not found afterwards.
#[test]
fn prefixes_that_were_forgotten_are_computed_again() {
    let mut bench = Bench::new(options(64, 4, 256));
    let mut cached = |forget: bool| {
        bench.ends.clear();
        bench.submit(20, 1, None);
        (0..4).for_each(|now| _ = bench.step(now));
        if forget {
            bench.scheduler.forget_prefixes();
        }
        bench.ends[0].cached
    };
    assert_eq!([false, true, false, false].map(&mut cached), [0, 16, 0, 16]);
}

#[test]
fn who_waits_too_long_for_a_slot_bars_later_adapters() {
    let mut bench = Bench::new(Options { slots: 1, patience: 3, ..options(256, 4, 256) });
    bench.submit(4, 8, Some(1));
    bench.step(0);
    bench.step(1);
    let waits = bench.submit(4, 4, Some(2));
    let mut served_at = None;
    let mut let_in = Vec::new();
    for now in 2..60 {
        // A stream of requests of the resident adapter, and of the base model.
        let (same, base) = (bench.submit(4, 8, Some(1)), bench.submit(4, 1, None));
        let step = bench.step(now);
        let_in.extend([same, base].map(|request| (now, step.iter().any(|(other, _)| *other == request))));
        if step.iter().any(|(request, _)| *request == waits) {
            served_at = Some(now);
            break;
        }
    }
    let same: Vec<bool> = let_in.iter().step_by(2).map(|(_, let_in)| *let_in).collect();
    assert_eq!(same[..5], [true, true, true, false, false], "patience of 3 plans");
    assert!(same[3..].iter().all(|let_in| !let_in));
    assert!(let_in.iter().skip(1).step_by(2).all(|(_, let_in)| *let_in), "the base model needs no slot");
    // The last of the others came in plan 4 and has 8 tokens.
    assert_eq!(served_at, Some(13));
}

#[test]
fn the_adapter_that_was_used_the_longest_ago_goes() {
    let mut bench = Bench::new(Options { slots: 2, ..options(256, 4, 256) });
    let mut loads = Vec::new();
    for (now, adapter) in [1, 2, 1, 3, 1, 2].into_iter().enumerate() {
        bench.submit(4, 1, Some(adapter));
        for plan in 0..3 {
            bench.step(3 * now as u64 + plan);
            loads.append(&mut bench.plan.loads);
        }
    }
    let load = |adapter, slot, replaces: Option<u64>| Load { adapter: AdapterId(adapter), slot, replaces: replaces.map(AdapterId) };
    assert_eq!(loads, [load(1, 0, None), load(2, 1, None), load(3, 1, Some(2)), load(2, 1, Some(3))]);
}

#[test]
fn a_later_request_does_not_evict_what_an_earlier_one_waits_with() {
    // 8 pages of 4, of which the first request has 6 to its end.
    let mut bench = Bench::new(Options { slots: 1, reserve: 100, ..options(8, 4, 256) });
    bench.submit(4, 20, None);
    let (earlier, later) = (bench.submit(12, 2, Some(1)), bench.submit(4, 2, Some(2)));
    let (mut loads, mut served) = (Vec::new(), Vec::new());
    for now in 0..40 {
        let step = bench.step(now);
        served.extend(step.iter().map(|(request, _)| *request).filter(|request| [earlier, later].contains(request)));
        loads.extend(bench.plan.loads.iter().map(|load| load.adapter.0));
    }
    served.dedup();
    assert_eq!((loads, served), (vec![1, 2], vec![earlier, later]));
}

#[test]
fn deadlines_cancels_and_failed_loads_end_requests_by_name() {
    let mut bench = Bench::new(Options { slots: 1, ..options(64, 4, 256) });
    let mut late = Request::new(vec![1, 2], 50);
    late.deadline = Some(3);
    let late = bench.scheduler.submit(late).unwrap();
    let given_up = bench.submit(2, 50, None);
    let failing = bench.submit(2, 50, Some(7));
    bench.scheduler.plan(0, &mut bench.plan, &mut bench.ends).unwrap();
    assert_eq!(bench.plan.loads, [Load { adapter: AdapterId(7), slot: 0, replaces: None }]);
    bench.scheduler.adapter_failed(AdapterId(7), &mut bench.ends).unwrap();
    bench.ends.extend(bench.scheduler.finish(given_up, Finish::Cancelled).unwrap());
    assert_eq!(bench.scheduler.finish(given_up, Finish::Cancelled).unwrap(), None);
    // A token of a request that was given up is dropped.
    let sampled = [late, given_up].map(|request| Sampled { request, token: 5 });
    bench.scheduler.report(1, &sampled, &mut bench.ends).unwrap();
    (1..5).for_each(|now| _ = bench.step(now));
    let ended: Vec<_> = bench.ends.iter().map(|end| (end.request, end.reason.name(), end.generated)).collect();
    assert_eq!(ended, [(failing, "error", 0), (given_up, "cancelled", 0), (late, "deadline", 3)]);
    assert_eq!((bench.scheduler.usage().free_pages, bench.scheduler.usage().resident), (64, 0));
}

#[test]
fn a_stop_token_ends_a_request_and_counts() {
    let mut bench = Bench::new(options(64, 4, 256));
    let mut request = Request::new(vec![1], 50);
    request.stop = vec![4, 9];
    let request = bench.scheduler.submit(request).unwrap();
    bench.step(0);
    assert_eq!(bench.ends, [Finished { request, reason: Finish::Stop, generated: 1, cached: 0, preemptions: 0 }]);
}

#[test]
fn what_has_no_meaning_is_refused() {
    let refused = |result: trifuse::Result<()>| match result {
        Err(Error::Invalid { subject, .. }) => subject,
        other => panic!("{other:?}"),
    };
    let sizes = |change: fn(&mut Options)| {
        let mut options = options(4, 4, 8);
        change(&mut options);
        refused(Scheduler::new(options).map(drop))
    };
    assert_eq!(sizes(|options| options.budget = 255), "budget");
    assert_eq!(sizes(|options| options.pages = 0), "pool of pages");
    assert_eq!(sizes(|options| options.page = 0), "pages times tokens of a page");
    assert_eq!(sizes(|options| (options.pages, options.page) = (1 << 20, 1 << 20)), "pages times tokens of a page");
    assert_eq!(sizes(|options| options.seats = 0), "seats");
    assert_eq!(sizes(|options| options.context = 1), "context");
    let mut bench = Bench::new(options(4, 4, 8));
    let mut submit = |request: Request| refused(bench.scheduler.submit(request).map(drop));
    assert_eq!(submit(Request::new(vec![], 1)), "prompt");
    assert_eq!(submit(Request::new(vec![1; 8], 1)), "prompt");
    assert_eq!(submit(Request::new(vec![1], 0)), "max_tokens");
    let mut with = Request::new(vec![1], 1);
    with.adapter = Some(Adapter { id: AdapterId(1), content: Digest([0; 32]) });
    assert_eq!(submit(with), "request");
    assert_eq!(refused(bench.scheduler.report(1, &[], &mut bench.ends)), "step");
    assert_eq!(refused(bench.scheduler.finish(RequestId(0), Finish::Stop).map(drop)), "request");
    assert_eq!(refused(bench.scheduler.adapter_loaded(AdapterId(3))), "adapter");
    let request = bench.submit(1, 3, None);
    bench.scheduler.plan(0, &mut bench.plan, &mut bench.ends).unwrap();
    let twice = [Sampled { request, token: 1 }; 2];
    assert_eq!(refused(bench.scheduler.report(1, &twice, &mut bench.ends)), "sampled token");
}
