//! Adapters that are loaded when a request first names them, and go when others need their room.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::adapters::{model, put};
use super::app::App;
use super::fault::Fault;
use crate::keeper::{Adapters, Wish};

/// How often a name is loaded for one request, where others take its place before the request has it.
const TRIES: usize = 8;

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

/// The name of an adapter without that of its model.
fn alias<'a>(own: &str, name: &'a str) -> &'a str {
    name.strip_prefix(own).and_then(|rest| rest.strip_prefix(':')).unwrap_or(name)
}

/// What `lease` gives, once the adapters of the model `own` that `names` name are there: those below the adapter root are loaded, where the server loads what is
/// asked for.
///
/// # Errors
/// Those of `lease`; an adapter that cannot be loaded; no room for it beside others that are in use.
pub async fn leased<T>(app: &Arc<App>, own: &str, names: impl FnOnce() -> Vec<String>, lease: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
    let (Some(most), Some(root)) = (app.config.on_demand, &app.config.adapter_root) else { return lease() };
    let mut wanted: Vec<String> = names().iter().map(|name| alias(own, name).to_owned()).filter(|name| name != own).collect();
    wanted.sort_unstable();
    wanted.dedup();
    for _ in 0..TRIES {
        for name in &wanted {
            let there = model(app, Some(own))?.has(name);
            if there {
                let mut uses = app.demand.uses();
                let name = (own.to_owned(), name.clone());
                // Those of the start are not counted: they stay.
                if uses.last.contains_key(&name) {
                    uses.used(name);
                }
            } else if root.has(name) {
                let wish = Wish { alias: name.clone(), ..Wish::default() };
                match put(app, own.to_owned(), wish, (name.clone(), name.clone()), None, &wanted).await {
                    Err(fault) if fault.code != "name_taken" => return Err(fault.renamed("lora_path", "model")),
                    // Another request was sooner.
                    _ => {}
                }
            }
        }
        match lease() {
            // What was there had to go before the request had it.
            Err(fault) if fault.code == "model_not_found" && wanted.iter().any(|name| root.has(name)) => {}
            done => return done,
        }
    }
    Err(Fault::crowded(most))
}
