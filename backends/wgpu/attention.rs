//! `attention`: one tiled shader for every form, length and mask. Where there are too few rows to fill a device, the keys are split. A
//! second shader then combines the parts in their order, so the bits are equal from run to run.

use std::sync::Arc;

use super::attention_shader::{Kind, Layout, Stage};
use super::compiled::Pipeline;
use super::queue::{MAX_WORK, part};
use super::{Queue, Wgpu};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::{Attention, AttentionArgs, AttentionIndex, Form, Strides};
use crate::ops::index::{BlockMap, BlockMask, HostIndex, Index, PageTable, RaggedPages, Varlen};

const VARIANTS: &[&str] = &["f16", "portable"];
/// The largest length, and the furthest reach of a window. Sums of two stay in the shader's 32 bits.
const MAX_LEN: u64 = 1 << 30;
/// Invocations that fill a large device.
const FILL: u64 = 1 << 16;
/// The fewest keys of a split, which are worth a workgroup of their own, and keys of the shader's tile.
const MIN_SPLIT: u64 = 256;
const KEYS: u64 = 32;
/// The most bytes of partial results.
const MAX_PARTIAL: u64 = 64 << 20;

/// A plan of `attention`.
pub struct Plan {
    op: Attention,
    variant: &'static str,
    layout: Layout,
    /// The pipeline for all keys of a tile of rows, or for a split's share of them.
    forward: Arc<Pipeline>,
    /// The pipeline that combines the splits, where the keys are split.
    combine: Option<Arc<Pipeline>>,
    splits: u64,
    split_keys: u64,
    /// Sequences that one dispatch can reach.
    batches: u64,
    /// The most workgroups of one dispatch.
    pub(super) groups: u64,
}

/// The shaders' `Params`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    strides: [u32; 12],
    first_group: u32,
    first_batch: u32,
    q_len: u32,
    kv_len: u32,
    heads: u32,
    splits: u32,
    split_keys: u32,
    reach: u32,
    scale: f32,
    form: [u32; 3],
}

/// One tensor: its strides in elements, and the fewest tokens and heads that one dispatch must reach.
struct Tensor {
    strides: Strides,
    tokens: u64,
    heads: u64,
    /// Whether sequences lie `strides.batch` apart, in order. If not, the dispatch reaches everything.
    by_sequence: bool,
    /// Sequences, slots or pages, where a dispatch does not take them one by one.
    pages: u64,
}

impl Tensor {
    /// The tensors q, k, v and o of an operation.
    fn of(op: &Attention) -> [Self; 4] {
        let (queries, keys, by_sequence) = match op.form {
            Form::Varlen(shape) => ((shape.total_q, 1, false), (shape.total_kv, 1), false),
            Form::Paged(shape) => ((op.q_len, 1, true), (shape.page, shape.pool_pages), false),
            Form::RaggedPaged(shape) => ((shape.total_q, 1, false), (shape.page, shape.pool_pages), false),
            Form::Dense | Form::Blocks(_) | Form::BlockMap(_) => ((op.q_len, 1, true), (op.kv_len, 1), true),
        };
        let query = |strides| Self { strides, tokens: queries.0, heads: op.heads, by_sequence: queries.2, pages: queries.1 };
        let key = |strides| Self { strides, tokens: keys.0, heads: op.kv_heads, by_sequence, pages: keys.1 };
        let read = |tensor: Self| match op.slots {
            Some(slots) => Self { by_sequence: false, pages: slots.into(), ..tensor },
            None => tensor,
        };
        [read(query(op.q)), read(key(op.k)), read(key(op.v)), query(op.o)]
    }

    /// Elements from the first to the last of `batches` sequences. Does not overflow: the descriptor was checked.
    fn span(&self, batches: u64, head_dim: u64) -> u64 {
        let sequences = if self.by_sequence { batches } else { self.pages };
        if sequences == 0 || self.tokens == 0 {
            return 0;
        }
        (sequences - 1) * self.strides.batch + (self.tokens - 1) * self.strides.token + (self.heads - 1) * self.strides.head + head_dim
    }

