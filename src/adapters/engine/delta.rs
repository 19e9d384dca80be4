//! An adapter's part as the epilogue of a product: for a projection whose adapters all share one form.

use super::{Batch, Engine, Slice};
use crate::backend::Kernel;
use crate::error::{Error, Result};
use crate::ops::{CodebookGemm, CodebookGemmArgs, ScaledBy};

impl<D: Kernel<CodebookGemm>> Engine<D> {
    /// In how many forms the adapters touch a projection: 0 for one that no adapter touches.
    pub fn forms(&self, projection: &str) -> usize {
        self.classes.iter().filter(|class| class.form().path() == projection).count()
    }

    /// What [`apply`](Self::apply) would launch for one target of packed rows, to be put into a
    /// [`Linear`](crate::ops::Linear) instead, so that it comes before the activation and y is written once.
    ///
    /// # Errors
    /// A projection whose adapters have no form, or several; a batch from before the last growth.
    pub fn delta(&self, batch: &Batch<D>, projection: &str, x: &Slice<D>, y: &Slice<D>) -> Result<(CodebookGemm, CodebookGemmArgs<D>)> {
        self.current(batch)?;
        let mut classes = self.classes.iter().filter(|class| class.form().path() == projection);
        let (Some(class), None) = (classes.next(), classes.next()) else {
            return Err(Error::invalid(projection, "adapters of one form", format!("{} forms", self.forms(projection))));
        };
        let slice = class.slice(class.d_out());
        let (tokens, d_in) = (batch.tokens as u64, class.d_in());
        let op = CodebookGemm {
            dtype: self.dtype,
            tokens,
            d_in,
            x_stride: d_in,
            adapters: class.capacity(),
            scaled_by: ScaledBy::Adapter,
            accumulate: true,
            slices: vec![slice],
        };
        let token_adapter = batch.maps[class.map()].clone();
        let args = CodebookGemmArgs { x: x.clone(), token_adapter, scaling: class.scaling().clone(), slices: vec![class.args(y)] };
        Ok((op, args))
    }
}
