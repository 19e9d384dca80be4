//! Second moments of what every projection reads, as means over the tokens of a text.
//!
//! q, k and v read the same rows, and so do gate and up: each is kept once, under the first one's path. Of a projection that reads more than it
//! writes, as the last of an MLP, the outputs' moment is kept in their place.
//!
//! In a file they are tensors of f32: `<path>.inputs` or `<path>.outputs`, `<path>.sizes`, and where a backward pass was run `<path>.gradients`;
//! the entry `tokens` of its metadata is their number. `scripts/moments.py` writes such a file with gradients.

use std::collections::BTreeMap;
use std::path::Path;

use faer::linalg::matmul::matmul;
use faer::{Accum, Par};

use super::factor::Statistics;
use crate::adapters::encode::linalg::Mat;
use crate::backend::Backend;
use crate::error::{Error, Result, ensure};
use crate::llm::{Config, Model, WeightSource};
use crate::safetensors_file::TensorFile;

/// The first of the projections that read the same rows, by the number of each.
const FIRST: [usize; 7] = [0, 0, 0, 3, 4, 4, 6];

/// Means over the tokens of a text, by module path.
#[derive(Clone, Debug, Default)]
pub struct Moments {
    inputs: BTreeMap<String, Mat>,
    outputs: BTreeMap<String, Mat>,
    sizes: BTreeMap<String, Vec<f64>>,
    gradients: BTreeMap<String, Mat>,
    tokens: u64,
}

impl Moments {
    /// Runs a model over windows of text, and collects what its projections read. `step` is called after each window, and stops the work by an error.
    ///
    /// # Errors
    /// No windows; weights that cannot be read; a device that fails; what `step` returns.
    pub fn collect<D: Backend>(model: &mut Model<D>, source: &dyn WeightSource, windows: &[Vec<u32>], step: &mut dyn FnMut() -> Result<()>) -> Result<Self> {
        let longest = windows.iter().map(Vec::len).max().unwrap_or(0);
        ensure(longest > 0, "calibration", "at least one window of text", "none")?;
        let mut collector = Collector::new(model.config(), source)?;
        let mut watched = model.watched(longest)?;
        for window in windows {
            model.watch(&mut watched, window, &mut |layer, first, rows| collector.add(layer, first, rows))?;
            step()?;
        }
        Ok(collector.means())
    }

    /// Reads moments of a model from a file.
    ///
    /// # Errors
    /// A file that cannot be read; a moment of another size, or that is not symmetric.
    pub fn open(path: &Path, config: &Config) -> Result<Self> {
        let file = TensorFile::open(path)?;
        let tokens = file.metadata("tokens").and_then(|tokens| tokens.parse().ok()).unwrap_or(0);
        let mut all = Self { tokens, ..Self::default() };
        for name in file.names() {
            let fault = |problem: String| Error::input_item(path, &name, problem);
            let known = name.rsplit_once('.').and_then(|(path, kind)| Some((path, kind, config.projection(path)?)));
            let Some((of, kind, [d_out, d_in])) = known else { return Err(fault("expected moments of a projection of the model, found another name".into())) };
            let size = match kind {
                "inputs" | "sizes" => d_in,
                "outputs" => d_out,
                "gradients" => d_out.min(d_in),
                _ => return Err(fault("expected inputs, outputs, sizes or gradients of a projection, found another name".into())),
            } as usize;
            let (_, shape, values) = file.floats(&name)?;
            let wanted = if kind == "sizes" { vec![size] } else { vec![size, size] };
            if shape != wanted {
                return Err(fault(format!("expected the shape {wanted:?}, found {shape:?}")));
            }
            if kind == "sizes" {
                all.sizes.insert(of.to_owned(), values.into_iter().map(f64::from).collect());
                continue;
            }
            let at = |i: usize, j: usize| f64::from(values[i * size + j]);
            let most = (0..size).map(|i| at(i, i).abs()).fold(0.0, f64::max);
            if (0..size).any(|i| (0..i).any(|j| (at(i, j) - at(j, i)).abs() > 1e-3 * most)) {
                return Err(fault("expected a symmetric matrix, found one that differs from its transpose".into()));
            }
            let moment = Mat::from_fn(size, size, |i, j| 0.5 * (at(i, j) + at(j, i)));
            let to = match kind {
                "inputs" => &mut all.inputs,
                "outputs" => &mut all.outputs,
                _ => &mut all.gradients,
            };
            to.insert(of.to_owned(), moment);
        }
        Ok(all)
    }

