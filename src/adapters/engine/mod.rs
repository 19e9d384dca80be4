//! Serving from the compressed form: any mix of adapters in a batch, token by token.
//!
//! Adapters of one projection that share a form (which factors are shared, coded or plain, and the rank) share one launch. A pool of
//! bounded size holds the adapters in use on the device. The least recently used make room, and come back from the bundle.

mod batch;
mod change;
mod class;
mod delta;
mod id;
mod launch;
mod mixture;
mod pool;
mod prepare;
mod prepared;
mod served;
mod source;
mod unpacked;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

pub use batch::Batch;
use class::{Class, Form};
pub use id::AdapterId;
use id::numbers;
pub use mixture::{Mixture, Routing};
use pool::Pool;
use prepared::Prepared;
pub use served::Unpack;
use served::{Forms, Served};
use source::unknown;
pub use source::{AdapterSource, ForModel};

use super::encoded::{EncodedAdapter, SharedProjection};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};
use crate::ops::CodebookGemm;
use crate::ops::setters::setters;
use crate::session::{Plan, Session};

/// How an engine is set up.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// The type of x, y and the bases on the device.
    pub dtype: DType,
    /// The most bytes of device memory for adapters, without bases; `None` holds them all.
    pub pool_bytes: Option<u64>,
    /// Whether adapters are unpacked on the device, where launches are the faster for it.
    pub unpack: Unpack,
    /// Adapters that memory is kept free for, in every form, beyond those of the source; 0. As many can be [added](Engine::add) while graphs and
    /// batches stay valid, as long as they have forms and ranks that are there.
    pub reserve: u32,
    /// Whether what is added to a row by [`Engine::apply`] has the same bits whatever other rows there are: see [`CodebookGemm::batch_invariant`].
    pub batch_invariant: bool,
}

impl EngineOptions {
    /// An engine that computes in `dtype`, holds all adapters, and unpacks them where that is faster.
    pub const fn new(dtype: DType) -> Self {
        Self { dtype, pool_bytes: None, unpack: Unpack::WhereFaster, reserve: 0, batch_invariant: false }
    }

    setters! {
        with_dtype: dtype = DType;
        with_pool_bytes: pool_bytes <- Option<u64>;
        with_unpack: unpack = Unpack;
        with_reserve: reserve = u32;
        with_batch_invariant: batch_invariant = bool;
    }
}

/// Compressed adapters, ready to be applied on a device.
pub struct Engine<D: Kernel<CodebookGemm>> {
    id: u64,
    /// The session that it was opened with, whose queue its arrays are written in.
    session: u64,
    dtype: DType,
    batch_invariant: bool,
    source: Box<dyn AdapterSource>,
    shared: BTreeMap<String, SharedProjection>,
    served: Served,
    /// Adapters that were added while running, and are not in the source.
    added: HashMap<AdapterId, Arc<EncodedAdapter>>,
    names: BTreeMap<String, AdapterId>,
    /// Adapters that have lost their name and are not removed yet, with the name that they had.
    retired: HashMap<AdapterId, String>,
    /// Adapters of the source that cannot be served, and why.
    refused: BTreeMap<String, Error>,
    classes: Vec<Class<D>>,
    pool: Pool,
    plans: HashMap<CodebookGemm, Plan<CodebookGemm, D>>,
    generation: u64,
    /// A count that rises when an adapter's arrays change.
    version: u64,
    /// What was prepared, by projections side by side; `None` where the device has no use for it.
    prepared: HashMap<Vec<String>, Option<Prepared<D>>>,
}

/// One projection of [`Engine::apply`], whose `y` gets the delta added.
pub struct Target<'a, D: Device> {
    /// The module path.
    pub projection: &'a str,
    /// The rows to add to, `[tokens, d_out]` in the engine's dtype.
    pub y: Slice<D>,
    /// Elements from one row of y to the next.
    pub y_stride: u64,
}

