//! The plans of the products of projections that read the same rows. The first factors of all that have two are one product, and what several give apart
//! is one group.

use super::form::{Form, Part};
use super::part::part;
use crate::backend::{Backend, Kernel};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layer::Affine;
use crate::ops::{Activation, GroupedLinear, GroupedLinearArgs, Linear, LinearArgs, Op};
use crate::session::{Plan, Session};

/// The weights of the products of a [`Form`].
pub struct Group<D: Device> {
    /// The first factors, one below the other, where there are any.
    pub first: Option<Slice<D>>,
    /// The weight of each part, or its second factor.
    pub parts: Vec<Affine<D>>,
}

/// The rows that projections read.
pub struct Input<'a, D: Backend> {
    pub x: &'a Slice<D>,
    /// The plan of the first launch where it norms the rows on its way, and the norm's weight.
    pub norm: Option<(&'a Plan<Linear, D>, &'a Slice<D>)>,
}

/// The plans of the products of a [`Form`].
pub struct Products<D: Backend> {
    first: Option<Plan<Linear, D>>,
    parts: Parts<D>,
    /// The second of two parts let through by the first, where the backend does both in one operation.
    gated: Option<Plan<GroupedLinear, D>>,
    /// The column between the factors where the rows of each part begin, where it has two.
    columns: Vec<Option<u64>>,
    /// The column where what adapters' bases give begins, and all columns of a row, where the first factors carry any.
    fill: Option<[u64; 2]>,
}

/// The products of the parts.
enum Parts<D: Backend> {
    One(Plan<Linear, D>),
    Several(Plan<GroupedLinear, D>),
}

impl<D: Backend> Products<D> {
    /// Plans the products for `rows` rows, which may have to have the same bits among any others.
    ///
    /// # Errors
    /// An operation that the backend does not do.
    pub fn new(session: &Session<D>, form: &Form, dtype: DType, (rows, batch_invariant): (u64, bool)) -> Result<Self> {
        let product = |d_in: u64, d_out: u64| Linear::new(dtype, [rows, d_in, d_out]).with_padded_weights().with_batch_invariant(batch_invariant);
        let between = form.between();
        let first = if between > 0 { Some(session.plan(product(form.d_in, between))?) } else { None };
        let mut column = 0;
        let made = if form.latent { 1 } else { form.parts.len() };
        let (parts, columns): (Vec<_>, Vec<_>) = form
            .parts
            .iter()
            .take(made)
            .map(|&Part { d_out, rank, room }| {
                let (op, from) = match rank {
                    None => (product(form.d_in, d_out), None),
                    Some(rank) => (Linear { w_stride: room, ..product(rank, d_out) }.with_x_stride(between), Some(column)),
                };
                column += room;
                (op.with_bias(form.bias).with_residual(form.residual), from)
            })
            .unzip();
        // As a gate's sums are not rounded, the bits are not those of more rows.
        let few = rows <= MOST_NORMED as u64 && !batch_invariant && form.gated && parts.len() == 2;
        let gated = if few { if_any(session.plan(GroupedLinear::new(parts.clone()).with_gate(Activation::Silu)))? } else { None };
        let parts = match <[Linear; 1]>::try_from(parts) {
            Ok([op]) => Parts::One(session.plan(op)?),
            Err(several) => Parts::Several(session.plan(GroupedLinear::new(several))?),
        };
        let fill = (form.fill > 0).then(|| [form.ranks(), between]);
        Ok(Self { first, parts, gated, columns, fill })
    }

    /// What the bases that the first factors carry gave in the last run: its rows and their stride.
    ///
    /// # Errors
    /// A slice that is not the one of the run.
    pub fn filled(&self, between: &Slice<D>) -> Result<Option<(Slice<D>, u64)>> {
        let (Some(plan), Some([column, stride])) = (&self.first, self.fill) else { return Ok(None) };
        let (rows, size) = (plan.op().tokens, plan.op().dtype.size());
        Ok(Some((part(between, column * size, (rows * stride - column) * size)?, stride)))
    }

