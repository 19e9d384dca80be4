//! An encoder before and behind whose batches something happens.

use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::adapters::engine::AdapterId;
use trifuse::model::Row;
use trifuse::{Error, Result};
use trifuse_serve::{Embedder, Opened};

type Deed = Box<dyn FnMut(&[Row<'_>]) -> Result<()>>;

struct Faulty {
    inner: Box<dyn Embedder>,
    before: Deed,
    behind: Box<dyn FnMut() -> Result<()>>,
}

impl Embedder for Faulty {
    fn submit(&mut self, rows: &[Row<'_>], wanted: usize) -> Result<()> {
        (self.before)(rows)?;
        self.inner.submit(rows, wanted)
    }

    fn finish(&mut self) -> Result<Vec<f32>> {
        (self.behind)()?;
        self.inner.finish()
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
    around(deed, || Ok(()))
}

/// Lets `deed` happen before the device gets a batch, and `behind` before one is waited for; a batch for which one of them fails has no vectors.
pub fn around(
    deed: impl FnMut(&[Row<'_>]) -> Result<()> + Send + 'static,
    behind: impl FnMut() -> Result<()> + Send + 'static,
) -> impl FnOnce(&mut Opened) + Send + 'static {
    wrapped(move |inner| Box::new(Faulty { inner, before: Box::new(deed), behind: Box::new(behind) }))
}

/// Puts what `wrap` makes of the encoder in its place.
pub fn wrapped(wrap: impl FnOnce(Box<dyn Embedder>) -> Box<dyn Embedder> + Send + 'static) -> impl FnOnce(&mut Opened) + Send + 'static {
    struct Nothing;
    impl Embedder for Nothing {
        fn submit(&mut self, _: &[Row<'_>], _: usize) -> Result<()> {
            Err(Error::invalid("embedder", "one", "none"))
        }

        fn finish(&mut self) -> Result<Vec<f32>> {
            Err(Error::invalid("embedder", "one", "none"))
        }
    }
    move |opened| {
        let inner = std::mem::replace(&mut opened.embedder, Box::new(Nothing));
        opened.embedder = wrap(inner);
    }
}
