//! Where a fault of a shape ends: sizes around it are tried, and from one that is well the search halves its way back.

use super::axes::Axis;
use crate::bench::shape::Shape;

/// Sizes that are tried, over that of the shape: the nearest ones first.
const TRIED: [f64; 4] = [0.5, 2.0, 0.25, 4.0];
/// The share of a size to which an edge is found.
const GRAIN: u64 = 16;
/// Where rows are aligned to everything that a kernel may want.
const WELL_ALIGNED: u64 = 64;

/// What is known of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing yet.
    Nothing,
    /// It has the fault, or there is no time of it.
    Ill,
    /// It has not.
    Well,
}

/// What a search needs, or found.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// This shape has to be measured first.
    Measure(Shape),
    /// Between these two sizes the fault ends.
    Edge {
        /// The last size that has it.
        ill: u64,
        /// The first that has not.
        well: u64,
    },
    /// No size that was tried is well, or the shape has no such axis.
    Nothing,
}

/// The next step of the search along `axis` from `shape`, which has the fault. It depends on what is `known` alone, so a search that was
/// interrupted goes on where it was.
pub fn narrow(shape: &Shape, axis: Axis, fits: &dyn Fn(&Shape) -> bool, known: &dyn Fn(&Shape) -> Known) -> Step {
    let Some(size) = axis.of(shape) else { return Step::Nothing };
    let at = |size| axis.with(shape, size).filter(|moved| fits(moved) && moved != shape);
    if axis.is_columns() && axis.unit(shape) < 8 {
        // Another alignment is an edge by itself.
        let aligned = size.next_multiple_of(WELL_ALIGNED);
        match at(aligned).map(|moved| (known(&moved), moved)) {
            Some((Known::Nothing, moved)) => return Step::Measure(moved),
            Some((Known::Well, _)) => return Step::Edge { ill: size, well: aligned },
            Some((Known::Ill, _)) | None => {}
        }
    }
    for times in TRIED {
        let tried = axis.like(shape, (size as f64 * times) as u64);
        match at(tried).map(|moved| (known(&moved), moved)) {
            Some((Known::Nothing, moved)) => return Step::Measure(moved),
            Some((Known::Well, _)) => return halve(shape, axis, [size, tried], known),
            Some((Known::Ill, _)) | None => {}
        }
    }
    Step::Nothing
}

/// Halves what lies between a size that is ill and one that is well.
fn halve(shape: &Shape, axis: Axis, [mut ill, mut well]: [u64; 2], known: &dyn Fn(&Shape) -> Known) -> Step {
    while ill.abs_diff(well) > (ill.min(well) / GRAIN).max(axis.unit(shape)) {
        let middle = axis.like(shape, u64::midpoint(ill, well));
        let between = (ill.min(well) + 1..ill.max(well)).contains(&middle);
        let Some(moved) = axis.with(shape, middle).filter(|_| between) else { break };
        match known(&moved) {
            Known::Nothing => return Step::Measure(moved),
            Known::Ill => ill = middle,
            Known::Well => well = middle,
        }
    }
    Step::Edge { ill, well }
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::bench::padding::Padding;

    fn product(tokens: u64, d_out: u64, d_in: u64) -> Shape {
        Shape::Linear { tokens, d_out, d_in, delta: None, padding: Padding::None, layers: 1 }
    }

    /// Follows a search to its end, where a shape is ill that `ill` says so of; tells the shapes that it measured.
    fn follow(shape: &Shape, axis: Axis, ill: impl Fn(u64) -> bool) -> (Step, usize) {
        let measured = RefCell::new(Vec::<Shape>::new());
        for _ in 0..100 {
            let known = |shape: &Shape| match measured.borrow().contains(shape) {
                false => Known::Nothing,
                true if axis.of(shape).is_some_and(&ill) => Known::Ill,
                true => Known::Well,
            };
            match narrow(shape, axis, &|shape| axis.of(shape).is_some_and(|size| size <= 16_384), &known) {
                Step::Measure(shape) => measured.borrow_mut().push(shape),
                step => return (step, measured.into_inner().len()),
            }
        }
        panic!("it does not end")
    }

    #[test]
    fn the_edge_is_found_by_halves() {
        let (step, measured) = follow(&product(4000, 512, 512), Axis::Tokens, |tokens| tokens > 2900);
        let Step::Edge { ill, well } = step else { panic!("{step:?}") };
        assert!(well <= 2900 && ill > 2900 && ill - well <= 2900 / GRAIN && measured < 8, "{well} {ill} {measured}");
        let (step, _) = follow(&product(10, 512, 512), Axis::Tokens, |tokens| tokens < 16);
        assert_eq!(step, Step::Edge { ill: 15, well: 16 });
    }

    #[test]
    fn an_odd_size_is_held_against_the_aligned_one_first() {
        let (step, measured) = follow(&product(16, 512, 4095), Axis::DIn, |d_in| d_in % 8 != 0);
        assert_eq!((step, measured), (Step::Edge { ill: 4095, well: 4096 }, 1));
        // Where that is ill too, odd sizes are tried.
        let (step, _) = follow(&product(16, 512, 4095), Axis::DIn, |d_in| d_in > 3000);
        let Step::Edge { ill, well } = step else { panic!("{step:?}") };
        assert!(ill % 2 == 1 && well % 2 == 1 && well <= 3000 && ill > 3000, "{ill} {well}");
    }

    #[test]
    fn a_search_ends_where_nothing_is_well() {
        assert_eq!(follow(&product(512, 512, 512), Axis::Tokens, |_| true), (Step::Nothing, TRIED.len()));
        assert_eq!(follow(&product(12_000, 512, 512), Axis::Tokens, |_| true), (Step::Nothing, 2), "nothing beyond the limits is measured");
        assert_eq!(follow(&product(1, 512, 512), Axis::Tokens, |_| true), (Step::Nothing, 2), "no size below 1");
        assert_eq!(follow(&product(1, 512, 512), Axis::HeadDim, |_| true), (Step::Nothing, 0));
    }
}
