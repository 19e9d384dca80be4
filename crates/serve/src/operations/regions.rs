//! Memory of the device that has a name. Whoever holds a [`Region`] keeps its memory: a query under way, or its name.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// What the device knows a region by.
pub type Memory = Box<dyn Any + Send + Sync>;

/// The unit in which memory is counted: a region of one byte takes as much.
const UNIT: u64 = 4096;
/// The longest name.
const MAX_NAME: usize = 128;

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
struct Counted {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Memory of the device.
pub struct Region {
    bytes: u64,
    memory: OnceLock<Memory>,
    writes: AtomicU64,
    _counted: Counted,
}

impl Region {
    /// The region's bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its memory, once the device has given it.
    pub fn memory(&self) -> Option<&Memory> {
        self.memory.get()
    }

    /// Gives it its memory, once.
    pub fn give(&self, memory: Memory) {
        // A region is filled by one task alone.
        drop(self.memory.set(memory));
    }

    /// Counts a write, behind which the region holds other bytes.
    pub fn was_written(&self) {
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// How often it was written.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "region of {} bytes", self.bytes)
    }
}

/// A part of a region, which keeps all of it.
#[derive(Clone, Debug)]
pub struct Part {
    /// The region.
    pub region: Arc<Region>,
    /// Bytes from its start.
    pub offset: u64,
    /// Bytes of the part.
    pub bytes: u64,
}

impl Part {
    /// The part of a region, where it lies inside.
    pub fn of(region: &Arc<Region>, offset: u64, bytes: u64) -> Option<Self> {
        let end = offset.checked_add(bytes)?;
        (end <= region.bytes).then(|| Self { region: Arc::clone(region), offset, bytes })
    }

    fn is_near(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.region, &other.region)
    }

    /// Whether these are the bytes of `other`.
    pub fn is(&self, other: &Self) -> bool {
        self.is_near(other) && (self.offset, self.bytes) == (other.offset, other.bytes)
    }

    /// Whether a byte is in both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.is_near(other) && self.offset < other.offset + other.bytes && other.offset < self.offset + self.bytes
    }

    /// Whether this begins where `other` ends.
    pub fn is_behind(&self, other: &Self) -> bool {
        self.is_near(other) && self.offset == other.offset + other.bytes
    }

    /// Whether this and `other` are rows of one table: their region, cut into as many bytes from its start on.
    pub fn is_row_beside(&self, other: &Self) -> bool {
        let is_row = |part: &Self| part.bytes > 0 && part.offset.is_multiple_of(part.bytes);
        self.is_near(other) && self.bytes == other.bytes && is_row(self) && is_row(other)
    }

    /// Whether these are whole words, as the device copies them.
    pub fn is_words(&self) -> bool {
        (self.offset | self.bytes).is_multiple_of(4)
    }
}

/// A region for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Bytes that regions may have, all together.
    pub most: u64,
    /// Bytes that they have.
    pub used: u64,
}

/// Whose name it is, and the name.
type Key = (u32, String);

/// The regions of a server. Each tenant has names of its own.
#[derive(Debug)]
pub struct Regions {
    used: Arc<AtomicU64>,
    most: u64,
    named: Mutex<BTreeMap<Key, Arc<Region>>>,
}

impl Regions {
    /// No regions; they may have `most` bytes, all together.
    pub fn new(most: u64) -> Self {
        Self { used: Arc::default(), most, named: Mutex::default() }
    }

    /// Whether a name may be given: letters, digits, `.`, `_` and `-`, and nothing else.
    pub fn is_name(name: &str) -> bool {
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Region>>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that regions may have, all together.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Bytes that regions have, with those that only queries under way still hold.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// A region that has no name yet and no memory.
    ///
    /// # Errors
    /// There is no room beside the others.
    pub fn reserve(&self, bytes: u64) -> Result<Arc<Region>, Full> {
        let counted = bytes.max(1).checked_next_multiple_of(UNIT);
        let more = |used: u64| counted.and_then(|counted| used.checked_add(counted)).filter(|used| *used <= self.most);
        let before = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let full = |used: u64| Full { most: self.most, used };
        before.map_err(full)?;
        let counted = Counted { used: Arc::clone(&self.used), bytes: counted.unwrap_or(0) };
        Ok(Arc::new(Region { bytes, memory: OnceLock::new(), writes: AtomicU64::new(0), _counted: counted }))
    }

    /// Gives a region a name; what had it before goes once no query holds it.
    pub fn name(&self, tenant: u32, name: &str, region: Arc<Region>) {
        let before = self.lock().insert((tenant, name.into()), region);
        // Memory is given back without the lock.
        drop(before);
    }

    /// The region of that name.
    pub fn get(&self, tenant: u32, name: &str) -> Option<Arc<Region>> {
        self.lock().get(&(tenant, name.to_owned())).map(Arc::clone)
    }

    /// Takes a name away; whether it was there.
    pub fn remove(&self, tenant: u32, name: &str) -> bool {
        let removed = self.lock().remove(&(tenant, name.to_owned()));
        removed.is_some()
    }

    /// The names of a tenant's regions, and their bytes.
    pub fn list(&self, tenant: u32) -> Vec<(String, u64)> {
        let named = self.lock();
        named.iter().filter(|((whose, _), _)| *whose == tenant).map(|((_, name), region)| (name.clone(), region.bytes)).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_is_held_counts_until_it_is_let_go() {
        let regions = Regions::new(16384);
        let first = regions.reserve(5000).unwrap();
        assert_eq!(regions.used(), 8192);
        regions.name(1, "a", first);
        let held = regions.get(1, "a").unwrap();
        regions.name(1, "a", regions.reserve(8192).unwrap());
        assert_eq!((regions.used(), held.bytes(), regions.get(1, "a").unwrap().bytes()), (16384, 5000, 8192));
        assert_eq!(regions.reserve(1).unwrap_err(), Full { most: 16384, used: 16384 });
        drop(held);
        assert_eq!(regions.used(), 8192);
        assert!(regions.remove(1, "a") && !regions.remove(1, "a"));
        assert_eq!(regions.used(), 0);
        for bytes in [16385, u64::MAX, u64::MAX - 100] {
            assert!(regions.reserve(bytes).is_err(), "{bytes}");
        }
    }

    #[test]
    fn each_tenant_has_names_of_its_own() {
        let regions = Regions::new(1 << 20);
        regions.name(1, "a", regions.reserve(1).unwrap());
        assert!(regions.get(2, "a").is_none() && regions.list(2).is_empty() && !regions.remove(2, "a"));
        assert_eq!(regions.list(1), [("a".to_owned(), 1)]);
        for bad in ["", "a/b", "..a/", "ä", "a b", &"a".repeat(129)] {
            assert!(!Regions::is_name(bad), "{bad}");
        }
        assert!(Regions::is_name("A.b_c-1"));
    }

    #[test]
    fn a_part_lies_inside_its_region() {
        let region = Regions::new(1 << 20).reserve(10).unwrap();
        assert!(Part::of(&region, 0, 10).is_some() && Part::of(&region, 10, 0).is_some());
        for (offset, bytes) in [(0, 11), (10, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(Part::of(&region, offset, bytes).is_none());
        }
    }
}
