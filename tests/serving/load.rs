//! A load on a scheduler, with a device that only remembers: what lies in every slot, seat and adapter's place. Every rule of a plan is checked
//! against it, and every answer against the answer alone.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use trifuse::llm::cache::Digest;
use trifuse::llm::schedule::{Adapter, AdapterId, Finish, Finished, Options, Plan, Request, Sampled, Scheduler};
use trifuse::llm::step::{RequestId, Row, Token};

/// The id that ends the text of requests that stop.
const STOP: u32 = 3;

/// What happens to a scheduler.
#[derive(Clone, Debug)]
pub enum Event {
    Arrive(Arrival),
    /// Gives up the request of that index, counted from the last.
    Cancel(usize),
    /// Ends the oldest load.
    Loaded {
        worked: bool,
    },
    Plan,
}

/// A request in few numbers.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Prompts of a family begin alike.
    pub family: u32,
    pub length: usize,
    /// The last token, which tells prompts of one length apart.
    pub variant: u32,
    pub max_tokens: usize,
    pub adapter: Option<u64>,
    pub tenant: bool,
    pub stops: bool,
    /// Plans until its deadline.
    pub deadline: Option<u64>,
}

/// What a load has met, so that a test can say that it met enough.
#[derive(Clone, Copy, Debug, Default)]
pub struct Met {
    pub plans: usize,
    pub preemptions: usize,
    pub cached: usize,
    pub replaced: usize,
    pub sampled_rows: usize,
    pub chunks: usize,
    pub shared_pages: usize,
    pub ends: [usize; 5],
}

/// A request as the device sees it.
struct Asked {
    arrival: Arrival,
    prompt: usize,
    tokens: Vec<u32>,
    /// What K and V of each token depend on.
    content: Vec<u64>,
    computed: usize,
    reported: usize,
    end: Option<Finished>,
}

struct World {
    options: Options,
    depth: usize,
    scheduler: Scheduler,
    twin: Scheduler,
    asked: BTreeMap<RequestId, Asked>,
    kv: Vec<Option<u64>>,
    seats: Vec<Option<u32>>,
    slots: Vec<Option<u64>>,
    loads: VecDeque<(AdapterId, u32)>,
    in_flight: VecDeque<(u64, Vec<Sampled>, BTreeSet<u32>)>,
    now: u64,
    met: Met,
}

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b.wrapping_add(0x1656_67B1_9E37_79F9);
    x = (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 32)
}

fn next_token(content: &[u64]) -> u32 {
    (content.last().unwrap() % 7) as u32
}

impl Asked {
    fn new(arrival: Arrival) -> Self {
        let mut tokens: Vec<u32> = (0..arrival.length as u32).map(|at| 100 * arrival.family + at % 90).collect();
        *tokens.last_mut().unwrap() += 10_000 * arrival.variant;
        let mut asked = Self { prompt: tokens.len(), tokens: Vec::new(), content: Vec::new(), arrival, computed: 0, reported: 0, end: None };
        tokens.into_iter().for_each(|token| asked.push(token));
        asked
    }

    fn push(&mut self, token: u32) {
        let start = || mix(self.arrival.adapter.map_or(0, |adapter| adapter + 1), u64::from(self.arrival.tenant));
        let before = self.content.last().copied().unwrap_or_else(start);
        self.tokens.push(token);
        self.content.push(mix(before, u64::from(token)));
    }

    /// The answer that the request gets alone, and why it ends.
    fn alone(&self, options: &Options) -> (Vec<u32>, Finish) {
        let mut alone = Self::new(self.arrival.clone());
        let room = options.pages as usize * options.page as usize + 1;
        loop {
            alone.push(next_token(&alone.content));
            let answer = || alone.tokens[alone.prompt..].to_vec();
            if self.arrival.stops && alone.tokens.last() == Some(&STOP) {
                return (answer(), Finish::Stop);
            }
            if alone.tokens.len() - alone.prompt == self.arrival.max_tokens || alone.tokens.len() == options.context.min(room) {
                return (answer(), Finish::Length);
            }
        }
    }
}

