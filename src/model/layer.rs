//! One pass through the encoder: all its launches, in order.

use super::config::Config;
use super::plans::{Class, kept};
use super::weights::{Affine, Block, Weights};
use crate::adapters::engine::{Batch, Engine, Target};
use crate::backend::Backend;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::AttentionIndex;
use crate::ops::pointwise::Kind;
use crate::ops::{Activation, AttentionArgs, CodebookGemm, CodebookGemmArgs, FusedMlp, FusedMlpArgs, Linear, LinearArgs, NormArgs, Pointwise, PointwiseArgs};
use crate::session::Session;

/// A callback that sees the inputs of a projection: its module path, the columns, and the rows of all sentences.
pub type Watch<'a> = dyn FnMut(&str, usize, &[f64]) -> Result<()> + 'a;

/// What a pass through the encoder needs.
pub struct Pass<'a, 'w, D: Backend> {
    pub session: &'a mut Session<D>,
    pub engine: Option<&'a mut Engine<D>>,
    pub class: &'a mut Class<D>,
    pub config: &'a Config,
    pub dtype: DType,
    /// Whether an adapter's part may be added in the epilogue of a product.
    pub ride: bool,
    /// Whether launches are recorded.
    pub capturing: bool,
    /// The callback that sees what each projection reads, and the count of rows that belong to sentences.
    pub watch: Option<(&'w mut Watch<'w>, usize)>,
}

/// A projection inside a product: its module path, its first column, and its columns.
struct Part<'a> {
    path: &'a str,
    first: u64,
    columns: u64,
}

/// The end of half a block.
struct End<'a, D: Backend> {
    residual: &'a Slice<D>,
    norm: &'a Affine<D>,
    /// Memory for the product's result, where the norm is a launch of its own.
    between: &'a Slice<D>,
    y: &'a Slice<D>,
}

impl<D: Backend> Pass<'_, '_, D> {
    /// The pass from token ids to embeddings, `[sequences, hidden]` in the class's last buffer.
    pub fn run(&mut self, weights: &Weights<D>) -> Result<()> {
        let buffers = &self.class.buffers;
        let (plans, norm) = (&self.class.plans, &weights.norm);
        let rows = |table: &Slice<D>, ids, y: &Slice<D>| PointwiseArgs { ids: Some(ids), ..PointwiseArgs::new(table.clone(), y.clone()) };
        if let Some(begin) = &plans.begin {
            let (ids, places) = (Some(self.class.ids.clone()), Some(self.class.positions.clone()));
            self.session.run(begin, &PointwiseArgs { ids, places, ..with_norm(norm, &weights.words, &weights.positions, &buffers.state) })?;
        } else {
            self.session.run(&plans.words, &rows(&weights.words, self.class.ids.clone(), &buffers.a))?;
            self.session.run(&plans.positions, &rows(&weights.positions, self.class.positions.clone(), &buffers.b))?;
            self.session.run(&plans.norm, &with_norm(norm, &buffers.a, &buffers.b, &buffers.state))?;
        }
        for block in &weights.blocks {
            self.attend(block)?;
            self.transform(block)?;
        }
        let (plans, buffers) = (&self.class.plans, &self.class.buffers);
        let pooled = if self.config.normalise { &buffers.pooled } else { &buffers.out };
        let pool = PointwiseArgs { sequences: Some(self.class.places.clone()), ..PointwiseArgs::new(buffers.state.clone(), pooled.clone()) };
        self.session.run(&plans.pool, &pool)?;
        if self.config.normalise {
            self.session.run(&plans.unit, &PointwiseArgs::new(pooled.clone(), buffers.out.clone()))?;
        }
        Ok(())
    }

    /// Attention, its output, the residual and the norm: from `state` to `middle`.
    fn attend(&mut self, block: &Block<D>) -> Result<()> {
        let hidden = self.config.hidden;
        let [state, qkv, a, b, middle] =
            [&self.class.buffers.state, &self.class.buffers.qkv, &self.class.buffers.a, &self.class.buffers.b, &self.class.buffers.middle].map(Slice::clone);
        let [q, k, v, output, ..] = block.paths.each_ref();
        let parts = [(q, 0), (k, hidden), (v, 2 * hidden)].map(|(path, first)| Part { path, first, columns: hidden });
        self.project(&state, hidden, &block.qkv, &parts, &qkv, None)?;
        let third = |number: u64| {
            let (offset, size) = (number * hidden * self.dtype.size(), self.dtype.size());
            qkv.sub_slice(offset, qkv.len - offset).ok_or_else(|| Error::invalid("qkv", format!("at least {} bytes", 3 * hidden * size), qkv.len))
        };
        let index = AttentionIndex::Varlen(self.class.places.clone());
        let args = AttentionArgs::new(third(0)?, third(1)?, third(2)?, a.clone()).with_index(index);
        self.session.run(&self.class.plans.attention, &args)?;
        let end = End { residual: &state, norm: &block.attention_norm, between: &b, y: &middle };
        self.project_and_norm(&a, hidden, &block.output, output, end)
    }

