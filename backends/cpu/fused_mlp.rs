//! Fused MLP: one block of tokens at a time, its intermediate in the workspace, both products tile by tile.

use rayon::prelude::*;

use super::element::{self, Element, by_dtype, with_scratch};
use super::linear::Epilogue;
use super::product::{self, Rows, Tiling};
use super::view::View;
use super::{Cpu, Queue, math, sole_variant};
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::{Error, Result};
use crate::ops::fused_mlp::MAX_WORKSPACE;
use crate::ops::{FusedMlp, FusedMlpArgs};

const VARIANT: &str = "blocked";

/// A planned MLP.
#[derive(Clone)]
pub struct Plan {
    op: FusedMlp,
    blocking: Blocking,
}

/// How much of the intermediate exists at a time.
#[derive(Clone, Copy, Debug)]
struct Blocking {
    /// Tokens of a block.
    tokens: usize,
    /// Columns of a block. Where these are not all, the workspace also holds running sums of y.
    columns: usize,
}

impl Blocking {
    /// Blocks of as many tokens as fit half of `bytes`, with all columns of the intermediate if those fit. The other half is for sums.
    fn new(op: &FusedMlp, bytes: u64) -> Option<Self> {
        let room = bytes / 2 / 4;
        let columns = op.d_ff.min(room).max(1);
        let fit = (room / columns).max(1);
        // Where there are several tiles of the product, they are whole.
        let tokens = op.tokens.clamp(1, if fit > 256 { fit / 256 * 256 } else { fit }.min(1024));
        (columns == op.d_ff || op.d_out <= room).then_some(Self { tokens: tokens as usize, columns: columns as usize })
    }

    fn workspace_len(&self, op: &FusedMlp) -> u64 {
        let sums = if (self.columns as u64) < op.d_ff { op.d_out } else { 0 };
        self.tokens as u64 * (self.columns as u64 + sums)
    }
}

impl Kernel<FusedMlp> for Cpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        &[VARIANT]
    }

    fn plan(&self, op: &FusedMlp, only: Option<&str>) -> Result<Plan> {
        sole_variant("fused_mlp", VARIANT, only)?;
        let limit = || Error::unsupported("fused_mlp", format!("{VARIANT}: d_ff {} and d_out {} exceed the workspace together", op.d_ff, op.d_out));
        Ok(Plan { op: op.clone(), blocking: Blocking::new(op, MAX_WORKSPACE).ok_or_else(limit)? })
    }

    fn workspace_bytes(plan: &Plan) -> u64 {
        plan.blocking.workspace_len(&plan.op) * 4
    }

    fn variant(_plan: &Plan) -> &'static str {
        VARIANT
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, workspace: &Slice<Self>, args: &FusedMlpArgs<Self>) -> Result<()> {
        let (plan, space) = (plan.clone(), workspace.clone());
        let op = plan.op.clone();
        queue.put(&op, Some(workspace), args, move |args| {
            // SAFETY: `check` accepted the operands, and the queue holds their buffers while the work runs.
            by_dtype!(plan.op.dtype, T => unsafe { run::<T>(&plan, args, &space) });
            Ok(())
        })
    }
}

