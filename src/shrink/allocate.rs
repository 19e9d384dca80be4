//! One choice for each of many items, with the least loss within a budget of whole units: a multiple-choice knapsack.
//!
//! Steps along the lower convex hulls of (cost, loss), steepest first, solve the problem with a price on cost instead of the budget (Sinha and Zoltners
//! 1979). That gives a bound below every solution. What is left of the budget is spent on the best single changes. Choices that a price rules out are
//! dropped then, and a dynamic program over the rest finds the best solution, or says that it gave up.

use crate::error::{Result, ensure};

/// One choice for an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// What it takes of the budget.
    pub cost: u64,
    /// What it loses.
    pub loss: f64,
}

/// The choices of all items.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// The number of each item's choice.
    pub chosen: Vec<usize>,
    /// What the choices take together, never more than the budget.
    pub cost: u64,
    /// What they lose together.
    pub loss: f64,
    /// What every solution within the budget loses at least.
    pub bound: f64,
    /// Whether no solution loses less.
    pub exact: bool,
}

impl Allocation {
    /// How much less another solution could lose, at most.
    pub fn gap(&self) -> f64 {
        if self.exact { 0.0 } else { (self.loss - self.bound).max(0.0) }
    }
}

/// The most partial solutions that the dynamic program keeps.
const LABELS: usize = 1 << 16;

/// Chooses for every item.
///
/// # Errors
/// An item without choices; a loss that is negative or no number; a budget below the cheapest choices.
pub fn allocate(items: &[Vec<Choice>], budget: u64) -> Result<Allocation> {
    for (number, choices) in items.iter().enumerate() {
        ensure(!choices.is_empty(), "allocation", format_args!("a choice for item {number}"), "none")?;
        let wrong = choices.iter().find(|choice| choice.loss.is_nan() || choice.loss < 0.0);
        ensure(wrong.is_none(), "allocation", "losses of at least 0", format_args!("{wrong:?}"))?;
    }
    let fronts: Vec<Vec<usize>> = items.iter().map(|choices| front(choices)).collect();
    let least = items.iter().zip(&fronts).fold(0u64, |sum, (choices, front)| sum.saturating_add(choices[front[0]].cost));
    ensure(least <= budget, "budget", format_args!("at least {least}, what the cheapest choices take"), budget)?;
    let (mut chosen, price) = along_hulls(items, &fronts, budget);
    spend(items, &fronts, &mut chosen, budget);
    let bound = bound(items, &fronts, price, budget);
    let (mut cost, mut loss) = totals(items, &chosen);
    let exact = match best(items, &fronts, (price, bound), budget, loss) {
        Search::Found(better) => {
            chosen = better;
            (cost, loss) = totals(items, &chosen);
            true
        }
        Search::NothingBetter => true,
        Search::GaveUp => false,
    };
    // Sums of the same numbers in other orders differ in their last bits.
    Ok(Allocation { chosen, cost, loss, bound: bound.min(loss), exact })
}

/// What choices take and lose together.
pub fn totals(items: &[Vec<Choice>], chosen: &[usize]) -> (u64, f64) {
    items.iter().zip(chosen).fold((0, 0.0), |(cost, loss), (choices, &at)| (cost + choices[at].cost, loss + choices[at].loss))
}

/// The choices that no other beats in both cost and loss, cheapest first.
fn front(choices: &[Choice]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..choices.len()).collect();
    order.sort_by(|&a, &b| choices[a].cost.cmp(&choices[b].cost).then(choices[a].loss.total_cmp(&choices[b].loss)));
    let mut front: Vec<usize> = Vec::new();
    for at in order {
        if front.last().is_none_or(|&last| choices[at].loss < choices[last].loss) {
            front.push(at);
        }
    }
    front
}

/// How much less a choice loses than another for each unit that it costs more.
fn slope(from: Choice, to: Choice) -> f64 {
    (from.loss - to.loss) / (to.cost - from.cost) as f64
}

/// The choices of a front on its lower convex hull.
fn hull(choices: &[Choice], front: &[usize]) -> Vec<usize> {
    let mut hull: Vec<usize> = Vec::new();
    for &next in front {
        while let [.., before, last] = hull[..] {
            if slope(choices[before], choices[next]) < slope(choices[before], choices[last]) {
                break;
            }
            hull.pop();
        }
        hull.push(next);
    }
    hull
}

