//! The stages of the demonstration: what is compressed, how, and what is to be learnt from it.

use std::path::Path;

use serde::Serialize;
use trifuse::adapters::bundle::Bundle;
use trifuse::adapters::encode::calibration::Calibration;
use trifuse::adapters::encode::{EncodeOptions, encode};
use trifuse::adapters::peft::{LoraAdapter, open_all};
use trifuse::adapters::whole::write_file;
use trifuse::device::Kind;
use trifuse::{Error, Result};

use super::inputs::Activations;
use super::serve::{Job, Served};
use crate::cli::compress::{encoded, sources};
use crate::cli::kept::{Kept, mean, share};
use crate::cli::output::{Output, Page, Tone};
use crate::cli::samples;

/// The fidelity that is asked for.
const COSINE: f64 = 0.99;

/// What is to be done.
pub struct Prepared {
    /// Where the adapters are from.
    pub adapters: String,
    pub stages: Vec<Stage>,
}

/// One population, encoded one way.
pub struct Stage {
    title: String,
    asked: String,
    adapters: Vec<LoraAdapter>,
    options: EncodeOptions,
    activations: Option<Activations>,
}

/// What came of encoding a stage.
pub struct Made {
    kept: Kept,
    /// The output error on held-out activations where the same form is encoded without knowing any.
    uncalibrated: Option<f64>,
}

/// How a stage went.
#[derive(Debug, Serialize)]
pub struct Shown {
    pub title: String,
    /// The options of `compress` that do the same.
    pub asked: String,
    #[serde(flatten)]
    pub kept: Kept,
    pub served: Served,
    /// The mean output error on the same held-out activations where the encoder knew nothing of the inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_error_held_out_uncalibrated: Option<f64>,
    /// In one sentence.
    pub verdict: String,
    #[serde(skip)]
    pub good: bool,
}

impl Prepared {
    /// The adapters at `folder`, or those that the program carries; `temporary` takes the files of the demonstration.
    pub fn new(folder: Option<&Path>, temporary: &Path) -> Result<Self> {
        let Some(folder) = folder else { return Self::carried(temporary) };
        let adapters = open_all(&[folder])?;
        let from = format!("{} adapters of {}", adapters.len(), folder.display());
        let stages = vec![
            Stage::published("in the published form: one basis of 16 columns a projection, codes of 4 bits", adapters.clone()),
            Stage::faithful("asked to keep cos(ΔW) 0.99 in every projection", adapters),
        ];
        Ok(Self { adapters: from, stages })
    }

    fn carried(temporary: &Path) -> Result<Self> {
        let a = samples::population("A")?;
        let b = samples::population("B")?;
        let file = temporary.join("activations.safetensors");
        std::fs::write(&file, samples::ACTIVATIONS).map_err(Error::io(&file, "write"))?;
        let calibration = Calibration::load(&file)?;
        // Only some projections have activations, and only those can be encoded for them.
        let mut seen = a.clone();
        let measured = |path: &str| calibration.names().any(|name| name == path);
        seen.iter_mut().for_each(|adapter| adapter.modules.retain(|path, _| measured(path)));
        let stages = vec![
            Stage::faithful("B, three adapters that were trained from one start: asked to keep cos(ΔW) 0.99", b),
            Stage::published("A, four that were trained from different starts: the published form, one basis of 16 columns, 4 bits", a.clone()),
            Stage::faithful("A, asked to keep cos(ΔW) 0.99", a),
            Stage {
                title: "A, layers 0 and 5: a basis of 4 columns, encoded for what the model really reads there".into(),
                asked: "--rank 4 --calibration FILE".into(),
                adapters: seen,
                options: EncodeOptions { rank: Some(4), calibration: Some(calibration), ..EncodeOptions::default() },
                activations: Some(Activations::held_out(&file)?),
            },
        ];
        let from = "real adapters of a sentence-embedding model (all-MiniLM-L6-v2), trained on real text; \"before\" is plain LoRA in f16";
        Ok(Self { adapters: from.into(), stages })
    }
}

