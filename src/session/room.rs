//! Host memory for copies of what a device holds.

use crate::error::{Error, Result};

/// Host memory for `count` zeros. A device may hold more than the host has room for.
pub fn zeroed<T: bytemuck::Zeroable>(count: u64) -> Result<Vec<T>> {
    let short = |()| Error::OutOfMemory { requested: count.saturating_mul(size_of::<T>() as u64), purpose: "a copy on the host".into() };
    bytemuck::allocation::try_zeroed_vec(usize::try_from(count).map_err(|_| short(()))?).map_err(short)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_has_no_room_for_is_refused() {
        assert_eq!(zeroed::<u16>(3).unwrap(), [0; 3]);
        for count in [1 << 60, u64::MAX] {
            assert!(matches!(zeroed::<f32>(count), Err(Error::OutOfMemory { requested, .. }) if requested >= count));
        }
    }
}
