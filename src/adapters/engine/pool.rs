//! The pool of adapters on the device: their slots, and which adapter makes room for which.

use std::collections::HashMap;

use super::AdapterId;
use crate::error::{Error, Result};

/// The slots of each map, and the adapters that hold them. A map serves the classes that have the same adapters.
pub struct Pool {
    /// The most adapters on the device at once.
    limit: u32,
    maps: Vec<Map>,
    resident: HashMap<AdapterId, Stay>,
    /// When each adapter was last asked for.
    used: HashMap<AdapterId, u64>,
    clock: u64,
    /// Slots of a new map beyond its first.
    reserve: u32,
    /// How many adapters have left the device until now.
    left: u64,
}

/// An adapter on the device.
struct Stay {
    /// When the adapter came. No two stays have one time.
    since: u64,
    /// The adapter's slot in each of its maps.
    slots: HashMap<usize, u32>,
}

struct Map {
    capacity: u32,
    members: usize,
    free: Vec<u32>,
}

impl Map {
    fn new(capacity: u32, members: usize) -> Self {
        Self { capacity, members, free: (0..capacity).rev().collect() }
    }
}

impl Pool {
    /// A pool that holds as many adapters as fit `limit_bytes`. `members[m]` adapters know map `m`, and `reserve` more may come to know it.
    /// Each `(map, bytes)` of `demand` needs that many bytes a slot of the map.
    pub fn new(members: &[usize], demand: &[(usize, u64)], limit_bytes: Option<u64>, reserve: u32) -> Result<Self> {
        let slots = |members: usize| (members as u32).saturating_add(reserve).max(1);
        let most = members.iter().copied().map(slots).max().unwrap_or(1);
        let bytes = |limit: u32| demand.iter().map(|&(map, bytes)| u64::from(limit.min(slots(members[map]))) * bytes).sum::<u64>();
        let fits = |limit: u32| limit_bytes.is_none_or(|limit_bytes| bytes(limit) <= limit_bytes);
        if !fits(1) {
            return Err(Error::invalid("pool_bytes", format!("at least {} bytes, one adapter of each form", bytes(1)), limit_bytes.unwrap_or(0)));
        }
        let limit = (1..=most).rev().find(|&limit| fits(limit)).unwrap_or(1);
        let maps = members.iter().map(|&members| Map::new(limit.min(slots(members)), members)).collect();
        // Without a limit in bytes, adapters that are added later may all stay too.
        let limit = if limit_bytes.is_none() { u32::MAX } else { limit };
        Ok(Self { limit, maps, resident: HashMap::new(), used: HashMap::new(), clock: 0, reserve, left: 0 })
    }

    /// The most adapters on the device at once.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The number of maps.
    pub fn maps(&self) -> usize {
        self.maps.len()
    }

    /// The number of slots of a map.
    pub fn capacity(&self, map: usize) -> u32 {
        self.maps[map].capacity
    }

    /// The slots of a new map.
    pub fn first(&self) -> u32 {
        self.reserve.saturating_add(1).min(self.limit)
    }

    /// Adds a map without members.
    pub fn add_map(&mut self) -> usize {
        self.maps.push(Map::new(self.first(), 0));
        self.maps.len() - 1
    }

    /// The slots that a map has for one member more. Doubling keeps a long row of additions from copying every time.
    pub fn grown(&self, map: usize) -> u32 {
        let Map { capacity, members, .. } = self.maps[map];
        let wanted = ((members + 1).min(self.limit as usize) as u32).max(1);
        if wanted <= capacity { capacity } else { wanted.next_power_of_two().min(self.limit) }
    }

    /// Adds an adapter to those that know `map`. Where the map has [`grown`](Self::grown), its memory is replaced: see
    /// [`evict_map`](Self::evict_map).
    pub fn join(&mut self, map: usize) {
        let capacity = self.grown(map);
        self.maps[map].capacity = capacity;
        self.maps[map].members += 1;
    }

    /// Removes an adapter from those that know `map`. Its slots are free for the next.
    pub fn leave(&mut self, map: usize) {
        self.maps[map].members = self.maps[map].members.saturating_sub(1);
    }

    /// Whether the adapter is on the device.
    pub fn is_resident(&self, id: AdapterId) -> bool {
        self.resident.contains_key(&id)
    }

    /// The adapter's slot in a map.
    pub fn slot(&self, id: AdapterId, map: usize) -> Option<u32> {
        self.resident.get(&id)?.slots.get(&map).copied()
    }

    /// When the adapter came to the device, if it is there. An adapter that left and came back came at another time.
    pub fn since(&self, id: AdapterId) -> Option<u64> {
        self.resident.get(&id).map(|stay| stay.since)
    }

    /// How many adapters have left the device until now. While this stays equal, all are where they were.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Notes that the adapter was asked for.
    pub fn touch(&mut self, id: AdapterId) {
        self.clock += 1;
        self.used.insert(id, self.clock);
    }