/// Runs the operation.
///
/// # Safety
/// [`crate::ops::check`] accepted `args`, and they and the workspace are held.
unsafe fn run<T: Element>(Plan { op, blocking }: &Plan, args: &FusedMlpArgs<Cpu>, workspace: &Slice<Cpu>) {
    let [tokens, d_model, d_ff, d_out] = [op.tokens, op.d_model, op.d_ff, op.d_out].map(|size| size as usize);
    let [x_stride, w1_stride, w2_stride] = [op.x_stride, op.w1_stride, op.w2_stride].map(|stride| stride as usize);
    let rows_of = |slice: &Slice<Cpu>, stride: usize| Rows::<T> { view: View::new(slice), start: 0, stride };
    let optional = |slice: &Option<Slice<Cpu>>, stride: usize| slice.as_ref().map(|slice| rows_of(slice, stride));
    let (x, w1, w2, y) = (rows_of(&args.x, x_stride), rows_of(&args.w1, w1_stride), rows_of(&args.w2, w2_stride), rows_of(&args.y, d_out));
    let (gate, residual) = (optional(&args.wg, w1_stride), optional(&args.residual, d_out));
    let up_end = Epilogue { bias: optional(&args.b1, 0), activation: gate.is_none().then_some(op.activation), residual: None, norm: None };
    let down_end = Epilogue { bias: optional(&args.b2, 0), activation: None, residual, norm: None };
    for first_token in (0..tokens).step_by(blocking.tokens) {
        let count = blocking.tokens.min(tokens - first_token);
        for first in (0..d_ff).step_by(blocking.columns) {
            let width = blocking.columns.min(d_ff - first);
            let middle = Rows::<f32> { view: View::new(workspace), start: 0, stride: width };
            let sums = Rows::<f32> { view: View::new(workspace), start: blocking.tokens * blocking.columns, stride: d_out };
            let tiling = Tiling::new(count, width);
            (0..tiling.count()).into_par_iter().for_each(|tile| {
                let (rows, columns) = tiling.get(tile);
                let (m, n) = (rows.len(), columns.len());
                let of_ff = columns.start + first..columns.end + first;
                with_scratch([m * n, m * n, tiling.scratch_len(d_model), n], |[up, gated, scratch, wide]| {
                    // SAFETY: rows and columns lie inside the operands; each tile of the middle is written by one piece of work.
                    unsafe {
                        let x = x.from(first_token + rows.start, 0);
                        product::tile(x, w1.from(of_ff.start, 0), [m, n, d_model], up, scratch);
                        up_end.bend(up, &of_ff, wide);
                        if let Some(gate) = gate {
                            product::tile(x, gate.from(of_ff.start, 0), [m, n, d_model], gated, scratch);
                            math::activate(op.activation, gated);
                            up.iter_mut().zip(&*gated).for_each(|(up, gated)| *up *= gated);
                        }
                        element::round_trip::<T>(up);
                        for (row, values) in rows.clone().zip(up.chunks_exact(n)) {
                            middle.from(row, columns.start).row_mut(0, n).copy_from_slice(values);
                        }
                    }
                });
            });
            let last = first + width == d_ff;
            let tiling = Tiling::new(count, d_out);
            (0..tiling.count()).into_par_iter().for_each(|tile| {
                let (rows, columns) = tiling.get(tile);
                let (m, n) = (rows.len(), columns.len());
                with_scratch([m * n, tiling.scratch_len(width), n], |[down, scratch, wide]| {
                    // SAFETY: as above; the middle is done.
                    unsafe {
                        product::tile(middle.from(rows.start, 0), w2.from(columns.start, first), [m, n, width], down, scratch);
                        for (row, values) in rows.clone().zip(down.chunks_exact_mut(n)) {
                            if first > 0 {
                                math::add(values, sums.from(row, columns.start).row(0, n));
                            }
                            if !last {
                                sums.from(row, columns.start).row_mut(0, n).copy_from_slice(values);
                            }
                        }
                        if last {
                            let rows = rows.start + first_token..rows.end + first_token;
                            down_end.finish(down, &rows, &columns, y, wide);
                        }
                    }
                });
            });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::device::{Device, Open};
    use crate::dtype::DType;
    use crate::ops::Activation;

    const OP: FusedMlp = FusedMlp {
        dtype: DType::F32,
        tokens: 11,
        d_model: 40,
        d_ff: 300,
        d_out: 33,
        x_stride: 40,
        w1_stride: 40,
        w2_stride: 300,
        activation: Activation::GeluErf,
        gated: true,
        bias1: true,
        bias2: true,
        residual: true,
    };

    /// Runs [`OP`] with at most `bytes` of workspace.
    fn run_within(bytes: u64) -> Vec<f32> {
        let device = Cpu::open(0).unwrap();
        let mut queue = device.queue().unwrap();
        let slice = |len: u64| Slice::new(device.alloc(len * 4).unwrap(), 0, len * 4);
        let mut drawn = |len: u64| {
            let values: Vec<f32> = (0..len).map(|i| (i * 7919 % 1013) as f32 / 1013.0 - 0.49).collect();
            let slice = slice(len);
            device.write(&mut queue, &slice, bytemuck::cast_slice(&values)).unwrap();
            slice
        };
        let args = FusedMlpArgs {
            x: drawn(OP.tokens * OP.d_model),
            w1: drawn(OP.d_ff * OP.d_model),
            wg: Some(drawn(OP.d_ff * OP.d_model)),
            b1: Some(drawn(OP.d_ff)),
            w2: drawn(OP.d_out * OP.d_ff),
            b2: Some(drawn(OP.d_out)),
            residual: Some(drawn(OP.tokens * OP.d_out)),
            y: slice(OP.tokens * OP.d_out),
        };
        crate::ops::check(&device, &OP, &args).unwrap();
        let plan = Plan { op: OP, blocking: Blocking::new(&OP, bytes).unwrap() };
        let needed = <Cpu as Kernel<FusedMlp>>::workspace_bytes(&plan);
        assert!(needed <= bytes);
        let workspace = slice(needed / 4);
        // SAFETY: the operands were checked; the workspace is as large as the plan asks for.
        unsafe { Kernel::<FusedMlp>::launch(&device, &mut queue, &plan, &workspace, &args).unwrap() };
        let mut bytes = vec![0; args.y.len as usize];
        device.read(&mut queue, &args.y, &mut bytes).unwrap();
        bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
    }

    #[test]
    fn a_small_workspace_changes_nothing_but_rounding() {
        let whole = run_within(MAX_WORKSPACE);
        // Room for 1,000, 300, 299 and 64 columns: several tokens, one, and the intermediate in parts.
        for columns in [1000, 300, 299, 64] {
            for (i, (a, b)) in run_within(columns * 8).iter().zip(&whole).enumerate() {
                assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{columns} columns, element {i}: {a}, not {b}");
            }
        }
    }

    #[test]
    fn the_workspace_is_bounded_for_any_size() {
        for (tokens, d_ff, d_out) in [(1 << 20, 11008, 4096), (1, 1 << 22, 64), (7, 1 << 25, 64), (100, 3, 1 << 30)] {
            let op = FusedMlp { tokens, d_ff, d_out, w2_stride: d_ff, ..OP };
            assert!(Blocking::new(&op, MAX_WORKSPACE).unwrap().workspace_len(&op) * 4 <= MAX_WORKSPACE);
        }
    }
}