    /// The part of `slice` that holds `batches` sequences from `first` on.
    fn part(&self, slice: &Slice<Wgpu>, first: u64, batches: u64, op: &Attention) -> Slice<Wgpu> {
        let skipped = if self.by_sequence { first * self.strides.batch } else { 0 };
        let bytes = self.span(batches, op.head_dim) * op.dtype.size();
        // Where there is nothing, the strides may point anywhere.
        part(slice, if bytes == 0 { 0 } else { skipped * op.dtype.size() }, bytes)
    }
}

/// Query heads whose rows make one problem: those that share a KV head, unless each has a pattern of its own.
fn packed(op: &Attention) -> u64 {
    if op.form.is_sparse() { 1 } else { op.heads / op.kv_heads }
}

/// Whether sequences of different numbers of queries lie end to end.
fn is_ragged(op: &Attention) -> bool {
    matches!(op.form, Form::Varlen(_) | Form::RaggedPaged(_))
}

/// The most queries of a sequence, or of what stands for one of spare queries.
fn most_queries(op: &Attention) -> u64 {
    if let Form::RaggedPaged(_) = op.form { op.q_len.max(1) } else { op.q_len }
}

/// How many keys before and after its own position a query sees.
fn reach(op: &Attention) -> [u64; 2] {
    let window = op.window.map_or(MAX_LEN, |window| window.min(MAX_LEN));
    [window, if op.causal { 0 } else { window }]
}

impl Wgpu {
    /// Why a variant cannot run `op` here.
    fn attention_obstacle(&self, variant: &str, op: &Attention) -> Option<String> {
        let group = op.heads / op.kv_heads;
        let longest = op.kv_len.max(op.q_len.saturating_mul(group)).max(op.q_extent().1);
        if longest > MAX_LEN || op.heads > u64::from(u16::MAX) {
            return Some(format!("{} heads and lengths to {longest}, the shader counts to {} and {MAX_LEN}", op.heads, u16::MAX));
        }
        let index = match op.form {
            Form::Dense => 0,
            Form::Varlen(shape) => Varlen::capacity(&shape),
            Form::Blocks(shape) => BlockMask::capacity(&shape),
            Form::BlockMap(shape) => BlockMap::capacity(&shape),
            Form::Paged(shape) => PageTable::capacity(&shape),
            Form::RaggedPaged(shape) => RaggedPages::capacity(&shape),
        };
        if index.saturating_mul(4) > self.window_bytes() {
            return Some(format!("{index} words of index data, the device binds {} bytes at a time", self.window_bytes()));
        }
        match variant {
            "f16" if op.dtype != DType::F16 => Some("is for f16 operands".into()),
            "f16" if !self.caps.f16 => Some("the adapter has no f16 in shaders".into()),
            _ => None,
        }
    }

    /// Sequences that one dispatch can reach: all, or as many as the device binds, or 0 where it binds not even one.
    fn reachable_batches(&self, op: &Attention) -> u64 {
        let window = self.window_bytes();
        let fits = |batches: u64| {
            let lse = if op.lse { 4 * if is_ragged(op) { op.lse_len() } else { batches * op.heads * op.q_len } } else { 0 };
            lse <= window && Tensor::of(op).iter().all(|tensor| tensor.span(batches, op.head_dim) <= window / op.dtype.size())
        };
        if fits(op.batch) || op.batch == 0 {
            return op.batch;
        }
        if is_ragged(op) {
            return 0;
        }
        let (mut most, mut above) = (0, op.batch);
        while above - most > 1 {
            let middle = most.midpoint(above);
            if fits(middle) {
                most = middle;
            } else {
                above = middle;
            }
        }
        most
    }
}

