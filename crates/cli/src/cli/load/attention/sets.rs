//! The tensors of each set, drawn anew wherever they are needed: together they are more than need be held.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use trifuse::DType;

use super::options::Shape;

/// The type of the elements.
pub const DTYPE: DType = DType::F16;
/// The standard deviation of the elements.
const WIDTH: f32 = 0.5;

/// One of the tensors of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Q,
    K,
    V,
    Map,
}

impl Part {
    /// The tensors that every set has.
    pub const TENSORS: [Self; 3] = [Self::Q, Self::K, Self::V];

    /// The tensor's name in a query.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q => "q",
            Self::K => "k",
            Self::V => "v",
            Self::Map => "block_map",
        }
    }
}

/// All sets.
#[derive(Clone, Copy, Debug)]
pub struct Sets {
    pub shape: Shape,
    seed: u64,
}

impl Sets {
    /// Sets of these sizes, drawn from a seed.
    pub fn new(shape: Shape, seed: u64) -> Self {
        Self { shape, seed }
    }

    /// The tensors that sets have.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let map = (self.shape.blocks > 0).then_some(Part::Map);
        Part::TENSORS.into_iter().chain(map)
    }

    /// Bytes of a tensor, and those from one to that of the next set.
    pub fn size(&self, part: Part) -> (u64, u64) {
        match part {
            Part::Map => (self.shape.map_bytes(), self.shape.map_stride()),
            _ => (self.shape.bytes(), self.shape.bytes()),
        }
    }

    /// The bytes of a tensor of a set.
    pub fn draw(&self, set: u64, part: Part) -> Vec<u8> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        // The first stream is that of arrivals.
        random.set_stream(1 + 4 * set + part as u64);
        if part == Part::Map {
            return (0..self.shape.heads).flat_map(|_| self.map(&mut random)).collect();
        }
        let next = |_| WIDTH * Distribution::<f32>::sample(&StandardNormal, &mut random);
        DTYPE.encode_f32(&(0..self.shape.elements()).map(next).collect::<Vec<f32>>())
    }

    /// The map of a head: the diagonal, and as many others as are to be present.
    fn map(&self, random: &mut ChaCha8Rng) -> Vec<u8> {
        let along = self.shape.along() as usize;
        let mut map = vec![0; along * along];
        let on_diagonal = |at: &usize| at / along == at % along;
        let (diagonal, mut others): (Vec<usize>, Vec<usize>) = (0..map.len()).partition(on_diagonal);
        let (drawn, _) = others.partial_shuffle(random, self.shape.blocks as usize - along);
        diagonal.iter().chain(drawn.iter()).for_each(|at| map[*at] = 1);
        map
    }

    /// Some sets, each once, in order.
    pub fn some(&self, count: u64, random: &mut ChaCha8Rng) -> Vec<u64> {
        let mut all: Vec<u64> = (0..self.shape.sets).collect();
        let mut drawn = all.partial_shuffle(random, count as usize).0.to_vec();
        drawn.sort_unstable();
        drawn
    }

    /// Any of the tokens.
    pub fn token(&self, random: &mut ChaCha8Rng) -> u64 {
        random.random_range(0..self.shape.tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_has_tensors_of_its_own_which_are_those_of_the_seed() {
        let shape = Shape { sets: 3, tokens: 300, heads: 2, head_dim: 8, blocks: 7, block: 64 };
        let sets = Sets::new(shape, 5);
        assert_eq!(sets.parts().count(), 4);
        let all: Vec<Vec<u8>> = (0..3).flat_map(|set| sets.parts().map(move |part| sets.draw(set, part))).collect();
        for (at, bytes) in all.iter().enumerate() {
            let part = [Part::Q, Part::K, Part::V, Part::Map][at % 4];
            assert_eq!((bytes, bytes.len() as u64), (&sets.draw(at as u64 / 4, part), sets.size(part).0));
            assert!(all.iter().filter(|other| *other == bytes).count() == 1 && *bytes != Sets::new(shape, 6).draw(at as u64 / 4, part));
        }
        for head in all[3].chunks(25) {
            assert_eq!((head.iter().filter(|byte| **byte == 1).count(), head.iter().filter(|byte| **byte == 0).count()), (7, 18));
            assert!((0..5).all(|at| head[at * 6] == 1), "the diagonal is present");
        }
        let numbers = DTYPE.decode(&all[0]);
        let square = numbers.iter().map(|number| number * number).sum::<f64>() / numbers.len() as f64;
        assert!(numbers.len() == 4800 && (square - 0.25).abs() < 0.03, "{square}");
        let dense = Sets::new(Shape { blocks: 0, ..shape }, 5);
        assert_eq!((dense.parts().count(), dense.draw(0, Part::Q)), (3, all[0].clone()));
    }
}
