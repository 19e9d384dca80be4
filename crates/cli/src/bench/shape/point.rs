//! A shape to be measured, of a suite, in a type.

use serde::{Deserialize, Serialize};

use super::{Shape, Suite};
use trifuse::dtype::DType;

/// One line of a suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The suite.
    pub suite: Suite,
    /// The sizes.
    #[serde(flatten)]
    pub shape: Shape,
    /// Element type of every operand.
    pub dtype: DType,
    /// Whether the work is captured once and replayed: what a server does with work this short.
    pub captured: bool,
}

impl Point {
    /// Name of the point: the shape's, and how the work was launched where a suite has both ways. `--shape` searches it.
    pub fn name(&self) -> String {
        let name = self.shape.name();
        let both = match &self.shape {
            Shape::Launches { .. } => true,
            Shape::CodebookGemm { .. } => self.suite == Suite::ForwardPass,
            _ => false,
        };
        match (both, self.captured) {
            (false, _) => name,
            (true, true) => name + ", graph",
            (true, false) => name + ", no graph",
        }
    }
}
