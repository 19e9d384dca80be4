//! `pointwise`: norms with a workgroup for each row, everything else with an invocation for each element or pair.

use std::sync::Arc;

use super::compiled::Pipeline;
use super::product::activation_constant;
use super::queue::part;
use super::source::{Constant, Element, File, Operand, Source, shader};
use super::{Queue, Wgpu};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::index::{HostIndex, PageShape, PageTable};
use crate::ops::pointwise::{Heads, Kind, Places, Turn};
use crate::ops::{Activation, Pointwise, PointwiseArgs};

const VARIANTS: &[&str] = &["portable"];
/// Elements that a workgroup of `rows.wgsl` and `rope.wgsl` takes.
const WIDTH: u64 = 256;
/// The most pairs of a head for Rope, whose frequencies are written into the shader.
const MAX_PAIRS: u64 = 1024;

/// A plan of `pointwise`.
pub struct Plan {
    op: Pointwise,
    /// The pipeline of the operation's own dispatches, where it has any.
    pipeline: Option<Arc<Pipeline>>,
    /// Rows that one dispatch can bind.
    rows: u64,
    /// Elements from a row of a pool to the next.
    pool_row: u64,
    /// The plans of what follows: heads turn in place, and then go to their pool; of rows that lie apart, block by block.
    then: Vec<(Plan, Offsets)>,
}

/// The first element of a part of y, of the weight and of the pool.
struct Offsets {
    y: u64,
    weight: u64,
    pool: u64,
}

/// The `Params` of `norm.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct NormParams {
    columns: u32,
    eps: f32,
    heads: u32,
    stride: u32,
}

/// The `Params` of `rows.wgsl` (columns, first, count).
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params([u32; 3]);

/// The `Params` of `store.wgsl` (columns, stride, slots, pool_row).
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct StoreParams([u32; 4]);

/// The `Params` of `rope.wgsl` (pairs, columns, head_dim, stride).
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct RopeParams([u32; 4]);

/// The `Params` of `append.wgsl` (columns, stride, first, each, batch, pages, page, pool_row).
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct AppendParams([u32; 8]);

/// The frequencies of Rope, `base^(−2j/d)` for each pair `j`, as high and low words in units of 2⁻⁶⁴ turns.
fn frequencies(head_dim: u64, base: u32) -> Vec<u32> {
    let base = f64::from(f32::from_bits(base));
    (0..head_dim / 2)
        .flat_map(|j| {
            let turns = base.powf(-2.0 * j as f64 / head_dim as f64) / std::f64::consts::TAU;
            let units = (turns.fract() * 2f64.powi(64)) as u64;
            [(units >> 32) as u32, units as u32]
        })
        .collect()
}

/// Shader files of the kinds that work on whole rows.
const ROWS: &[File] = &[shader!("activation.wgsl"), shader!("pointwise/rows.wgsl")];

/// Shader files of rotary positions.
const fn rope_files(turn: Turn) -> &'static [File] {
    match turn {
        Turn::Base(_) => &[shader!("pointwise/rope.wgsl"), shader!("pointwise/rope_base.wgsl")],
        Turn::Table => &[shader!("pointwise/rope.wgsl"), shader!("pointwise/rope_table.wgsl")],
    }
}

