//! Tests of the variant and configuration that shapes take on six chips.

#[allow(clippy::unwrap_used)]
mod recorded;

use std::collections::HashSet;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::random::random_op;
use super::*;
use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::variant::{Table, choose};
use crate::dtype::DType;
use crate::ops::Op;
use crate::ops::attention::Form;
use crate::ops::index::{BlockShape, MapShape, PageShape, VarlenShape};

const UNITS: u32 = 132;

const fn hopper(units: u32) -> Target {
    Target { arch: Arch(90), units, shared_bytes: 227 << 10, config: None }
}

fn targets() -> impl Iterator<Item = Target> {
    [78, 114, 132, 144].map(hopper).into_iter().chain([A100, RTX_3090])
}

const A100: Target = Target { arch: Arch(80), units: 108, shared_bytes: 163 << 10, config: None };
const RTX_3090: Target = Target { arch: Arch(86), units: 82, shared_bytes: 99 << 10, config: None };

fn dense(batch: u64, heads: [u64; 2], tokens: [u64; 2], head_dim: u64) -> Attention {
    Attention::dense(DType::F16, batch, heads, tokens, head_dim)
}

fn causal(op: Attention) -> Attention {
    Attention { causal: true, ..op }
}

fn varlen_of(batch: u64, total: u64, longest: u64, heads: [u64; 2], head_dim: u64) -> Attention {
    let shape = VarlenShape { batch, total_q: total, total_kv: total, max_q: longest, max_kv: longest };
    Attention::varlen(DType::F16, shape, heads, head_dim)
}

fn paged(page: u64, batch: u64, q_len: u64) -> Attention {
    Attention::paged(DType::F16, PageShape { batch, pages: 4096 / page, page, pool_pages: 1 << 16 }, [32, 8], q_len, 128)
}

fn blocks(heads: u64, tokens: u64, head_dim: u64, [block, capacity]: [u32; 2]) -> Attention {
    let q_blocks = tokens.div_ceil(u64::from(block)) as u32;
    let shape = BlockShape { block, q_blocks, kv_blocks: q_blocks, patterns: 1, capacity, masks: 0 };
    Attention { form: Form::Blocks(shape), ..dense(1, [heads, heads], [tokens, tokens], head_dim) }
}

fn shapes() -> Vec<Attention> {
    let map = MapShape { block: 64, q_blocks: 128, kv_blocks: 128, patterns: 1 };
    vec![
        dense(1, [32, 32], [4096, 4096], 128),
        causal(dense(1, [32, 32], [4096, 4096], 128)),
        causal(dense(1, [32, 8], [512, 512], 128)),
        dense(1, [32, 32], [1024, 1024], 64),
        dense(1, [2, 2], [4096, 4096], 64),
        dense(4, [32, 32], [2048, 2048], 107),
        dense(1, [16, 16], [2048, 2048], 256),
        dense(16, [32, 32], [1, 4096], 128),
        dense(1, [32, 8], [1, 4096], 128),
        dense(1, [32, 8], [1, 4096], 107),
        paged(16, 64, 1),
        paged(16, 1, 512),
        paged(256, 16, 512),
        varlen_of(32, 4096, 128, [12, 12], 32),
        varlen_of(8, 9000, 3000, [32, 8], 128),
        blocks(8, 8192, 128, [128, 800]),
        blocks(1, 3968, 64, [128, 204]),
        Attention { form: Form::BlockMap(map), ..dense(1, [8, 8], [8192, 8192], 128) },
        Attention::dense(DType::F32, 1, [8, 8], [512, 512], 64),
    ]
}

#[test]
fn every_shape_has_a_variant_that_supports_it_on_every_chip() {
    for target in targets() {
        for op in shapes() {
            let chosen = choose(Attention::VARIANTS, &op, &target, None)
                .map(|(variant, target)| (variant.runs_on.accept(target.arch), (variant.supports)(&op, &target)));
            assert!(matches!(chosen, Ok((Ok(()), Ok(())))), "{op:?} on {target:?}: {chosen:?}");
        }
    }
}

/// The choice for each shape: the variant, and its configuration where it has several.
fn chosen(target: Target) -> Vec<String> {
    let name = |op: &Attention| {
        let Ok((variant, target)) = choose(Attention::VARIANTS, op, &target, None) else { return "none".into() };
        let names = variant.configs.as_ref().map_or_else(Vec::new, |configs| (configs.names)(target.arch));
        target.config.map_or(variant.name.to_owned(), |config| format!("{}:{}", variant.name, names[usize::from(config)]))
    };
    shapes().iter().map(name).collect()
}