/// How a plan's keys are split, with room for `room` bytes of partial results: the parts, and the keys of a part.
fn split(op: &Attention, layout: Layout, room: u64) -> [u64; 2] {
    let packed = packed(op);
    let [before, after] = reach(op);
    // Keys that the rows of a tile see together.
    let range = op.kv_len.min(before + after + layout.rows().div_ceil(packed) + 1).max(1);
    // What a query of many sums is to depend on its keys alone, not on how many others there are.
    if op.form.is_sparse() || matches!(op.form, Form::RaggedPaged(_)) {
        return [1, range];
    }
    let tiles = (op.q_len * packed).div_ceil(layout.rows()) * (op.heads / packed) * op.batch;
    let split_bytes = op.lse_len().max(1).saturating_mul(4 * (op.head_dim.next_multiple_of(4) + 2));
    let wanted = (FILL / layout.lanes()).div_ceil(tiles.max(1)).min(range.div_ceil(MIN_SPLIT)).min(room / split_bytes).max(1);
    let keys = range.div_ceil(wanted).next_multiple_of(KEYS);
    [range.div_ceil(keys), keys]
}

impl Plan {
    /// Elements, in f32, of the partial results of a row.
    fn partial_pitch(&self) -> u64 {
        self.splits * (self.op.head_dim.next_multiple_of(4) + 2)
    }

    /// Rows whose partial results are in the workspace at once.
    fn partial_rows(&self, batches: u64) -> u64 {
        if is_ragged(&self.op) { self.op.lse_len() } else { batches * self.op.heads * self.op.q_len }
    }

    /// The parameters of a dispatch, except its first group.
    fn params(&self, first_batch: u64) -> Params {
        let op = &self.op;
        let apart = |strides: Strides, by_sequence| [if by_sequence { strides.batch } else { 0 }, strides.token, strides.head];
        let (queries, keys) = (!is_ragged(op), !matches!(op.form, Form::Varlen(_)));
        let strides = [apart(op.q, queries), apart(op.k, keys), apart(op.v, keys), apart(op.o, queries)];
        let mut flat = [0; 12];
        // A stride that does not fit 32 bits is never multiplied by more than 0, since what is bound is smaller.
        flat.iter_mut().zip(strides.iter().flatten()).for_each(|(word, &stride)| *word = stride as u32);
        Params {
            strides: flat,
            first_group: 0,
            first_batch: first_batch as u32,
            q_len: most_queries(op) as u32,
            kv_len: op.kv_len as u32,
            heads: (op.heads | (op.heads / op.kv_heads) << 16) as u32,
            splits: self.splits as u32,
            split_keys: self.split_keys as u32,
            // With operands for everything there is no room for two numbers, and the second is nothing or the first.
            reach: reach(op)[0] as u32 | u32::from(op.causal) << 31,
            scale: op.scale_value(),
            form: match op.form {
                Form::Dense => [0; 3],
                Form::Varlen(shape) => [shape.batch as u32, shape.total_q as u32, 0],
                Form::Blocks(shape) => [shape.block, shape.patterns, shape.capacity],
                Form::BlockMap(shape) => [shape.block, shape.patterns, 0],
                Form::Paged(shape) => [shape.batch as u32, shape.pages as u32, shape.page as u32],
                Form::RaggedPaged(shape) => [shape.batch as u32, shape.total_q as u32, shape.page as u32],
            },
        }
    }

    /// Enqueues `groups` workgroups, in as many dispatches as they take.
    fn dispatch(&self, device: &Wgpu, queue: &mut Queue, pipeline: &Pipeline, operands: &[Option<&Slice<Wgpu>>], params: Params, groups: u64) -> Result<()> {
        let mut first = 0;
        while first < groups {
            let some = self.groups.min(groups - first);
            queue.dispatch(device, pipeline, operands, &Params { first_group: first as u32, ..params }, some)?;
            first += some;
        }
        Ok(())
    }
}

