//! What a device has ready for queries of a shape: as many shapes as are used, and no more than a bound.

use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::ops::attention::AttentionIndex;
use trifuse::ops::index::{Index, Slots};
use trifuse::ops::{Attention, Checksum};
use trifuse::session::Plan;

use super::mask::Mask;

/// Shapes that are kept. Launches of 1, 2, 4 and so on queries are shapes of their own.
const MOST: usize = 64;

/// What is ready for a shape.
pub struct Ready<D: Backend> {
    /// The plan.
    pub plan: Plan<Attention, D>,
    /// The variant and configuration that was asked for.
    way: Option<String>,
    /// The blocks that the device has now, and what they are on the host.
    pub index: Option<(AttentionIndex<D>, Mask)>,
    /// The slots that the device has now, and what they are on the host; of a plan for sequences at slots.
    pub slots: Option<(Index<Slots, D>, Slots)>,
    /// The plan for checksums of outputs, and memory for them.
    pub sums: Option<(Plan<Checksum, D>, Slice<D>)>,
}

/// The shapes, the last one used first.
pub struct Plans<D: Backend>(Vec<Ready<D>>);

impl<D: Backend> Default for Plans<D> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<D: Backend> Plans<D> {
    /// Puts the shape of `op` first, if it is there in that way.
    pub fn find(&mut self, op: &Attention, way: Option<&str>) -> bool {
        match self.0.iter().position(|ready| ready.way.as_deref() == way && ready.plan.op() == op) {
            Some(at) => {
                self.0[..=at].rotate_right(1);
                true
            }
            None => false,
        }
    }

    /// Adds a shape in the first place; the one that was used longest ago may go.
    pub fn add(&mut self, plan: Plan<Attention, D>, way: Option<&str>) {
        self.0.truncate(MOST - 1);
        self.0.insert(0, Ready { plan, way: way.map(str::to_owned), index: None, slots: None, sums: None });
    }

    /// The shape that was used last.
    pub fn first(&mut self) -> Option<&mut Ready<D>> {
        self.0.first_mut()
    }

    /// Forgets all; whether there was something.
    pub fn clear(&mut self) -> bool {
        let was = !self.0.is_empty();
        self.0.clear();
        was
    }
}
