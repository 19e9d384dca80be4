//! The choices of ranks of a model's projections, and the ranks that a budget buys.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::allocate::{Allocation, Choice, allocate};
use crate::error::{Error, Result, ensure};

/// A projection, and what each of its ranks loses.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The module path.
    pub path: String,
    /// `[d_out, d_in]`.
    pub shape: [u64; 2],
    /// Nats a token for each rank from 0 on.
    pub loss: Vec<f64>,
}

impl Curve {
    /// Parameters of the matrix.
    pub fn whole(&self) -> u64 {
        self.shape[0] * self.shape[1]
    }

    /// Parameters of one more rank.
    pub fn unit(&self) -> u64 {
        self.shape[0] + self.shape[1]
    }

    /// Parameters at a rank; of the matrix where there is none.
    pub fn parameters(&self, rank: Option<u64>) -> u64 {
        rank.map_or(self.whole(), |rank| rank * self.unit())
    }

    /// What a rank loses; nothing where there is none.
    pub fn lost(&self, rank: Option<u64>) -> f64 {
        rank.map_or(0.0, |rank| self.loss.get(rank as usize).copied().unwrap_or(0.0))
    }
}

/// Which ranks may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// An equal share of every matrix, whatever it loses.
    Uniform,
    /// Any rank.
    Free,
    /// Multiples of a number.
    Multiples(u64),
    /// Free ranks, each rounded to the nearest multiple of a number afterwards.
    Nearest(u64),
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("ranks", "uniform, free, align:N, nearest:N or knapsack, with N from 1 to 4096", text);
        let number = |text: &str| text.parse::<u64>().ok().filter(|number| (1..=4096).contains(number)).ok_or_else(wrong);
        match (text, text.split_once(':')) {
            ("uniform", _) => Ok(Self::Uniform),
            ("free", _) => Ok(Self::Free),
            ("knapsack", _) => Ok(Self::Multiples(16)),
            (_, Some(("align", number_))) => Ok(Self::Multiples(number(number_)?)),
            (_, Some(("nearest", number_))) => Ok(Self::Nearest(number(number_)?)),
            _ => Err(wrong()),
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Free => f.write_str("free"),
            Self::Multiples(number) => write!(f, "align:{number}"),
            Self::Nearest(number) => write!(f, "nearest:{number}"),
        }
    }
}

/// The ranks that a budget buys.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The rank of each projection that is factored.
    pub ranks: BTreeMap<String, u64>,
    /// Units of the budget, and those that the ranks take: parameters or nanoseconds.
    pub budget: u64,
    /// What the ranks take of it.
    pub cost: u64,
    /// Parameters of the projections.
    pub parameters: u64,
    /// Nats a token that are lost, to second order.
    pub nats: f64,
    /// What any ranks of the rule lose within the budget, at least; where the rule is an allocation.
    pub bound: Option<f64>,
    /// Whether no other ranks of the rule lose less.
    pub exact: bool,
}

/// What a projection costs at a rank, or as a matrix; nothing where it cannot be had so.
pub type Price<'a> = dyn Fn(&Curve, Option<u64>) -> Option<u64> + 'a;

/// The ranks that a budget of parameters buys: the share `keep` of what the matrices have.
///
/// # Errors
/// A share that is not above 0 and at most 1; one that no ranks of the rule are cheap enough for.
pub fn by_parameters(curves: &[Curve], rule: Rule, keep: f64) -> Result<Plan> {
    ensure(keep > 0.0 && keep <= 1.0, "keep", "a share above 0 and at most 1", keep)?;
    let whole: u64 = curves.iter().map(Curve::whole).sum();
    let budget = (keep * whole as f64).floor() as u64;
    match rule {
        Rule::Uniform => {
            let rank = |curve: &Curve| ((keep * curve.whole() as f64 / curve.unit() as f64).floor() as u64).max(1);
            let ranks: Vec<Option<u64>> = curves.iter().map(|curve| Some(rank(curve)).filter(|_| keep < 1.0)).collect();
            plan(curves, &ranks, budget, None)
        }
        Rule::Free => within(curves, 1, budget, &parameters),
        Rule::Multiples(number) => within(curves, number, budget, &parameters),
        Rule::Nearest(number) => nearest(curves, number, budget),
    }
}

