//! What each operation computes, apart from how: its descriptor, its operands, every shape rule, its cost.
//!
//! Shapes are row-major, the last axis contiguous. All rules are checked here, once, for every backend. A NaN in an operand shows in every
//! number that is computed from it, and in no other; [`Sample`] passes it over.

pub mod attention;
pub mod checksum;
pub mod codebook_gemm;
pub mod codes;
pub mod fused_mlp;
pub mod grouped_linear;
pub mod index;
pub mod layer;
pub mod linear;
pub mod pointwise;
pub mod prefix_attention;
pub mod sample;
pub(crate) mod setters;
mod strides;
#[cfg(test)]
mod tests;
mod translate;

use std::fmt::Debug;
use std::hash::Hash;
use std::ops::Range;

pub use attention::{Attention, AttentionArgs};
pub use checksum::{Checksum, ChecksumArgs};
pub use codebook_gemm::{CodebookGemm, CodebookGemmArgs, ScaledBy};
pub use codes::CodeWidth;
pub use fused_mlp::{FusedMlp, FusedMlpArgs};
pub use grouped_linear::{GroupedLinear, GroupedLinearArgs};
pub use layer::Layer;
pub use linear::{Linear, LinearArgs, NormArgs};
pub use pointwise::{Pointwise, PointwiseArgs};
pub use prefix_attention::{PrefixAttention, PrefixAttentionArgs};
pub use sample::{Sample, SampleArgs};
pub use translate::Translate;

use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};

/// An operation. The descriptor is the operation, and the key under which its plan is kept.
pub trait Op: Clone + Eq + Hash + Debug + Send + Sync + 'static {
    /// The name in errors, case files and on the command line.
    const NAME: &'static str;
    /// The operands: named slices and checked index buffers.
    type Args<D: Device>: Send;

    /// Every rule on the descriptor itself: dimensions, types, flags that exclude each other.
    fn validate(&self) -> Result<()>;
    /// Rows of the result, their columns, and what each element is made of: the inputs of a product, the keys of attention, 1 where it is an element of
    /// its own. Of several products side by side the columns of all, and the most inputs.
    fn sizes(&self) -> [u64; 3];
    /// The operation's work and traffic.
    fn cost(&self) -> Cost;
    /// The operands `args` on another device: every slice and index passes through `to`.
    fn translate<A: Device, B: Device>(args: &Self::Args<A>, to: &Translate<'_, A, B>) -> Result<Self::Args<B>>;
    /// Shows every operand of `args`. Fails where an operand that a flag asks for is absent, or one that no flag asks for is present.
    fn operands<'a, D: Device>(&self, args: &'a Self::Args<D>, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()>;
}

/// The cost of an operation: floating-point work, counted in three ways, and the least traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Cost {
    /// Operations of the blocks that are computed, with the masked elements in them.
    pub executed_flops: f64,
    /// Operations that the result depends on.
    pub useful_flops: f64,
    /// Operations of this shape with no mask and no sparsity.
    pub dense_flops: f64,
    /// Bytes read and written when every operand moves once.
    pub bytes: f64,
}

/// How an operand is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read.
    Read,
    /// Written; its former contents do not matter.
    Write,
    /// Read, then written.
    ReadWrite,
}

/// One operand, as [`check`] sees it: runs of `row_bytes`, `pitch` bytes from start to start.
pub struct Operand<'a, D: Device> {
    /// Name of the operand in errors.
    pub(crate) name: &'static str,
    /// How the operand is accessed.
    pub(crate) access: Access,
    /// The operand's place. It is hidden from the caller of an operation, who could write over checked index data.
    pub(crate) slice: &'a Slice<D>,
    /// The operand's elements.
    element: Element,
    /// Bytes of which the operand's start is a multiple.
    align: u64,
    /// Bytes of a run.
    row_bytes: u64,
    /// Bytes from the start of a run to the start of the next.
    pitch: u64,
    /// The buffer, and its bytes from the operand's first to one past its last; none where there are no runs. Both are kept, since many
    /// slices make thousands of pairs to compare.
    buffer: usize,
    bytes: Range<u64>,
}

/// The elements of an operand: their bytes, and their type where operands may not have another.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    size: u64,
    dtype: Option<DType>,
}

impl From<DType> for Element {
    fn from(dtype: DType) -> Self {
        Self { size: dtype.size(), dtype: Some(dtype) }
    }
}

/// Elements of a number of bytes and of any type: whole numbers.
impl From<u64> for Element {
    fn from(size: u64) -> Self {
        Self { size, dtype: None }
    }
}

impl<'a, D: Device> Operand<'a, D> {
    /// An operand of `count` elements, one after another.
    pub fn packed(name: &'static str, access: Access, slice: &'a Slice<D>, count: u64, element: impl Into<Element>) -> Self {
        Self::pitched(name, access, slice, [1, count], count, element)
    }

    /// An operand of `rows` rows of `columns` elements, a row every `stride` elements.
    pub fn pitched(name: &'static str, access: Access, slice: &'a Slice<D>, [rows, columns]: [u64; 2], stride: u64, element: impl Into<Element>) -> Self {
        let element = element.into();
        let size = element.size;
        let (row_bytes, pitch) = (columns.saturating_mul(size), stride.saturating_mul(size));
        let span = if row_bytes == 0 { 0 } else { rows.checked_sub(1).map_or(0, |rest| rest.saturating_mul(pitch).saturating_add(row_bytes)) };
        let bytes = slice.offset..slice.offset.saturating_add(span);
        Self { name, access, slice, element, align: size, row_bytes, pitch, buffer: D::buffer_id(&slice.buffer), bytes }
    }

