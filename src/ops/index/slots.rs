use std::borrow::Cow;

use super::HostIndex;
use crate::error::Result;

/// The slot of each sequence: its place among sequences that lie on the device. Several may have the same. Words: one a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    slots: Vec<i32>,
    room: u32,
}

/// What the device's copy is sized and checked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotShape {
    /// The number of sequences that are taken.
    pub batch: u64,
    /// The number of slots.
    pub slots: u32,
}

impl Slots {
    /// The slot of each sequence, as numbers below `room`.
    ///
    /// # Errors
    /// A slot outside `0..room`.
    pub fn new(slots: &[i32], room: u32) -> Result<Self> {
        super::below("slots", "sequence", slots, room)?;
        Ok(Self { slots: slots.to_vec(), room })
    }

    /// The slot of each sequence.
    pub fn slots(&self) -> &[i32] {
        &self.slots
    }
}

impl HostIndex for Slots {
    const NAME: &'static str = "slots";
    type Shape = SlotShape;

    fn shape(&self) -> SlotShape {
        SlotShape { batch: self.slots.len() as u64, slots: self.room }
    }

    fn words(&self) -> Cow<'_, [i32]> {
        self.slots.as_slice().into()
    }

    fn capacity(shape: &SlotShape) -> u64 {
        shape.batch
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn slots_lie_inside_the_room_and_may_repeat() {
        let slots = Slots::new(&[4, 0, 4], 5).unwrap();
        assert_eq!((slots.shape(), &*slots.words()), (SlotShape { batch: 3, slots: 5 }, &[4, 0, 4][..]));
        for (wrong, room) in [(5, 5), (-1, 5), (0, 0)] {
            let error = Slots::new(&[wrong], room).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong} at sequence 0")), "{error}");
        }
        assert!(Slots::new(&[], 0).is_ok());
    }
}
