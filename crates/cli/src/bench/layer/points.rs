//! The layers that the suite measures.

use super::super::extent::Extent;
use super::super::shape::{Point, Shape, Suite};
use trifuse::device::Kind;
use trifuse::dtype::DType;
use trifuse::error::{Result, ensure};
use trifuse::ops::layer::{Layer, Model, Sizes, Style};

/// Lengths of the reference's table.
pub const LENGTHS: [u64; 4] = [512, 1024, 2048, 4096];
/// Lengths of the quick list.
const QUICK: [u64; 2] = [512, 2048];
/// What a processor gets where no model is named, by style.
const SMALL_LENGTHS: [u64; 2] = [64, 200];

/// What of the suite is asked for; where nothing is said, every model and length in both styles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The models.
    pub models: Vec<Model>,
    /// The styles.
    pub styles: Vec<Style>,
    /// Tokens of a sequence.
    pub tokens: Vec<u64>,
    /// Sequences; 1 where nothing is said.
    pub batch: Option<u64>,
    /// Whether a token sees no later one; where nothing is said, in Llama's style it does not, and in the reference's it does.
    pub causal: Option<bool>,
}

/// What stands for a model where a processor runs the work and none is named: a tenth of the narrowest one. Llama's has two heads of q on one of k and v.
pub fn small(style: Style) -> Sizes {
    Sizes { hidden: 256, heads: 4, kv_heads: if style == Style::Llama { 2 } else { 4 }, head_dim: 64, intermediate: 688 }
}

/// The points of the suite.
///
/// # Errors
/// Sizes of which there is no layer.
pub fn points(choice: &Choice, dtype: DType, extent: Extent) -> Result<Vec<Point>> {
    let or = |given: &[u64], usual: &[u64]| if given.is_empty() { usual.to_vec() } else { given.to_vec() };
    let styles = if choice.styles.is_empty() { &Style::ALL[..] } else { &choice.styles };
    let mut models: Vec<Option<Model>> = choice.models.iter().copied().map(Some).collect();
    if models.is_empty() {
        models = match (extent.kind, extent.quick) {
            (Kind::Cpu, _) => vec![None],
            (_, true) => vec![Some(Model::Llama2With7B)],
            (_, false) => Model::ALL.map(Some).to_vec(),
        };
    }
    let lengths = match (extent.kind, extent.quick) {
        (Kind::Cpu, true) => or(&choice.tokens, &SMALL_LENGTHS[..1]),
        (Kind::Cpu, false) => or(&choice.tokens, &SMALL_LENGTHS),
        (_, true) => or(&choice.tokens, &QUICK),
        (_, false) => or(&choice.tokens, &LENGTHS),
    };
    let mut points: Vec<Point> = Vec::new();
    // A run that is cut short has every model in both styles at the lengths that it reached.
    for &tokens in &lengths {
        for &style in styles {
            for &model in &models {
                let (batch, causal) = (choice.batch.unwrap_or(1), choice.causal.unwrap_or(style == Style::Llama));
                ensure(batch > 0 && tokens > 0, "--batch, --seq", "at least 1", format_args!("{batch}, {tokens}"))?;
                let sizes = model.map_or_else(|| small(style), Model::sizes);
                Layer::new(dtype, [batch, tokens], sizes, style, causal).parts()?;
                let shape = Shape::Layer { model, batch, tokens, sizes, style, causal };
                let point = Point { suite: Suite::Layer, dtype, captured: true, shape };
                // Asked for twice is measured once.
                if !points.contains(&point) {
                    points.push(point);
                }
            }
        }
    }
    Ok(points)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_narrows_the_list() {
        let names = |choice: &Choice, kind, quick| points(choice, DType::F16, Extent { kind, quick }).unwrap().iter().map(Point::name).collect::<Vec<_>>();
        assert_eq!(names(&Choice::default(), Kind::Discrete, false).len(), 2 * 3 * 4);
        assert_eq!(names(&Choice::default(), Kind::Cpu, true), ["h256 reference b1 s64", "h256 llama b1 s64 causal"]);
        let choice = Choice { models: vec![Model::Llama2With70B; 2], styles: vec![Style::Llama], tokens: vec![100, 7], batch: Some(3), causal: Some(false) };
        assert_eq!(names(&choice, Kind::Cpu, false), ["llama2-70b llama b3 s100", "llama2-70b llama b3 s7"]);
        let none = Choice { tokens: vec![0], ..Choice::default() };
        assert!(points(&none, DType::F16, Extent { kind: Kind::Cpu, quick: true }).is_err());
    }
}