    /// The MLP, the residual and the norm: from `middle` to `state`.
    fn transform(&mut self, block: &Block<D>) -> Result<()> {
        let (hidden, wide) = (self.config.hidden, self.config.intermediate);
        let [state, b, middle] = [&self.class.buffers.state, &self.class.buffers.b, &self.class.buffers.middle].map(Slice::clone);
        let [.., up, down] = block.paths.each_ref();
        let activation = self.config.activation;
        let between = self.session.device().hints().split_mlp || [up, down].iter().any(|path| self.forms(path) > 0) || self.watch.is_some();
        match self.class.buffers.wide.clone() {
            // Something enters between the two products, or two launches are faster.
            Some([inner, _]) if between => {
                self.project(&middle, hidden, &block.up, &[Part { path: up, first: 0, columns: wide }], &inner, Some(activation))?;
                let end = End { residual: &middle, norm: &block.mlp_norm, between: &b, y: &state };
                return self.project_and_norm(&inner, wide, &block.down, down, end);
            }
            _ => {
                let op = FusedMlp::new(self.dtype, [self.class.shape.rows as u64, hidden, wide, hidden], activation);
                let op = FusedMlp { bias1: true, bias2: true, ..op }.with_padded_weights();
                let [(w1, b1), (w2, b2)] = [&block.up, &block.down].map(|layer| (layer.weight.clone(), Some(layer.bias.clone())));
                let args = FusedMlpArgs { x: middle.clone(), w1, wg: None, b1, w2, b2, residual: None, y: b.clone() };
                let plan = kept(&mut self.class.plans.mlp, self.session, op)?;
                self.session.run(plan, &args)?;
            }
        }
        self.session.run(&self.class.plans.norm, &with_norm(&block.mlp_norm, &b, &middle, &state))
    }

    /// `y = norm(x·Wᵀ + bias + the adapters' part + residual)`. It is one launch where the device's product takes the norm and the
    /// adapters' part. The two ways round differently, so nothing that differs from batch to batch chooses between them.
    fn project_and_norm(&mut self, x: &Slice<D>, d_in: u64, layer: &Affine<D>, path: &str, end: End<'_, D>) -> Result<()> {
        let (rows, columns) = (self.class.shape.rows as u64, self.config.hidden);
        let norm = Some(self.config.norm_eps.to_bits());
        let op = Linear { bias: true, residual: true, norm, ..Linear::new(self.dtype, [rows, d_in, columns]).with_padded_weights() };
        let adapted = self.forms(path) > 0;
        if self.session.device().hints().norm_in_product && (!adapted || self.ride) {
            let (delta, delta_args) = match (adapted, self.delta(&[path], x, end.y)?) {
                (true, Some((delta, args))) => (Some(delta), Some(args)),
                _ => (None, None),
            };
            let op = Linear { delta, ..op };
            if op.delta.is_some() == adapted && self.class.plans.normed(self.session, &op)?.is_some() {
                self.show(x, d_in, &[Part { path, first: 0, columns }])?;
                let args = LinearArgs {
                    x: x.clone(),
                    w: layer.weight.clone(),
                    bias: Some(layer.bias.clone()),
                    residual: Some(end.residual.clone()),
                    delta: delta_args,
                    norm: Some(NormArgs { weight: end.norm.weight.clone(), bias: end.norm.bias.clone() }),
                    input_norm: None,
                    y: end.y.clone(),
                };
                if let Some(plan) = self.class.plans.normed(self.session, &op)? {
                    return self.session.run(plan, &args);
                }
            }
        }
        self.project(x, d_in, layer, &[Part { path, first: 0, columns }], end.between, None)?;
        self.session.run(&self.class.plans.norm, &with_norm(end.norm, end.between, end.residual, end.y))
    }