#[test]
fn the_choice_is_the_measured_one() {
    let h200 = [
        "sm90:multicast-streamk",
        "sm90:persistent",
        "sm90:causal_paired",
        "sm90:2wg-small_head",
        "sm90:intra_split_kv",
        "sm90:multicast-unaligned",
        "sm90:multicast",
        "sm90_decode:8warps-2heads-whole",
        "sm80_decode:deep",
        "sm80_decode:deep-unaligned",
        "sm90_decode:8warps-8heads",
        "sm90_varlen:lookahead",
        "sm90_varlen:persistent",
        "sm80_varlen_short:plain",
        "sm90_varlen:persistent",
        "sm90:split_kv",
        "sm90:intra_split_kv",
        "sm90:split_kv",
        "simt",
    ];
    assert_eq!(chosen(hopper(132)), h200);
    let ampere = |wide_heads| {
        let few = ["sm80_decode:deep", "sm80_decode:deep", "sm80_decode:deep-unaligned", "sm80_decode:deep"];
        let dense = ["sm80:wide", "sm80:wide", "sm80:wide", "sm80:wide", "sm80:general", "sm80:wide", wide_heads];
        let lists = ["sm80:general", "sm80:general", "sm80_varlen_short:plain", "sm80:wide", "sm80:general", "sm80:general", "sm80:general", "simt"];
        [&dense[..], &few, &lists].concat()
    };
    assert_eq!(chosen(A100), ampere("sm80:wide"));
    assert_eq!(chosen(RTX_3090), ampere("sm80:general"));
}

#[test]
fn narrow_heads_in_many_tiles_are_taken_by_four_groups() {
    let of = |batch, heads, tokens| dense(batch, [heads, heads], [tokens, tokens], 64);
    let takes = |op: &Attention| small_head(op, &hopper(UNITS)).is_ok();
    let taken = [(8, 8, 512), (32, 8, 128), (1, 32, 1024), (64, 12, 512), (1, 32, 4096), (1, 8, 16384), (1, 32, 2048)];
    assert!(taken.into_iter().all(|(b, h, s)| takes(&of(b, h, s))));
    assert!(![(1, 32, 512), (1, 9, 2048), (1, 32, 3072), (256, 12, 128)].into_iter().any(|(b, h, s)| takes(&of(b, h, s))), "waves");
    let each = [(8, 8, 512), (1, 32, 2048), (1, 32, 1024), (1, 12, 2048)].map(|(b, h, s)| takes(&causal(of(b, h, s))));
    assert_eq!(each, [true, true, false, false]);
    assert!(!takes(&Attention { head_dim: 128, ..of(8, 8, 512) }) && !takes(&Attention { head_dim: 32, ..of(8, 8, 512) }));
}

/// What a unit is compiled from, beside its source.
fn compiled(unit: &Unit) -> (&str, &[&str], &[(&str, String)]) {
    (&unit.name, unit.entries, &unit.defines)
}

#[test]
fn what_is_chosen_can_be_computed_and_all_that_can_be_forced_is_compiled() {
    let mut rng = ChaCha8Rng::seed_from_u64(20_261_124);
    let ops: Vec<Attention> = std::iter::repeat_with(|| random_op(&mut rng)).filter(|op| op.validate().is_ok()).take(400).collect();
    for target in targets() {
        let units: Vec<Unit> = Attention::VARIANTS.iter().flat_map(|variant| (variant.units)(target.arch)).collect();
        let known: HashSet<_> = units.iter().flat_map(Unit::all).map(compiled).collect();
        for op in &ops {
            let found = choose(Attention::VARIANTS, op, &target, None);
            assert!(found.is_ok(), "no variant for {op:?} on {target:?}");
            let Ok((variant, chosen)) = found else { continue };
            let able = variant.able(op, &target);
            assert!(chosen.config.is_none() || able.iter().any(|(target, _)| target.config == chosen.config), "{}: {op:?} on {target:?}", variant.name);
            for variant in Attention::VARIANTS.iter().filter(|variant| variant.accepts(op, &target).is_ok()) {
                let able = variant.able(op, &target);
                assert_eq!(able.is_empty(), variant.configs.is_none(), "{}: {op:?} on {target:?}", variant.name);
                for (target, name) in able.into_iter().chain([(variant.cheapest(op, &target), "cheapest".into())]) {
                    assert_eq!(variant.accepts(op, &target), Ok(()), "{}:{name}: {op:?} on {target:?}", variant.name);
                    let unit = (variant.unit)(op, &target);
                    assert!(unit.all().into_iter().all(|unit| known.contains(&compiled(unit))), "{}:{name}: {} for {op:?}", variant.name, unit.name);
                }
            }
        }
    }
}