    /// Whether the products can be run into one result: what the first part lets through of the second.
    pub fn gates(&self) -> bool {
        self.gated.is_some()
    }

    /// Runs the products of `x`, each into its own of `results`, or what is gated into the only one. What lies between factors is in `between`.
    ///
    /// # Errors
    /// A device that fails.
    pub fn run(
        &self,
        session: &mut Session<D>,
        (weights, between): (&Group<D>, &Slice<D>),
        Input { x, mut norm }: Input<'_, D>,
        residual: Option<&Slice<D>>,
        results: &[Slice<D>],
    ) -> Result<()> {
        let mut middle = None;
        if let (Some(plan), Some(weight)) = (&self.first, &weights.first) {
            let op = plan.op();
            let rows = part(between, 0, op.tokens * op.d_out * op.dtype.size())?;
            let (plan, input_norm) = norm.take().map_or((plan, None), |(plan, norm)| (plan, Some(norm.clone())));
            session.run(plan, &LinearArgs { input_norm, ..LinearArgs::new(x.clone(), weight.clone(), rows.clone()) })?;
            middle = Some((rows, op.dtype.size()));
        }
        let gated = self.gated.as_ref().filter(|_| results.len() == 1);
        let mut all = Vec::with_capacity(results.len());
        let results = results.iter().cycle().take(if gated.is_some() { 2 } else { results.len() });
        for ((column, weight), y) in self.columns.iter().zip(&weights.parts).zip(results) {
            let x = match (column, &middle) {
                (Some(column), Some((rows, size))) => part(rows, column * size, rows.len - column * size)?,
                _ => x.clone(),
            };
            all.push(LinearArgs { bias: weight.bias.clone(), residual: residual.cloned(), ..LinearArgs::new(x, weight.weight.clone(), y.clone()) });
        }
        match (&self.parts, &mut all[..]) {
            (Parts::One(plan), [args]) => {
                let (plan, input_norm) = norm.map_or((plan, None), |(plan, norm)| (plan, Some(norm.clone())));
                args.input_norm = input_norm;
                session.run(plan, args)
            }
            (Parts::One(_), _) => Err(Error::invalid("products", "operands of one part", all.len())),
            (Parts::Several(plan), _) => session.run(gated.unwrap_or(plan), &GroupedLinearArgs::new(all)),
        }
    }
}

/// The most rows that products norm on their way, and whose gates are in products of factors: with more, a launch of its own is a small part of a step.
pub const MOST_NORMED: usize = 16;

/// The plan of the first launch of a form on rows that are normed on the way: of the first factors, where all parts have two, or of the one product, with
/// gates where its parts are gates. None where another product reads the rows too, or the backend has no such product or is faster without.
///
/// # Errors
/// A device that fails.
pub fn normed<D: Backend>(session: &Session<D>, form: &Form, dtype: DType, rows: u64) -> Result<Option<Plan<Linear, D>>> {
    let (d_out, activation) = match form.parts[..] {
        [Part { d_out, rank: None, .. }] if form.gated => (d_out / 2, Some(Activation::Silu)),
        [Part { d_out, rank: None, .. }] => (d_out, None),
        _ if form.factored() => (form.between(), None),
        _ => return Ok(None),
    };
    if session.device().hints().normed_outputs.is_none_or(|most| d_out > most) {
        return Ok(None);
    }
    let product = Linear::new(dtype, [rows, form.d_in, d_out]).with_padded_weights().with_bias(form.bias && !form.factored());
    if_any(session.plan(Linear { input_norm: form.norm, gated: activation.is_some(), activation, ..product }))
}

/// A plan, where the backend has the operation.
fn if_any<O: Op, D: Backend + Kernel<O>>(plan: Result<Plan<O, D>>) -> Result<Option<Plan<O, D>>> {
    match plan {
        Ok(plan) => Ok(Some(plan)),
        Err(Error::Unsupported { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}
