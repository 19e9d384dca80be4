//! An encoder before which something happens.

use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::adapters::engine::AdapterId;
use trifuse::model::Row;
use trifuse::{Error, Result};
use trifuse_serve::{Embedder, Opened};

type Deed = Box<dyn FnMut(&[Row<'_>]) -> Result<()>>;

struct Faulty {
    inner: Box<dyn Embedder>,
    before: Deed,
}

impl Embedder for Faulty {
    fn embed(&mut self, rows: &[Row<'_>]) -> Result<Vec<f32>> {
        (self.before)(rows)?;
        self.inner.embed(rows)
    }

    fn add(&mut self, name: &str, adapter: EncodedAdapter) -> Result<AdapterId> {
        self.inner.add(name, adapter)
    }

    fn remove(&mut self, adapter: AdapterId) -> Result<()> {
        self.inner.remove(adapter)
    }

    fn is_resident(&self, adapter: AdapterId) -> bool {
        self.inner.is_resident(adapter)
    }
}

/// Lets `deed` happen before each batch; a batch for which it fails is not computed.
pub fn before<F: FnMut(&[Row<'_>]) -> Result<()> + Send + 'static>(deed: F) -> impl FnOnce(&mut Opened) + Send + 'static {
    struct Nothing;
    impl Embedder for Nothing {
        fn embed(&mut self, _: &[Row<'_>]) -> Result<Vec<f32>> {
            Err(Error::invalid("embedder", "one", "none"))
        }
    }
    move |opened| {
        let inner = std::mem::replace(&mut opened.embedder, Box::new(Nothing));
        opened.embedder = Box::new(Faulty { inner, before: Box::new(deed) });
    }
}
