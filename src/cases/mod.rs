//! Named cases with seeded data: the same ones for tests, benchmarks and the command line.
//!
//! A case draws its operands from a generator seeded by its name, so it is the same on every machine and for ever, and
//! does not depend on the cases before it. Operands are scaled so that outputs are of order one. Gaps between rows, and
//! cache entries past a sequence's end, hold NaN: whoever reads them shows it.

mod attention;
mod attention_forms;
mod attention_long;
mod attention_ragged;
mod attention_rows;
mod codebook_gemm;
mod draw;
mod fused_mlp;
mod linear;
mod pointwise;
mod prefix_attention;

pub use codebook_gemm::{Assignment, Population, steady_codebook};
pub use draw::Draw;

use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Attention, CodebookGemm, FusedMlp, Linear, Op, Pointwise, PrefixAttention};
use crate::oracle::Define;

/// Lengths at which tiles, warps and vector loads end, plus or minus one.
const EDGES: [u64; 10] = [1, 7, 31, 33, 127, 129, 255, 256, 257, 511];

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
    Pointwise(Posed<Pointwise>),
}

/// Something to do with a problem, whatever its operation.
pub trait Work {
    /// What it gives back.
    type Out;
    /// Does it.
    fn on<O: Define>(self, posed: &Posed<O>) -> Self::Out;
}

/// Which operation a case is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "one variant an operation, by its own name")]
pub enum OpKind {
    CodebookGemm,
    Attention,
    PrefixAttention,
    FusedMlp,
    Linear,
    Pointwise,
}

impl OpKind {
    /// Every operation.
    pub const ALL: [Self; 6] = [Self::CodebookGemm, Self::Attention, Self::PrefixAttention, Self::FusedMlp, Self::Linear, Self::Pointwise];

    /// The operation's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CodebookGemm => CodebookGemm::NAME,
            Self::Attention => Attention::NAME,
            Self::PrefixAttention => PrefixAttention::NAME,
            Self::FusedMlp => FusedMlp::NAME,
            Self::Linear => Linear::NAME,
            Self::Pointwise => Pointwise::NAME,
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
            Self::Pointwise(posed) => work.on(posed),
        }
    }

    /// Which operation it is of.
    pub const fn kind(&self) -> OpKind {
        match self {
            Self::CodebookGemm(_) => OpKind::CodebookGemm,
            Self::Attention(_) => OpKind::Attention,
            Self::PrefixAttention(_) => OpKind::PrefixAttention,
            Self::FusedMlp(_) => OpKind::FusedMlp,
            Self::Linear(_) => OpKind::Linear,
            Self::Pointwise(_) => OpKind::Pointwise,
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
from_posed! { CodebookGemm Attention PrefixAttention FusedMlp Linear Pointwise }

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

    /// The same, and for that reason zero (or nothing at all) is the true answer.
    fn zero(self, reason: &'static str) -> Self {
        Self { zero: Some(reason), ..self }
    }

    /// The same, and for that reason no operand can be put in the wrong order.
    fn orderless(self, reason: &'static str) -> Self {
        Self { orderless: Some(reason), ..self }
    }

    /// `<operation>/<what is special>_<dtype>`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its operation.
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

/// Every case.
pub fn all() -> Vec<Case> {
    let mut cases = codebook_gemm::cases();
    cases.extend(attention::cases());
    cases.extend(attention_forms::cases());
    cases.extend(attention_long::cases());
    cases.extend(attention_ragged::cases());
    cases.extend(attention_rows::cases());
    cases.extend(prefix_attention::cases());
    cases.extend(fused_mlp::cases());
    cases.extend(linear::cases());
    cases.extend(pointwise::cases());
    cases
}

/// The types in turn, so that a sweep along an axis meets each without being run three times.
fn dtype_in_turn(number: usize) -> DType {
    DType::ALL[number % DType::ALL.len()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_data_depends_on_nothing_but_the_name() {
        let cases = all();
        let names: BTreeSet<&str> = cases.iter().map(Case::name).collect();
        assert_eq!(names.len(), cases.len());
        let case = cases.iter().find(|case| case.kind() == OpKind::Linear).unwrap();
        let (Problem::Linear(a), Problem::Linear(b)) = (case.problem().unwrap(), case.problem().unwrap()) else { unreachable!() };
        assert_eq!(a.host.x, b.host.x);
        assert_eq!(a.host.w, b.host.w);
    }

    #[test]
    fn the_generator_is_stable() {
        let drawn = Draw::seeded("a name").normal(DType::F32, 2, 1.0);
        assert_eq!(drawn.iter().map(|v| (v * 1e4).round()).collect::<Vec<_>>(), STABLE, "{drawn:?}");
    }

    /// Values drawn once; a change of generator would change every case.
    const STABLE: [f64; 2] = [-13782.0, -22500.0];
}
