//! An adapter's part in the epilogue of a product, for projections whose adapters all share one form.

use super::class::Class;
use super::{Batch, Engine, Slice};
use crate::backend::Kernel;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::codebook_gemm::CodebookSliceArgs;
use crate::ops::{CodebookGemm, CodebookGemmArgs, ScaledBy};

impl<D: Kernel<CodebookGemm>> Engine<D> {
    /// The number of forms in which the adapters touch a projection; 0 where no adapter does.
    pub fn forms(&self, projection: &str) -> usize {
        self.classes.iter().filter(|class| class.form().path() == projection).count()
    }

    /// The operation that [`apply`](Self::apply) would launch for projections that lie side by side in the packed rows of one y. It is to
    /// be put into a [`Linear`](crate::ops::Linear) instead, so that it comes before the activation and y is written once.
    ///
    /// # Errors
    /// Projections that are not [`alike`](Self::alike); a y that is too small; the errors of [`check`](Self::check).
    pub fn delta(&self, batch: &Batch<D>, projections: &[&str], x: &Slice<D>, y: &Slice<D>) -> Result<(CodebookGemm, CodebookGemmArgs<D>)> {
        self.check(batch)?;
        let classes: Vec<&Class<D>> = projections.iter().filter_map(|path| self.classes.iter().find(|class| class.form().path() == *path)).collect();
        let (true, [first, ..]) = (self.alike(projections), classes.as_slice()) else {
            return Err(Error::invalid(projections.join(", "), "adapters of one form each, all the same adapters", "others"));
        };
        let (op, slices) = side_by_side(&classes, self.dtype, batch.tokens, y)?;
        let token_adapter = batch.maps[first.map()].clone();
        Ok((op, CodebookGemmArgs { x: x.clone(), token_adapter, scaling: first.scaling().clone(), slices, prepared: self.prepared(projections) }))
    }

    /// Whether all adapters have one form in each of these projections, and all projections have the same adapters. They then share a
    /// launch.
    pub fn alike(&self, projections: &[&str]) -> bool {
        let of = |path: &str| self.classes.iter().find(|class| class.form().path() == path).map(|class| (class.map(), class.capacity(), class.d_in()));
        let first = projections.first().and_then(|path| of(path));
        first.is_some() && projections.iter().all(|path| self.forms(path) == 1 && of(path) == first)
    }
}

/// The operation that adds the adapters of these classes, at least one, to the packed rows of one y.
pub(super) fn side_by_side<D: Kernel<CodebookGemm>>(
    classes: &[&Class<D>],
    dtype: DType,
    tokens: usize,
    y: &Slice<D>,
) -> Result<(CodebookGemm, Vec<CodebookSliceArgs<D>>)> {
    let d_out: u64 = classes.iter().map(|class| class.d_out()).sum();
    let mut slices = Vec::new();
    let mut offset = 0;
    for class in classes {
        let part = y.len.checked_sub(offset).and_then(|rest| y.sub_slice(offset, rest));
        slices.push(class.args(&part.ok_or_else(|| Error::invalid("y", format!("more than {offset} bytes"), y.len))?));
        offset += class.d_out() * dtype.size();
    }
    let op = CodebookGemm {
        dtype,
        tokens: tokens as u64,
        d_in: classes[0].d_in(),
        x_stride: classes[0].d_in(),
        adapters: classes[0].capacity(),
        scaled_by: ScaledBy::Adapter,
        accumulate: true,
        slices: classes.iter().map(|class| class.slice(d_out)).collect(),
        batch_invariant: false,
    };
    Ok((op, slices))
}