fn source(dtype: DType, kind: Kind) -> Source {
    let float = Element::Float(dtype);
    let (number, files, name): (u32, &'static [_], _) = match kind {
        Kind::RmsNorm { .. } => (0, &[shader!("pointwise/norm.wgsl")], "RMSNorm"),
        Kind::LayerNorm { .. } | Kind::EmbeddingNorm { .. } => (1, &[shader!("pointwise/norm.wgsl")], "LayerNorm"),
        Kind::L2Normalise => (2, &[shader!("pointwise/norm.wgsl")], "L2 normalise"),
        Kind::Embedding { .. } => (3, ROWS, "embedding"),
        Kind::MeanPool(_) => (4, ROWS, "mean pool"),
        Kind::Add => (5, ROWS, "add"),
        Kind::Rope { turn, .. } => (6, rope_files(turn), "RoPE"),
        Kind::RopeInPlace { turn, .. } => (8, rope_files(turn), "RoPE in place"),
        Kind::Activation(_) => (7, ROWS, "activation"),
        Kind::Append { .. } => (9, &[shader!("pointwise/append.wgsl")], "append"),
        Kind::Store { .. } => (10, &[shader!("pointwise/store.wgsl")], "store"),
        Kind::Glu(_) => (11, ROWS, "gates"),
        Kind::Heads(_) => (12, &[shader!("pointwise/norm.wgsl")], "RMSNorm of heads"),
    };
    let in_place = matches!(kind, Kind::RopeInPlace { .. } | Kind::Heads(_));
    let mut operands = vec![Operand::read("x", float).when(!in_place), Operand::write("y", float)];
    let mut constants = vec![("KIND", Constant::U32(number))];
    match kind {
        Kind::RmsNorm { residual, .. } | Kind::LayerNorm { residual, .. } => operands.extend([
            Operand::read("weight", float),
            Operand::read("bias", float).when(matches!(kind, Kind::LayerNorm { .. })),
            Operand::read("residual", float).when(residual),
        ]),
        Kind::Heads(_) => {
            let absent = ["bias", "residual"].map(|name| Operand::read(name, float).when(false));
            operands.extend(std::iter::once(Operand::read("weight", float)).chain(absent));
        }
        Kind::EmbeddingNorm { .. } | Kind::L2Normalise => operands.extend(["weight", "bias", "residual"].map(|name| Operand::read(name, float).when(false))),
        Kind::Rope { head_dim, turn } | Kind::RopeInPlace { head_dim, turn, .. } => {
            operands.push(Operand::read("positions", Element::I32));
            match turn {
                Turn::Base(base) => constants.push(("units", Constant::Table(frequencies(head_dim, base)))),
                Turn::Table => operands.push(Operand::read("frequencies", Element::Float(DType::F32))),
            }
        }
        Kind::Append { .. } => operands.push(Operand::read("index", Element::I32)),
        Kind::Store { .. } => operands.push(Operand::read("positions", Element::I32)),
        Kind::Embedding { .. } | Kind::MeanPool(_) | Kind::Add | Kind::Activation(_) | Kind::Glu(_) => {
            let activation = if let Kind::Activation(activation) | Kind::Glu(activation) = kind { Some(activation) } else { None };
            constants.push(("ACTIVATION", activation_constant(activation)));
            operands.extend([
                Operand::read("index", Element::I32).when(matches!(kind, Kind::Embedding { .. } | Kind::MeanPool(_))),
                Operand::read("residual", float).when(matches!(kind, Kind::Add | Kind::Glu(_))),
            ]);
        }
    }
    Source { kernel: format!("{name} {dtype}"), files, operands, constants, f16: false }
}

/// Every specialisation, of Rope with one head size.
pub(super) fn sources() -> Vec<Source> {
    let eps = 1e-5f32.to_bits();
    let shape = crate::ops::index::VarlenShape { batch: 1, total_q: 1, total_kv: 1, max_q: 1, max_kv: 1 };
    let cache = PageShape { batch: 1, pages: 1, page: 1, pool_pages: 1 };
    let mut kinds = vec![Kind::L2Normalise, Kind::Append { cache, stride: 1 }, Kind::Add, Kind::Embedding { vocabulary: 1 }, Kind::MeanPool(shape)];
    let turns = [Turn::base(1e4), Turn::Table];
    kinds.extend(turns.into_iter().flat_map(|turn| [Kind::Rope { head_dim: 128, turn }, Kind::RopeInPlace { head_dim: 128, turn, stride: 384 }]));
    kinds.push(Kind::Store { slots: 1, stride: 1 });
    kinds.push(Kind::Heads(Heads::new(64, Turn::Table, 64, Places::Slots(1))));
    kinds.extend(Activation::ALL.into_iter().flat_map(|activation| [Kind::Activation(activation), Kind::Glu(activation)]));
    for residual in [false, true] {
        kinds.extend([Kind::RmsNorm { eps, residual }, Kind::LayerNorm { eps, residual }]);
    }
    kinds.into_iter().flat_map(|kind| DType::ALL.map(|dtype| source(dtype, kind))).collect()
}

