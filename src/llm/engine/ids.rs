//! Ids of tokens that go from one step to the next without a visit to the host.

use crate::device::{Device, Slice};
use crate::error::{Error, Result};
use crate::ops::index::{Index, TokenAdapters};
use crate::session::Session;

/// Copies ids that lie on the device over those of an index, from its token `at` on. The order of its tokens by their ids stays what it was, so
/// that an embedding may read it and adapters may not. The caller knows the ids to be below the index's bound, or −1: a sampler wrote them.
///
/// # Errors
/// Ids beyond the index's tokens.
pub fn copy_ids<D: Device>(session: &mut Session<D>, ids: &Slice<D>, to: &Index<TokenAdapters, D>, at: usize) -> Result<()> {
    let place = to.slice().sub_slice(TokenAdapters::first_id() + 4 * at as u64, ids.len);
    let fits = place.filter(|_| at as u64 + ids.len / 4 <= to.shape().tokens);
    let place = fits.ok_or_else(|| Error::invalid("ids", format!("tokens of {:?}", to.shape()), format!("{} from {at} on", ids.len / 4)))?;
    session.copy(ids, &place)
}
