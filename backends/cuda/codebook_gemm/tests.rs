//! What the choice would lose on shapes of which every configuration was timed: `lab/adapters-h100.tsv`.

use super::choose_launch::{blocks_by_launch, shape_by_launch};
use super::clusters::{Known, config};
use super::launch::{Group, may_be_whole};
use super::order::{Order, order};
use crate::backends::cuda::variant::recorded::{Choice, Times, losses};
use crate::backends::cuda::variant::{Table, Target, choose};
use crate::dtype::DType;
use crate::ops::{CodeWidth, CodebookGemm};

/// A shape as `bench --regret` names it: the operation, and what its launches know of the ones before.
fn parsed(name: &str) -> Option<(CodebookGemm, Known)> {
    let words: Vec<&str> = name.split_whitespace().collect();
    let after = |prefix: &str| words.iter().find_map(|word| word.strip_prefix(prefix)?.parse::<u64>().ok());
    let at = words.iter().position(|word| *word == "x")?;
    let count: usize = words.get(at.checked_sub(1)?)?.parse().ok()?;
    let sides: Vec<u64> = words.get(at + 1)?.split('-').map_while(|side| side.parse().ok()).collect();
    let bits = words.iter().position(|word| *word == "bits").and_then(|at| words.get(at.checked_sub(1)?)).copied();
    let width = match bits {
        Some("3") => CodeWidth::Three,
        Some("4") => CodeWidth::Four,
        _ => CodeWidth::FourThree,
    };
    let (chained, shared) = (words[0] == "chained", words[0] == "one");
    let dims = [*sides.first()?, *sides.last()?, after("r")?];
    let one = CodebookGemm::s2lc(DType::F16, after("tokens")?, dims, after("adapters")? as u32, width).with_accumulate(words[0] == "added");
    let slices = vec![one.slices[0].clone(); if chained || shared { 1 } else { count }];
    let op = one.with_slices(slices);
    let whole = op.slices.iter().all(|slice| may_be_whole(&op, slice));
    // Slices whose rows are not whole have a launch each, of which all but the first start early.
    let early = chained || shared || !whole && op.slices.len() > 1;
    Some((op, Known { whole, early, x_early: !chained, basis_of: false }))
}

/// The time of `blocks` blocks, between those that were timed.
fn between(times: &Times<'_>, kernel: &str, blocks: u64) -> Option<f64> {
    let timed = times.iter().filter_map(|(name, &time)| Some((name.strip_prefix(kernel)?.strip_prefix('-')?.parse::<u64>().ok()?, time)));
    let (less, more): (Vec<_>, Vec<_>) = timed.partition(|&(count, _)| count <= blocks);
    match (less.into_iter().max_by_key(|&(count, _)| count), more.into_iter().min_by_key(|&(count, _)| count)) {
        (Some((count, time)), _) if count == blocks => Some(time),
        (Some((few, one)), Some((many, other))) => {
            let share = (blocks as f64 / few as f64).ln() / (many as f64 / few as f64).ln();
            Some(one.powf(1.0 - share) * other.powf(share))
        }
        (one, other) => one.or(other).map(|(_, time)| time),
    }
}

/// The name of what is chosen, and its time where it was timed.
fn chosen(op: &CodebookGemm, known: Known, target: &Target, times: &Times<'_>) -> (String, Option<f64>) {
    let (variant, target) = choose(CodebookGemm::VARIANTS, op, target, None).unwrap();
    let group = if known.whole { Group::of(&op.slices) } else { Group::of(&op.slices[..1]) };
    let units = target.units.into();
    let name = match variant.name {
        "sm90" => format!("sm90:{}", config(Some(shape_by_launch(op, group, units, known)))),
        "sm80" => format!("sm80:blocks-{}", blocks_by_launch(op, group, units)),
        name => match target.config {
            Some(number) => format!("{name}:{}", variant.config_names(target.arch)[usize::from(number)]),
            None => name.to_string(),
        },
    };
    let exact = times.get(name.as_str()).or_else(|| times.get(variant.name)).copied();
    let blocks = name.rsplit_once('-').and_then(|(kernel, blocks)| between(times, kernel, blocks.parse().ok()?));
    (name, exact.or(blocks))
}

#[test]
fn the_choice_is_near_the_fastest_of_recorded_times() {
    let lost = losses("lab/adapters-h100.tsv", |shape, times| {
        let (op, known) = parsed(shape).ok_or(shape).unwrap();
        let (name, time) = chosen(&op, known, &Target::H200, times);
        let few = order(&op, &Target::H200) == Some(Order::Eighths) && op.tokens <= 128;
        Choice { name, time, class: if few { "few tokens" } else { "many tokens" } }
    })
    .unwrap();
    println!("{}", lost.told);
    assert_eq!(lost.shapes, 200, "{}", lost.told);
    assert!(lost.mean < 1.06 && lost.most < 1.45 && lost.untimed <= 5, "{}", lost.told);
}