/// Runs a load with `depth` steps in flight, then runs it empty. Panics where a rule is broken.
pub fn run(options: Options, depth: usize, events: &[Event]) -> Met {
    let scheduler = Scheduler::new(options.clone()).unwrap();
    let mut world = World {
        depth,
        twin: scheduler.clone(),
        scheduler,
        asked: BTreeMap::new(),
        kv: vec![None; options.pages as usize * options.page as usize],
        seats: vec![None; options.seats as usize],
        slots: vec![None; options.slots as usize],
        loads: VecDeque::new(),
        in_flight: VecDeque::new(),
        now: 0,
        met: Met::default(),
        options,
    };
    for event in events {
        match event {
            Event::Arrive(arrival) => world.arrive(arrival),
            Event::Cancel(back) => world.cancel(*back),
            Event::Loaded { worked } => world.loaded(*worked),
            Event::Plan => world.plan(),
        }
    }
    world.drain();
    world.met
}

impl World {
    fn arrive(&mut self, arrival: &Arrival) {
        let asked = Asked::new(arrival.clone());
        let mut request = Request::new(asked.tokens.clone(), arrival.max_tokens);
        request.stop = if arrival.stops { vec![99_999, STOP] } else { Vec::new() };
        request.adapter = arrival.adapter.map(|id| Adapter { id: AdapterId(id), content: Digest::of(&id.to_le_bytes()) });
        request.salt = arrival.tenant.then(|| b"tenant".to_vec());
        request.deadline = arrival.deadline.map(|plans| self.now + plans);
        let fits = asked.prompt < self.options.context && asked.prompt <= self.kv.len();
        match self.scheduler.submit(request.clone()) {
            Ok(id) => {
                assert!(fits);
                assert_eq!(self.twin.submit(request).unwrap(), id);
                assert!(self.asked.insert(id, asked).is_none(), "a number twice");
            }
            Err(_) => assert!(!fits && self.twin.submit(request).is_err()),
        }
    }

    fn cancel(&mut self, back: usize) {
        let Some(id) = self.asked.keys().rev().nth(back).copied() else { return };
        let end = self.scheduler.finish(id, Finish::Cancelled).unwrap();
        assert_eq!(end, self.twin.finish(id, Finish::Cancelled).unwrap());
        assert_eq!(end.is_some(), self.asked[&id].end.is_none());
        self.ends(end.as_slice());
    }

    fn loaded(&mut self, worked: bool) {
        let Some((adapter, slot)) = self.loads.pop_front() else { return };
        let (mut ends, mut twin) = (Vec::new(), Vec::new());
        if worked {
            self.slots[slot as usize] = Some(adapter.0);
            self.scheduler.adapter_loaded(adapter).unwrap();
            self.twin.adapter_loaded(adapter).unwrap();
        } else {
            self.scheduler.adapter_failed(adapter, &mut ends).unwrap();
            self.twin.adapter_failed(adapter, &mut twin).unwrap();
            assert!(ends.iter().all(|end| self.asked[&end.request].arrival.adapter == Some(adapter.0) && end.reason == Finish::Error));
        }
        assert_eq!(ends, twin);
        self.ends(&ends);
        assert!(worked || self.asked.values().all(|asked| asked.end.is_some() || asked.arrival.adapter != Some(adapter.0)));
    }

    fn ends(&mut self, ends: &[Finished]) {
        for end in ends {
            let asked = self.asked.get_mut(&end.request).unwrap();
            assert!(asked.end.replace(*end).is_none(), "{:?} ended twice", end.request);
            assert_eq!(end.generated, asked.reported);
            let (answer, reason) = asked.alone(&self.options);
            let told = &asked.tokens[asked.prompt..][..end.generated];
            match end.reason {
                Finish::Stop | Finish::Length => assert_eq!((told, end.reason), (&answer[..], reason), "{:?} alone", end.request),
                _ => assert_eq!(told, &answer[..told.len()]),
            }
            self.met.cached += end.cached;
            self.met.ends[end.reason as usize] += 1;
        }
    }

    /// Reports steps until at most `most` are in flight.
    fn report(&mut self, most: usize) {
        while self.in_flight.len() > most {
            let (number, sampled, _) = self.in_flight.pop_front().unwrap();
            for Sampled { request, .. } in &sampled {
                let asked = self.asked.get_mut(request).unwrap();
                asked.reported += usize::from(asked.end.is_none());
            }
            let (mut ends, mut twin) = (Vec::new(), Vec::new());
            self.scheduler.report(number, &sampled, &mut ends).unwrap();
            self.twin.report(number, &sampled, &mut twin).unwrap();
            assert_eq!(ends, twin);
            self.ends(&ends);
        }
    }

