//! The adapters of a model that runs: the names that lead to them, and what holds them for the model's device.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::{Error, Result};

use crate::queueing::registry::{About, Beside, Conflict, Generation, Lease, NotThere, Registry};

/// The names of a model, shared by those who ask and by what runs it.
#[derive(Debug)]
pub struct Names<A>(Arc<Mutex<Registry<A>>>);

impl<A> Clone for Names<A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A> Names<A> {
    /// The names of `registry`.
    pub fn new(registry: Registry<A>) -> Self {
        Self(Arc::new(Mutex::new(registry)))
    }

    /// The registry, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, Registry<A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What holds adapters for a device.
pub trait Holder<A>: Send + Sync {
    /// Puts an adapter where requests can have it, under a name that no other adapter of the device has. Blocks until the device is free for it.
    ///
    /// # Errors
    /// An adapter of another model; no device memory; a device that fails.
    fn add(&self, name: &str, adapter: EncodedAdapter) -> Result<A>;

    /// Has the device forget the generations that [`Registry::take_unused`] gives. Does not block.
    fn sweep(&self);

    /// Whether each of these is on the device; `None` where that cannot be said.
    fn are_resident(&self, of: &[Lease<A>]) -> Option<Vec<bool>>;
}

/// An adapter that was read, with what tells its content from others.
#[derive(Clone, Debug)]
pub struct Found {
    /// The digest of its files.
    pub content: String,
    /// What is put on the device.
    pub adapter: EncodedAdapter,
    /// What else was read: a `ChatTemplate`, where its folder has one.
    pub beside: Beside,
}

/// What is asked of a name that is to lead to another adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The adapter's name.
    pub alias: String,
    /// Whether it may lead to another generation before.
    pub replace: bool,
    /// The generation that it must lead to before.
    pub expected: Option<String>,
}

/// What came of loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The generation that the name leads to now.
    pub content: String,
    /// Whether it led elsewhere before; a name that leads to the same content stays as it is.
    pub changed: bool,
}

/// Why a name does not change.
#[derive(Debug)]
pub enum Refused {
    /// It leads elsewhere than was expected, or is taken.
    Conflict(Conflict),
    /// There is no such adapter.
    NotThere(NotThere),
    /// The device does not take the adapter.
    Failed(Error),
}

/// An adapter as a list tells of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// The adapter's name.
    pub alias: String,
    /// The generation that the name leads to.
    pub content: String,
    /// What is known of the adapter.
    pub about: Option<About>,
    /// Whether it is on the device, where that can be said.
    pub resident: Option<bool>,
    /// Requests under way that have it.
    pub users: usize,
}

/// Adapters that come and go while a model runs.
pub trait Adapters: Send + Sync {
    /// The name of the base.
    fn base(&self) -> &str;

    /// Whether that is the name of the base or of an adapter.
    fn has(&self, name: &str) -> bool;

    /// Whether a wish could be granted now.
    ///
    /// # Errors
    /// It could not, and why.
    fn check(&self, wish: &Wish) -> Result<(), Refused>;

    /// Lets a name lead to an adapter. Requests that began before keep what they have. Blocks.
    ///
    /// # Errors
    /// The name is taken, or leads elsewhere than was expected; what the device fails with. Nothing changes then.
    fn load(&self, wish: Wish, found: Found) -> Result<Loaded, Refused>;

    /// Lets a name lead to nothing. Requests that began before keep what they have.
    ///
    /// # Errors
    /// There is no such adapter, or another generation than was expected.
    fn unload(&self, alias: &str, expected: Option<&str>) -> Result<(), Refused>;

    /// The requests that have the adapter of that name; `None` where it is not there.
    fn users(&self, alias: &str) -> Option<usize>;

    /// All of them, sorted by name. Blocks until the device is free to tell.
    fn list(&self) -> Vec<Held>;
}

/// The names of a model and what holds its adapters.
pub struct Keeper<A> {
    base: String,
    names: Names<A>,
    holder: Box<dyn Holder<A>>,
    /// How many adapters were loaded.
    loads: AtomicU64,
}

impl<A> Keeper<A> {
    /// Names, and what holds the adapters that they lead to.
    pub fn new(names: Names<A>, holder: Box<dyn Holder<A>>) -> Self {
        let base = names.lock().base().to_owned();
        Self { base, names, holder, loads: AtomicU64::new(0) }
    }

    /// The name of the base.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The names, for a moment.
    pub fn names(&self) -> MutexGuard<'_, Registry<A>> {
        self.names.lock()
    }
}

impl<A: Send + Sync> Adapters for Keeper<A> {
    fn base(&self) -> &str {
        &self.base
    }

    fn has(&self, name: &str) -> bool {
        name == self.base || self.names().content(name).is_some()
    }

    fn check(&self, wish: &Wish) -> Result<(), Refused> {
        self.names().may_load(&wish.alias, wish.replace, wish.expected.as_deref()).map_err(Refused::Conflict)
    }

    fn load(&self, wish: Wish, found: Found) -> Result<Loaded, Refused> {
        let (Wish { alias, replace, expected }, Found { content, adapter, beside }) = (wish, found);
        let same = self.names().content(&alias).is_some_and(|own| own == content);
        if same && replace {
            return Ok(Loaded { content, changed: false });
        }
        let about = Some(About { bytes: adapter.bytes(), cosine: adapter.least_cosine() });
        let number = self.loads.fetch_add(1, Ordering::Relaxed) + 1;
        let adapter = self.holder.add(&format!("{alias} (load {number})"), adapter).map_err(Refused::Failed)?;
        let loaded = Loaded { content: content.clone(), changed: true };
        let done = self.names().load(Generation { alias, content, adapter, about, beside }, replace, expected.as_deref());
        self.holder.sweep();
        done.map(|()| loaded).map_err(Refused::Conflict)
    }

    fn unload(&self, alias: &str, expected: Option<&str>) -> Result<(), Refused> {
        let mut names = self.names();
        match names.unload(alias, expected) {
            Ok(true) => {
                drop(names);
                self.holder.sweep();
                Ok(())
            }
            Ok(false) => Err(Refused::NotThere(names.not_there())),
            Err(conflict) => Err(Refused::Conflict(conflict)),
        }
    }

    fn users(&self, alias: &str) -> Option<usize> {
        // The registry has one.
        self.names().adapters().find(|lease| lease.alias == alias).map(|lease| Arc::strong_count(lease).saturating_sub(1))
    }

    fn list(&self) -> Vec<Held> {
        let leases: Vec<Lease<A>> = self.names().adapters().cloned().collect();
        let resident = self.holder.are_resident(&leases);
        let one = |(at, lease): (usize, &Lease<A>)| Held {
            alias: lease.alias.clone(),
            content: lease.content.clone(),
            about: lease.about,
            resident: resident.as_ref().and_then(|resident| resident.get(at).copied()),
            // The registry has one, and this list another.
            users: Arc::strong_count(lease).saturating_sub(2),
        };
        leases.iter().enumerate().map(one).collect()
    }
}

impl<A> std::fmt::Debug for Keeper<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with {} adapters", self.base, self.names().adapters().count())
    }
}
