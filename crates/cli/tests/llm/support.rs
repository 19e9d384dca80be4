//! The model, its weights with changes, and the reference logits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use libtest_mimic::Trial;
use serde::Deserialize;
use trifuse::Result;
use trifuse::llm::WeightSource;

/// A test of a device: its name, and what it does.
pub type Test<D> = (&'static str, fn(&Arc<D>));

/// The trials of tests on a device.
pub fn on_device<D: Send + Sync + 'static, const N: usize>(device: &Arc<D>, tests: [Test<D>; N]) -> Vec<Trial> {
    let trial = |(name, test): Test<D>| {
        let device = device.clone();
        Trial::test(name, move || {
            test(&device);
            Ok(())
        })
    };
    tests.into_iter().map(trial).collect()
}

pub fn root() -> &'static Path {
    let built = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    // A copy of the tree on another machine lies elsewhere than where this was built.
    if built.is_dir() { built } else { Path::new(".") }
}

/// The model's file.
pub fn weights() -> PathBuf {
    root().join(".smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Why trials are left out where the weights are not there.
pub const NO_WEIGHTS: &str = "skipped: no weights in .smollm2; run scripts/get_smollm2.sh";
/// The reference logits.
#[derive(Deserialize)]
pub struct Golden {
    pub prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
pub struct Prompt {
    pub name: String,
    pub text: String,
    pub ids: Vec<u32>,
    pub generated_ids: Vec<u32>,
    pub generated_text: String,
    pub steps: Vec<Step>,
}

/// The greatest logits of a step, computed in float64.
#[derive(Deserialize)]
pub struct Step {
    pub top10_ids: Vec<u32>,
    pub top10_logits_f64: Vec<f64>,
    pub logsumexp_f64: f64,
}

pub fn golden() -> Golden {
    serde_json::from_slice(&std::fs::read(root().join("tests/golden/smollm2.json")).unwrap()).unwrap()
}

impl Prompt {
    /// The prompt and all but the last of the tokens that follow it.
    pub fn teacher(&self) -> Vec<u32> {
        let kept = self.generated_ids.len().min(self.steps.len()) - 1;
        self.ids.iter().chain(&self.generated_ids[..kept]).copied().collect()
    }

    /// How far `logits`, `[steps, vocabulary]`, are from the reference.
    pub fn off(&self, logits: &[f32]) -> f64 {
        self.off_first(logits, self.count())
    }

    /// The same of the first `rows` steps alone.
    pub fn off_first(&self, logits: &[f32], rows: usize) -> f64 {
        let vocabulary = logits.len() / rows;
        let steps = self.steps.iter().zip(logits.chunks_exact(vocabulary));
        let each = steps.map(|(step, logits)| {
            let top = step.top10_ids.iter().zip(&step.top10_logits_f64).map(|(&id, want)| (f64::from(logits[id as usize]) - want).abs());
            let sum = logits.iter().map(|&logit| f64::from(logit).exp()).sum::<f64>().ln();
            // `max` would hide NaN.
            top.chain([(sum - step.logsumexp_f64).abs()]).fold(0.0, |most, off| if off > most || off.is_nan() { off } else { most })
        });
        each.fold(0.0, |most, off| if off > most || off.is_nan() { off } else { most })
    }

    /// The steps that have logits.
    pub fn count(&self) -> usize {
        self.generated_ids.len().min(self.steps.len())
    }
}

/// Weights with one tensor changed.
pub struct Changed<'a> {
    pub inner: &'a dyn WeightSource,
    pub change: &'a dyn Fn(&str, &mut Vec<f32>),
}

impl WeightSource for Changed<'_> {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn shape(&self, name: &str) -> Option<Vec<u64>> {
        self.inner.shape(name)
    }

    fn names(&self) -> Vec<String> {
        self.inner.names()
    }

    fn read(&self, name: &str) -> Result<(Vec<u64>, Vec<f32>)> {
        let (shape, mut values) = self.inner.read(name)?;
        (self.change)(name, &mut values);
        Ok((shape, values))
    }
}