impl Kernel<Attention> for Wgpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        VARIANTS
    }

    fn plan(&self, op: &Attention, only: Option<&str>) -> Result<Plan> {
        let mut reasons = Vec::new();
        for &variant in VARIANTS.iter().filter(|&&variant| only.is_none_or(|only| only == variant)) {
            if let Some(reason) = self.attention_obstacle(variant, op) {
                reasons.push(format!("{variant}: {reason}"));
                continue;
            }
            let batches = self.reachable_batches(op);
            if batches == 0 && op.batch > 0 {
                reasons.push(format!(
                    "{variant}: one sequence (or the whole pool of pages, or all slots) is larger than the {} bytes that the device binds",
                    self.window_bytes()
                ));
                continue;
            }
            let layout = if let Form::RaggedPaged(_) = op.form { Layout::RAGGED_PAGES } else { Layout::for_rows(op.q_len * packed(op)) };
            let [splits, split_keys] = split(op, layout, MAX_PARTIAL.min(self.window_bytes()));
            let kind = Kind { variant, dtype: op.dtype, form: op.form, at_slots: op.slots.is_some(), head_dim: op.head_dim, layout, lse: op.lse };
            let pipeline = |stage| self.pipeline(&kind.source(stage));
            let forward = pipeline(if splits > 1 { Stage::Part } else { Stage::Whole })?;
            let combine = if splits > 1 { Some(pipeline(Stage::Combine)?) } else { None };
            let work = 4 * layout.rows() * split_keys * op.head_dim;
            let groups = (MAX_WORK / work).max(1);
            return Ok(Plan { op: op.clone(), variant, layout, forward, combine, splits, split_keys, batches, groups });
        }
        Err(Error::unsupported(format!("attention on {}", Self::NAME), reasons.join("; ")))
    }

    fn workspace_bytes(plan: &Plan) -> u64 {
        if plan.combine.is_some() { 4 * plan.partial_pitch() * plan.partial_rows(plan.batches) } else { 0 }
    }

    fn variant(plan: &Plan) -> &'static str {
        plan.variant
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, workspace: &Slice<Self>, args: &AttentionArgs<Self>) -> Result<()> {
        let op = &plan.op;
        let index = match &args.index {
            AttentionIndex::None => None,
            AttentionIndex::Varlen(index) => Some(index.slice()),
            AttentionIndex::Blocks(index) => Some(index.slice()),
            AttentionIndex::BlockMap(index) => Some(index.slice()),
            AttentionIndex::Paged(index) => Some(index.slice()),
            AttentionIndex::RaggedPaged(index) => Some(index.slice()),
        };
        let slots = args.slots.as_ref().map(Index::slice);
        let tensors = Tensor::of(op);
        let mut batch = 0;
        // Where there are no sequences, queries may still be spare.
        while batch < op.batch || (op.batch == 0 && op.spare_sequences() > 0) {
            let batches = plan.batches.min(op.batch - batch);
            let [q, k, v, o] = [(&args.q, 0), (&args.k, 1), (&args.v, 2), (&args.o, 3)].map(|(slice, n)| tensors[n].part(slice, batch, batches, op));
            let row_bytes = 4 * op.heads * op.q_len;
            let lse = match (&args.lse, op.form) {
                (Some(lse), Form::Varlen(_) | Form::RaggedPaged(_)) => Some(lse.clone()),
                (Some(lse), _) => Some(part(lse, batch * row_bytes, batches * row_bytes)),
                (None, _) => None,
            };
            let tiles = (most_queries(op) * packed(op)).div_ceil(plan.layout.rows()) * (op.heads / packed(op)) * (batches + op.spare_sequences());
            let params = plan.params(batch);
            if let Some(combine) = &plan.combine {
                let partial = part(workspace, 0, 4 * plan.partial_pitch() * plan.partial_rows(batches));
                let operands = [Some(&q), Some(&k), Some(&v), index, slots, None, None, Some(&partial)];
                plan.dispatch(self, queue, &plan.forward, &operands, params, tiles * plan.splits)?;
                let operands = [None, None, None, index, None, Some(&o), lse.as_ref(), Some(&partial)];
                plan.dispatch(self, queue, combine, &operands, params, tiles)?;
            } else {
                let operands = [Some(&q), Some(&k), Some(&v), index, slots, Some(&o), lse.as_ref(), None];
                plan.dispatch(self, queue, &plan.forward, &operands, params, tiles)?;
            }
            if op.batch == 0 {
                break;
            }
            batch += batches;
        }
        Ok(())
    }
}
