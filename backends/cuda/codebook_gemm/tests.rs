//! Random operations on several chips: what is chosen is among what can be forced, and all of that is compiled ahead.

use std::collections::BTreeSet;

use super::entry::reach::TARGETS;
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::variant::{Table, Target};
use crate::cases::Draw;
use crate::dtype::DType;
use crate::ops::codebook_gemm::{Factor, ScaledBy};
use crate::ops::{CodeWidth, CodebookGemm};

/// Operations of every form, whose sizes are those of models, and odd ones.
fn random(draw: &mut Draw) -> CodebookGemm {
    let mut one = |of: &[u64]| of[draw.below(of.len() as u32) as usize];
    let dtype = if one(&[0, 0, 0, 1]) == 0 { DType::F16 } else { DType::BF16 };
    let dims = [one(&[384, 384, 4096, 1024, 100, 11008]), one(&[32, 384, 1024, 4096, 1000, 11008, 100]), one(&[16, 16, 16, 8, 32, 64, 12])];
    let (tokens, adapters) = (one(&[0, 1, 4, 16, 17, 100, 129, 200, 1000, 5000]), one(&[1, 2, 16, 31, 32, 100, 513]) as u32);
    let widths = [CodeWidth::FourThree, CodeWidth::Four, CodeWidth::Three, CodeWidth::Bytes];
    let mut op = CodebookGemm::s2lc(dtype, tokens, dims, adapters, widths[one(&[0, 0, 0, 1, 2, 3]) as usize]);
    op.slices = vec![op.slices[0].clone(); one(&[1, 1, 1, 2, 3, 4, 20, 60]) as usize];
    op.accumulate = one(&[0, 1]) == 0;
    if one(&[0, 0, 0, 1]) == 1 {
        op.slices[0].input = Factor::Dense { bases: 3 };
    }
    if one(&[0, 0, 0, 1]) == 1 {
        op.scaled_by = ScaledBy::Token;
    }
    if one(&[0, 0, 0, 1]) == 1 {
        op.x_stride += 1;
    }
    op
}

/// What tells a unit from the others.
fn key(unit: &Unit) -> String {
    format!("{} {:?} {:?} {}", unit.name, unit.entries, unit.defines, unit.shared_bytes)
}

#[test]
fn what_is_chosen_can_be_forced_and_all_that_can_is_compiled_ahead() {
    let mut draw = Draw::seeded("configurations");
    let known: Vec<Vec<BTreeSet<String>>> = TARGETS
        .iter()
        .map(|target| {
            let units = |variant: &super::Variant<CodebookGemm>| (variant.units)(target.arch).iter().flat_map(Unit::all).map(key).collect();
            CodebookGemm::VARIANTS.iter().map(units).collect()
        })
        .collect();
    let mut met = BTreeSet::new();
    for _ in 0..80 {
        let op = random(&mut draw);
        for (target, known) in TARGETS.iter().zip(&known) {
            for (variant, known) in CodebookGemm::VARIANTS.iter().zip(known).filter(|(variant, _)| variant.accepts(&op, target).is_ok()) {
                let (able, chosen) = (variant.able(&op, target), variant.cheapest(&op, target));
                assert_eq!(able.iter().any(|(target, _)| target.config == chosen.config), chosen.config.is_some(), "{} {chosen:?} {op:?}", variant.name);
                let plans = able.into_iter().chain([(chosen, "chosen".into())]);
                let missing = |(target, config): (Target, String)| {
                    met.insert(format!("{}:{config}", variant.name));
                    (variant.unit)(&op, &target).all().into_iter().map(key).find(|key| !known.contains(key)).map(|key| (config, key))
                };
                assert_eq!(plans.filter_map(missing).next(), None, "{} {op:?}", variant.name);
            }
        }
    }
    for name in ["sm90:balanced-8", "sm90:icache_warm-32", "sm90:many-2", "sm80:any-4", "sgmv:once", "sgmv:grouped", "sgmv_long:slices3", "sgmv_long:any"] {
        assert!(met.contains(name), "{name}: {met:?}");
    }
}
