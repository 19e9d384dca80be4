//! The slots of the pool of adapters: which adapter is in which, which are being loaded, and which may go.

use std::collections::HashMap;

use super::request::AdapterId;

/// What becomes of a request's wish for an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The adapter is in the slot.
    Resident(u32),
    /// The adapter is being loaded.
    Loading,
    /// The adapter is to be loaded into the slot, where another one was.
    Load { slot: u32, replaces: Option<AdapterId> },
    /// As many adapters as may be are being loaded.
    Busy,
    /// Every slot is in use, or an earlier request wants it.
    Full,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    adapter: Option<AdapterId>,
    loading: bool,
    /// The last step that names the slot.
    step: u64,
    /// The last plan in which a waiting request asked for the adapter.
    wanted: u64,
}

/// The slots and what is in them.
#[derive(Clone, Debug)]
pub(super) struct Adapters {
    slots: Vec<Slot>,
    places: HashMap<AdapterId, u32>,
    loading: u32,
    most: u32,
    /// The last plan that found no slot. Later wishes of that plan find none either.
    full: u64,
}

impl Adapters {
    /// `most` loads may be under way at once.
    pub fn new(slots: u32, most: u32) -> Self {
        let places = HashMap::with_capacity(slots as usize);
        Self { slots: vec![Slot::default(); slots as usize], places, loading: 0, most, full: 0 }
    }

    /// Finds the adapter, or a slot for it: an empty one, or that of the adapter that was used the longest ago. None goes that a step after
    /// `completed` names, the one that is being planned included, or that a request wants which asked earlier in this plan.
    pub fn want(&mut self, adapter: AdapterId, plan: u64, completed: u64) -> Place {
        if let Some(slot) = self.places.get(&adapter) {
            let entry = &mut self.slots[*slot as usize];
            entry.wanted = plan;
            return if entry.loading { Place::Loading } else { Place::Resident(*slot) };
        }
        if self.full == plan {
            return Place::Full;
        }
        let may_go = |slot: &Slot| !slot.loading && slot.step <= completed && slot.wanted != plan;
        let free = self.slots.iter().zip(0u32..).filter(|(slot, _)| may_go(slot));
        let Some((_, slot)) = free.min_by_key(|(slot, number)| (slot.adapter.is_some(), slot.step, *number)) else {
            self.full = plan;
            return Place::Full;
        };
        if self.loading >= self.most {
            return Place::Busy;
        }
        let entry = &mut self.slots[slot as usize];
        let replaces = entry.adapter.replace(adapter);
        (entry.loading, entry.wanted) = (true, plan);
        self.loading += 1;
        if let Some(gone) = replaces {
            self.places.remove(&gone);
        }
        self.places.insert(adapter, slot);
        Place::Load { slot, replaces }
    }

    /// Ends a load; where it failed, the slot is empty. False where the adapter was not being loaded.
    pub fn loaded(&mut self, adapter: AdapterId, worked: bool) -> bool {
        let Some(slot) = self.places.get(&adapter).copied().filter(|slot| self.slots[*slot as usize].loading) else { return false };
        let entry = &mut self.slots[slot as usize];
        entry.loading = false;
        self.loading -= 1;
        if !worked {
            entry.adapter = None;
            self.places.remove(&adapter);
        }
        true
    }

    /// Notes that a step names the slot.
    pub fn named(&mut self, slot: u32, step: u64) {
        self.slots[slot as usize].step = step;
    }

    /// Adapters that steps may name.
    pub fn resident(&self) -> usize {
        self.places.len() - self.loading as usize
    }

    /// Adapters that are being loaded.
    pub fn loading(&self) -> usize {
        self.loading as usize
    }
}
