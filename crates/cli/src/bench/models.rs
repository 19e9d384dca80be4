//! The shapes of Llama-2's layers by the model's name: their products, their attention, their MLP.

use super::extent::Extent;
use super::layer::{self, Choice, LENGTHS};
use super::shape::{Padding, Point, Shape, Suite};
use trifuse::device::Kind;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result, ensure};
use trifuse::ops::layer::{Model, Sizes, Style};

/// Rows of the products, from a token to a long prompt.
const ROWS: [u64; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

/// Whether a suite has shapes by the model's name.
pub fn known(suite: Suite) -> bool {
    matches!(suite, Suite::Attention | Suite::Mlp | Suite::Projections)
}

/// The points of a suite for the models and lengths that are chosen.
///
/// # Errors
/// A suite without models; no token or sequence; a choice that the suite does not know.
pub fn points(suite: Suite, choice: &Choice, dtype: DType, extent: Extent) -> Result<Vec<Point>> {
    ensure(known(suite), "--model, --seq, --batch", "the suites attention, mlp, layer and projections", suite.name())?;
    ensure(choice.styles.is_empty(), "--style", "the suite layer", suite.name())?;
    ensure(choice.causal.is_none() || suite == Suite::Attention, "--causal", "the suites attention and layer", suite.name())?;
    let batch = choice.batch.unwrap_or(1);
    let small = extent.kind == Kind::Cpu;
    let usual: &[u64] = match (suite, small, extent.quick) {
        (_, true, true) => &[16],
        (_, true, false) => &[1, 16, 128],
        (Suite::Projections, false, true) => &[16, 2048],
        (Suite::Projections, false, false) => &ROWS,
        (_, false, true) => &LENGTHS[..1],
        (_, false, false) => &LENGTHS,
    };
    let lengths = if choice.tokens.is_empty() { usual } else { &choice.tokens };
    let sizes: Vec<Sizes> = match (choice.models.as_slice(), small, extent.quick) {
        ([], true, _) => vec![layer::small(Style::Llama)],
        ([], false, true) => vec![Model::Llama2With7B.sizes()],
        ([], false, false) => Model::ALL.map(Model::sizes).to_vec(),
        (models, ..) => models.iter().map(|model| model.sizes()).collect(),
    };
    let mut points: Vec<Point> = Vec::new();
    for sizes in sizes {
        for shape in shapes(suite, sizes, batch, lengths, choice.causal == Some(true))? {
            let point = Point { suite, dtype, captured: false, shape };
            // Models share some, and one may be named twice.
            if !points.contains(&point) {
                points.push(point);
            }
        }
    }
    // A run that is cut short has every product at the rows that it reached.
    points.sort_by_key(|point| if let Shape::Linear { tokens, .. } = point.shape { tokens } else { 0 });
    Ok(points)
}

fn shapes(suite: Suite, sizes: Sizes, batch: u64, lengths: &[u64], causal: bool) -> Result<Vec<Shape>> {
    let Sizes { hidden, heads, kv_heads, head_dim, intermediate } = sizes;
    let (query, key) = (heads * head_dim, kv_heads * head_dim);
    let rows = |length: u64| {
        let rows = batch.checked_mul(length).filter(|rows| (1..=1 << 32).contains(rows));
        rows.ok_or_else(|| Error::invalid("--batch, --seq", "1 to 2^32 tokens", format!("{batch}, {length}")))
    };
    let mut shapes = Vec::new();
    // Q, K and V in one product; the output's; K's alone, where it is narrow; gate or up; down.
    let mut products = vec![(query + 2 * key, hidden), (hidden, query), (intermediate, hidden), (hidden, intermediate)];
    if key != query {
        products.insert(2, (key, hidden));
    }
    match suite {
        Suite::Projections => {
            for (d_out, d_in) in products {
                for &length in lengths {
                    shapes.push(Shape::Linear { tokens: rows(length)?, d_out, d_in, delta: None, padding: Padding::None, layers: 1 });
                }
            }
        }
        Suite::Mlp => {
            for &length in lengths {
                shapes.push(Shape::FusedMlp { tokens: rows(length)?, d_model: hidden, d_ff: intermediate, gated: false, layers: 1 });
            }
        }
        _ => {
            for &length in lengths {
                rows(length)?;
                shapes.push(Shape::Attention { batch, heads, kv_heads, q_len: length, kv_len: length, head_dim, causal, blocks: None, layers: 1 });
            }
        }
    }
    Ok(shapes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn names(suite: Suite, choice: &Choice, kind: Kind) -> Vec<String> {
        points(suite, choice, DType::F16, Extent { kind, quick: false }).unwrap().iter().map(Point::name).collect()
    }

    #[test]
    fn the_grid_has_every_projection_of_three_models() {
        let all = names(Suite::Projections, &Choice::default(), Kind::Discrete);
        assert_eq!(all.len(), (4 + 4 + 5) * ROWS.len());
        for name in ["m1 n4096 k11008", "m8192 n12288 k4096", "m16 n13824 k5120", "m64 n1024 k8192", "m2048 n10240 k8192", "m512 n8192 k28672"] {
            assert!(all.iter().any(|other| other == name), "{name}");
        }
    }

    #[test]
    fn a_model_and_lengths_choose_the_shapes_of_a_suite() {
        let choice = |causal| Choice { models: vec![Model::Llama2With70B; 2], tokens: vec![100], batch: Some(3), causal, ..Choice::default() };
        assert_eq!(names(Suite::Attention, &choice(Some(true)), Kind::Cpu), ["prefill b3 h64/8 d128 s100 causal"]);
        assert_eq!(names(Suite::Mlp, &choice(None), Kind::Discrete), ["m300 8192-28672-8192 gelu"]);
        let refused = |suite, choice: &Choice| points(suite, choice, DType::F16, Extent { kind: Kind::Cpu, quick: false }).is_err();
        assert!(refused(Suite::Linear, &choice(None)) && refused(Suite::Mlp, &choice(Some(false))));
        assert!(refused(Suite::Mlp, &Choice { tokens: vec![0], ..Choice::default() }));
        assert!(refused(Suite::Mlp, &Choice { tokens: vec![u64::MAX], batch: Some(2), ..Choice::default() }));
        assert!(refused(Suite::Attention, &Choice { styles: Style::ALL.to_vec(), ..Choice::default() }));
    }
}
