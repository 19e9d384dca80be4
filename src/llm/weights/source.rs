//! What every kind of model file is read as.

use std::path::Path;

use crate::dtype::DType;
use crate::error::{Error, Result};

/// Writes the elements of a tensor from one of that number on, little-endian, over all of the bytes, by all threads. Its errors are those of
/// [`WeightSource::values`], and a value that the elements' type cannot hold.
pub type Elements<'a> = Box<dyn Fn(u64, &mut [u8]) -> Result<()> + 'a>;

/// A model's weights: names as in `model.layers.0.self_attn.q_proj.weight`, matrices `[d_out, d_in]`, row-major. Nothing above knows what
/// file they are from.
pub trait WeightSource {
    /// The file or folder, for errors.
    fn path(&self) -> &Path;

    /// The sizes of a tensor, slowest dimension first; `None` where there is none of that name.
    fn shape(&self, name: &str) -> Option<Vec<u64>>;

    /// The names of all tensors.
    fn names(&self) -> Vec<String>;

    /// The sizes and the values of a tensor.
    ///
    /// # Errors
    /// A tensor that is missing or not sound; a value that is not finite.
    fn read(&self, name: &str) -> Result<(Vec<u64>, Vec<f32>)>;

    /// The values of a tensor of `shape`.
    ///
    /// # Errors
    /// Those of [`read`](Self::read); a tensor of another shape.
    fn values(&self, name: &str, shape: &[u64]) -> Result<Vec<f32>> {
        let (found, values) = self.read(name)?;
        if found != shape {
            return Err(Error::input_item(self.path(), name, format!("expected the shape {shape:?}, as the configuration says, found {found:?}")));
        }
        Ok(values)
    }

    /// Puts the values of a tensor of `shape` in the place of those that `values` has. A source that can writes them into the same memory.
    ///
    /// # Errors
    /// Those of [`values`](Self::values).
    fn values_into(&self, name: &str, shape: &[u64], values: &mut Vec<f32>) -> Result<()> {
        *values = self.values(name, shape)?;
        Ok(())
    }

    /// What writes the elements of a tensor of `shape` to where they are to be, each rounded once to `dtype`; none where the source gives values alone.
    fn elements(&self, _name: &str, _shape: &[u64], _dtype: DType) -> Option<Elements<'_>> {
        None
    }
}
