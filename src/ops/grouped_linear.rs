//! Several products of one number of rows, which do not read each other's results: q, k and v, or the second factors of projections that read the same rows.

use derive_where::derive_where;

use super::setters::setters;
use super::{Activation, Cost, Linear, LinearArgs, Op, Operand, Translate};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Result, ensure};

/// The most products of a group.
pub const MOST_PROBLEMS: usize = 8;

/// The descriptor of a group of products. Each is a [`Linear`] with operands of its own, and gives what it gives alone. A backend computes them in one
/// launch where that is faster, and else one behind another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GroupedLinear {
    /// The products: 1 to [`MOST_PROBLEMS`], of one dtype and one number of rows. They have no delta, no norms, no gates and no wide outputs, and all are
    /// batch-invariant or none is.
    pub problems: Vec<Linear>,
    /// The activation of a gate, where the products are a gate and what it lets through: `y = act(Y₀) ⊙ Y₁` is all that is written, of sums that are not
    /// rounded before. Both have as many outputs, and neither a bias, an activation or a residual. Some backends do not take it: the group without it and
    /// [`Glu`](super::pointwise::Kind::Glu) do the same in two operations.
    pub gate: Option<Activation>,
}

/// The operands of a group of products.
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct GroupedLinearArgs<D: Device> {
    /// The operands of each product. What one writes no other reads; they may share what they read. With a gate both have one y.
    pub problems: Vec<LinearArgs<D>>,
}

impl GroupedLinear {
    /// A group of these products.
    pub fn new(problems: Vec<Linear>) -> Self {
        Self { problems, gate: None }
    }

    /// The element type of all operands, f32 where there is no product.
    pub fn dtype(&self) -> DType {
        self.problems.first().map_or(DType::F32, |problem| problem.dtype)
    }

    /// Rows of each x.
    pub fn tokens(&self) -> u64 {
        self.problems.first().map_or(0, |problem| problem.tokens)
    }

    setters! {
        with_problems: problems = Vec<Linear>;
        with_gate: gate <- Option<Activation>;
    }
}

impl<D: Device> GroupedLinearArgs<D> {
    /// The operands of each product.
    pub fn new(problems: Vec<LinearArgs<D>>) -> Self {
        Self { problems }
    }

    setters! {
        with_problems: problems = Vec<LinearArgs<D>>;
    }
}

impl Op for GroupedLinear {
    const NAME: &'static str = "grouped_linear";
    type Args<D: Device> = GroupedLinearArgs<D>;

    fn validate(&self) -> Result<()> {
        let count = self.problems.len();
        ensure((1..=MOST_PROBLEMS).contains(&count), "grouped_linear: problems", format_args!("1 to {MOST_PROBLEMS}"), count)?;
        self.problems.iter().try_for_each(Op::validate)?;
        let of = |problem: &Linear| (problem.dtype, problem.tokens, problem.batch_invariant);
        let alike = self.problems.iter().all(|problem| Some(of(problem)) == self.problems.first().map(of));
        ensure(alike, "grouped_linear: problems", "one dtype, one number of rows, all batch-invariant or none", format_args!("{:?}", self.problems))?;
        let plain = |problem: &Linear| problem.delta.is_none() && problem.no_norm().is_ok() && !problem.wide_outputs;
        let other = self.problems.iter().find(|&problem| !plain(problem));
        ensure(other.is_none(), "grouped_linear: problems", "products without a delta, norms, gates and wide outputs", format_args!("{other:?}"))?;
        let bare = |problem: &Linear| !problem.bias && !problem.residual && problem.activation.is_none();
        let pair = matches!(&self.problems[..], [gate, through] if gate.d_out == through.d_out && bare(gate) && bare(through));
        let wanted = "two products of as many outputs, without bias, activation and residual";
        ensure(pair || self.gate.is_none(), "grouped_linear: gate", wanted, format_args!("{:?}", self.problems))
    }

    fn sizes(&self) -> [u64; 3] {
        let most = |of: fn(&Linear) -> u64| self.problems.iter().map(of).max().unwrap_or(0);
        let columns = self.problems.iter().take(if self.gate.is_some() { 1 } else { MOST_PROBLEMS }).map(|one| one.d_out).sum();
        [most(|one| one.tokens), columns, most(|one| one.d_in)]
    }

    fn cost(&self) -> Cost {
        let all = self.problems.iter().map(Op::cost).fold(Cost::default(), |sum, own| Cost {
            executed_flops: sum.executed_flops + own.executed_flops,
            useful_flops: sum.useful_flops + own.useful_flops,
            dense_flops: sum.dense_flops + own.dense_flops,
            bytes: sum.bytes + own.bytes,
        });
        // With a gate the y of one of them alone is written.
        let once = self.problems.first().filter(|_| self.gate.is_some()).map_or(0.0, |one| one.tokens as f64 * one.d_out as f64 * one.dtype.size() as f64);
        Cost { bytes: all.bytes - once, ..all }
    }

    fn translate<A: Device, B: Device>(args: &GroupedLinearArgs<A>, to: &Translate<'_, A, B>) -> Result<GroupedLinearArgs<B>> {
        let problems = args.problems.iter().map(|own| Linear::translate(own, to)).collect::<Result<_>>()?;
        Ok(GroupedLinearArgs { problems })
    }

    fn operands<'a, D: Device>(&self, args: &'a GroupedLinearArgs<D>, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()> {
        ensure(args.problems.len() == self.problems.len(), "grouped_linear: operands", format_args!("{} products'", self.problems.len()), args.problems.len())?;
        let (Some(_), [gate, through], [gate_args, own]) = (self.gate, &self.problems[..], &args.problems[..]) else {
            return self.problems.iter().zip(&args.problems).try_for_each(|(problem, own)| problem.operands(own, see));
        };
        let place = |y: &Slice<D>| (D::buffer_id(&y.buffer), y.offset);
        ensure(place(&gate_args.y) == place(&own.y), "grouped_linear: y", "one y of the gate and of what it lets through", "others")?;
        gate.operands(gate_args, see)?;
        // Its y was shown, and would overlap itself.
        through.operands(own, &mut |operand| {
            if operand.name != "y" {
                see(operand);
            }
        })
    }
}