    fn plan(&mut self) {
        self.report(self.depth - 1);
        let before = self.scheduler.running().to_vec();
        let (mut plan, mut ends) = (Plan::default(), Vec::new());
        let (mut twin, mut twin_ends) = (Plan::default(), Vec::new());
        self.scheduler.plan(self.now, &mut plan, &mut ends).unwrap();
        self.twin.plan(self.now, &mut twin, &mut twin_ends).unwrap();
        assert_eq!((&plan, &ends), (&twin, &twin_ends), "equal calls, equal plans");
        assert!(ends.iter().all(|end| end.reason == Finish::Deadline));
        self.ends(&ends);
        self.now += 1;
        self.met.plans += 1;
        let before: Vec<RequestId> = before.into_iter().filter(|id| self.asked[id].end.is_none()).collect();
        self.check_running(&before, &plan);
        self.check_adapters(&plan);
        let owners = self.check_pages(&plan);
        self.compute(&before, &plan);
        self.check_balance(&plan, &owners);
    }

    /// Each running request advances or is preempted, the latest first and never the first of all. The budget is kept.
    fn check_running(&mut self, before: &[RequestId], plan: &Plan) {
        let stay = before.len() - plan.preempted.len();
        assert!(plan.preempted.iter().eq(before[stay..].iter().rev()));
        assert!(stay > 0 || before.is_empty(), "the first of all was preempted");
        let advanced: Vec<RequestId> = plan.step.sequences.iter().map(|span| span.request).collect();
        assert_eq!(advanced[..stay], before[..stay]);
        assert!(plan.preempted.is_empty() || advanced.len() == stay, "nobody is let in where somebody is preempted");
        assert!(plan.step.rows.len() <= self.options.budget && advanced.len() <= self.options.seats as usize);
        assert_eq!(plan.number == 0, plan.step.rows.is_empty());
        assert!(advanced.iter().all(|id| self.asked[id].end.is_none()));
        assert!(self.options.reserve < 1000 || plan.preempted.is_empty(), "all is reserved");
        self.met.preemptions += plan.preempted.len();
        for id in &plan.preempted {
            self.asked.get_mut(id).unwrap().computed = 0;
        }
    }

    fn check_adapters(&mut self, plan: &Plan) {
        let named: BTreeSet<u32> = plan.step.rows.iter().filter_map(|row| row.adapter).collect();
        assert!(named.len() <= self.options.slots as usize);
        for load in &plan.loads {
            assert!(!named.contains(&load.slot) && self.in_flight.iter().all(|(_, _, named)| !named.contains(&load.slot)), "loaded under a step");
            assert_eq!(self.slots[load.slot as usize].take(), load.replaces.map(|adapter| adapter.0));
            assert!(!self.slots.contains(&Some(load.adapter.0)), "loaded twice");
            self.met.replaced += usize::from(load.replaces.is_some());
            self.loads.push_back((load.adapter, load.slot));
        }
        assert!(self.loads.len() <= self.options.loads as usize);
        for span in &plan.step.sequences {
            let adapter = self.asked[&span.request].arrival.adapter;
            let found = |row: &Row| row.adapter.map(|slot| self.slots[slot as usize].expect("a slot without an adapter"));
            assert!(plan.step.rows[span.rows.clone()].iter().all(|row| found(row) == adapter));
        }
    }

    /// A page in two lists was full before the step. Returns how many lists have each page.
    fn check_pages(&mut self, plan: &Plan) -> HashMap<u32, u32> {
        let page = self.options.page as usize;
        let mut owners: HashMap<u32, (u32, bool)> = HashMap::new();
        for span in &plan.step.sequences {
            let first = plan.step.rows[span.rows.start].position as usize;
            let pages = plan.step.pages_of(span);
            assert_eq!(pages.len(), (span.kv_len as usize).div_ceil(page));
            for (index, number) in pages.iter().enumerate() {
                let owner = owners.entry(*number).or_insert((0, true));
                owner.0 += 1;
                owner.1 &= (index + 1) * page <= first;
                assert!(owner.0 == 1 || owner.1, "page {number} in two lists, and one of them writes to it");
                self.met.shared_pages += usize::from(owner.0 > 1);
            }
        }
        owners.into_iter().map(|(number, (count, _))| (number, count)).collect()
    }

