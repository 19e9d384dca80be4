//! Batches have few shapes, and hold what waits as long as it fits.

use std::collections::BTreeSet;

use proptest::prelude::*;
use trifuse_serve::queueing::batch::{Grid, take};
use trifuse_serve::queueing::queues::{Queues, Tenant};

#[test]
fn the_encoder_keeps_every_shape_of_usual_models() {
    for (batch_tokens, max_tokens) in [(2048, 256), (2048, 512), (8192, 256), (8192, 512), (131_072, 256)] {
        let count = Grid::new(batch_tokens, max_tokens).shapes().collect::<BTreeSet<_>>().len();
        assert!((1..64).contains(&count), "{count} shapes for {batch_tokens} and {max_tokens}");
    }
}

proptest! {
    #[test]
    fn a_batch_fills_one_of_the_shapes(lengths in proptest::collection::vec(1usize..=300, 1..200), batch_tokens in 1usize..9000, most in 2usize..=300) {
        let grid = Grid::new(batch_tokens, most);
        let shapes: BTreeSet<_> = grid.shapes().collect();
        let mut queues = Queues::default();
        let lengths: Vec<usize> = lengths.into_iter().map(|length| length.min(most)).collect();
        for (number, length) in lengths.iter().enumerate() {
            queues.push(Tenant::default(), 0, *length as u64, number);
        }
        let mut seen = Vec::new();
        while !queues.is_empty() {
            // Every seventh is one that nobody waits for.
            let batch = take(&mut queues, &grid, &mut |number| if number % 7 == 3 { seen.push(number); None } else { Some(number) });
            prop_assert!(batch.shape.is_some() || batch.items.is_empty());
            prop_assert!(!batch.items.is_empty() || batch.spared > 0, "every turn takes something");
            if let Some(shape) = batch.shape {
                let own: Vec<usize> = batch.items.iter().map(|number| lengths[*number]).collect();
                prop_assert!(shapes.contains(&shape));
                prop_assert_eq!(own.iter().sum::<usize>(), batch.tokens);
                let all = [own.clone(), shape.filling(own.len(), batch.tokens)].concat();
                prop_assert_eq!((all.iter().sum::<usize>(), all.len()), (shape.rows, shape.sentences));
                prop_assert!(all.iter().all(|length| (1..=shape.longest).contains(length)));
                prop_assert_eq!(all.iter().max().unwrap().next_multiple_of(64), shape.longest.next_multiple_of(64), "the class of the longest");
            }
            seen.extend(batch.items);
        }
        // One lane keeps its order, whatever was spared.
        prop_assert_eq!(seen.len(), lengths.len());
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
    }

    #[test]
    fn what_comes_behind_a_full_batch_is_not_in_it(lengths in proptest::collection::vec(1usize..=300, 1..200), batch_tokens in 1usize..3000, most in 2usize..=300) {
        let grid = Grid::new(batch_tokens, most);
        let (mut few, mut tokens, mut takes) = (0, 0, Vec::new());
        for (number, length) in lengths.iter().enumerate() {
            if grid.is_filled_by(number, tokens) {
                break;
            }
            (few, tokens) = (number + 1, tokens + (*length).min(most) as u64);
        }
        // As much as fills a batch, and all of it: the same batch.
        for count in [few, lengths.len()] {
            let mut queues = Queues::default();
            for (number, length) in lengths[..count].iter().enumerate() {
                queues.push(Tenant::default(), 0, (*length).min(most) as u64, number);
            }
            takes.push(take(&mut queues, &grid, &mut Some).items);
        }
        if grid.is_filled_by(few, tokens) {
            prop_assert_eq!(&takes[0], &takes[1]);
        } else {
            prop_assert_eq!(few, lengths.len(), "less than all does not fill it");
        }
    }
}
