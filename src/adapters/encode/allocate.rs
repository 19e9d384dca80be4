//! The allocation of bits to columns: the least loss for the bytes, or the fewest bytes for the loss.
//!
//! Each item (a column, or the two columns of a rank-one term) has a few states, each with its bytes and its loss. Steps of the lower
//! convex hulls are taken by their gain a byte, which is water-filling on the columns' energies. That is optimal except for the last step,
//! which a pass over single changes repairs.

/// One choice for an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct State {
    /// Bytes in the file.
    pub bytes: f64,
    /// Energy lost.
    pub loss: f64,
}

/// What an allocation must meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// Lose at most this much energy, for the fewest bytes.
    Loss(f64),
    /// Use at most this many bytes, for the least loss.
    Bytes(f64),
}

/// The state of each item, and whether the goal is met. Each item's first state must be its cheapest.
pub(crate) fn allocate(items: &[Vec<State>], goal: Goal) -> (Vec<usize>, bool) {
    let mut chosen = vec![0usize; items.len()];
    let (mut bytes, mut loss) = totals(items, &chosen);
    let hulls: Vec<Vec<usize>> = items.iter().map(|states| hull(states)).collect();
    let mut place = vec![0usize; items.len()];
    let mut closed = vec![false; items.len()];
    loop {
        if matches!(goal, Goal::Loss(most) if loss <= most) {
            break;
        }
        let mut best: Option<(f64, usize)> = None;
        for (item, hull) in hulls.iter().enumerate() {
            let Some(&next) = hull.get(place[item] + 1).filter(|_| !closed[item]) else { continue };
            let (now, then) = (items[item][hull[place[item]]], items[item][next]);
            let gain = (now.loss - then.loss) / (then.bytes - now.bytes);
            if best.is_none_or(|(most, _)| gain > most) {
                best = Some((gain, item));
            }
        }
        let Some((_, item)) = best else { break };
        let (now, then) = (items[item][chosen[item]], items[item][hulls[item][place[item] + 1]]);
        if matches!(goal, Goal::Bytes(most) if bytes + then.bytes - now.bytes > most) {
            closed[item] = true;
            continue;
        }
        place[item] += 1;
        chosen[item] = hulls[item][place[item]];
        bytes += then.bytes - now.bytes;
        loss += then.loss - now.loss;
    }
    repair(items, goal, &mut chosen);
    let (bytes, loss) = totals(items, &chosen);
    let met = match goal {
        Goal::Loss(most) => loss <= most,
        Goal::Bytes(most) => bytes <= most,
    };
    (chosen, met)
}

/// Makes single changes that save bytes and still lose little enough, or that lose less and still fit, the best first.
fn repair(items: &[Vec<State>], goal: Goal, chosen: &mut [usize]) {
    loop {
        let (bytes, loss) = totals(items, chosen);
        let mut best: Option<(f64, usize, usize)> = None;
        for (item, states) in items.iter().enumerate() {
            let now = states[chosen[item]];
            for (state, then) in states.iter().enumerate() {
                let gain = match goal {
                    Goal::Loss(most) if loss <= most && loss + then.loss - now.loss <= most => now.bytes - then.bytes,
                    Goal::Bytes(most) if bytes + then.bytes - now.bytes <= most => now.loss - then.loss,
                    _ => 0.0,
                };
                // The margin prevents an endless walk of changes that, with rounding, gain nothing.
                if gain > 1e-12 * (now.bytes + now.loss) && best.is_none_or(|(most, ..)| gain > most) {
                    best = Some((gain, item, state));
                }
            }
        }
        let Some((_, item, state)) = best else { return };
        chosen[item] = state;
    }
}

/// The bytes and the loss of a choice.
pub(crate) fn totals(items: &[Vec<State>], chosen: &[usize]) -> (f64, f64) {
    items.iter().zip(chosen).fold((0.0, 0.0), |(bytes, loss), (states, &state)| (bytes + states[state].bytes, loss + states[state].loss))
}

/// The states on the lower convex hull of (bytes, loss), from the cheapest on.
fn hull(states: &[State]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..states.len()).collect();
    order.sort_by(|&a, &b| states[a].bytes.total_cmp(&states[b].bytes).then(states[a].loss.total_cmp(&states[b].loss)));
    let slope = |a: usize, b: usize| (states[b].loss - states[a].loss) / (states[b].bytes - states[a].bytes);
    let mut hull: Vec<usize> = Vec::new();
    for next in order {
        if hull.last().is_some_and(|&last| states[next].loss >= states[last].loss || states[next].bytes <= states[last].bytes) {
            continue;
        }
        while let [.., before, last] = hull[..] {
            if slope(before, next) > slope(before, last) {
                break;
            }
            hull.pop();
        }
        hull.push(next);
    }
    hull
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn column(energy: f64) -> Vec<State> {
        [(0.0, 1.0), (2.0, 0.1175), (3.0, 0.0345), (4.0, 0.0095), (7.0, 0.0004)].map(|(bytes, loss)| State { bytes, loss: loss * energy }).to_vec()
    }

    fn every_choice(items: &[Vec<State>]) -> Vec<(f64, f64)> {
        items.iter().fold(vec![(0.0, 0.0)], |sums, states| {
            sums.iter().flat_map(|&(bytes, loss)| states.iter().map(move |state| (bytes + state.bytes, loss + state.loss))).collect()
        })
    }

    #[test]
    fn strong_columns_get_more_bits() {
        let items: Vec<_> = [0.6, 0.2, 0.1, 0.06, 0.03, 0.01].map(column).to_vec();
        let (chosen, met) = allocate(&items, Goal::Loss(0.02));
        assert!(met && chosen.windows(2).all(|pair| pair[0] >= pair[1]), "{chosen:?}");
        assert!(chosen[0] > chosen[5]);
        assert!(!allocate(&items, Goal::Loss(1e-6)).1, "seven bits cannot keep that much");
    }

    #[test]
    fn equal_columns_get_equal_bits() {
        let (chosen, met) = allocate(&vec![column(1.0); 8], Goal::Bytes(24.0));
        assert!(met && chosen.iter().all(|&state| state == 2), "{chosen:?}");
    }

    proptest! {
        #[test]
        fn an_allocation_is_near_the_best_of_all(energies in proptest::collection::vec(0.001f64..1.0, 1..6), share in 0.003f64..0.5) {
            let items: Vec<_> = energies.iter().map(|&energy| column(energy)).collect();
            let most = share * energies.iter().sum::<f64>();
            let (chosen, met) = allocate(&items, Goal::Loss(most));
            let (bytes, loss) = totals(&items, &chosen);
            prop_assert!(met && loss <= most);
            let best = every_choice(&items).into_iter().filter(|choice| choice.1 <= most).map(|choice| choice.0).fold(f64::INFINITY, f64::min);
            prop_assert!(bytes <= best + 3.0, "{bytes} against {best}");

            let (chosen, met) = allocate(&items, Goal::Bytes(best));
            let (bytes, loss) = totals(&items, &chosen);
            prop_assert!(met && bytes <= best && loss <= energies.iter().sum::<f64>());
        }
    }
}
