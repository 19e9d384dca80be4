//! The lists of shapes: one for GPUs, and one a hundred times smaller for processors.

use super::align::{self, Sweep};
pub use super::extent::Extent;
use super::layer;
use super::layout::Layout;
use super::listed::{Entry, mlp, prefill, product};
use super::models;
use super::pattern::Blocks;
use super::published;
use super::sequences::{Chunk, Sequences, lengths};
use super::shape::{Delta, Held, Padding, Point, Shape, Suite};
use super::shares;
use trifuse::device::Kind;
use trifuse::dtype::DType;

/// The points of `suite`, in the order in which they are measured.
pub fn points(suite: Suite, dtype: DType, extent: Extent) -> Vec<Point> {
    let all = match (suite, extent.kind) {
        (Suite::Attention, Kind::Cpu) => small_attention(),
        (Suite::Mlp, Kind::Cpu) => mlps(&[1, 16, 128], [512, 1376], &[16], 3),
        (Suite::Linear, Kind::Cpu) => small_linear(),
        (Suite::Adapters, Kind::Cpu) => small_adapters(),
        (Suite::Attention, _) => attention(),
        // Llama-2-7B's MLP.
        (Suite::Mlp, _) => mlps(&[1, 16, 128, 512, 1024, 2048, 4096, 8192], [4096, 11008], &[1, 16, 128], 8),
        (Suite::Linear, _) => linear(),
        (Suite::Adapters, _) => adapters(),
        (Suite::Published, kind) => published::shapes(kind),
        (Suite::Prefix, Kind::Cpu) => prefix(&[1, 16], [4, 2], 32, 256, &[16]),
        // Grouped heads of Llama's width.
        (Suite::Prefix, _) => prefix(&[1, 4, 16, 64], [32, 8], 128, 4096, &[64, 128]),
        (Suite::Sparse, kind) => block_counts(kind),
        (Suite::ForwardPass, kind) => return forward_pass(dtype, kind, extent.quick),
        // The sweep, and the layers, as they are where nothing narrows them: their sizes are in range.
        (Suite::Projections, _) => return models::points(suite, &layer::Choice::default(), dtype, extent).unwrap_or_default(),
        (Suite::Align, _) => return align::points(&Sweep::default(), dtype, extent).unwrap_or_default(),
        (Suite::Layer, _) => return layer::points(&layer::Choice::default(), dtype, extent).unwrap_or_default(),
        (Suite::Micro, kind) => return micro(dtype, kind, extent.quick),
    };
    let chosen = all.into_iter().filter(|(_, quick)| *quick || !extent.quick);
    chosen.map(|(shape, _)| Point { suite, dtype, captured: captured(&shape), shape }).collect()
}

/// 128 projections, 32 layers of four, and a batch in which every token has an adapter of its own.
fn forward_pass(dtype: DType, kind: Kind, quick: bool) -> Vec<Point> {
    let (projections, d, adapters) = if kind == Kind::Cpu { (8, 256, 20) } else { (128, 4096, 100) };
    let shape = |share, held| Shape::CodebookGemm { tokens: 16, adapters, projections, d, rank: 16, grouped: false, share, held };
    let mut all = vec![(shape(1, Held::Device), true), (shape(1, Held::Device), false)];
    let mut crowds = Vec::new();
    if !quick {
        // Query, key, value and gate of a layer read one x; and what the host holds cannot be copied by a captured graph.
        all.extend([(shape(4, Held::Device), true), (shape(4, Held::Device), false), (shape(1, Held::Host), false), (shape(1, Held::HostPass), true)]);
        crowds = registered(dtype, kind, None);
    }
    let point = |(shape, captured)| Point { suite: Suite::ForwardPass, dtype, captured, shape };
    all.into_iter().map(point).chain(crowds).collect()
}