    /// Does what a device would: stores every row, then reads all that each sequence attends to, then draws.
    fn compute(&mut self, before: &[RequestId], plan: &Plan) {
        let (page, mut next_row) = (self.options.page as usize, 0);
        for span in &plan.step.sequences {
            assert_eq!(span.rows.start, next_row);
            next_row = span.rows.end;
            let asked = self.asked.get_mut(&span.request).unwrap();
            let first = plan.step.rows[span.rows.start].position as usize;
            if before.contains(&span.request) {
                assert_eq!(first, asked.computed);
            } else {
                assert!(first.is_multiple_of(page) && first < asked.tokens.len(), "hits are full pages, and the last token is computed");
            }
            for (at, row) in plan.step.rows[span.rows.clone()].iter().enumerate() {
                let position = first + at;
                let token = match row.token {
                    Token::Known(id) => id,
                    Token::Sampled(seat) => {
                        assert!(position >= asked.prompt + asked.reported, "the host knows it");
                        self.met.sampled_rows += 1;
                        self.seats[seat as usize].expect("a seat without a token")
                    }
                };
                assert_eq!((row.position as usize, token), (position, asked.tokens[position]));
                assert_eq!(row.slot as usize, plan.step.pages_of(span)[position / page] as usize * page + position % page);
                self.kv[row.slot as usize] = Some(asked.content[position]);
            }
            asked.computed = first + span.rows.len();
            self.met.chunks += usize::from(asked.computed < asked.tokens.len());
            assert_eq!(span.kv_len as usize, asked.computed);
        }
        assert_eq!(next_row, plan.step.rows.len());
        let mut sampled = Vec::new();
        let mut samples = plan.step.sample.iter();
        for span in &plan.step.sequences {
            let pages = plan.step.pages_of(span);
            let asked = self.asked.get_mut(&span.request).unwrap();
            for position in 0..span.kv_len as usize {
                let found = self.kv[pages[position / page] as usize * page + position % page];
                assert_eq!(found, Some(asked.content[position]), "{:?} reads what is not its own at {position}", span.request);
            }
            if asked.computed == asked.tokens.len() {
                let sample = samples.next().expect("a sample for each sequence that is computed");
                assert_eq!((sample.request, sample.row, sample.position), (span.request, span.rows.end - 1, span.kv_len));
                let token = next_token(&asked.content);
                asked.push(token);
                self.seats[sample.seat as usize] = Some(token);
                sampled.push(Sampled { request: span.request, token });
            }
        }
        assert!(samples.next().is_none());
        let seats: BTreeSet<u32> = plan.step.sample.iter().map(|sample| sample.seat).collect();
        assert_eq!(seats.len(), plan.step.sample.len(), "two in a seat");
        if plan.number > 0 {
            self.in_flight.push_back((plan.number, sampled, plan.step.rows.iter().filter_map(|row| row.adapter).collect()));
        }
    }

    /// Every page has as many references as lists of running requests have it; free and used pages are all pages.
    fn check_balance(&self, plan: &Plan, owners: &HashMap<u32, u32>) {
        let (usage, running, blocks) = (self.scheduler.usage(), self.scheduler.running(), self.scheduler.blocks());
        assert_eq!(usage.free_pages + usage.used_pages, self.options.pages as usize);
        let mut expected = owners.clone();
        for span in plan.step.sequences.iter().filter(|span| !running.contains(&span.request)) {
            for page in plan.step.pages_of(span) {
                *expected.get_mut(page).unwrap() -= 1;
            }
        }
        for page in 0..self.options.pages {
            assert_eq!(blocks.references(page).unwrap(), expected.get(&page).copied().unwrap_or(0), "references of page {page}");
        }
        assert_eq!(usage.waiting + usage.running + usage.ending, self.asked.values().filter(|asked| asked.end.is_none()).count());
        assert_eq!((usage.steps as usize, usage.loading), (self.in_flight.len(), self.loads.len()));
    }

    /// Plans until all have ended. The first of all advances in every plan, but for plans that load its adapter or wait for reports.
    fn drain(&mut self) {
        let work: usize = self.asked.values().filter(|asked| asked.end.is_none()).map(|asked| asked.arrival.length + asked.arrival.max_tokens + 8).sum();
        let mut left = self.depth * (work + 20);
        while self.asked.values().any(|asked| asked.end.is_none()) {
            assert!(left > 0, "starved: {:?}", self.scheduler.usage());
            left -= 1;
            self.loaded(true);
            self.plan();
            // Where nothing can be planned before a report, an engine waits for it.
            if self.scheduler.usage().running == 0 {
                self.report(0);
            }
        }
        self.report(0);
        while !self.loads.is_empty() {
            self.loaded(true);
        }
        let usage = self.scheduler.usage();
        assert_eq!((usage.used_pages, usage.running, usage.waiting, usage.ending, usage.steps), (0, 0, 0, 0, 0));
    }
}