/// The ranks that a budget of pages buys: the share `keep` of the columns that keys and values have. A rank takes as many columns, and no projection stays
/// whole.
///
/// # Errors
/// A share that is not above 0 and at most 1; a rule that rounds afterwards; ranks that a projection does not have.
pub fn by_cache(curves: &[Curve], rule: Rule, keep: f64) -> Result<Plan> {
    ensure(keep > 0.0 && keep <= 1.0, "keep", "a share above 0 and at most 1", keep)?;
    let budget = (keep * curves.iter().map(|curve| curve.shape[0]).sum::<u64>() as f64).floor() as u64;
    match rule {
        Rule::Uniform => {
            let share = |curve: &Curve| ((keep * curve.shape[0] as f64).floor() as u64).clamp(1, curve.shape[0].min(curve.shape[1]));
            within(curves, 1, budget, &|curve, rank| rank.filter(|&rank| rank == share(curve)))
        }
        Rule::Free => within(curves, 1, budget, &|_, rank| rank),
        Rule::Multiples(number) => within(curves, number, budget, &|_, rank| rank),
        Rule::Nearest(_) => Err(Error::invalid("ranks", "uniform, free, align:N or knapsack for a budget of pages", rule)),
    }
}

/// Parameters of a projection; a rank that saves none is not to be had.
fn parameters(curve: &Curve, rank: Option<u64>) -> Option<u64> {
    let cost = curve.parameters(rank);
    (rank.is_none() || cost < curve.whole()).then_some(cost)
}

/// The ranks of least loss, multiples of `step`, within a budget of what `price` tells.
///
/// # Errors
/// A budget below the cheapest ranks.
pub fn within(curves: &[Curve], step: u64, budget: u64, price: &Price<'_>) -> Result<Plan> {
    let choices = |curve: &Curve| -> Vec<(Option<u64>, Choice)> {
        let most = (curve.loss.len() as u64).saturating_sub(1);
        let ranks = (1..=most / step).map(|count| Some(count * step));
        let all = ranks.chain([None]).filter_map(|rank| Some((rank, Choice { cost: price(curve, rank)?, loss: curve.lost(rank) })));
        all.collect()
    };
    let all: Vec<_> = curves.iter().map(choices).collect();
    let items: Vec<Vec<Choice>> = all.iter().map(|choices| choices.iter().map(|choice| choice.1).collect()).collect();
    let allocation = allocate(&items, budget)?;
    let ranks: Vec<Option<u64>> = all.iter().zip(&allocation.chosen).map(|(choices, &at)| choices[at].0).collect();
    plan(curves, &ranks, budget, Some(&allocation))
}

/// Free ranks, each rounded to the nearest multiple. Where that is over the budget, the ranks that lose least for it are lowered.
fn nearest(curves: &[Curve], number: u64, budget: u64) -> Result<Plan> {
    let free = within(curves, 1, budget, &parameters)?;
    // A rank that saves nothing any more is the matrix itself.
    let round = |curve: &Curve, rank: u64| Some(((rank + number / 2) / number * number).max(number)).filter(|rank| rank * curve.unit() < curve.whole());
    let mut ranks: Vec<Option<u64>> = curves.iter().map(|curve| round(curve, *free.ranks.get(&curve.path)?)).collect();
    loop {
        let cost: u64 = curves.iter().zip(&ranks).map(|(curve, &rank)| curve.parameters(rank)).sum();
        if cost <= budget {
            return plan(curves, &ranks, budget, None);
        }
        let lower = curves.iter().zip(&ranks).enumerate().filter_map(|(item, (curve, &rank))| {
            let less = rank?.checked_sub(number).filter(|&less| less > 0)?;
            Some(((curve.lost(Some(less)) - curve.lost(rank)) / curve.unit() as f64, item, less))
        });
        let (_, item, less) = lower.min_by(|a, b| a.0.total_cmp(&b.0)).ok_or_else(|| Error::invalid("budget", format!("at least {cost}"), budget))?;
        ranks[item] = Some(less);
    }
}