/// Populations of the sizes that the method's authors speak of, or of `adapters`, in codes of 7, 4 and 3 bits.
pub(super) fn registered(dtype: DType, kind: Kind, adapters: Option<u32>) -> Vec<Point> {
    let (projections, d, [fewer, more]) = if kind == Kind::Cpu { (8, 256, [200, 2000]) } else { (128, 4096, [2000, 20_000]) };
    let most = adapters.unwrap_or(more);
    let mut all = vec![(most, 7, 16), (most, 4, 16), (most, 3, 16), (most, 4, 256)];
    if adapters.is_none() {
        all.insert(0, (fewer, 7, 16));
    }
    let shape = |(adapters, bits, tokens)| Shape::Registered { tokens, adapters, bits, projections, d, rank: 16 };
    all.into_iter().map(|sizes| Point { suite: Suite::ForwardPass, dtype, captured: true, shape: shape(sizes) }).collect()
}

fn micro(dtype: DType, kind: Kind, quick: bool) -> Vec<Point> {
    let point = |shape, captured| Point { suite: Suite::Micro, dtype, captured, shape };
    let (copies, products): (&[u64], &[u64]) = match (kind, quick) {
        (Kind::Cpu, true) => (&[1 << 20], &[256]),
        (Kind::Cpu, false) => (&[64 << 10, 1 << 20, 16 << 20, 128 << 20], &[256, 512]),
        (_, true) => (&[1 << 30], &[4096]),
        (_, false) => (&[64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30, 2 << 30], &[1024, 2048, 4096, 8192]),
    };
    let copies = copies.iter().map(|&bytes| point(Shape::Copy { bytes }, false));
    let products = products.iter().map(|&n| point(product(n, n, n), false));
    let launches = [false, true].map(|captured| point(Shape::Launches { count: 128 }, captured));
    copies.chain(products).chain(launches).collect()
}

/// Work of a few microseconds a launch is served from a captured graph.
fn captured(shape: &Shape) -> bool {
    match shape {
        Shape::Attention { q_len, kv_len, .. } => q_len != kv_len,
        Shape::Decode { .. }
        | Shape::Prefix { .. }
        | Shape::CodebookGemm { .. }
        | Shape::Registered { .. }
        | Shape::Mixture { .. }
        | Shape::Lora { .. }
        | Shape::Projection(_)
        | Shape::Launches { .. }
        | Shape::Layer { .. } => true,
        Shape::Linear { layers, .. } | Shape::FusedMlp { layers, .. } => *layers > 1,
        Shape::Ragged(_) | Shape::Copy { .. } => false,
    }
}

/// The products that the ceiling of matrix products is the best of.
pub(super) fn ceilings(dtype: DType, kind: Kind) -> Vec<Point> {
    let sizes: &[u64] = if kind == Kind::Cpu { &[512] } else { &[4096, 8192] };
    sizes.iter().map(|&n| Point { suite: Suite::Linear, dtype, captured: false, shape: product(n, n, n) }).collect()
}

/// A product whose K is odd, as it comes, with w packed at load, and with rows of x as well.
fn odd_k(tokens: u64, d_out: u64, d_in: u64) -> Vec<Entry> {
    let forms = [Padding::None, Padding::Weights, Padding::Both];
    // The stride of a single row means nothing.
    let forms = forms.into_iter().filter(|&padding| tokens > 1 || padding != Padding::Both);
    forms.map(|padding| (Shape::Linear { tokens, d_out, d_in, delta: None, padding, layers: 1 }, false)).collect()
}

/// MLPs of so many tokens one by one, and of `few` so many layers in a row, in one graph.
fn mlps(tokens: &[u64], [d_model, d_ff]: [u64; 2], few: &[u64], layers: u64) -> Vec<Entry> {
    let alone = tokens.iter().map(|&tokens| (mlp(tokens, d_model, d_ff), [16, 4096].contains(&tokens)));
    alone.chain(few.iter().map(|&tokens| (in_layers(mlp(tokens, d_model, d_ff), layers), false))).collect()
}

fn decode(batch: u64, [heads, kv_heads]: [u64; 2], head_dim: u64, kv_len: u64) -> Shape {
    Shape::Attention { batch, heads, kv_heads, q_len: 1, kv_len, head_dim, causal: false, blocks: None, layers: 1 }
}

/// Decoding in so many layers, each behind what appends its token.
fn append(batch: u64, [heads, kv_heads]: [u64; 2], head_dim: u64, kv_len: u64, layers: u64) -> Entry {
    (Shape::Decode { batch, heads, kv_heads, kv_len, head_dim, layers }, false)
}

