//! How well a model foretells a text, and how far its forecasts are from those of another model.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;
use trifuse::Result;
use trifuse::backends::AnyDevice;
use trifuse::llm::perplexity::{Loss, mean};
use trifuse::llm::{Context, Difference, Model};

use crate::cli::interrupt::Interrupt;
use crate::cli::progress::Progress;

/// What a text cost a model.
#[derive(Debug, Serialize)]
pub struct Text<'a> {
    pub model: String,
    /// The name of the adapter that the model had.
    pub adapter: Option<String>,
    pub text: &'a Path,
    pub windows: usize,
    pub tokens: usize,
    /// Nats a token.
    pub nll: f64,
    /// The interval of 95 % of that mean.
    pub nll_ci95: [f64; 2],
    pub perplexity: f64,
    pub perplexity_ci95: [f64; 2],
    /// Against the baseline, where there is one.
    #[serde(flatten)]
    pub against: Option<Against>,
    pub seconds: f64,
}

impl<'a> Text<'a> {
    /// What the losses of a text's windows say; the time that they took is not among it.
    ///
    /// # Errors
    /// No windows.
    pub fn of(model: &str, text: &'a Path, losses: &[Loss]) -> Result<Self> {
        let found = mean(losses)?;
        Ok(Self {
            model: model.to_owned(),
            adapter: None,
            text,
            windows: losses.len(),
            tokens: losses.iter().map(|loss| loss.tokens).sum(),
            nll: found.nats,
            nll_ci95: found.interval,
            perplexity: found.nats.exp(),
            perplexity_ci95: found.interval.map(f64::exp),
            against: None,
            seconds: 0.0,
        })
    }
}

/// Forecasts against the baseline's.
#[derive(Debug, Serialize)]
pub struct Against {
    /// Nats a token more than the baseline's, and the interval of 95 % of that mean.
    pub nats_more: f64,
    pub nats_more_ci95: [f64; 2],
    /// The divergence of a token's forecast from the baseline's in nats: the mean, its interval, and what 99 of 100 tokens do not exceed.
    pub kl_mean: f64,
    pub kl_mean_ci95: [f64; 2],
    pub kl_p99: f64,
    /// The share of tokens whose most probable successor is the same.
    pub top1: f64,
}

/// Scores the windows of a text; nothing where it was stopped before the first.
///
/// # Errors
/// A device that fails.
pub fn score<'a>(
    (name, model): (&str, &mut Model<AnyDevice>),
    mut baseline: Option<&mut Model<AnyDevice>>,
    (text, cut): (&'a Path, &[Vec<u32>]),
    (progress, interrupt): (&Progress, &Interrupt),
) -> Result<Option<Text<'a>>> {
    let length = cut.first().map_or(1, Vec::len);
    let started = Instant::now();
    let mut context = model.context(length)?;
    let mut other: Option<Context<AnyDevice>> = baseline.as_mut().map(|baseline| baseline.context(length)).transpose()?;
    let (mut losses, mut more, mut apart, mut all) = (Vec::new(), Vec::new(), Vec::new(), Vec::<Difference>::new());
    for window in cut {
        if interrupt.asked() {
            break;
        }
        let (Some(baseline), Some(other)) = (baseline.as_mut(), other.as_mut()) else {
            losses.push(model.loss(&mut context, window)?);
            progress.step();
            continue;
        };
        let (before, after) = (baseline.forecasts(other, window)?, model.forecasts(&mut context, window)?);
        let differences = before.differences(&after)?;
        let of = |nats: f64| Loss { tokens: differences.len(), nats };
        let loss = after.loss(window)?;
        losses.push(of(loss));
        more.push(of(loss - before.loss(window)?));
        apart.push(of(differences.iter().map(|difference| difference.divergence).sum()));
        all.extend(differences);
        progress.step();
    }
    if losses.is_empty() {
        return Ok(None);
    }
    let against = if all.is_empty() { None } else { Some(against(&more, &apart, all)?) };
    Ok(Some(Text { against, seconds: started.elapsed().as_secs_f64(), ..Text::of(name, text, &losses)? }))
}

fn against(more: &[Loss], apart: &[Loss], mut all: Vec<Difference>) -> Result<Against> {
    let (more, apart) = (mean(more)?, mean(apart)?);
    let same = all.iter().filter(|difference| difference.same).count();
    all.sort_unstable_by(|a, b| a.divergence.total_cmp(&b.divergence));
    let p99 = all.get((all.len() * 99).div_ceil(100).saturating_sub(1)).map_or(0.0, |difference| difference.divergence);
    Ok(Against {
        nats_more: more.nats,
        nats_more_ci95: more.interval,
        kl_mean: apart.nats,
        kl_mean_ci95: apart.interval,
        kl_p99: p99,
        top1: same as f64 / all.len() as f64,
    })
}