impl Kernel<Pointwise> for Wgpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        VARIANTS
    }

    fn plan(&self, op: &Pointwise, _: Option<&str>) -> Result<Plan> {
        self.planned(op, op.heads().map_or(op.columns, |heads| heads.kept))
    }

    fn workspace_bytes(_: &Plan) -> u64 {
        0
    }

    fn variant(_: &Plan) -> &'static str {
        VARIANTS[0]
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, _: &Slice<Self>, args: &PointwiseArgs<Self>) -> Result<()> {
        self.launch_all(queue, plan, args)
    }
}

impl Wgpu {
    /// The plan of an operation on a pool whose rows lie `pool_row` elements apart.
    fn planned(&self, op: &Pointwise, pool_row: u64) -> Result<Plan> {
        let (window, row_bytes) = (self.window_bytes(), op.stride() * op.dtype.size());
        let refuse = |reason: String| Err(Error::unsupported(format!("pointwise on {}", Self::NAME), format!("portable: {reason}")));
        // A row of gates may be taken in pieces.
        let reach = (window / row_bytes).max(u64::from(matches!(op.kind, Kind::Glu(_))));
        if reach == 0 {
            return refuse(format!("a row of {} elements, the device binds {window} bytes at a time", op.stride()));
        }
        if let Some(reason) = self.narrow() {
            return refuse(reason);
        }
        // A row may have a word of index data, and the rows together one more.
        let rows = reach.min(window / 4 - 1);
        match op.kind {
            Kind::EmbeddingNorm { .. } => return refuse("rows of two tables and their norm: an operation of its own is for each".into()),
            Kind::Append { .. } | Kind::Store { .. } if op.y_rows() > window / (pool_row * op.dtype.size()) => {
                return refuse(format!("a pool of {} tokens, the device binds {window} bytes at a time", op.y_rows()));
            }
            Kind::Append { cache, .. } if PageTable::capacity(&cache) > window / 4 => {
                return refuse(format!("{} words about pages, the device binds {window} bytes at a time", PageTable::capacity(&cache)));
            }
            Kind::MeanPool(_) if op.x_rows() > reach => return refuse(format!("{} rows to pool, the device binds {reach} at a time", op.x_rows())),
            Kind::Rope { head_dim, turn: Turn::Base(_) } | Kind::RopeInPlace { head_dim, turn: Turn::Base(_), .. } if head_dim / 2 > MAX_PAIRS => {
                return refuse(format!("head_dim {head_dim}, more than {}", 2 * MAX_PAIRS));
            }
            _ => {}
        }
        let heads = op.heads();
        let then = heads.map_or_else(|| Ok(Vec::new()), |heads| self.parts(op, &heads, pool_row))?;
        // Heads that are not normed have no dispatch of their own, and none where they lie apart: a block has its own.
        let pipeline = if heads.is_some_and(|heads| heads.apart || heads.norm.is_none()) { None } else { Some(self.pipeline(&source(op.dtype, op.kind))?) };
        Ok(Plan { op: op.clone(), pipeline, rows, pool_row, then })
    }