/// `shape` so many times in a row, each with keys or weights of its own.
fn in_layers(mut shape: Shape, count: u64) -> Shape {
    if let Shape::Attention { layers, .. } | Shape::FusedMlp { layers, .. } | Shape::Linear { layers, .. } = &mut shape {
        *layers = count;
    }
    shape
}

/// Sequences of up to `longest` tokens in one launch: their prompts, or the next chunk of each.
fn ragged(count: u64, longest: u64, [heads, kv_heads]: [u64; 2], head_dim: u64, chunk: Option<Chunk>, causal: bool) -> Entry {
    let least = chunk.map_or(1, |chunk| chunk.queries);
    let lengths = lengths(count, longest).into_iter().map(|length| length.max(least)).collect();
    (Shape::Ragged(Sequences { lengths, chunk, heads, kv_heads, head_dim, causal }), false)
}

/// One query of each sequence over a prefix that all share: plain, then in factors of these ranks.
fn prefix(batches: &[u64], [heads, kv_heads]: [u64; 2], head_dim: u64, tokens: u64, ranks: &[u64]) -> Vec<Entry> {
    let shape = |batch, rank| (Shape::Prefix { batch, heads, kv_heads, tokens, head_dim, rank }, batch == 16);
    batches.iter().flat_map(|&batch| std::iter::once(None).chain(ranks.iter().copied().map(Some)).map(move |rank| shape(batch, rank))).collect()
}

/// Blocks of 128, four in five left out.
fn sparse(heads: u64, head_dim: u64, length: u64) -> Shape {
    let blocks = Some(Blocks { size: 128, one_in: 5, count: None, percent: None, layout: Layout::Random, map: false });
    Shape::Attention { batch: 1, heads, kv_heads: heads, q_len: length, kv_len: length, head_dim, causal: false, blocks, layers: 1 }
}

/// A pattern of that many blocks of 128 over one sequence, as lists or as a map.
fn counted(map: bool, (count, heads, head_dim, length): (u32, u64, u64, u64)) -> Entry {
    let blocks = Some(Blocks { size: 128, one_in: 5, count: Some(count), percent: None, layout: Layout::Random, map });
    let shape = Shape::Attention { batch: 1, heads, kv_heads: heads, q_len: length, kv_len: length, head_dim, causal: false, blocks, layers: 1 };
    (shape, heads == 1 && !map && [12, 800].contains(&count))
}

/// The reference's numbers of blocks, a fifth of a square each, on to the "100,000 atoms" that it speaks of: 782 rows of
/// blocks, of which a fifth is 122,305 blocks; some of them from a map, which shows what making the lists costs; then shares of the blocks.
fn block_counts(kind: Kind) -> Vec<Entry> {
    let of_reference = [204, 800, 1600, 3200, 6400, 12800, 25600].map(|count| {
        let rows = (f64::from(count) * 5.0).sqrt().floor() as u64;
        (count, 1, 64, 128 * rows)
    });
    let more = [(122_305, 1, 64, 782 * 128), (800, 8, 64, 8064), (800, 32, 64, 8064), (800, 32, 128, 8064)];
    let counts = match kind {
        Kind::Cpu => vec![(12, 1, 64, 1024), (24, 1, 64, 1408), (12, 2, 64, 1024)],
        _ => [&of_reference[..], &more].concat(),
    };
    let maps: &[_] = if kind == Kind::Cpu { &counts[..1] } else { &[(800, 1, 64, 8064), (12800, 1, 64, 32_256), (800, 32, 128, 8064)] };
    let maps: Vec<Entry> = maps.iter().map(|&count| counted(true, count)).collect();
    counts.into_iter().map(|count| counted(false, count)).chain(maps).chain(shares::shapes(kind).into_iter().map(|shape| (shape, false))).collect()
}

fn chain(tokens: u64, adapters: u32, projections: u64, d: u64, grouped: bool) -> Shape {
    Shape::CodebookGemm { tokens, adapters, projections, d, rank: 16, grouped, share: 1, held: Held::Device }
}

