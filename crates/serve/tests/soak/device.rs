//! The encoder's device: it computes what it is asked for, but for its faults, and counts the adapters that it holds.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use trifuse::Result;
use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::adapters::engine::AdapterId;
use trifuse::model::Row;
use trifuse_serve::{Embedder, Opened};

use super::counts::Counts;
use super::faults::{Faults, Told};
use super::support::faulty::wrapped;

/// A device with faults.
struct Device {
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
    fn submit(&mut self, rows: &[Row<'_>]) -> Result<()> {
        self.faults.before(rows, &self.told, &self.counts)?;
        self.inner.submit(rows)
    }

    fn finish(&mut self) -> Result<Vec<f32>> {
        self.inner.finish()
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
    wrapped(move |inner| {
        let mut device = Device { inner, faults, told, counts, held: 0 };
        device.hold(held as i64);
        Box::new(device)
    })
}
