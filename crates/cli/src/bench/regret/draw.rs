//! Random shapes of an operation, of the sizes that serving and training have.

use crate::bench::layout::Layout;
use crate::bench::padding::Padding;
use crate::bench::pattern::Blocks;
use crate::bench::projection::sizes::Sizes;
use crate::bench::sequences::{Chunk, Sequences, lengths};
use crate::bench::shape::{Delta, Held, Point, Shape, Suite};
use trifuse::device::Kind;
use trifuse::dtype::DType;
use trifuse_testkit::cases::Draw;

/// Draws of one shape, at most, until one is within the limits.
const MOST_DRAWS: u32 = 1000;
/// Columns of the models that are served most: MiniLM, BERT, Llama, Qwen and their MLPs.
const MODELS: [u64; 18] = [384, 512, 768, 896, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 4864, 5120, 8192, 8960, 11_008, 13_824, 14_336];
/// Elements of a head.
const HEADS: [u64; 6] = [32, 64, 80, 96, 128, 256];

/// Operations and bytes of a shape, at most, and the greatest of its lengths.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Limits {
    pub flops: f64,
    pub bytes: f64,
    pub length: u64,
}

impl Limits {
    /// On a GPU about 2 ms of a large one's matrix units, and 4 GB; on a processor what tests have time for.
    pub(in crate::bench) const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Cpu => Self { flops: 2e7, bytes: 16e6, length: 256 },
            _ => Self { flops: 1.2e12, bytes: 4e9, length: 16_384 },
        }
    }

    pub const fn hold(self, [flops, bytes]: [f64; 2]) -> bool {
        flops <= self.flops && bytes <= self.bytes
    }
}

/// Whether shapes of that suite can be drawn.
pub const fn draws(suite: Suite) -> bool {
    matches!(suite, Suite::Linear | Suite::Mlp | Suite::Attention | Suite::Sparse | Suite::Adapters)
}

/// Shape `number` of those that `seed` gives for a suite: the same whatever how many are drawn.
pub(in crate::bench) fn point(suite: Suite, dtype: DType, kind: Kind, seed: u64, number: u64) -> Point {
    let (mut draw, limits) = (Random(Draw::seeded(&format!("regret {} {dtype} {seed} {number}", suite.name()))), Limits::of(kind));
    let mut one = || match suite {
        Suite::Mlp => draw.mlp(limits),
        Suite::Attention => draw.attention(limits),
        Suite::Sparse => draw.sparse(limits),
        Suite::Adapters => draw.adapters(limits),
        _ => draw.linear(limits),
    };
    let mut shape = one();
    for _ in 0..MOST_DRAWS {
        if limits.hold(work(&shape, dtype)) {
            break;
        }
        shape = one();
    }
    Point { suite, dtype, captured: true, shape }
}

/// Operations, and bytes of all operands: what bounds a draw, and no measure of a rate.
pub(in crate::bench) fn work(shape: &Shape, dtype: DType) -> [f64; 2] {
    let size = dtype.size() as f64;
    let [flops, elements] = match *shape {
        Shape::Linear { tokens, d_out, d_in, .. } => product([tokens, d_out, d_in].map(|side| side as f64)),
        Shape::FusedMlp { tokens, d_model, d_ff, gated, .. } => {
            let [flops, elements] = product([tokens, d_ff, d_model].map(|side| side as f64));
            let times = if gated { 3.0 } else { 2.0 };
            [flops * times, elements * times]
        }
        Shape::Attention { batch, heads, kv_heads, q_len, kv_len, head_dim, causal, blocks, .. } => {
            let share = match blocks.and_then(|blocks| blocks.percent) {
                Some(percent) => f64::from(percent) / 100.0,
                None if causal => 0.5,
                None => 1.0,
            };
            let [flops, elements] = attention([batch, heads, kv_heads, q_len, kv_len, head_dim].map(|side| side as f64));
            [flops * share, elements]
        }
        Shape::Ragged(ref all) => all.lengths.iter().fold([0.0; 2], |[flops, elements], &length| {
            let one = attention([1, all.heads, all.kv_heads, all.queries(length), length, all.head_dim].map(|side| side as f64));
            [flops + one[0], elements + one[1]]
        }),
        Shape::CodebookGemm { tokens, projections, d, rank, .. } => {
            [4.0 * (tokens * projections * d * rank) as f64, (projections * (d * rank + tokens * d) + tokens * d) as f64]
        }
        Shape::Projection(Sizes { tokens, d_in, d_out, rank, slices, .. }) => {
            [2.0 * (tokens * slices * (d_in + d_out) * rank) as f64, (tokens * d_in + slices * (tokens * d_out + d_in * rank)) as f64]
        }
        _ => [0.0; 2],
    };
    [flops, elements * size]
}

fn product([m, n, k]: [f64; 3]) -> [f64; 2] {
    [2.0 * m * n * k, m * k + n * k + m * n]
}

