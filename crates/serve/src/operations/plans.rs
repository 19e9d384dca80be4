//! What a device has ready for queries of a shape: as many shapes as are used, and no more than a bound.

use trifuse::backend::Kernel;
use trifuse::device::{Device, Slice};
use trifuse::ops::Attention;
use trifuse::ops::attention::AttentionIndex;
use trifuse::ops::index::{BlockMap, BlockMask, MapShape};
use trifuse::session::Plan;

use super::regions::Part;

/// Shapes that are kept.
const MOST: usize = 32;

/// The blocks of a query.
#[derive(Clone, Debug)]
pub enum Mask {
    /// A byte a block, on the host.
    Map(BlockMap),
    /// Rows of blocks, checked, on the host.
    Rows(BlockMask),
    /// A byte a block, on the device. Every byte is legal, so that the host need not see them.
    There(Part, MapShape),
}

impl Mask {
    /// Whether these are the blocks of `other`. What lies on the device may have changed.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Map(own), Self::Map(other)) => own == other,
            (Self::Rows(own), Self::Rows(other)) => own == other,
            _ => false,
        }
    }
}

/// What is ready for a shape.
pub struct Ready<D: Kernel<Attention>> {
    /// The plan.
    pub plan: Plan<Attention, D>,
    /// The blocks that the device has now, and what they are on the host, if it has seen them. A region is not held by this.
    pub index: Option<(AttentionIndex<D>, Option<Mask>)>,
    /// Memory for q, k, v and o of queries that bring theirs along.
    pub scratch: [Option<Slice<D>>; 4],
}

/// The shapes, the last one used first.
pub struct Plans<D: Device + Kernel<Attention>>(Vec<Ready<D>>);

impl<D: Kernel<Attention>> Default for Plans<D> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<D: Kernel<Attention>> Plans<D> {
    /// Puts the shape of `op` first, if it is there.
    pub fn find(&mut self, op: &Attention) -> bool {
        match self.0.iter().position(|ready| ready.plan.op() == op) {
            Some(at) => {
                self.0[..=at].rotate_right(1);
                true
            }
            None => false,
        }
    }

    /// Adds a shape in the first place; the one that was used longest ago may go.
    pub fn add(&mut self, plan: Plan<Attention, D>) {
        self.0.truncate(MOST - 1);
        self.0.insert(0, Ready { plan, index: None, scratch: [const { None }; 4] });
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