    /// This operand, which starts at a multiple of so many bytes, themselves a multiple of an element's.
    pub(crate) fn starting_at(self, align: u64) -> Self {
        Self { align, ..self }
    }

    /// Name of the operand in errors.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How the operand is accessed.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The memory in which the operand lies.
    pub fn buffer(&self) -> &'a D::Buffer {
        &self.slice.buffer
    }

    /// The bytes of that memory from its first to one past its last; none where it has no element.
    pub fn bytes(&self) -> Range<u64> {
        self.bytes.clone()
    }

    /// Bytes from the operand's first to one past its last.
    fn span(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }

    /// Whether two operands share a byte. It is exact for equal pitches (slices of one matrix side by side), and by span otherwise.
    fn overlaps(&self, other: &Operand<'_, D>) -> bool {
        let (a, b) = (self.bytes.start, other.bytes.start);
        if self.buffer != other.buffer || self.bytes.is_empty() || other.bytes.is_empty() || self.bytes.end <= b || other.bytes.end <= a {
            return false;
        }
        if self.pitch != other.pitch || self.pitch == 0 || self.row_bytes > self.pitch || other.row_bytes > self.pitch {
            return true;
        }
        // The columns lie on a circle of one pitch. They are apart when each ends before the other begins, going round.
        let gap = (b % self.pitch + self.pitch - a % self.pitch) % self.pitch;
        gap < self.row_bytes || gap + other.row_bytes > self.pitch
    }
}

/// Checks `args` against `op`: the descriptor, sizes, alignment, element types where they are known, that all lie in memory of `device`,
/// and that nothing written overlaps anything else.
pub fn check<O: Op, D: Device>(device: &D, op: &O, args: &O::Args<D>) -> Result<()> {
    op.validate()?;
    let mut operands = Vec::new();
    op.operands(args, &mut |operand| operands.push(operand))?;
    for operand in &operands {
        let subject = || format!("{}: {}", O::NAME, operand.name);
        if !device.owns(&operand.slice.buffer) {
            return Err(strange(subject()));
        }
        if operand.slice.len < operand.span() {
            return Err(Error::invalid(subject(), format!("at least {} bytes", operand.span()), format!("{} bytes", operand.slice.len)));
        }
        if operand.slice.offset % operand.align != 0 {
            return Err(Error::invalid(subject(), format!("an offset that is a multiple of {}", operand.align), operand.slice.offset));
        }
        if let (Some(expected), Some(found)) = (operand.element.dtype, operand.slice.dtype()) {
            ensure(found == expected, subject(), format_args!("elements of {expected}"), found)?;
        }
    }
    for (index, a) in operands.iter().enumerate().filter(|(_, a)| a.access != Access::Read) {
        for (other, b) in operands.iter().enumerate().filter(|&(other, b)| other > index || b.access == Access::Read) {
            if a.overlaps(b) {
                let (first, second) = if index < other { (a.name, b.name) } else { (b.name, a.name) };
                return Err(Error::invalid(format!("{}: {first} and {second}", O::NAME), "operands apart where one is written", "overlapping memory"));
            }
        }
    }
    Ok(())
}

/// The error that refuses memory of another device.
pub(crate) fn strange(subject: impl Into<String>) -> Error {
    Error::invalid(subject, "memory of this session's device", "another device's")
}

/// Returns `Err` unless `present` is what the descriptor's flag says.
fn expect_present(op: &'static str, operand: &str, wanted: bool, present: bool) -> Result<()> {
    let say = |there: bool| if there { "present" } else { "absent" };
    crate::error::ensure(wanted == present, format_args!("{op}: {operand}"), format_args!("{} (the descriptor says so)", say(wanted)), say(present))
}

/// Returns `Err` where rows of `columns` elements would overlap.
fn expect_stride(subject: &str, stride: u64, columns: u64) -> Result<()> {
    crate::error::ensure(stride >= columns, subject, format_args!("at least {columns}, the elements of a row"), stride)
}

/// Returns `Err`, naming `subject`, where the product of `dims` passes 2⁶³. A 0 counts as 1: a row has to be addressable even where there
/// is none.
fn expect_size(subject: &str, dims: &[u64]) -> Result<()> {
    let size = dims.iter().try_fold(1u64, |all, &dim| all.checked_mul(dim.max(1)).filter(|&bytes| bytes < 1 << 63));
    size.map(drop).ok_or_else(|| Error::invalid(subject, "a size below 2^63", format!("{dims:?}")))
}

/// An activation, the function of a product's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x·½(1 + tanh(√(2/π)(x + 0.044715x³))), the form of GPT-2 (Hendrycks and Gimpel, arXiv:1606.08415).
    GeluTanh,
    /// x·Φ(x), computed with the error function, the form of BERT.
    GeluErf,
    /// x/(1 + e⁻ˣ), also called swish.
    Silu,
    /// max(x, 0), and NaN for NaN.
    Relu,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Self; 4] = [Self::GeluTanh, Self::GeluErf, Self::Silu, Self::Relu];

    /// The name in case files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GeluTanh => "gelu_tanh",
            Self::GeluErf => "gelu_erf",
            Self::Silu => "silu",
            Self::Relu => "relu",
        }
    }
}

impl std::str::FromStr for Activation {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|activation| activation.name() == name)
            .ok_or_else(|| Error::invalid("activation", "gelu_tanh, gelu_erf, silu or relu", format!("{name:?}")))
    }
}
