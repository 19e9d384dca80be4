//! Names of models: the base, and an alias an adapter. An alias leads to a generation of the adapter, and a request keeps the one that it began with.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is known of an adapter besides its content.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct About {
    /// Bytes of its own codes and factors.
    pub bytes: u64,
    /// The least cosine of what it was trained to be and what is served, over its projections.
    pub cosine: f64,
}

/// What a kind of model has of an adapter besides, such as the template of its chats; nothing here looks into it.
#[derive(Clone, Default)]
pub struct Beside(Option<Arc<dyn Any + Send + Sync>>);

impl Beside {
    /// This.
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self(Some(Arc::new(value)))
    }

    /// What it is, where it is of that type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_ref()?.downcast_ref()
    }
}

impl PartialEq for Beside {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl std::fmt::Debug for Beside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "something" } else { "nothing" })
    }
}

/// One content of an adapter, under an alias.
#[derive(Debug, PartialEq)]
pub struct Generation<A> {
    /// The adapter's name.
    pub alias: String,
    /// What tells this content from others, such as the SHA-256 of its files.
    pub content: String,
    /// What the device knows the adapter by.
    pub adapter: A,
    /// What else is known of it.
    pub about: Option<About>,
    /// What its kind of model has of it besides.
    pub beside: Beside,
}

impl<A> Generation<A> {
    /// A content of which nothing else is known.
    pub fn new(alias: impl Into<String>, content: impl Into<String>, adapter: A) -> Self {
        Self { alias: alias.into(), content: content.into(), adapter, about: None, beside: Beside::default() }
    }
}

/// A generation that stays as long as somebody holds this.
pub type Lease<A> = Arc<Generation<A>>;

/// What a name leads to.
#[derive(Debug, PartialEq)]
pub enum Model<A> {
    /// The model itself.
    Base,
    /// The model with an adapter.
    Adapter(Lease<A>),
}

/// A name that leads to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotThere {
    /// Names that are there, at most ten.
    pub names: Vec<String>,
    /// How many more are there.
    pub more: usize,
}

/// Why a name does not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The name is taken: by the base, or by another generation that is not to be replaced.
    Taken,
    /// Another generation is there than was expected; this one, if any.
    Generation(Option<String>),
}

/// Names told at most.
const TOLD: usize = 10;

/// The models of a server.
#[derive(Debug)]
pub struct Registry<A> {
    base: String,
    aliases: BTreeMap<String, Lease<A>>,
    /// Generations that no name leads to any more.
    retired: Vec<Lease<A>>,
}

impl<A> Registry<A> {
    /// A base model alone.
    pub fn new(base: impl Into<String>) -> Self {
        Self { base: base.into(), aliases: BTreeMap::new(), retired: Vec::new() }
    }

    /// The name of the base.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The adapters, sorted by name.
    pub fn adapters(&self) -> impl Iterator<Item = &Lease<A>> {
        self.aliases.values()
    }

    /// What `name` leads to: the base, an adapter, or an adapter as `BASE:NAME`.
    ///
    /// # Errors
    /// The name is not there. The base never answers in an adapter's place.
    pub fn lease(&self, name: &str) -> Result<Model<A>, NotThere> {
        if name == self.base {
            return Ok(Model::Base);
        }
        let of_base = || name.strip_prefix(&self.base)?.strip_prefix(':');
        let found = self.aliases.get(name).or_else(|| self.aliases.get(of_base()?));
        found.map(|lease| Model::Adapter(Arc::clone(lease))).ok_or_else(|| self.not_there())
    }

    /// The names that are there, for who asked for another.
    pub fn not_there(&self) -> NotThere {
        let names = || std::iter::once(&self.base).chain(self.aliases.keys());
        NotThere { names: names().take(TOLD).cloned().collect(), more: names().count().saturating_sub(TOLD) }
    }

    /// The content that an adapter's name leads to.
    pub fn content(&self, alias: &str) -> Option<&str> {
        self.aliases.get(alias).map(|generation| generation.content.as_str())
    }

    /// Whether [`load`](Self::load) would let `alias` lead to another generation.
    ///
    /// # Errors
    /// It would not, and why.
    pub fn may_load(&self, alias: &str, replace: bool, expected: Option<&str>) -> Result<(), Conflict> {
        self.must_lead_to(alias, expected)?;
        if alias == self.base || (self.aliases.contains_key(alias) && !replace) { Err(Conflict::Taken) } else { Ok(()) }
    }

    /// Lets `alias` lead to a generation. With `replace` it may lead to another before; with `expected` it must lead to that one.
    ///
    /// # Errors
    /// The name is taken, or does not lead to what was expected. No name changes then, and the generation is unused.
    pub fn load(&mut self, generation: Generation<A>, replace: bool, expected: Option<&str>) -> Result<(), Conflict> {
        let (alias, may) = (generation.alias.clone(), self.may_load(&generation.alias, replace, expected));
        let gone = if may.is_ok() { self.aliases.insert(alias, Arc::new(generation)) } else { Some(Arc::new(generation)) };
        self.retired.extend(gone);
        may
    }

    /// Lets `alias` lead to nothing; whether it led to something. Requests under way keep what they have.
    ///
    /// # Errors
    /// The name does not lead to what was expected.
    pub fn unload(&mut self, alias: &str, expected: Option<&str>) -> Result<bool, Conflict> {
        self.must_lead_to(alias, expected)?;
        let removed = self.aliases.remove(alias);
        let was = removed.is_some();
        self.retired.extend(removed);
        Ok(was)
    }

    fn must_lead_to(&self, alias: &str, expected: Option<&str>) -> Result<(), Conflict> {
        let content = self.content(alias);
        match expected {
            Some(expected) if content != Some(expected) => Err(Conflict::Generation(content.map(str::to_owned))),
            _ => Ok(()),
        }
    }

    /// Takes the generations that no name leads to and no request holds, so that the device can drop them.
    pub fn take_unused(&mut self) -> Vec<Generation<A>> {
        let (held, free) = std::mem::take(&mut self.retired).into_iter().partition(|lease| Arc::strong_count(lease) > 1);
        self.retired = held;
        // No name leads to these, so that nobody can have taken a lease since.
        free.into_iter().filter_map(Arc::into_inner).collect()
    }
}
