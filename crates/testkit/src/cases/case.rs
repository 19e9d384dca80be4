//! What a case is: a name, an operation, and how its operands are drawn.

use super::draw::Draw;
use crate::oracle::Define;
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::{Attention, Checksum, CodebookGemm, FusedMlp, GroupedLinear, Linear, Op, Pointwise, PrefixAttention, Sample};

/// Lengths at which tiles, warps and vector loads end, plus or minus one.
pub(super) const EDGES: [u64; 10] = [1, 7, 31, 33, 127, 129, 255, 256, 257, 511];

/// An operation with its operands.
#[derive(Clone, Debug)]
pub struct Posed<O: Define> {
    /// The descriptor.
    pub op: O,
    /// The operands.
    pub host: O::Host,
}

/// Any operation with its operands.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "one variant an operation, by its own name")]
pub enum Problem {
    CodebookGemm(Posed<CodebookGemm>),
    Attention(Posed<Attention>),
    PrefixAttention(Posed<PrefixAttention>),
    FusedMlp(Posed<FusedMlp>),
    Linear(Posed<Linear>),
    GroupedLinear(Posed<GroupedLinear>),
    Pointwise(Posed<Pointwise>),
    Sample(Posed<Sample>),
    Checksum(Posed<Checksum>),
}

/// Something to do with a problem, whatever its operation.
pub trait Work {
    /// What it gives back.
    type Out;
    /// Does it.
    fn on<O: Define>(self, posed: &Posed<O>) -> Self::Out;
}

/// The operation that a case is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "one variant an operation, by its own name")]
pub enum OpKind {
    CodebookGemm,
    Attention,
    PrefixAttention,
    FusedMlp,
    Linear,
    GroupedLinear,
    Pointwise,
    Sample,
    Checksum,
}

impl OpKind {
    /// Every operation.
    pub const ALL: [Self; 9] = [
        Self::CodebookGemm,
        Self::Attention,
        Self::PrefixAttention,
        Self::FusedMlp,
        Self::Linear,
        Self::GroupedLinear,
        Self::Pointwise,
        Self::Sample,
        Self::Checksum,
    ];

    /// The operation's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CodebookGemm => CodebookGemm::NAME,
            Self::Attention => Attention::NAME,
            Self::PrefixAttention => PrefixAttention::NAME,
            Self::FusedMlp => FusedMlp::NAME,
            Self::Linear => Linear::NAME,
            Self::GroupedLinear => GroupedLinear::NAME,
            Self::Pointwise => Pointwise::NAME,
            Self::Sample => Sample::NAME,
            Self::Checksum => Checksum::NAME,
        }
    }
}

impl Problem {
    /// Does `work` on the operation and its operands.
    pub fn with<W: Work>(&self, work: W) -> W::Out {
        match self {
            Self::CodebookGemm(posed) => work.on(posed),
            Self::Attention(posed) => work.on(posed),
            Self::PrefixAttention(posed) => work.on(posed),
            Self::FusedMlp(posed) => work.on(posed),
            Self::Linear(posed) => work.on(posed),
            Self::GroupedLinear(posed) => work.on(posed),
            Self::Pointwise(posed) => work.on(posed),
            Self::Sample(posed) => work.on(posed),
            Self::Checksum(posed) => work.on(posed),
        }
    }

    /// The operation that the problem is of.
    pub const fn kind(&self) -> OpKind {
        match self {
            Self::CodebookGemm(_) => OpKind::CodebookGemm,
            Self::Attention(_) => OpKind::Attention,
            Self::PrefixAttention(_) => OpKind::PrefixAttention,
            Self::FusedMlp(_) => OpKind::FusedMlp,
            Self::Linear(_) => OpKind::Linear,
            Self::GroupedLinear(_) => OpKind::GroupedLinear,
            Self::Pointwise(_) => OpKind::Pointwise,
            Self::Sample(_) => OpKind::Sample,
            Self::Checksum(_) => OpKind::Checksum,
        }
    }
}

macro_rules! from_posed {
    ($($op:ident)*) => { $(
        impl From<Posed<$op>> for Problem {
            fn from(posed: Posed<$op>) -> Self {
                Self::$op(posed)
            }
        }
    )* };
}
from_posed! { CodebookGemm Attention PrefixAttention FusedMlp Linear GroupedLinear Pointwise Sample Checksum }

type Build = dyn Fn(&mut Draw) -> Result<Problem> + Send + Sync;

/// A named case.
pub struct Case {
    name: String,
    kind: OpKind,
    zero: Option<&'static str>,
    orderless: Option<&'static str>,
    build: Box<Build>,
}

impl Case {
    /// A case called `<operation>/<name>`, whose operands `build` draws. Its data depends on that name alone.
    pub fn new(kind: OpKind, name: impl std::fmt::Display, build: impl Fn(&mut Draw) -> Result<Problem> + Send + Sync + 'static) -> Self {
        Self { name: format!("{}/{name}", kind.name()), kind, zero: None, orderless: None, build: Box::new(build) }
    }

    /// This case with the reason why zero (or nothing at all) is its true answer.
    pub(super) fn zero(self, reason: &'static str) -> Self {
        Self { zero: Some(reason), ..self }
    }

    /// This case with the reason why none of its operands can be put in the wrong order.
    pub(super) fn orderless(self, reason: &'static str) -> Self {
        Self { orderless: Some(reason), ..self }
    }

    /// `<operation>/<what is special>_<dtype>`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Operation of the case.
    pub const fn kind(&self) -> OpKind {
        self.kind
    }

    /// Why no operand can be put in the wrong order, where none can.
    pub const fn orderless_reason(&self) -> Option<&'static str> {
        self.orderless
    }

    /// Why zero (of the first output), or writing nothing, is the true answer, where it is.
    pub const fn zero_reason(&self) -> Option<&'static str> {
        self.zero
    }

    /// Draws the operands.
    pub fn problem(&self) -> Result<Problem> {
        (self.build)(&mut Draw::seeded(&self.name))
    }
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("zero", &self.zero).finish_non_exhaustive()
    }
}

/// The types in turn, so that a sweep along an axis meets each without being run three times.
pub(super) fn dtype_in_turn(number: usize) -> DType {
    DType::ALL[number % DType::ALL.len()]
}