    /// Shows `watch` what the projections of `parts` read.
    fn show(&mut self, x: &Slice<D>, d_in: u64, parts: &[Part<'_>]) -> Result<()> {
        if let Some((watch, count)) = &mut self.watch {
            let read = x.sub_slice(0, *count as u64 * d_in * self.dtype.size()).unwrap_or_else(|| x.clone());
            let values = self.dtype.decode(&self.session.read(&read)?);
            for part in parts {
                watch(part.path, d_in as usize, &values)?;
            }
        }
        Ok(())
    }

    /// The adapters' part of a product for these projections, where all adapters have one form there.
    fn delta(&mut self, paths: &[&str], x: &Slice<D>, y: &Slice<D>) -> Result<Option<(CodebookGemm, CodebookGemmArgs<D>)>> {
        match (self.engine.as_deref_mut(), &self.class.adapters) {
            (Some(engine), Some(batch)) if engine.alike(paths) => with_prepared(self.session, engine, self.capturing, (batch, paths, x, y)).map(Some),
            _ => Ok(None),
        }
    }

    fn forms(&self, path: &str) -> usize {
        self.engine.as_ref().map_or(0, |engine| engine.forms(path))
    }

    /// `y = act(x·Wᵀ + bias + the adapters' part of each projection)`, with x `[rows, d_in]` and y packed.
    fn project(&mut self, x: &Slice<D>, d_in: u64, layer: &Affine<D>, parts: &[Part<'_>], y: &Slice<D>, activation: Option<Activation>) -> Result<()> {
        let rows = self.class.shape.rows as u64;
        let d_out: u64 = parts.iter().map(|part| part.columns).sum();
        self.show(x, d_in, parts)?;
        let op = Linear { bias: true, activation, ..Linear::new(self.dtype, [rows, d_in, d_out]).with_padded_weights() };
        let args = LinearArgs {
            x: x.clone(),
            w: layer.weight.clone(),
            bias: Some(layer.bias.clone()),
            residual: None,
            delta: None,
            norm: None,
            input_norm: None,
            y: y.clone(),
        };
        let adapted: Vec<&Part<'_>> = parts.iter().filter(|part| self.forms(part.path) > 0).collect();
        let (Some(engine), Some(batch), false) = (self.engine.as_deref_mut(), &self.class.adapters, adapted.is_empty()) else {
            let plan = self.class.plans.linear(self.session, &op)?;
            return self.session.run(plan, &args);
        };
        let paths: Vec<&str> = parts.iter().map(|part| part.path).collect();
        if self.ride && (parts.len() == 1 || side_by_side(self.session, self.dtype)) && engine.alike(&paths) {
            let (delta, delta_args) = with_prepared(self.session, engine, self.capturing, (batch, &paths, x, y))?;
            let plan = self.class.plans.linear(self.session, &Linear { delta: Some(delta), ..op })?;
            return self.session.run(plan, &LinearArgs { delta: Some(delta_args), ..args });
        }
        // The activation follows the adapters' part.
        let sums = match (activation, &self.class.buffers.wide) {
            (Some(_), Some([_, before])) => before.clone(),
            _ => y.clone(),
        };
        let plan = self.class.plans.linear(self.session, &Linear { activation: None, ..op })?;
        self.session.run(plan, &LinearArgs { y: sums.clone(), ..args })?;
        let target = |part: &Part<'_>| {
            let offset = part.first * self.dtype.size();
            let place = sums.sub_slice(offset, sums.len - offset);
            place.ok_or_else(|| Error::invalid("projection", format!("at most {} bytes", sums.len), offset))
        };
        let targets = adapted.into_iter().map(|part| Ok(Target { projection: part.path, y: target(part)?, y_stride: d_out })).collect::<Result<Vec<_>>>()?;
        engine.apply(self.session, batch, x, d_in, &targets)?;
        match activation {
            Some(activation) => {
                let op = Pointwise { dtype: self.dtype, rows, columns: d_out, kind: Kind::Activation(activation) };
                let plan = kept(&mut self.class.plans.activation, self.session, op)?;
                self.session.run(plan, &PointwiseArgs::new(sums, y.clone()))
            }
            None => Ok(()),
        }
    }
}

/// The adapters' part of a product of some projections, on x and y, prepared where the device has use for that.
fn with_prepared<D: Backend>(
    session: &mut Session<D>,
    engine: &mut Engine<D>,
    capturing: bool,
    (batch, paths, x, y): (&Batch<D>, &[&str], &Slice<D>, &Slice<D>),
) -> Result<(CodebookGemm, CodebookGemmArgs<D>)> {
    if !capturing {
        engine.prepare(session, paths)?;
    }
    engine.delta(batch, paths, x, y)
}

/// Whether a product takes the adapters' parts of several projections.
fn side_by_side<D: Backend>(session: &Session<D>, dtype: DType) -> bool {
    session.device().hints().slices_in_product && dtype != DType::F32
}

fn with_norm<D: Backend>(norm: &Affine<D>, x: &Slice<D>, residual: &Slice<D>, y: &Slice<D>) -> PointwiseArgs<D> {
    let (weight, bias) = (Some(norm.weight.clone()), Some(norm.bias.clone()));
    PointwiseArgs { weight, bias, residual: Some(residual.clone()), ..PointwiseArgs::new(x.clone(), y.clone()) }
}