/// Steps along the hulls of all items, steepest first, while they fit; and the slope of the first that does not, which is the price of a unit.
fn along_hulls(items: &[Vec<Choice>], fronts: &[Vec<usize>], budget: u64) -> (Vec<usize>, f64) {
    let mut chosen: Vec<usize> = fronts.iter().map(|front| front[0]).collect();
    let mut steps: Vec<(f64, usize, usize)> = Vec::new();
    for (item, (choices, front)) in items.iter().zip(fronts).enumerate() {
        let hull = hull(choices, front);
        steps.extend(hull.windows(2).map(|pair| (slope(choices[pair[0]], choices[pair[1]]), item, pair[1])));
    }
    // Steps of one item fall in slope, and the sort is stable: each comes after those before it.
    steps.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut cost, _) = totals(items, &chosen);
    for (slope, item, to) in steps {
        let more = items[item][to].cost - items[item][chosen[item]].cost;
        if cost + more > budget {
            return (chosen, slope);
        }
        cost += more;
        chosen[item] = to;
    }
    (chosen, 0.0)
}

/// What every solution within the budget loses at least, by a price on each unit.
fn bound(items: &[Vec<Choice>], fronts: &[Vec<usize>], price: f64, budget: u64) -> f64 {
    let least = |(choices, front): (&Vec<Choice>, &Vec<usize>)| {
        front.iter().map(|&at| choices[at].loss + price * choices[at].cost as f64).fold(f64::INFINITY, f64::min)
    };
    (items.iter().zip(fronts).map(least).sum::<f64>() - price * budget as f64).max(0.0)
}

/// Makes the single changes that lose less and still fit, the best for each unit first.
fn spend(items: &[Vec<Choice>], fronts: &[Vec<usize>], chosen: &mut [usize], budget: u64) {
    let (mut cost, _) = totals(items, chosen);
    loop {
        let mut best: Option<(f64, usize, usize)> = None;
        for (item, front) in fronts.iter().enumerate() {
            let now = items[item][chosen[item]];
            for &at in front {
                let then = items[item][at];
                if then.cost > now.cost && then.cost - now.cost <= budget - cost && then.loss < now.loss {
                    let gain = slope(now, then);
                    if best.is_none_or(|(most, ..)| gain > most) {
                        best = Some((gain, item, at));
                    }
                }
            }
        }
        let Some((_, item, at)) = best else { return };
        cost += items[item][at].cost - items[item][chosen[item]].cost;
        chosen[item] = at;
    }
}

/// What the dynamic program came to.
enum Search {
    Found(Vec<usize>),
    NothingBetter,
    GaveUp,
}

/// A partial solution: what it costs and loses, and what it was made of.
#[derive(Clone, Copy)]
struct Label {
    cost: u64,
    loss: f64,
    /// What it loses more than the price allows.
    excess: f64,
    before: usize,
    choice: usize,
}