fn plan(curves: &[Curve], ranks: &[Option<u64>], budget: u64, allocation: Option<&Allocation>) -> Result<Plan> {
    let pairs = || curves.iter().zip(ranks);
    let parameters = pairs().map(|(curve, &rank)| curve.parameters(rank)).sum();
    let cost = allocation.map_or(parameters, |allocation| allocation.cost);
    ensure(cost <= budget, "budget", format_args!("at least {cost}"), budget)?;
    Ok(Plan {
        ranks: pairs().filter_map(|(curve, rank)| Some((curve.path.clone(), (*rank)?))).collect(),
        budget,
        cost,
        parameters,
        nats: pairs().map(|(curve, &rank)| curve.lost(rank)).sum(),
        bound: allocation.map(|allocation| allocation.bound),
        exact: allocation.is_some_and(|allocation| allocation.exact),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn curves() -> Vec<Curve> {
        (0..12usize)
            .map(|number| {
                let shape = [[64, 64], [24, 64], [96, 64]][number % 3];
                let (scale, rate) = (1.0 + (number * 5 % 7) as f64, 0.05 + (number % 4) as f64 * 0.05);
                let narrow = shape[0].min(shape[1]);
                let loss = (0..=narrow).map(|rank| if rank == narrow { 0.0 } else { scale * (-rate * rank as f64).exp() }).collect();
                Curve { path: format!("p{number}"), shape, loss }
            })
            .collect()
    }

    #[test]
    fn no_rule_is_over_the_budget_and_free_ranks_lose_least() {
        let curves = curves();
        let whole: u64 = curves.iter().map(Curve::whole).sum();
        for keep in [0.95, 0.9, 0.7, 0.4] {
            let of = |rule| by_parameters(&curves, rule, keep).unwrap();
            let free = of(Rule::Free);
            assert!(free.exact && free.nats >= free.bound.unwrap());
            for rule in [Rule::Uniform, Rule::Free, Rule::Multiples(4), Rule::Multiples(8), Rule::Nearest(8)] {
                let plan = of(rule);
                assert!(plan.parameters <= (keep * whole as f64) as u64 && plan.cost == plan.parameters, "{rule} at {keep}");
                assert!(plan.nats >= free.nats - 1e-12, "{rule} at {keep}: {} below {}", plan.nats, free.nats);
                if let Rule::Multiples(number) | Rule::Nearest(number) = rule {
                    assert!(plan.ranks.values().all(|rank| rank % number == 0));
                }
                for curve in &curves {
                    let rank = plan.ranks.get(&curve.path).copied();
                    assert!(curve.parameters(rank) <= curve.whole());
                }
            }
        }
        let all = by_parameters(&curves, Rule::Free, 1.0).unwrap();
        assert_eq!((all.nats, all.ranks.len()), (0.0, 0));
        assert!(by_parameters(&curves, Rule::Multiples(64), 0.05).is_err() && by_parameters(&curves, Rule::Free, 0.0).is_err());
    }

    #[test]
    fn a_budget_of_pages_is_of_columns() {
        let curves = curves();
        let columns: u64 = curves.iter().map(|curve| curve.shape[0]).sum();
        for keep in [0.8, 0.5, 0.3] {
            let of = |rule| by_cache(&curves, rule, keep).unwrap();
            let free = of(Rule::Free);
            for rule in [Rule::Uniform, Rule::Free, Rule::Multiples(4)] {
                let plan = of(rule);
                assert_eq!((plan.ranks.len(), plan.cost), (curves.len(), plan.ranks.values().sum()), "{rule} at {keep}");
                assert!(plan.cost as f64 <= keep * columns as f64 && plan.nats >= free.nats - 1e-12, "{rule} at {keep}");
            }
        }
        assert!(by_cache(&curves, Rule::Nearest(8), 0.5).is_err() && by_cache(&curves, Rule::Multiples(32), 0.5).is_err());
    }

    #[test]
    fn rules_are_read_as_they_are_written() {
        for rule in [Rule::Uniform, Rule::Free, Rule::Multiples(8), Rule::Nearest(64)] {
            assert_eq!(rule.to_string().parse::<Rule>().unwrap(), rule);
        }
        assert_eq!("knapsack".parse::<Rule>().unwrap(), Rule::Multiples(16));
        for other in ["", "align", "align:0", "align:x", "nearest:9999", "Free"] {
            assert!(other.parse::<Rule>().is_err(), "{other}");
        }
    }
}