    /// The plans of what is done to heads: those of each block of rows that lie apart, else the turn and the way to the pool.
    fn parts(&self, op: &Pointwise, heads: &Heads, pool_row: u64) -> Result<Vec<(Plan, Offsets)>> {
        let mut all = Vec::new();
        if heads.apart {
            for block in heads.blocks(op.rows, op.columns) {
                let (turned, kept) = (block.within(0..op.columns), block.within(heads.first..heads.first + heads.kept));
                if block.columns.is_empty() {
                    continue;
                }
                let norm = heads.norm.filter(|_| !turned.is_empty());
                let own = Heads { norm, stride: block.stride, first: 0, kept: kept.end - kept.start, apart: false, ..*heads };
                let from = Offsets { y: block.start, weight: turned.start, pool: kept.start.saturating_sub(heads.first) };
                all.push((self.planned(&op.clone().with_columns(turned.end - turned.start).with_kind(Kind::Heads(own)), pool_row)?, from));
            }
            return Ok(all);
        }
        if op.columns > 0 {
            let turn = Kind::RopeInPlace { head_dim: heads.head_dim, turn: heads.turn, stride: heads.stride };
            all.push((self.planned(&op.clone().with_kind(turn), pool_row)?, Offsets { y: 0, weight: 0, pool: 0 }));
        }
        if heads.kept > 0 {
            let keep = match heads.to {
                Places::Pages(cache) => Kind::Append { cache, stride: heads.stride },
                Places::Slots(slots) => Kind::Store { slots, stride: heads.stride },
            };
            all.push((self.planned(&op.clone().with_columns(heads.kept).with_kind(keep), pool_row)?, Offsets { y: heads.first, weight: 0, pool: 0 }));
        }
        Ok(all)
    }

    /// All rows of an operation, and then the operations that it is followed by.
    fn launch_all(&self, queue: &mut Queue, plan: &Plan, args: &PointwiseArgs<Self>) -> Result<()> {
        let op = &plan.op;
        let mut row = 0;
        while row < op.rows {
            let rows = plan.rows.min(op.rows - row);
            self.launch_rows(queue, plan, args, row, rows)?;
            row += rows;
        }
        let Some(pool) = args.pool.as_ref().filter(|_| op.rows > 0) else { return Ok(()) };
        let size = op.dtype.size();
        let rest = |slice: &Slice<Self>, at: u64| part(slice, at * size, slice.len - at * size);
        for (plan, from) in &plan.then {
            let (y, pool) = (rest(&args.y, from.y), rest(pool, from.pool));
            let args = match plan.op.kind {
                Kind::RopeInPlace { .. } => PointwiseArgs { pool: None, x: y.clone(), y, ..args.clone() },
                Kind::Append { .. } | Kind::Store { .. } => {
                    PointwiseArgs { positions: args.slots.clone(), pages: args.pages.clone(), ..PointwiseArgs::new(y, pool) }
                }
                _ => PointwiseArgs { weight: args.weight.as_ref().map(|weight| rest(weight, from.weight)), pool: Some(pool), x: y.clone(), y, ..args.clone() },
            };
            self.launch_all(queue, plan, &args)?;
        }
        Ok(())
    }