impl<D: Kernel<CodebookGemm>> Engine<D> {
    /// An engine for the adapters of `source`. Bases go to the device now, adapters when they are first used.
    /// An adapter that cannot be read or served is left out, and [`refused`](Self::refused) says why: the others are served.
    ///
    /// # Errors
    /// A pool too small for a single adapter; what all adapters share cannot be read; no device memory.
    pub fn open(session: &mut Session<D>, source: Box<dyn AdapterSource>, options: EngineOptions) -> Result<Self> {
        let shared = source.projections()?;
        for projection in shared.values() {
            projection.shape()?;
        }
        let unpack = options.unpack.on(session.device().hints(), options.dtype);
        let (mut read, mut refused) = (Vec::new(), BTreeMap::new());
        for name in source.names() {
            match source.adapter(&name).and_then(|adapter| Forms::all(unpack, &shared, &name, &adapter)) {
                Ok(own) => read.push((name, own)),
                Err(error) => drop(refused.insert(name, error)),
            }
        }
        let batch_invariant = options.batch_invariant;
        let served = Served::new(unpack, read.iter().flat_map(|(_, own)| own));
        let mut names = Vec::new();
        let mut forms: BTreeMap<Form, Vec<usize>> = BTreeMap::new();
        for (name, own) in read {
            let index = names.len();
            names.push(name);
            for form in own.into_iter().map(|own| served.choose(own)) {
                match forms.keys().find(|known| known.same_class(&form)).cloned() {
                    Some(known) => {
                        let mut members = forms.remove(&known).unwrap_or_default();
                        members.push(index);
                        forms.insert(known.widened(&form), members);
                    }
                    None => drop(forms.insert(form, vec![index])),
                }
            }
        }
        // Classes with the same members share one map from adapters to slots, and so one launch (q, k, v).
        let mut memberships: Vec<Vec<usize>> = forms.values().cloned().collect();
        memberships.sort();
        memberships.dedup();
        let map_of = |members: &[usize]| memberships.iter().position(|known| known == members).unwrap_or(0);
        let demand: Vec<(usize, u64)> = forms.iter().map(|(form, members)| (map_of(members), form.slot_bytes(options.dtype))).collect();
        let members: Vec<usize> = memberships.iter().map(Vec::len).collect();
        let pool = Pool::new(&members, &demand, options.pool_bytes, options.reserve)?;
        let mut classes = Vec::new();
        for (form, members) in forms {
            let map = map_of(&members);
            let projection = &shared[form.path()];
            classes.push(Class::new(session, form, map, pool.capacity(map), projection, options.dtype)?);
        }
        let id = numbers(1 + names.len());
        let names: BTreeMap<String, AdapterId> = names.into_iter().zip(id + 1..).map(|(name, id)| (name, AdapterId(id))).collect();
        let (added, retired, plans, prepared) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let (session, dtype) = (session.id(), options.dtype);
        Ok(Self {
            id,
            session,
            dtype,
            batch_invariant,
            source,
            shared,
            served,
            added,
            names,
            retired,
            refused,
            classes,
            pool,
            plans,
            generation: 0,
            version: 0,
            prepared,
        })
    }

    /// The adapters that are known, sorted by name.
    pub fn adapters(&self) -> impl Iterator<Item = (&str, AdapterId)> {
        self.names.iter().map(|(name, id)| (name.as_str(), *id))
    }

    /// The adapters of the source that are left out, sorted by name, and why.
    pub fn refused(&self) -> impl Iterator<Item = (&str, &Error)> {
        self.refused.iter().map(|(name, why)| (name.as_str(), why))
    }

    /// The adapter of that name.
    pub fn adapter(&self, name: &str) -> Result<AdapterId> {
        self.names.get(name).copied().ok_or_else(|| unknown(name, self.names.keys()))
    }

    /// The projections that any adapter touches.
    pub fn projections(&self) -> impl Iterator<Item = (&str, &SharedProjection)> {
        self.shared.iter().map(|(path, shared)| (path.as_str(), shared))
    }

    /// The number of adapters that a batch may name, whichever they are.
    pub fn room(&self) -> u32 {
        self.pool.limit()
    }

    /// Whether the adapter is on the device now.
    pub fn is_resident(&self, id: AdapterId) -> bool {
        self.pool.is_resident(id)
    }

    /// The adapter's slot in each array that has it on the device, in the arrays' order. Empty where it is not there.
    pub fn slots(&self, id: AdapterId) -> Vec<u32> {
        (0..self.pool.maps()).filter_map(|map| self.pool.slot(id, map)).collect()
    }

    /// Bytes of device memory reserved for adapters, and for bases.
    pub fn device_bytes(&self) -> (u64, u64) {
        let adapters = self.classes.iter().map(|class| class.slot_bytes() * u64::from(class.capacity())).sum();
        (adapters, self.classes.iter().map(Class::basis_bytes).sum())
    }

    /// A count that rises when memory had to grow for an added adapter. Batches and graphs made before must be made anew.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Refuses another session: its queue would not wait for what was put into this one's.
    fn own(&self, session: &Session<D>) -> Result<()> {
        ensure(session.id() == self.session, "engine", "the session that it was opened with", "another")
    }

    /// The maps that an adapter has a slot in, where it is on the device.
    fn maps_of(&self, adapter: &EncodedAdapter) -> Vec<usize> {
        let maps: BTreeSet<usize> =
            self.classes.iter().filter(|class| self.served.held(class.form(), adapter, &self.shared).is_some()).map(Class::map).collect();
        maps.into_iter().collect()
    }
}

impl<D: Kernel<CodebookGemm>> std::fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "engine of {} adapters in {} projections, {} on {}", self.names.len(), self.shared.len(), self.dtype, D::NAME)
    }
}