    /// The number of tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Whether there are gradients, by which losses are in nats.
    pub fn has_gradients(&self) -> bool {
        !self.gradients.is_empty()
    }

    /// What is known of a projection, whose number in its layer is `number`.
    pub(crate) fn of(&self, config: &Config, layer: usize, number: usize) -> Statistics<'_> {
        let paths = config.projections(layer);
        let (own, first) = (&paths[number].0, &paths[FIRST[number]].0);
        Statistics {
            inputs: self.inputs.get(own).or_else(|| self.inputs.get(first)),
            outputs: self.outputs.get(own),
            sizes: self.sizes.get(own).or_else(|| self.sizes.get(first)).map(Vec::as_slice),
            gradients: self.gradients.get(own),
        }
    }
}

/// Sums over tokens.
struct Collector {
    config: Config,
    /// The weights of projections whose outputs' moment is kept, by layer and number.
    narrow: BTreeMap<(usize, usize), Mat>,
    sums: BTreeMap<(usize, usize), Sum>,
    tokens: u64,
}

/// The sum of a projection's rows.
struct Sum {
    moment: Mat,
    sizes: Vec<f64>,
}

impl Collector {
    fn new(config: &Config, source: &dyn WeightSource) -> Result<Self> {
        let mut narrow = BTreeMap::new();
        for layer in 0..config.layers {
            for (number, (path, [d_out, d_in])) in config.projections(layer).into_iter().enumerate() {
                let alone = FIRST.iter().filter(|&&first| first == FIRST[number]).count() == 1;
                if alone && d_out < d_in {
                    let values = source.values(&format!("{path}.weight"), &[d_out, d_in])?;
                    let (rows, columns) = (d_out as usize, d_in as usize);
                    narrow.insert((layer, number), Mat::from_fn(rows, columns, |i, j| values[i * columns + j].into()));
                }
            }
        }
        Ok(Self { config: config.clone(), narrow, sums: BTreeMap::new(), tokens: 0 })
    }

    /// Adds the rows that the projections from number `first` on read.
    fn add(&mut self, layer: usize, first: usize, rows: &[f32]) -> Result<()> {
        let [_, d_in] = self.config.projections(layer)[first].1.map(|size| size as usize);
        ensure(rows.iter().all(|value| value.is_finite()), "calibration", "finite states; take bf16 or f32", "others")?;
        let count = rows.len() / d_in;
        if (layer, first) == (0, 0) {
            self.tokens += count as u64;
        }
        let x = Mat::from_fn(count, d_in, |i, j| rows[i * d_in + j].into());
        let kept = match self.narrow.get(&(layer, first)) {
            Some(weight) => {
                let mut outputs = Mat::zeros(count, weight.nrows());
                matmul(&mut outputs, Accum::Replace, x.as_ref(), weight.transpose(), 1.0, Par::rayon(0));
                outputs
            }
            None => x,
        };
        let width = kept.ncols();
        let sum = self.sums.entry((layer, first)).or_insert_with(|| Sum { moment: Mat::zeros(width, width), sizes: vec![0.0; d_in] });
        matmul(&mut sum.moment, Accum::Add, kept.transpose(), kept.as_ref(), 1.0, Par::rayon(0));
        for row in rows.chunks_exact(d_in) {
            sum.sizes.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(value.abs()));
        }
        Ok(())
    }

    fn means(self) -> Moments {
        let mut all = Moments { tokens: self.tokens, ..Moments::default() };
        let share = 1.0 / self.tokens.max(1) as f64;
        for ((layer, number), sum) in self.sums {
            let (path, _) = self.config.projections(layer)[number].clone();
            let moment = Mat::from_fn(sum.moment.nrows(), sum.moment.ncols(), |i, j| share * sum.moment[(i, j)]);
            let to = if self.narrow.contains_key(&(layer, number)) { &mut all.outputs } else { &mut all.inputs };
            to.insert(path.clone(), moment);
            all.sizes.insert(path, sum.sizes.into_iter().map(|size| share * size).collect());
        }
        all
    }
}
