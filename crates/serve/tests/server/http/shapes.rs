//! The encoder sees few shapes, whatever comes: as many as are run before the first request, and no more.

use std::collections::{BTreeMap, BTreeSet};

use trifuse::model::Row;
use trifuse_serve::queueing::batch::{Grid, Shape, take};
use trifuse_serve::queueing::queues::{Queues, Tenant};

use crate::support::tiny::{self, MAX_TOKENS};

/// The encoder's own name of the class in which a batch of these lengths runs.
fn class(encoder: &mut trifuse::model::Encoder<trifuse::backends::AnyDevice>, lengths: &[usize]) -> String {
    let zeros = vec![0; MAX_TOKENS];
    let rows: Vec<Row<'_>> = lengths.iter().map(|length| Row { ids: &zeros[..*length], adapter: None }).collect();
    format!("{:?}", encoder.prepare(&rows).unwrap().shape())
}

#[test]
fn no_mix_of_lengths_makes_a_shape_that_was_not_run_before() {
    let folder = tiny::folder();
    let mut encoder = tiny::encoder(folder.path());
    let grid = Grid::new(1024, MAX_TOKENS);
    let warm: BTreeMap<Shape, String> = grid.shapes().map(|shape| (shape, class(&mut encoder, &shape.filling(0, 0)))).collect();
    let (mut queues, mut seen) = (Queues::default(), BTreeSet::new());
    // Runs of short, of long and of mixed sentences.
    let mixed = |at: usize| match at / 400 % 3 {
        0 => 2 + at % 9,
        1 => MAX_TOKENS - at % 3,
        _ => 1 + at * 7919 % MAX_TOKENS,
    };
    for at in 0..2400 {
        let length = mixed(at);
        queues.push(Tenant::default(), 0, length as u64, length);
        // At times one waits alone, at times hundreds do.
        if at % (1 + at % 37) == 0 {
            let batch = take(&mut queues, &grid, &mut Some);
            let Some(shape) = batch.shape else { continue };
            let all = [batch.items.clone(), shape.filling(batch.items.len(), batch.tokens)].concat();
            assert_eq!(class(&mut encoder, &all), warm[&shape], "{:?}", batch.items);
            seen.insert(shape);
        }
    }
    assert!(seen.len() > 5, "{seen:?}");
}
