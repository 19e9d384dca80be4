//! Adapters that come and go while batches run.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::class::{Class, Form};
use super::id::numbers;
use super::served::Forms;
use super::{AdapterId, Engine};
use crate::adapters::encoded::EncodedAdapter;
use crate::backend::Kernel;
use crate::error::{Error, Result, ensure};
use crate::ops::CodebookGemm;
use crate::session::Session;

impl<D: Kernel<CodebookGemm>> Engine<D> {
    /// Adds an adapter that was encoded on this population's bases, while batches run.
    ///
    /// # Errors
    /// A name that is taken; a projection or basis that the population does not have; a pool with no room for it.
    pub fn add(&mut self, session: &mut Session<D>, name: &str, adapter: EncodedAdapter) -> Result<AdapterId> {
        self.own(session)?;
        ensure(!self.names.contains_key(name), "adapter", "a name that is not taken", format_args!("{name:?}"))?;
        let read = Forms::all(self.served.unpack, &self.shared, name, &adapter)?;
        let forms: Vec<Form> = read.into_iter().map(|own| self.served.choose(own)).collect();
        let known: Vec<Option<usize>> = forms.iter().map(|form| self.classes.iter().position(|class| class.form().same_class(form))).collect();
        let joined: BTreeSet<usize> = known.iter().flatten().map(|&at| self.classes[at].map()).collect();
        // What can fail comes first. Where there is no room for one more, the present adapters stay as they are.
        let (mut replaced, mut new) = (Vec::new(), Vec::new());
        for (at, class) in self.classes.iter().enumerate().filter(|(_, class)| joined.contains(&class.map())) {
            let own = forms.iter().zip(&known).find(|(_, known)| **known == Some(at)).map(|(form, _)| class.form().widened(form));
            let (form, capacity) = (own.unwrap_or_else(|| class.form().clone()), self.pool.grown(class.map()));
            if capacity > class.capacity() || form.slot_bytes(self.dtype) > class.slot_bytes() {
                let shared = &self.shared[form.path()];
                replaced.push((at, Class::new(session, form, class.map(), capacity, shared, self.dtype)?));
            }
        }
        for (form, _) in forms.into_iter().zip(&known).filter(|(_, known)| known.is_none()) {
            let shared = &self.shared[form.path()];
            new.push(Class::new(session, form, self.pool.maps() + new.len(), self.pool.first(), shared, self.dtype)?);
        }
        self.generation += (replaced.len() + new.len()) as u64;
        for map in joined {
            self.pool.join(map);
        }
        for class in new {
            let map = self.pool.add_map();
            self.pool.join(map);
            self.classes.push(class);
        }
        for (at, class) in replaced {
            // The class's adapters come back when they are next used.
            self.pool.evict_map(class.map());
            self.classes[at] = class;
            self.plans.clear();
            self.prepared.clear();
        }
        let id = AdapterId(numbers(1));
        self.names.insert(name.into(), id);
        self.added.insert(id, Arc::new(adapter));
        Ok(id)
    }

    /// Takes an adapter's name away, so that another may be added under it. Batches can have the adapter until it is [removed](Self::remove).
    ///
    /// # Errors
    /// An adapter that has no name any more, or that was removed.
    pub fn retire(&mut self, id: AdapterId) -> Result<()> {
        let name = self.names.iter().find(|(_, known)| **known == id).map(|(name, _)| name.clone());
        let name = name.ok_or_else(|| Error::invalid("adapter", "one that has a name", format!("{id:?}")))?;
        self.names.remove(&name);
        self.retired.insert(id, name);
        Ok(())
    }

    /// The name of an adapter; of one that was retired, the name that it had.
    pub(super) fn name(&self, id: AdapterId) -> Result<&str> {
        let named = self.names.iter().find(|(_, known)| **known == id).map(|(name, _)| name);
        named.or_else(|| self.retired.get(&id)).map(String::as_str).ok_or_else(|| Error::invalid("adapter", "one that the engine knows", format!("{id:?}")))
    }

    /// An adapter as it is encoded, from the source or from memory.
    ///
    /// # Errors
    /// An adapter that is not known; what the source fails with.
    pub fn encoded(&self, id: AdapterId) -> Result<Arc<EncodedAdapter>> {
        match self.added.get(&id) {
            Some(adapter) => Ok(Arc::clone(adapter)),
            None => self.source.adapter(self.name(id)?).map(Arc::new),
        }
    }

    /// Forgets an adapter. Its place is free for others. Batches already in the queue still see it.
    ///
    /// # Errors
    /// An adapter that is not known.
    pub fn remove(&mut self, id: AdapterId) -> Result<()> {
        let name = self.name(id)?.to_owned();
        // An adapter that can no longer be read keeps its room, and goes all the same.
        if let Ok(adapter) = self.encoded(id) {
            self.maps_of(&adapter).into_iter().for_each(|map| self.pool.leave(map));
        }
        if self.retired.remove(&id).is_none() {
            self.names.remove(&name);
        }
        self.added.remove(&id);
        self.pool.forget(id);
        Ok(())
    }
}
