//! What `shrink` tells.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use trifuse::Result;
use trifuse::llm::Forecasts;
use trifuse::shrink::plan::{Curve, Plan};

use crate::cli::output::{Page, Report, bytes};

/// The result.
#[derive(Debug, Serialize)]
pub struct Shrunken {
    model: PathBuf,
    output: PathBuf,
    /// Bytes of the weights' file.
    bytes: u64,
    /// Parameters of the projections before, and after.
    parameters_before: u64,
    parameters: u64,
    /// The budget and what was taken of it: parameters, or billionths of the time that the matrices take.
    budget: u64,
    cost: u64,
    kept: f64,
    /// Nats a token that the ranks lose, to second order; where losses are in nats.
    predicted_nats: Option<f64>,
    /// What other ranks of the rule could lose less, at most.
    gap: Option<f64>,
    exact: bool,
    /// Tokens of the calibration.
    tokens: u64,
    measured: Option<Measured>,
    roles: Vec<Role>,
    ranks: BTreeMap<String, u64>,
}

/// The results of several shares.
#[derive(Debug, Serialize)]
pub struct Several {
    pub models: Vec<Shrunken>,
}

impl Report for Several {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        self.models.iter().try_for_each(|model| model.page(page))
    }
}

/// Projections of one name.
#[derive(Debug, Serialize)]
struct Role {
    name: String,
    count: usize,
    /// Those that stay one matrix.
    whole: usize,
    kept: f64,
    least: Option<u64>,
    most: Option<u64>,
}

/// The shrunk model against the model, on held-out text: means over tokens, in nats.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Measured {
    pub tokens: usize,
    pub loss_before: f64,
    pub loss: f64,
    pub divergence: f64,
    /// The share of tokens whose most probable successor is the same.
    pub same_first: f64,
}

impl Measured {
    /// Adds a window to the sums.
    pub fn add(&mut self, window: &[u32], before: &Forecasts, after: &Forecasts) -> Result<()> {
        let differences = before.differences(after)?;
        self.tokens += differences.len();
        self.loss_before += before.loss(window)?;
        self.loss += after.loss(window)?;
        self.divergence += differences.iter().map(|difference| difference.divergence).sum::<f64>();
        self.same_first += differences.iter().filter(|difference| difference.same).count() as f64;
        Ok(())
    }

    /// The means of the sums.
    pub fn means(self) -> Self {
        let of = |sum: f64| sum / self.tokens.max(1) as f64;
        Self { loss_before: of(self.loss_before), loss: of(self.loss), divergence: of(self.divergence), same_first: of(self.same_first), tokens: self.tokens }
    }
}

/// What is told beside the plan.
pub struct Facts<'a> {
    pub model: &'a Path,
    pub output: &'a Path,
    /// Whether losses are in nats.
    pub nats: bool,
    pub tokens: u64,
    pub bytes: u64,
    pub measured: Option<Measured>,
}

impl Shrunken {
    /// The result of a plan.
    pub fn new(facts: Facts<'_>, curves: &[Curve], plan: Plan) -> Self {
        let before: u64 = curves.iter().map(Curve::whole).sum();
        let mut roles: BTreeMap<&str, Vec<&Curve>> = BTreeMap::new();
        for curve in curves {
            roles.entry(curve.path.rsplit('.').next().unwrap_or_default()).or_default().push(curve);
        }
        let roles = roles.into_iter().map(|(name, curves)| {
            let ranks: Vec<Option<u64>> = curves.iter().map(|curve| plan.ranks.get(&curve.path).copied()).collect();
            let parameters: u64 = curves.iter().zip(&ranks).map(|(curve, &rank)| curve.parameters(rank)).sum();
            let taken = || ranks.iter().flatten().copied();
            let kept = parameters as f64 / curves.iter().map(|curve| curve.whole()).sum::<u64>().max(1) as f64;
            let whole = ranks.iter().filter(|rank| rank.is_none()).count();
            Role { name: name.to_owned(), count: curves.len(), whole, kept, least: taken().min(), most: taken().max() }
        });
        let roles = roles.collect();
        Self {
            model: facts.model.to_owned(),
            output: facts.output.to_owned(),
            bytes: facts.bytes,
            parameters_before: before,
            parameters: plan.parameters,
            budget: plan.budget,
            cost: plan.cost,
            kept: plan.parameters as f64 / before.max(1) as f64,
            predicted_nats: Some(plan.nats).filter(|_| facts.nats),
            gap: plan.bound.map(|bound| if plan.exact { 0.0 } else { (plan.nats - bound).max(0.0) }),
            exact: plan.exact,
            tokens: facts.tokens,
            measured: facts.measured,
            roles,
            ranks: plan.ranks,
        }
    }
}

impl Report for Shrunken {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let rows = self.roles.iter().map(|role| {
            let ranks = role.least.zip(role.most).map_or_else(|| "-".into(), |(least, most)| format!("{least} to {most}"));
            vec![role.name.clone(), format!("{:.3}", role.kept), format!("{} of {}", role.whole, role.count), ranks]
        });
        page.table(&["projections", "kept", "whole", "ranks"], &[1, 2, 3], rows)?;
        page.line(format_args!(
            "{} of {} parameters of projections, {:.4}; {} of a budget of {}",
            self.parameters, self.parameters_before, self.kept, self.cost, self.budget
        ))?;
        if let (Some(nats), Some(gap)) = (self.predicted_nats, self.gap) {
            let best = if self.exact { "no other ranks lose less".to_owned() } else { format!("no other ranks lose less than {gap:.2e} below it") };
            page.line(format_args!("predicted: {nats:.4} nats a token, to second order; {best}"))?;
        }
        if let Some(measured) = &self.measured {
            let Measured { tokens, loss_before, loss, divergence, same_first } = measured;
            page.line(format_args!(
                "measured on {tokens} held-out tokens: {:+.4} nats ({loss_before:.4} to {loss:.4}), divergence {divergence:.4}, same first token {:.1} %",
                loss - loss_before,
                100.0 * same_first
            ))?;
        }
        page.line(format_args!("{}: {}, calibrated on {} tokens", self.output.display(), bytes(self.bytes), self.tokens))
    }
}