impl Stage {
    fn published(title: &str, adapters: Vec<LoraAdapter>) -> Self {
        Self { title: title.into(), asked: "--published".into(), adapters, options: EncodeOptions::default(), activations: None }
    }

    fn faithful(title: &str, adapters: Vec<LoraAdapter>) -> Self {
        let options = EncodeOptions { min_cosine: Some(COSINE), ..EncodeOptions::default() };
        Self { title: title.into(), asked: format!("--min-cosine {COSINE}"), adapters, options, activations: None }
    }

    /// Writes the bundle to `path`, and reads from it what was kept.
    pub fn encode(&self, path: &Path, output: &Output) -> Result<Made> {
        let bytes = encoded(&self.adapters, &self.options, output)?;
        write_file(path, |out| out.write_all(&bytes))?;
        let kept = Kept::of(&Bundle::open(path)?)?;
        let uncalibrated = match &self.activations {
            Some(activations) => {
                let options = EncodeOptions { calibration: None, ..self.options.clone() };
                activations.output_error(&self.adapters, &encode(&sources(&self.adapters), &options, &|_, _| {})?)?
            }
            None => None,
        };
        Ok(Made { kept, uncalibrated })
    }

    /// What is to be served, from the bundle at a path.
    pub fn job(&self, bundle: &Path) -> Job<'_> {
        Job { bundle: bundle.into(), originals: &self.adapters, activations: self.activations.as_ref() }
    }

    /// The stage with what came of it.
    pub fn shown(self, Made { kept, uncalibrated }: Made, served: Served) -> Shown {
        let (mean_cosine, least) = (kept.cos_delta_mean, kept.cos_delta_min);
        let good = least >= COSINE || self.activations.is_some();
        let verdict = match (kept.held_out(), uncalibrated) {
            (Some(error), Some(uncalibrated)) => {
                let gaussian = mean(kept.adapters.iter().map(|adapter| adapter.output_error_gaussian)).unwrap_or(0.0);
                format!(
                    "two measures, not to be confused: the OUTPUT on held-out real inputs is off by {} (by {}, encoded without them), the weights by {}",
                    share(error),
                    share(uncalibrated),
                    share(gaussian)
                )
            }
            _ if good => format!("kept: cos(ΔW) is {least:.4} at the least"),
            _ => format!(
                "NOT kept to {COSINE}: cos(ΔW) is {mean_cosine:.3} on average, {least:.3} at the least; a basis this small cannot hold what {} adapters do not share",
                kept.adapters.len()
            ),
        };
        Shown { title: self.title, asked: self.asked, kept, served, output_error_held_out_uncalibrated: uncalibrated, verdict, good }
    }
}

impl Shown {
    /// How the batch went, for people.
    pub fn served_lines(&self, page: &mut Page, kind: Kind) -> std::fmt::Result {
        let Served { tokens, base_only_tokens, projections, dtype, relative_l2, relative_l2_allowed, error_over_allowed, right, milliseconds, .. } =
            &self.served;
        let on = match kind {
            Kind::Cpu => "on a processor, not a GPU's time",
            _ => "on a GPU",
        };
        let verdict = match right {
            true => page.tone(Tone::Good, "right"),
            false => page.tone(Tone::Bad, format_args!("WRONG ({error_over_allowed:.1} of what is allowed)")),
        };
        let error = share(self.served.error_against_uncompressed);
        page.line(format_args!(
            "   batch: {tokens} tokens, mixed ({base_only_tokens} of the base alone), {projections} projections, {dtype}: {milliseconds:.2} ms {on}"
        ))?;
        page.line(format_args!(
            "   {verdict}: {relative_l2:.1e} from the exact answer of this file ({relative_l2_allowed:.0e} allowed); {error} from uncompressed LoRA"
        ))
    }
}