    /// Takes a slot in each of `maps`. The least recently used adapter makes room; those in `keep` stay.
    pub fn admit(&mut self, id: AdapterId, maps: &[usize], keep: &[AdapterId]) -> Result<Vec<(usize, u32)>> {
        while self.resident.len() as u64 >= u64::from(self.limit) || maps.iter().any(|&map| self.maps[map].free.is_empty()) {
            let oldest = self.resident.keys().filter(|held| !keep.contains(held)).min_by_key(|held| self.used.get(held).copied().unwrap_or(0));
            let Some(&oldest) = oldest else {
                let room = maps.iter().map(|&map| self.maps[map].capacity).min().unwrap_or(self.limit).min(self.limit);
                return Err(Error::invalid("batch", format!("at most {room} adapters at once (the pool's limit)"), format!("{} adapters", keep.len())));
            };
            self.evict(oldest);
        }
        let slots: Vec<(usize, u32)> = maps.iter().filter_map(|&map| self.maps[map].free.pop().map(|slot| (map, slot))).collect();
        self.clock += 1;
        self.resident.insert(id, Stay { since: self.clock, slots: slots.iter().copied().collect() });
        Ok(slots)
    }

    /// Frees the adapter's slots.
    pub fn evict(&mut self, id: AdapterId) {
        let Some(stay) = self.resident.remove(&id) else { return };
        self.left += 1;
        for (map, slot) in stay.slots {
            self.maps[map].free.push(slot);
        }
    }

    /// Frees the slots of an adapter that will not be asked for again.
    pub fn forget(&mut self, id: AdapterId) {
        self.evict(id);
        self.used.remove(&id);
    }

    /// Frees every slot of a map whose memory was replaced. The adapters in it are no longer on the device.
    pub fn evict_map(&mut self, map: usize) {
        let held: Vec<AdapterId> = self.resident.iter().filter(|(_, stay)| stay.slots.contains_key(&map)).map(|(id, _)| *id).collect();
        for id in held {
            self.evict(id);
        }
        let Map { capacity, members, .. } = self.maps[map];
        self.maps[map] = Map::new(capacity, members);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ids(numbers: &[u64]) -> Vec<AdapterId> {
        numbers.iter().map(|&n| AdapterId(n)).collect()
    }

    #[test]
    fn the_least_recently_used_makes_room() {
        let mut pool = Pool::new(&[5], &[(0, 100)], Some(250), 0).unwrap();
        assert_eq!(pool.capacity(0), 2);
        for id in ids(&[0, 1]) {
            pool.touch(id);
            pool.admit(id, &[0], &[id]).unwrap();
        }
        pool.touch(AdapterId(0));
        pool.touch(AdapterId(2));
        pool.admit(AdapterId(2), &[0], &ids(&[2])).unwrap();
        assert!(pool.is_resident(AdapterId(0)) && !pool.is_resident(AdapterId(1)));
        assert_ne!(pool.slot(AdapterId(0), 0), pool.slot(AdapterId(2), 0));
        assert_eq!((pool.left(), pool.since(AdapterId(1))), (1, None));
        // Back in the place that it left, the adapter has not been there since.
        let before = pool.since(AdapterId(2));
        pool.evict(AdapterId(2));
        pool.admit(AdapterId(2), &[0], &ids(&[2])).unwrap();
        assert!(pool.left() == 2 && pool.since(AdapterId(2)) > before);
    }

    #[test]
    fn a_batch_larger_than_the_pool_is_refused() {
        let mut pool = Pool::new(&[3], &[(0, 100)], Some(100), 0).unwrap();
        pool.admit(AdapterId(0), &[0], &ids(&[0, 1])).unwrap();
        assert!(pool.admit(AdapterId(1), &[0], &ids(&[0, 1])).is_err());
        assert!(Pool::new(&[3], &[(0, 100)], Some(99), 0).is_err());
    }

    #[test]
    fn maps_grow_by_doubling_and_shrink_to_nothing_resident() {
        let mut pool = Pool::new(&[2], &[(0, 100)], None, 0).unwrap();
        pool.admit(AdapterId(0), &[0], &[]).unwrap();
        assert_eq!((pool.capacity(0), pool.grown(0)), (2, 4));
        pool.join(0);
        assert_eq!(pool.capacity(0), 4);
        pool.evict_map(0);
        assert!(!pool.is_resident(AdapterId(0)) && pool.grown(0) == 4);
    }

    #[test]
    fn a_reserve_is_room_that_needs_no_growth() {
        let mut pool = Pool::new(&[2], &[(0, 100)], None, 3).unwrap();
        assert_eq!((pool.capacity(0), pool.first()), (5, 4));
        for _ in 0..3 {
            assert_eq!(pool.grown(0), 5);
            pool.join(0);
        }
        assert_eq!(pool.grown(0), 8);
        // Bytes bound the reserve too.
        assert_eq!(Pool::new(&[2], &[(0, 100)], Some(350), 3).unwrap().capacity(0), 3);
    }
}