/// A [`chain`] in which `share` projections in a row read one x.
fn sharing(tokens: u64, adapters: u32, projections: u64, d: u64, share: u64) -> Shape {
    Shape::CodebookGemm { tokens, adapters, projections, d, rank: 16, grouped: false, share, held: Held::Device }
}

/// Each token on two of the experts.
fn mixture(tokens: u64, experts: u32, projections: u64, d: u64) -> Shape {
    Shape::Mixture { tokens, experts, top: 2, projections, d, rank: 16 }
}

/// A base projection alone, and with adapters on top: what they add.
fn added(tokens: u64, d: u64, adapters: u32) -> [Entry; 2] {
    [None, Some(Delta { adapters, rank: 16 })].map(|delta| (Shape::Linear { tokens, d_out: d, d_in: d, delta, padding: Padding::None, layers: 1 }, false))
}

fn attention() -> Vec<Entry> {
    let mut all = Vec::new();
    for causal in [false, true] {
        for length in [512, 1024, 2048, 4096, 8192, 16384] {
            all.push((prefill(1, [32, 32], 128, length, causal), length == 4096));
        }
        all.push((prefill(1, [64, 8], 128, 4096, causal), false));
    }
    all.extend([4096, 16384].map(|length| (prefill(1, [32, 32], 64, length, false), false)));
    // The heads of the reference's sweep, one of them odd.
    all.extend([64, 96, 107, 112, 120, 128].map(|head_dim| (prefill(4, [32, 32], head_dim, 2048, false), false)));
    all.extend([(192, false), (192, true), (256, false), (256, true)].map(|(head_dim, causal)| (prefill(4, [32, 32], head_dim, 2048, causal), false)));
    all.push((decode(1, [32, 32], 128, 4096), true));
    all.push((decode(16, [32, 32], 128, 4096), false));
    all.push((decode(16, [32, 8], 128, 4096), false));
    all.push((decode(64, [32, 8], 128, 8192), false));
    // As a model decodes: one layer after another, each with a cache of its own, in one graph.
    all.extend([[32, 32], [32, 8]].map(|heads| (in_layers(decode(1, heads, 128, 4096), 16), false)));
    all.extend([(1, 32), (1, 8), (16, 8)].map(|(batch, kv_heads)| append(batch, [32, kv_heads], 128, 4096, 16)));
    all.push((sparse(1, 64, 8192), true));
    all.push((sparse(8, 64, 8192), false));
    all.push((sparse(32, 128, 8192), false));
    // As a server takes prompts in: several in a launch, and then in chunks, over a cache in pages.
    all.extend(
        [(8, 4096, 128, true), (8, 4096, 128, false), (8, 4096, 64, true), (64, 1024, 128, true)]
            .map(|(count, longest, head_dim, causal)| ragged(count, longest, [32, 8], head_dim, None, causal)),
    );
    all.extend(
        [(4, 8192, 512, 16), (4, 8192, 512, 64), (1, 16384, 2048, 64)]
            .map(|(count, longest, queries, page)| ragged(count, longest, [32, 8], 128, Some(Chunk { queries, page }), true)),
    );
    // A part of the heads, as one of several devices has them: few tiles.
    all.push(ragged(1, 8192, [8, 1], 128, Some(Chunk { queries: 512, page: 64 }), true));
    // Dense attention of many short sequences, as the reference's kernel in Triton was measured.
    all.extend([(32, 8, 128), (8, 8, 512), (16, 16, 2048)].map(|(batch, heads, length)| (prefill(batch, [heads; 2], 64, length, false), false)));
    all
}

fn linear() -> Vec<Entry> {
    let mut all: Vec<Entry> = [4096, 8192].map(|n| (product(n, n, n), n == 4096)).to_vec();
    all.extend([1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048].map(|tokens| (product(tokens, 4096, 4096), tokens == 16)));
    all.extend([1, 16].map(|tokens| (in_layers(product(tokens, 4096, 4096), 16), false)));
    // Odd sizes; the aligned neighbour is above.
    all.extend([(2048, 4096, 4095), (2048, 4095, 4095), (1, 4096, 3991), (16, 4096, 4095)].into_iter().flat_map(|(m, n, k)| odd_k(m, n, k)));
    all.extend([(2048, 4095, 4096), (1, 3991, 4096)].map(|(m, n, k)| (product(m, n, k), false)));
    all
}

