//! Which adapters were loaded while the server runs, when each was asked for last, and which of them goes when another needs its room.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::fault::Fault;
use crate::keeper::Adapters;

/// A model's name, and that of an adapter of it.
type Name = (String, String);

#[derive(Default)]
struct Uses {
    /// A count that rises with each use.
    clock: u64,
    /// When each adapter that was loaded was asked for last.
    last: HashMap<Name, u64>,
    /// Those that never go by themselves.
    pinned: BTreeSet<Name>,
}

impl Uses {
    fn used(&mut self, name: Name) {
        self.clock += 1;
        self.last.insert(name, self.clock);
    }
}

/// What is known of adapters that were loaded while the server runs; those of the start stay.
#[derive(Default)]
pub struct Demand(Mutex<Uses>);

impl Demand {
    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an adapter is there, and whether it is pinned, where that was said.
    pub fn loaded(&self, base: &str, alias: &str, pinned: Option<bool>) {
        let (mut uses, name) = (self.uses(), (base.to_owned(), alias.to_owned()));
        match pinned {
            Some(true) => drop(uses.pinned.insert(name.clone())),
            Some(false) => drop(uses.pinned.remove(&name)),
            None => {}
        }
        uses.used(name);
    }

    /// Notes that an adapter was asked for. Those of the start are not counted: they stay.
    pub fn asked(&self, base: &str, alias: &str) {
        let (mut uses, name) = (self.uses(), (base.to_owned(), alias.to_owned()));
        if uses.last.contains_key(&name) {
            uses.used(name);
        }
    }

    /// Notes that an adapter is gone.
    pub fn gone(&self, base: &str, alias: &str) {
        let (mut uses, name) = (self.uses(), (base.to_owned(), alias.to_owned()));
        uses.last.remove(&name);
        uses.pinned.remove(&name);
    }

    /// Whether an adapter never goes by itself.
    pub fn is_pinned(&self, base: &str, alias: &str) -> bool {
        self.uses().pinned.contains(&(base.to_owned(), alias.to_owned()))
    }

    /// Refuses to pin an adapter where none could come any more.
    ///
    /// # Errors
    /// All but one of the `most` places are pinned.
    pub fn may_pin(&self, most: usize, base: &str, alias: &str) -> Result<(), Fault> {
        let uses = self.uses();
        let others = uses.pinned.iter().filter(|(own, name)| (own.as_str(), name.as_str()) != (base, alias)).count();
        let message = || format!("pinned: expected at most {} adapters, so that others can come, found one more", most.saturating_sub(1));
        if others + 1 < most { Ok(()) } else { Err(Fault::param("pinned", "invalid_value", message())) }
    }

    /// The adapter of a model that goes when one more comes, if one has to: where there are `most`, the one that was asked for longest ago of those that are not
    /// wanted, not pinned, and in no request.
    ///
    /// # Errors
    /// One has to go, and none can.
    pub fn goes(&self, model: &dyn Adapters, most: usize, wanted: &[String]) -> Result<Option<String>, Fault> {
        let uses = self.uses();
        let own = || uses.last.iter().filter(|((base, _), _)| base == model.base());
        if own().count() < most.max(1) {
            return Ok(None);
        }
        let may_go = |name: &Name| !uses.pinned.contains(name) && !wanted.contains(&name.1) && model.users(&name.1).is_none_or(|users| users == 0);
        let oldest = own().filter(|(name, _)| may_go(name)).min_by_key(|(_, last)| **last);
        oldest.map(|((_, alias), _)| Some(alias.clone())).ok_or_else(|| Fault::crowded(most))
    }
}
