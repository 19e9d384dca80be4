//! Each size of the alignment sweep against the next that is aligned.

use std::collections::BTreeMap;

use super::align::ALIGNED;
use super::report::{Aligned, Entry, Outcome};
use super::shape::{Padding, Point, Shape, Suite};

/// The next shape with all its sizes aligned; nothing where it is itself. One row stays one row.
fn neighbour(shape: &Shape) -> Option<Shape> {
    let mut next = shape.clone();
    match &mut next {
        Shape::Linear { tokens, d_out, d_in, padding, .. } => {
            *padding = Padding::None;
            for size in [d_out, d_in].into_iter().chain((*tokens > 1).then_some(tokens)) {
                *size = size.next_multiple_of(ALIGNED);
            }
        }
        Shape::Attention { head_dim, .. } => *head_dim = head_dim.next_multiple_of(ALIGNED),
        _ => {}
    }
    (next != *shape).then_some(next)
}

/// Tells in every entry of the suite how it stands against its neighbour, where both were measured.
pub(super) fn compare(results: &mut [Entry]) {
    let median = |entry: &Entry| match &entry.outcome {
        Outcome::Measured(measured) => Some([&measured.cold, &measured.warm].map(|times| times.seconds.median)),
        _ => None,
    };
    let medians: BTreeMap<String, [f64; 2]> = results.iter().filter_map(|entry| Some((entry.name.clone(), median(entry)?))).collect();
    for entry in results.iter_mut().filter(|entry| entry.point.suite == Suite::Align) {
        let own = medians.get(&entry.name);
        let name = neighbour(&entry.point.shape).map(|shape| Point { shape, ..entry.point.clone() }.name());
        if let (Some([cold, warm]), Some((name, [beside_cold, beside_warm]))) = (own, name.and_then(|name| medians.get_key_value(&name))) {
            entry.aligned = Some(Aligned { neighbour: name.clone(), slowdown: cold / beside_cold, slowdown_warm: warm / beside_warm });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_neighbour_is_the_next_multiple_of_eight() {
        let product = |tokens, d_out, d_in| Shape::Linear { tokens, d_out, d_in, delta: None, padding: Padding::None, layers: 1 };
        assert_eq!(neighbour(&product(1, 4095, 4001)), Some(product(1, 4096, 4008)));
        assert_eq!(neighbour(&product(4095, 4096, 4096)), Some(product(4096, 4096, 4096)));
        assert_eq!(neighbour(&product(1, 8, 16)), None);
        let padded = Shape::Linear { tokens: 8, d_out: 16, d_in: 13, delta: None, padding: Padding::Weights, layers: 1 };
        assert_eq!((padded.name().as_str(), neighbour(&padded)), ("m8 n16 k13, w padded", Some(product(8, 16, 16))));
    }
}
