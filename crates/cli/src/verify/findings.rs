//! What a test finds, and how it ended.

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "status", content = "why")]
pub enum Verdict {
    /// Everything it asserts holds.
    Passed,
    /// Something does not.
    Failed(String),
    /// It cannot run here.
    Skipped(String),
}

/// One measured value, and the bound it had to keep.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The value.
    pub value: f64,
    /// The bound in words; nothing where the value is only told.
    pub bound: Option<String>,
}

/// One test.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Check {
    /// 1 to 6.
    pub number: u8,
    /// What it is about.
    pub name: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// What was measured.
    pub figures: Vec<Figure>,
}

/// Collects what a test measures, and the first bound that does not hold.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) figures: Vec<Figure>,
    pub(super) failed: Option<String>,
}

impl Findings {
    /// A value that is only told.
    pub(super) fn tell(&mut self, name: impl Into<String>, value: f64) {
        self.figures.push(Figure { name: name.into(), value, bound: None });
    }

    /// A value that must be at least so much. NaN is not.
    pub(super) fn at_least(&mut self, name: impl Into<String>, value: f64, least: f64) {
        self.judge(name.into(), value, value >= least, format!("at least {least}"));
    }

    /// A value that must be at most so much. NaN is not.
    pub(super) fn at_most(&mut self, name: impl Into<String>, value: f64, most: f64) {
        self.judge(name.into(), value, value <= most, format!("at most {most:.4e}"));
    }

    /// A value that must be just that.
    pub(super) fn exactly(&mut self, name: impl Into<String>, value: f64, wanted: f64) {
        self.judge(name.into(), value, value == wanted, format!("exactly {wanted}"));
    }

    fn judge(&mut self, name: String, value: f64, holds: bool, bound: String) {
        if !holds && self.failed.is_none() {
            self.failed = Some(format!("{name}: {value:.6e}, has to be {bound}"));
        }
        self.figures.push(Figure { name, value, bound: Some(bound) });
    }

    pub(super) fn check(self, number: u8, name: &'static str) -> Check {
        let verdict = self.failed.map_or(Verdict::Passed, Verdict::Failed);
        Check { number, name, verdict, figures: self.figures }
    }
}
