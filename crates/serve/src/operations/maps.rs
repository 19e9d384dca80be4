//! Maps of blocks in regions, as they were when the host read them last.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use trifuse::ops::index::{BlockMap, HostIndex, MapShape};

use super::regions::{Part, Region};

/// Bytes of maps that are kept.
const MOST: u64 = 64 << 20;

/// Which region it is, the bytes from its start, and how they are read.
type Place = (usize, u64, MapShape);

/// A map, and how often its region had been written when it was read.
struct Known {
    writes: u64,
    map: Arc<BlockMap>,
    /// Keeps the address of the region from being another's; its memory goes all the same.
    _region: Weak<Region>,
}

/// The maps that are kept. The device is asked for one only where its region was written since.
#[derive(Default)]
pub struct Maps {
    known: HashMap<Place, Known>,
    bytes: u64,
}

fn place(part: &Part, shape: MapShape) -> Place {
    (Arc::as_ptr(&part.region) as usize, part.offset, shape)
}

impl Maps {
    /// The map in a part of a region, if it is kept and nothing has been written there since.
    pub fn get(&self, part: &Part, shape: MapShape) -> Option<Arc<BlockMap>> {
        let known = self.known.get(&place(part, shape)).filter(|known| known.writes == part.region.writes())?;
        Some(Arc::clone(&known.map))
    }

    /// Keeps what the device has in a part of a region now.
    pub fn keep(&mut self, part: &Part, map: BlockMap) -> Arc<BlockMap> {
        let shape = map.shape();
        if self.bytes > MOST {
            // Whatever is asked for again is read again.
            self.known.clear();
            self.bytes = 0;
        }
        let map = Arc::new(map);
        let known = Known { writes: part.region.writes(), map: Arc::clone(&map), _region: Arc::downgrade(&part.region) };
        if self.known.insert(place(part, shape), known).is_none() {
            self.bytes += part.bytes;
        }
        map
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::regions::Regions;
    use super::*;

    const SHAPE: MapShape = MapShape { block: 64, q_blocks: 2, kv_blocks: 2, patterns: 1 };

    #[test]
    fn a_map_is_kept_until_its_region_is_written() {
        let (regions, mut maps) = (Regions::new(1 << 20), Maps::default());
        let region = regions.reserve(16).unwrap();
        let part = Part::of(&region, 4, 4).unwrap();
        assert!(maps.get(&part, SHAPE).is_none());
        let map = BlockMap::new(&[1, 0, 2, 1], SHAPE).unwrap();
        maps.keep(&part, map.clone());
        assert_eq!(maps.get(&part, SHAPE).as_deref(), Some(&map));
        assert!(maps.get(&Part::of(&region, 8, 4).unwrap(), SHAPE).is_none());
        assert!(maps.get(&part, MapShape { block: 128, ..SHAPE }).is_none());
        region.was_written();
        assert!(maps.get(&part, SHAPE).is_none());
        // Another region never passes for this one, also where its name and place are the same.
        maps.keep(&part, map);
        drop((part, region));
        let next = regions.reserve(16).unwrap();
        assert!(maps.get(&Part::of(&next, 4, 4).unwrap(), SHAPE).is_none());
    }
}
