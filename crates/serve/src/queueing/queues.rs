//! Deficit round robin (Shreedhar and Varghese, 1995): whoever asks for much waits behind themselves alone.
//!
//! [`Queues`] shares the device among tenants by their weights, and a tenant's part among its adapters evenly.

use std::collections::VecDeque;

/// What a lane may spend in one round, in tokens: one row tile.
const QUANTUM: u64 = 64;

/// A queue whose next item can be priced before it is taken.
pub trait Queue: Default {
    /// What waits.
    type Item;

    /// The cost of the item that [`pop`](Self::pop) gives next; `None` where nothing waits.
    fn next_cost(&mut self) -> Option<u64>;

    /// The next item.
    fn pop(&mut self) -> Option<Self::Item>;
}

/// First in, first out.
#[derive(Debug)]
pub struct Fifo<T>(VecDeque<(u64, T)>);

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Fifo<T> {
    /// Takes the items for which `those` holds, and gives their cost.
    fn take_those(&mut self, those: &mut dyn FnMut(&T) -> bool, into: &mut Vec<T>) -> u64 {
        let mut gone = 0;
        for (cost, item) in std::mem::take(&mut self.0) {
            if those(&item) {
                gone += cost;
                into.push(item);
            } else {
                self.0.push_back((cost, item));
            }
        }
        gone
    }
}

impl<T> Queue for Fifo<T> {
    type Item = T;

    fn next_cost(&mut self) -> Option<u64> {
        self.0.front().map(|(cost, _)| *cost)
    }

    fn pop(&mut self) -> Option<T> {
        self.0.pop_front().map(|(_, item)| item)
    }
}

#[derive(Debug)]
struct Lane<K, Q> {
    key: K,
    queue: Q,
    quantum: u64,
    deficit: u64,
    /// The cost of all that waits in it.
    waits: u64,
}

/// Lanes that take turns. A lane with nothing in it is gone, and saves nothing up.
#[derive(Debug)]
pub struct RoundRobin<K, Q> {
    lanes: VecDeque<Lane<K, Q>>,
}

impl<K, Q> Default for RoundRobin<K, Q> {
    fn default() -> Self {
        Self { lanes: VecDeque::new() }
    }
}

impl<K: PartialEq, Q: Queue> RoundRobin<K, Q> {
    /// The lane of `key`, in which something of that cost is about to be put.
    fn lane(&mut self, key: K, weight: u64, cost: u64) -> &mut Q {
        let at = self.lanes.iter().position(|lane| lane.key == key).unwrap_or(self.lanes.len());
        if at == self.lanes.len() {
            let quantum = QUANTUM.saturating_mul(weight.max(1));
            self.lanes.push_back(Lane { key, queue: Q::default(), quantum, deficit: quantum, waits: 0 });
        }
        let lane = &mut self.lanes[at];
        lane.waits = lane.waits.saturating_add(cost);
        &mut lane.queue
    }

    /// The cost of what has its turn before all that waits in the lane of `key` has had its own, that itself included.
    fn ahead(&self, key: &K, weight: u64) -> u64 {
        let (mut own, mut quanta) = (0, QUANTUM.saturating_mul(weight.max(1)));
        let (own_quantum, mut all) = (quanta, 0u64);
        for lane in self.lanes.iter().filter(|lane| lane.waits > 0) {
            all = all.saturating_add(lane.waits);
            if lane.key == *key {
                own = lane.waits;
            } else {
                quanta = quanta.saturating_add(lane.quantum);
            }
        }
        // For each quantum of its own the others have one each.
        let turns = u128::from(own) * u128::from(quanta) / u128::from(own_quantum);
        all.min(u64::try_from(turns).unwrap_or(u64::MAX))
    }

    /// Turns to the lane that is next and can pay for its item.
    fn turn(&mut self) -> Option<u64> {
        loop {
            let mut lane = self.lanes.pop_front()?;
            match lane.queue.next_cost() {
                None => {}
                Some(cost) if cost <= lane.deficit => {
                    self.lanes.push_front(lane);
                    return Some(cost);
                }
                Some(_) => {
                    lane.deficit = lane.deficit.saturating_add(lane.quantum);
                    self.lanes.push_back(lane);
                }
            }
        }
    }
}

impl<K: PartialEq, Q: Queue> Queue for RoundRobin<K, Q> {
    type Item = Q::Item;

    fn next_cost(&mut self) -> Option<u64> {
        self.turn()
    }

    fn pop(&mut self) -> Option<Q::Item> {
        let cost = self.turn()?;
        let lane = self.lanes.front_mut()?;
        lane.deficit -= cost;
        lane.waits = lane.waits.saturating_sub(cost);
        lane.queue.pop()
    }
}

/// Whoever asks: the number of an API key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tenant {
    /// The key's number.
    pub number: u32,
    /// The tenant's share against that of others; 0 counts as 1.
    pub share: u32,
}

/// What waits for a device: a lane a tenant, and in it a lane an adapter.
#[derive(Debug)]
pub struct Queues<T> {
    tenants: RoundRobin<u32, RoundRobin<u64, Fifo<T>>>,
    len: usize,
    cost: u64,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { tenants: RoundRobin::default(), len: 0, cost: 0 }
    }
}

impl<T> Queues<T> {
    /// Puts an item at the end of its tenant's and adapter's lane. `adapter` is any number that tells adapters apart.
    pub fn push(&mut self, tenant: Tenant, adapter: u64, cost: u64, item: T) {
        self.tenants.lane(tenant.number, tenant.share.into(), cost).lane(adapter, 1, cost).0.push_back((cost, item));
        self.len += 1;
        self.cost = self.cost.saturating_add(cost);
    }

    /// Puts an item that had its turn back, before all others of its tenant's and adapter's lane.
    pub fn push_front(&mut self, tenant: Tenant, adapter: u64, cost: u64, item: T) {
        self.tenants.lane(tenant.number, tenant.share.into(), cost).lane(adapter, 1, cost).0.push_front((cost, item));
        self.len += 1;
        self.cost = self.cost.saturating_add(cost);
    }

    /// Takes the items for which `those` holds out of their lanes, whosever turn it is.
    pub fn take_those(&mut self, mut those: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for tenant in &mut self.tenants.lanes {
            for adapter in &mut tenant.queue.lanes {
                let gone = adapter.queue.take_those(&mut those, &mut taken);
                adapter.waits = adapter.waits.saturating_sub(gone);
                tenant.waits = tenant.waits.saturating_sub(gone);
                self.cost = self.cost.saturating_sub(gone);
            }
        }
        self.len -= taken.len();
        taken
    }

    /// The cost of the item that is next.
    pub fn next_cost(&mut self) -> Option<u64> {
        self.tenants.next_cost()
    }

    /// The item that is next.
    pub fn pop(&mut self) -> Option<T> {
        let cost = self.tenants.next_cost()?;
        let item = self.tenants.pop()?;
        self.len -= 1;
        self.cost = self.cost.saturating_sub(cost);
        Some(item)
    }

    /// The cost of what has its turn before an item that the tenant would put here now: the tenant's own, and what others have in turn with it.
    pub fn ahead(&self, tenant: Tenant) -> u64 {
        self.tenants.ahead(&tenant.number, tenant.share.into())
    }

    /// The cost of all items.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
