//! The encoder's device: it computes what it is asked for, but for its faults, and counts the adapters that it holds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use trifuse::Result;
use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::adapters::engine::AdapterId;
use trifuse::model::Row;
use trifuse_serve::{Embedder, Opened};

use super::counts::Counts;
use super::faults::{Faults, Told};
use super::support::faulty::wrapped;

/// What a batch takes at least, whatever is in it: the device, and not the machine that the test shares, decides what can be done.
const BATCH: Duration = Duration::from_millis(40);
/// The most tokens of a batch.
const BATCH_TOKENS: usize = 256;

/// A device with faults.
struct Device {
    /// When each batch that it has ends at the earliest.
    ends: VecDeque<Instant>,
    inner: Box<dyn Embedder>,
    faults: Faults,
    told: Arc<Told>,
    counts: Arc<Counts>,
    /// Adapters that were added and not removed.
    held: i64,
}

impl Device {
    fn hold(&mut self, more: i64) {
        self.held += more;
        self.told.held.fetch_add(more, Ordering::SeqCst);
    }
}

impl Embedder for Device {
    fn submit(&mut self, rows: &[Row<'_>], wanted: usize) -> Result<()> {
        self.faults.before(rows, &self.told, &self.counts)?;
        self.inner.submit(rows, wanted)?;
        let begins = self.ends.back().map_or_else(Instant::now, |ends| (*ends).max(Instant::now()));
        self.ends.push_back(begins + BATCH);
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<f32>> {
        let values = self.inner.finish();
        let ends = self.ends.pop_front();
        std::thread::sleep(ends.map_or(Duration::ZERO, |ends| ends.saturating_duration_since(Instant::now())));
        values
    }

    fn add(&mut self, name: &str, adapter: EncodedAdapter) -> Result<AdapterId> {
        self.faults.adding(&self.told, &self.counts)?;
        let id = self.inner.add(name, adapter)?;
        self.hold(1);
        Ok(id)
    }

    fn remove(&mut self, adapter: AdapterId) -> Result<()> {
        self.inner.remove(adapter)?;
        self.hold(-1);
        Ok(())
    }

    fn is_resident(&self, adapter: AdapterId) -> bool {
        self.inner.is_resident(adapter)
    }
}

/// What a device holds goes with it.
impl Drop for Device {
    fn drop(&mut self) {
        self.hold(-self.held);
    }
}

/// Puts a device with these faults in the encoder's place. It holds `held` adapters already that may be removed.
pub fn device(faults: Faults, held: usize, told: &Arc<Told>, counts: &Arc<Counts>) -> impl FnOnce(&mut Opened) + Send + 'static {
    let (told, counts) = (Arc::clone(told), Arc::clone(counts));
    let wrap = wrapped(move |inner| {
        let mut device = Device { ends: VecDeque::new(), inner, faults, told, counts, held: 0 };
        device.hold(held as i64);
        Box::new(device)
    });
    move |opened: &mut Opened| {
        opened.batch_tokens = BATCH_TOKENS;
        wrap(opened);
    }
}