    /// Rows `row..row + rows` of y.
    fn launch_rows(&self, queue: &mut Queue, plan: &Plan, args: &PointwiseArgs<Self>, row: u64, rows: u64) -> Result<()> {
        let (op, Some(pipeline)) = (&plan.op, &plan.pipeline) else { return Ok(()) };
        let (row_bytes, columns_bytes) = (op.stride() * op.dtype.size(), op.columns * op.dtype.size());
        let of = |slice: &Slice<Self>| part(slice, row * row_bytes, (rows - 1) * row_bytes + columns_bytes);
        let words = |slice: &Slice<Self>, at: u64, count: u64| part(slice, at * 4, count * 4);
        let y = match op.kind {
            Kind::Append { .. } | Kind::Store { .. } | Kind::Glu(_) => args.y.clone(),
            _ => of(&args.y),
        };
        let residual = args.residual.as_ref().map(of);
        let columns = op.columns as u32;
        let row_groups = rows * op.columns.div_ceil(WIDTH);
        match op.kind {
            // `plan` refuses the norm of two tables.
            Kind::RmsNorm { .. } | Kind::LayerNorm { .. } | Kind::EmbeddingNorm { .. } | Kind::L2Normalise => {
                let eps = if let Kind::RmsNorm { eps, .. } | Kind::LayerNorm { eps, .. } = op.kind { f32::from_bits(eps) } else { 0.0 };
                let (x, weight, bias) = (of(&args.x), args.weight.as_ref(), args.bias.as_ref());
                queue.dispatch(
                    self,
                    pipeline,
                    &[Some(&x), Some(&y), weight, bias, residual.as_ref()],
                    &NormParams { columns, eps, heads: 1, stride: columns },
                    rows,
                )
            }
            Kind::Heads(Heads { head_dim, norm, stride, .. }) => {
                let heads = op.columns / head_dim;
                let params = NormParams { columns: head_dim as u32, eps: f32::from_bits(norm.unwrap_or(0)), heads: heads as u32, stride: stride as u32 };
                queue.dispatch(self, pipeline, &[None, Some(&y), args.weight.as_ref(), None, None], &params, rows * heads)
            }
            Kind::Rope { head_dim, .. } | Kind::RopeInPlace { head_dim, .. } => {
                let x = matches!(op.kind, Kind::Rope { .. }).then(|| of(&args.x));
                let positions = args.positions.as_ref().map(|slice| words(slice, row, rows));
                let pairs = rows * op.columns / 2;
                let operands = [x.as_ref(), Some(&y), positions.as_ref(), args.frequencies.as_ref()];
                let params = RopeParams([pairs as u32, columns, head_dim as u32, op.stride() as u32]);
                queue.dispatch(self, pipeline, &operands[..if args.frequencies.is_some() { 4 } else { 3 }], &params, pairs.div_ceil(WIDTH))
            }
            Kind::Append { cache, stride } => {
                let x = of(&args.x);
                let [each, batch, pages, page] = [op.rows / cache.batch, cache.batch, cache.pages, cache.page].map(|count| count as u32);
                let params = AppendParams([columns, stride as u32, row as u32, each, batch, pages, page, plan.pool_row as u32]);
                queue.dispatch(self, pipeline, &[Some(&x), Some(&y), args.pages.as_ref().map(|pages| pages.slice())], &params, row_groups)
            }
            Kind::Store { slots, stride } => {
                let (x, places) = (of(&args.x), args.positions.as_ref().map(|slice| words(slice, row, rows)));
                queue.dispatch(
                    self,
                    pipeline,
                    &[Some(&x), Some(&y), places.as_ref()],
                    &StoreParams([columns, stride as u32, slots, plan.pool_row as u32]),
                    row_groups,
                )
            }
            Kind::Glu(_) => {
                let most = self.window_bytes() / op.dtype.size();
                for first in (0..op.columns).step_by(most as usize) {
                    let count = most.min(op.columns - first);
                    let (start, bytes) = (first * op.dtype.size(), count * op.dtype.size());
                    let [gate, up] = [0, columns_bytes].map(|at| part(&args.x, row * row_bytes + at + start, (rows - 1) * row_bytes + bytes));
                    let y = part(&args.y, row * columns_bytes + start, (rows - 1) * columns_bytes + bytes);
                    let groups = rows * count.div_ceil(WIDTH);
                    queue.dispatch(self, pipeline, &[Some(&gate), Some(&y), None, Some(&up)], &Params([count as u32, 0, 0]), groups)?;
                }
                Ok(())
            }
            Kind::Add | Kind::Activation(_) => {
                let x = of(&args.x);
                queue.dispatch(self, pipeline, &[Some(&x), Some(&y), None, residual.as_ref()], &Params([columns, 0, 0]), row_groups)
            }
            Kind::MeanPool(_) => {
                let starts = args.sequences.as_ref().map(|index| words(index.slice(), row, rows + 1));
                queue.dispatch(self, pipeline, &[Some(&args.x), Some(&y), starts.as_ref(), None], &Params([columns, 0, 0]), row_groups)
            }
            Kind::Embedding { vocabulary } => {
                // The ids lie two words in; see `TokenAdapters`.
                let ids = args.ids.as_ref().map(|index| words(index.slice(), 2 + row, rows));
                let mut first = 0;
                // An empty table still has rows of zeros to write.
                loop {
                    let count = plan.rows.min(u64::from(vocabulary) - first);
                    let x = part(&args.x, first * row_bytes, count * row_bytes);
                    let params = Params([columns, first as u32, count as u32]);
                    queue.dispatch(self, pipeline, &[Some(&x), Some(&y), ids.as_ref(), None], &params, row_groups)?;
                    first += count;
                    if first >= u64::from(vocabulary) {
                        return Ok(());
                    }
                }
            }
        }
    }
}