/// Searches for a solution that loses less than `known`. A solution loses the bound, the price of what it leaves of the budget, and what each of its
/// choices lies above the best at that price: whoever exceeds `known` so cannot be in it.
fn best(items: &[Vec<Choice>], fronts: &[Vec<usize>], (price, bound): (f64, f64), budget: u64, known: f64) -> Search {
    let room = known - bound;
    if room <= 1e-12 * known {
        return Search::NothingBetter;
    }
    // Costs that later items take at least, and at most.
    let ends = |of: fn(&Vec<usize>) -> Option<&usize>| {
        let mut sums = vec![0u64; items.len() + 1];
        for item in (0..items.len()).rev() {
            sums[item] = sums[item + 1] + of(&fronts[item]).map_or(0, |&at| items[item][at].cost);
        }
        sums
    };
    let (least, most) = (ends(|front| front.first()), ends(|front| front.last()));
    let mut stages: Vec<Vec<Label>> = vec![vec![Label { cost: 0, loss: 0.0, excess: 0.0, before: 0, choice: 0 }]];
    for (item, (choices, front)) in items.iter().zip(fronts).enumerate() {
        let priced = |at: usize| choices[at].loss + price * choices[at].cost as f64;
        let floor = front.iter().map(|&at| priced(at)).fold(f64::INFINITY, f64::min);
        let able: Vec<(usize, f64)> = front.iter().map(|&at| (at, priced(at) - floor)).filter(|(_, excess)| *excess <= room).collect();
        let mut next = Vec::new();
        for (before, label) in stages[item].iter().enumerate() {
            for &(at, more) in &able {
                let (cost, excess) = (label.cost + choices[at].cost, label.excess + more);
                // What the rest cannot use is paid for as well.
                let left = price * budget.saturating_sub(cost + most[item + 1]) as f64;
                if cost + least[item + 1] <= budget && excess + left <= room {
                    next.push(Label { cost, loss: label.loss + choices[at].loss, excess, before, choice: at });
                }
            }
        }
        next.sort_by(|a, b| a.cost.cmp(&b.cost).then(a.loss.total_cmp(&b.loss)));
        let mut lowest = f64::INFINITY;
        next.retain(|label| {
            label.loss < lowest && {
                lowest = label.loss;
                true
            }
        });
        if next.len() > LABELS {
            return Search::GaveUp;
        }
        stages.push(next);
    }
    let last = stages.last().and_then(|labels| labels.iter().enumerate().min_by(|a, b| a.1.loss.total_cmp(&b.1.loss)));
    let Some((mut at, label)) = last.filter(|(_, label)| label.loss < known) else { return Search::NothingBetter };
    let mut chosen = vec![label.choice; items.len()];
    for item in (0..items.len()).rev() {
        let label = stages[item + 1][at];
        chosen[item] = label.choice;
        at = label.before;
    }
    Search::Found(chosen)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The least loss within the budget, of every combination.
    fn brute(items: &[Vec<Choice>], budget: u64) -> Option<f64> {
        let all = items.iter().fold(vec![(0u64, 0.0f64)], |sums, choices| {
            sums.iter().flat_map(|&(cost, loss)| choices.iter().map(move |choice| (cost + choice.cost, loss + choice.loss))).collect()
        });
        all.into_iter().filter(|&(cost, _)| cost <= budget).map(|(_, loss)| loss).reduce(f64::min)
    }

    fn items() -> impl Strategy<Value = Vec<Vec<Choice>>> {
        let choice = (0u64..40, 0u32..1000).prop_map(|(cost, loss)| Choice { cost, loss: f64::from(loss) / 64.0 });
        prop::collection::vec(prop::collection::vec(choice, 1..6), 1..6)
    }

    proptest! {
        #[test]
        fn an_allocation_is_the_best_of_all(items in items(), budget in 0u64..150) {
            match (allocate(&items, budget), brute(&items, budget)) {
                (Ok(found), Some(best)) => {
                    prop_assert!(found.cost <= budget, "{:?}", found);
                    prop_assert_eq!((found.cost, found.loss), totals(&items, &found.chosen));
                    prop_assert!(found.exact && found.gap() == 0.0);
                    prop_assert!((found.loss - best).abs() < 1e-9, "{} of {}", found.loss, best);
                    prop_assert!(found.bound <= best + 1e-9, "a bound of {} above {}", found.bound, best);
                }
                (Err(_), None) => {}
                (found, best) => prop_assert!(false, "{:?} against {:?}", found, best),
            }
        }

        #[test]
        fn without_the_search_the_gap_is_true(items in items(), budget in 0u64..150) {
            let fronts: Vec<Vec<usize>> = items.iter().map(|choices| front(choices)).collect();
            let least: u64 = items.iter().zip(&fronts).map(|(choices, front)| choices[front[0]].cost).sum();
            prop_assume!(least <= budget);
            let (mut chosen, price) = along_hulls(&items, &fronts, budget);
            spend(&items, &fronts, &mut chosen, budget);
            let (cost, loss) = totals(&items, &chosen);
            let bound = bound(&items, &fronts, price, budget);
            let best = brute(&items, budget).unwrap();
            prop_assert!(cost <= budget && bound <= best + 1e-9 && best <= loss + 1e-9, "{} {} {}", bound, best, loss);
        }
    }

    #[test]
    fn a_whole_model_is_allocated_within_its_gap() {
        // Ranks 1 to 60 of 200 matrices, with curves that fall as spectra do.
        let items: Vec<Vec<Choice>> = (0..200usize)
            .map(|item| {
                let (scale, rate) = (1.0 + (item * 37 % 11) as f64, 0.02 + (item * 13 % 7) as f64 * 0.01);
                (1..=60u64).map(|rank| Choice { cost: rank * (90 + (item as u64 % 3) * 17), loss: scale * (-rate * rank as f64).exp() }).collect()
            })
            .collect();
        let budget = 200 * 30 * 90;
        let found = allocate(&items, budget).unwrap();
        assert!(found.cost <= budget && budget - found.cost < 124, "{} of {budget}", found.cost);
        assert!(found.loss >= found.bound && found.gap() <= 2e-4 * found.loss, "{} above {}", found.loss, found.bound);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let one = |cost, loss| vec![Choice { cost, loss }];
        assert!(allocate(&[one(5, 1.0)], 4).unwrap_err().to_string().contains("at least 5"));
        assert!(allocate(&[vec![]], 4).is_err() && allocate(&[one(1, f64::NAN)], 4).is_err());
        assert_eq!(allocate(&[], 4).unwrap().loss, 0.0);
    }
}