fn adapters() -> Vec<Entry> {
    let sizes = [(16, 1), (16, 16), (256, 32), (256, 100), (1024, 100)];
    let mut all: Vec<Entry> = sizes.map(|(tokens, adapters)| (chain(tokens, adapters, 128, 4096, false), (tokens, adapters) == (16, 1))).to_vec();
    all.push((chain(16, 1, 128, 4096, true), false));
    // Query, key, value and gate of a layer on one x, and all projections on one.
    all.extend(
        [(16, 1, 4), (16, 16, 4), (256, 100, 4), (16, 1, 128), (16, 16, 128)]
            .map(|(tokens, adapters, share)| (sharing(tokens, adapters, 128, 4096, share), false)),
    );
    all.extend([(16, 16), (256, 32), (1024, 100)].into_iter().flat_map(|(tokens, adapters)| added(tokens, 4096, adapters)));
    all.extend([16, 256].map(|tokens| (mixture(tokens, 64, 128, 4096), false)));
    let trained = |(tokens, adapters), rank, added| (Shape::Lora { tokens, adapters, projections: 128, d: 4096, rank, added }, false);
    all.extend([false, true].into_iter().flat_map(|added| sizes.map(|size| trained(size, 16, added))));
    all.extend([8, 64].into_iter().flat_map(|rank| [(16, 1), (16, 16), (256, 100)].map(|size| trained(size, rank, false))));
    all
}

fn small_attention() -> Vec<Entry> {
    vec![
        (prefill(1, [4, 4], 64, 256, false), true),
        (prefill(1, [4, 4], 64, 256, true), false),
        (prefill(1, [8, 2], 64, 128, true), false),
        (decode(1, [8, 2], 64, 1024), false),
        (in_layers(decode(1, [8, 2], 64, 1024), 3), false),
        append(2, [8, 2], 64, 1000, 3),
        ragged(3, 200, [4, 2], 64, None, true),
        ragged(2, 300, [4, 2], 64, Some(Chunk { queries: 70, page: 16 }), true),
        (sparse(2, 64, 512), false),
    ]
}

fn small_linear() -> Vec<Entry> {
    let mut all: Vec<Entry> = [1, 16, 128].map(|tokens| (product(tokens, 512, 512), tokens == 16)).to_vec();
    all.extend([(product(512, 512, 512), false), (product(128, 511, 512), false), (in_layers(product(16, 512, 512), 3), false)]);
    all.extend(odd_k(128, 512, 511));
    all
}

fn small_adapters() -> Vec<Entry> {
    let mut all: Vec<Entry> = [(16, 1), (16, 16), (64, 32)].map(|(tokens, adapters)| (chain(tokens, adapters, 8, 512, false), adapters == 1)).to_vec();
    all.push((chain(16, 1, 8, 512, true), false));
    all.extend([4, 8].map(|share| (sharing(16, 4, 8, 512, share), false)));
    all.extend(added(16, 512, 16));
    all.push((mixture(16, 8, 4, 512), false));
    let trained = |added| Shape::Lora { tokens: 16, adapters: 4, projections: 8, d: 512, rank: 8, added };
    all.extend([false, true].map(|added| (trained(added), false)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_quick_is_a_part() {
        for (suite, kind) in Suite::ALL.into_iter().flat_map(|suite| [(suite, Kind::Cpu), (suite, Kind::Discrete)]) {
            let names = |quick| points(suite, DType::F16, Extent { kind, quick }).iter().map(|point| point.name()).collect::<Vec<_>>();
            let (all, quick) = (names(false), names(true));
            let set: BTreeSet<&String> = all.iter().collect();
            assert_eq!(set.len(), all.len(), "{all:?}");
            assert!(!quick.is_empty() && quick.len() < all.len() && quick.iter().all(|name| set.contains(name)), "{suite:?} {kind:?}");
        }
    }
}
