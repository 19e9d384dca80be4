//! Named cases with seeded data: the same ones for tests, benchmarks and the command line.
//!
//! A case draws its operands from a generator seeded by its name, so it is the same on every machine and for ever, and
//! does not depend on the cases before it. Operands are scaled so that outputs are of order one. Gaps between rows, and
//! cache entries past a sequence's end, hold NaN: whoever reads them shows it.

mod attention;
mod attention_forms;
mod attention_long;
mod attention_ragged;
mod attention_ragged_pages;
mod attention_rows;
mod attention_slots;
mod case;
mod checksum;
mod codebook_gemm;
mod draw;
mod fused_mlp;
mod grouped_linear;
mod linear;
mod linear_wide;
mod lora;
mod pointwise;
mod prefix_attention;
mod sample;

pub use case::{Case, OpKind, Posed, Problem, Work};
pub use codebook_gemm::{Assignment, Population, steady_codebook};
pub use draw::Draw;

/// Every case.
pub fn all() -> Vec<Case> {
    let mut cases = codebook_gemm::cases();
    cases.extend(lora::cases());
    cases.extend(attention::cases());
    cases.extend(attention_forms::cases());
    cases.extend(attention_long::cases());
    cases.extend(attention_ragged::cases());
    cases.extend(attention_ragged_pages::cases());
    cases.extend(attention_rows::cases());
    cases.extend(attention_slots::cases());
    cases.extend(prefix_attention::cases());
    cases.extend(fused_mlp::cases());
    cases.extend(linear::cases());
    cases.extend(linear_wide::cases());
    cases.extend(grouped_linear::cases());
    cases.extend(pointwise::cases());
    cases.extend(sample::cases());
    cases.extend(checksum::cases());
    cases
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use trifuse::dtype::DType;

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
