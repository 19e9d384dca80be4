//! Which tokens the requests of a step may draw, where their answers are held to a grammar.

use std::collections::HashMap;

use super::batching::Engine;
use super::flight::Want;
use crate::backend::Backend;
use crate::error::Error;
use crate::llm::grammar::Rule;
use crate::llm::step::RequestId;

/// The most rules that one thread works out after another.
const ON_A_THREAD: usize = 4;

/// A row of bits for each row of logits.
#[derive(Default)]
pub struct Masks {
    /// Words of a row.
    pub words: usize,
    /// The rows, one after the other; empty where no request has a rule.
    pub bits: Vec<u32>,
    /// Requests whose rule has failed.
    pub failed: HashMap<RequestId, Error>,
}

impl Masks {
    /// The row of one row of logits; `None` where every token may come.
    pub fn row(&self, row: usize) -> Option<&[u32]> {
        self.bits.get(row * self.words..(row + 1) * self.words)
    }
}

impl<D: Backend> Engine<D> {
    /// Works out the masks of `rows` rows of logits, on as many threads as there are cores where there are many. The device computes meanwhile.
    pub(super) fn masks(&mut self, wants: &[Want], rows: usize) -> Masks {
        let words = (self.model.config().vocabulary as usize).div_ceil(32);
        let mut masks = Masks { words, ..Masks::default() };
        let places: HashMap<RequestId, usize> = wants.iter().map(|want| (want.sample.request, want.row)).collect();
        let ruled = self.live.iter_mut().filter_map(|(request, live)| Some((*request, *places.get(request)?, live.rule.as_mut()?)));
        let mut ruled: Vec<(RequestId, usize, &mut Box<dyn Rule>)> = ruled.collect();
        if ruled.is_empty() {
            return masks;
        }
        masks.bits = vec![u32::MAX; rows * words];
        ruled.sort_by_key(|(_, row, _)| *row);
        let mut left: Vec<Option<&mut [u32]>> = masks.bits.chunks_mut(words).map(Some).collect();
        let mut work: Vec<(RequestId, &mut Box<dyn Rule>, &mut [u32])> = Vec::with_capacity(ruled.len());
        for (request, row, rule) in ruled {
            if let Some(bits) = left.get_mut(row).and_then(Option::take) {
                work.push((request, rule, bits));
            }
        }
        let one = |(request, rule, bits): &mut (RequestId, &mut Box<dyn Rule>, &mut [u32])| {
            bits.fill(0);
            rule.allow(bits).err().map(|error| (*request, error))
        };
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let share = work.len().div_ceil(threads).max(ON_A_THREAD);
        masks.failed = if work.len() <= share {
            work.iter_mut().filter_map(one).collect()
        } else {
            std::thread::scope(|scope| {
                let started: Vec<_> = work.chunks_mut(share).map(|part| scope.spawn(move || part.iter_mut().filter_map(one).collect::<Vec<_>>())).collect();
                // A thread that ended by a panic has told of no failure; its rows are left without a token, which fails them.
                started.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
            })
        };
        masks
    }
}
