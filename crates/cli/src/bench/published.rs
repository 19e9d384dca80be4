//! Sizes that four published suites measured and that no other list has: wide heads, products near 8192, a short K, small MLPs.
//! `benches/peers/references.py` puts what they published beside what is measured here.

use super::listed::{Entry, mlp, prefill, product};
use super::shape::Shape;
use trifuse::device::Kind;

/// The list; on a processor the sizes that were published of one, in f32.
pub(super) fn shapes(kind: Kind) -> Vec<Entry> {
    if kind == Kind::Cpu {
        return [64, 128, 256].map(|length| (prefill(1, [8; 2], 64, length, false), length == 64)).to_vec();
    }
    let mut all = heads();
    all.extend(products());
    // The small MLPs of StyleForge, 4 · d wide, and the ends of the table of its first kernel.
    all.extend([(8192, 512), (8192, 768), (8192, 1024)].map(|(tokens, d)| mlp(tokens, d, 4 * d)));
    all.extend([(32, 128), (64, 512)].map(|(head_dim, length)| prefill(1, [4; 2], head_dim, length, false)));
    // K so long that the launch and the ends of a tile do not count. Last: theirs are the largest operands, and a run that
    // time ends has all else.
    all.extend([19_712, 73_728].map(|d_in| product(8192, 8192, d_in)));
    let stands = |shape: &Shape| matches!(shape, Shape::Attention { head_dim: 256, .. } | Shape::FusedMlp { d_model: 512, .. });
    all.into_iter().map(|shape| (shape.clone(), stands(&shape))).collect()
}

/// Heads of 162 to 256 as the alignment sweep has them, and heads of 64 as the reports on an H100 and an L4 do.
fn heads() -> Vec<Shape> {
    let wide = [162, 176, 190, 192, 194, 208, 224, 226, 240, 248, 254, 256].map(|head_dim| prefill(4, [32; 2], head_dim, 2048, false));
    let narrow = [(1, 8, 512), (16, 96, 512), (1, 1, 1024), (1, 64, 1024)].map(|(batch, heads, length)| prefill(batch, [heads; 2], 64, length, false));
    wide.into_iter().chain(narrow).collect()
}

fn products() -> Vec<Shape> {
    let sizes = [
        // Each size odd in turn, near 8192, and one row.
        (8192, 8192, 8001),
        (8192, 8001, 8192),
        (8001, 8192, 8192),
        (1, 8192, 8192),
        (1, 8192, 8001),
        (1, 8001, 8192),
        // Few rows: odd and even sizes.
        (512, 4096, 4095),
        (512, 4095, 4096),
        (512, 4096, 4094),
        (512, 4094, 4096),
        // A short K, a multiple of 16, of 8, and neither.
        (4096, 4096, 107),
        (4096, 4096, 112),
        (4096, 4096, 128),
        (8192, 8192, 107),
        (8192, 8192, 112),
        (8192, 8192, 120),
        (2048, 2048, 128),
        (2048, 1664, 128),
        (2048, 1672, 128),
        (1088, 2048, 128),
        (1089, 2048, 128),
        // The pairs that an SVD leaves of a layer's product and of its MLP's, 512 tokens.
        (512, 1433, 4096),
        (512, 4096, 1433),
        (512, 2230, 4096),
        (512, 14336, 2230),
        (512, 1432, 4096),
        (512, 4096, 1432),
    ];
    sizes.map(|(tokens, d_out, d_in)| product(tokens, d_out, d_in)).to_vec()
}