fn attention([batch, heads, kv_heads, q_len, kv_len, head_dim]: [f64; 6]) -> [f64; 2] {
    [4.0 * batch * heads * q_len * kv_len * head_dim, 2.0 * batch * (heads * q_len + kv_heads * kv_len) * head_dim]
}

/// What shapes are drawn with.
pub(in crate::bench) struct Random(pub Draw);

impl Random {
    /// A number from 0 to 1.
    pub fn share(&mut self) -> f64 {
        f64::from(self.0.word()) / f64::from(u32::MAX)
    }

    /// Whether something happens that does so in `percent` of a hundred.
    pub fn happens(&mut self, percent: u32) -> bool {
        self.0.below(100) < percent
    }

    /// One of several, each as likely.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.0.below(of.len() as u32) as usize]
    }

    /// A whole number of that range whose logarithm is uniform.
    pub fn log(&mut self, least: u64, most: u64) -> u64 {
        let (low, high) = (least as f64, most.max(least) as f64);
        ((low * (high / low).powf(self.share())).round() as u64).clamp(least, most.max(least))
    }

    /// Columns: a model's, or whole multiples of 128, 64 or 8, or any.
    pub fn columns(&mut self, most: u64) -> u64 {
        if self.happens(35) {
            let of: Vec<u64> = MODELS.into_iter().filter(|&columns| columns <= most).collect();
            if !of.is_empty() {
                return self.one(&of);
            }
        }
        let (columns, unit) = (self.log(64, most), self.one(&[128, 128, 64, 8, 8, 1, 1]));
        columns.next_multiple_of(unit).min(most / unit * unit)
    }

    fn linear(&mut self, limits: Limits) -> Shape {
        let (tokens, layers) = (self.log(1, limits.length), 1);
        if self.happens(20) {
            let d = self.columns(limits.length / 2).next_multiple_of(128);
            let delta = Some(Delta { adapters: self.log(1, 128) as u32, rank: 16 });
            return Shape::Linear { tokens, d_out: d, d_in: d, delta, padding: Padding::None, layers };
        }
        let (d_out, d_in) = (self.columns(limits.length), self.columns(limits.length));
        let padding = if d_in % 8 == 0 { Padding::None } else { self.one(&[Padding::None, Padding::Weights, Padding::Both]) };
        // The stride of a single row means nothing.
        let padding = if tokens == 1 && padding == Padding::Both { Padding::Weights } else { padding };
        Shape::Linear { tokens, d_out, d_in, delta: None, padding, layers }
    }

    fn mlp(&mut self, limits: Limits) -> Shape {
        let d_model = self.columns(limits.length / 2);
        // As models have it, or any.
        let d_ff = if self.happens(50) { (d_model * self.one(&[8, 11, 12, 14, 16]) / 4).next_multiple_of(8) } else { self.columns(limits.length) };
        Shape::FusedMlp { tokens: self.log(1, limits.length), d_model, d_ff, gated: self.happens(50), layers: 1 }
    }

    /// Heads of q and of k and v.
    fn heads(&mut self) -> [u64; 2] {
        let kv_heads = self.log(1, 32);
        [kv_heads * self.one(&[1, 1, 2, 4, 8]), kv_heads]
    }

    fn attention(&mut self, limits: Limits) -> Shape {
        let ([heads, kv_heads], head_dim, most) = (self.heads(), self.one(&HEADS), 2 * limits.length);
        let dense = |batch, q_len, kv_len, causal| Shape::Attention { batch, heads, kv_heads, q_len, kv_len, head_dim, causal, blocks: None, layers: 1 };
        match self.0.below(6) {
            // Prefill, whole, or behind what is there.
            0 => {
                let length = self.log(16, most);
                dense(self.log(1, 64), length, length, self.happens(60))
            }
            1 => {
                let length = self.log(16, most);
                dense(self.log(1, 16), self.log(2, length), length, true)
            }
            2 => dense(self.log(1, 256), self.one(&[1, 1, 1, 2, 4, 8]), self.log(16, 4 * most), false),
            // End to end.
            3 => {
                let lengths = lengths(self.log(1, 128), self.log(16, most));
                Shape::Ragged(Sequences { lengths, chunk: None, heads, kv_heads, head_dim, causal: self.happens(50) })
            }
            // Pages: a token each, or a chunk of each prompt.
            form => {
                let (queries, count) = if form == 4 { (self.one(&[1, 1, 1, 2, 4]), self.log(1, 256)) } else { (self.log(8, 512), self.log(1, 32)) };
                let lengths = lengths(count, self.log(16, 2 * most)).into_iter().map(|length| length.max(queries)).collect();
                let chunk = Some(Chunk { queries, page: self.one(&[16, 32, 64, 128]) });
                Shape::Ragged(Sequences { lengths, chunk, heads, kv_heads, head_dim, causal: true })
            }
        }
    }

    fn sparse(&mut self, limits: Limits) -> Shape {
        let ([heads, kv_heads], head_dim, size) = (self.heads(), self.one(&HEADS), self.one(&[64, 128]));
        let length = self.log(256, 2 * limits.length).next_multiple_of(u64::from(size));
        let layout = self.one(&[Layout::Random, Layout::Random, Layout::Banded, Layout::Clustered, Layout::PowerLaw]);
        let percent = self.log(2, 100) as u32;
        let blocks = Some(Blocks { size, one_in: 1, count: None, percent: Some(percent), layout, map: self.happens(20) });
        Shape::Attention { batch: 1, heads, kv_heads, q_len: length, kv_len: length, head_dim, causal: false, blocks, layers: 1 }
    }

    fn adapters(&mut self, limits: Limits) -> Shape {
        let (tokens, adapters) = (self.log(1, limits.length / 2), self.log(1, 512) as u32);
        let rank = self.one(&[16, 16, 16, 16, 8, 32, 64]);
        if self.happens(40) {
            // A chain, as layers are: what each launch reads the one before wrote.
            let (projections, d) = (self.log(2, 12), self.columns(limits.length / 2).next_multiple_of(32));
            let share = if self.happens(25) { projections } else { 1 };
            return Shape::CodebookGemm { tokens, adapters, projections, d, rank, grouped: self.happens(15), share, held: Held::Device };
        }
        let [d_in, d_out] = [self.columns(limits.length), self.columns(limits.length).next_multiple_of(32)];
        let (slices, bits) = (self.one(&[1, 1, 1, 2, 3, 3, 4]), self.one(&[7, 7, 7, 4, 3]));
        Shape::Projection(Sizes { tokens, adapters, bits, d_in, d_out, rank, slices, accumulate: self.happens(60), sorted: self.happens(50) })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SUITES: [Suite; 5] = [Suite::Linear, Suite::Mlp, Suite::Attention, Suite::Sparse, Suite::Adapters];

    fn drawn(suite: Suite, kind: Kind, seed: u64, count: u64) -> Vec<Point> {
        (0..count).map(|number| point(suite, DType::F16, kind, seed, number)).collect()
    }

    #[test]
    fn a_seed_gives_the_same_shapes_and_another_seed_others() {
        for suite in SUITES {
            assert_eq!(drawn(suite, Kind::Discrete, 1, 20), drawn(suite, Kind::Discrete, 1, 40)[..20], "{suite:?}");
            assert_ne!(drawn(suite, Kind::Discrete, 1, 20), drawn(suite, Kind::Discrete, 2, 20), "{suite:?}");
            let names: BTreeSet<String> = drawn(suite, Kind::Discrete, 3, 100).iter().map(Point::name).collect();
            assert!(names.len() > 95, "{suite:?}: {}", names.len());
        }
        assert!(!draws(Suite::Layer) && SUITES.into_iter().all(draws));
    }

    #[test]
    fn every_shape_is_within_the_limits() {
        for (suite, kind) in SUITES.into_iter().flat_map(|suite| [(suite, Kind::Discrete), (suite, Kind::Cpu)]) {
            for point in drawn(suite, kind, 7, 300) {
                let [flops, bytes] = work(&point.shape, point.dtype);
                assert!(Limits::of(kind).hold([flops, bytes]) && flops > 0.0, "{kind:?} {}: {flops:e} {bytes:e}", point.name());
            }
        }
    }

    #[test]
    fn every_form_of_a_shape_comes() {
        let has = |suite, form: fn(&Shape) -> bool| drawn(suite, Kind::Discrete, 5, 200).iter().any(|point| form(&point.shape));
        assert!(has(Suite::Linear, |shape| matches!(shape, Shape::Linear { delta: Some(_), .. })));
        assert!(has(Suite::Linear, |shape| matches!(shape, Shape::Linear { padding: Padding::Both, .. })));
        assert!(has(Suite::Linear, |shape| matches!(shape, Shape::Linear { tokens: 1..=16, .. })));
        assert!(has(Suite::Linear, |shape| matches!(shape, Shape::Linear { tokens: 4096.., .. })));
        assert!(has(Suite::Attention, |shape| matches!(shape, Shape::Ragged(Sequences { chunk: None, .. }))));
        assert!(has(Suite::Attention, |shape| matches!(shape, Shape::Ragged(Sequences { chunk: Some(Chunk { queries: 1, .. }), .. }))));
        assert!(has(Suite::Attention, |shape| matches!(shape, Shape::Attention { causal: true, .. })));
        assert!(has(Suite::Adapters, |shape| matches!(shape, Shape::CodebookGemm { .. })));
        assert!(has(Suite::Adapters, |shape| matches!(shape, Shape::Projection(Sizes { accumulate: true, .. }))));
    }
}
