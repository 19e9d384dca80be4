//! `attention` on Hopper: TMA, warp specialisation, wgmma.

use super::attention::{AttentionParams, headers, parameters};
use super::attention_sm80 as sm80;
use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Target, TensorCores, Variant, address, blocks};
use super::params::params;
use super::tma::{Layout, Swizzle, TensorMap};
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::{Form, Strides};
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm90",
    label: "attention/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    covers,
    unit: |op, _| unit(op.dtype, held(op.head_dim)),
    units,
    workspace: |_, _| QUEUE_BYTES,
    launch,
};

params! {
    /// Descriptions of q, k and v, and what every variant takes.
    TmaParams {
        q: map,
        k: map,
        v: map,
        common: AttentionParams,
        /// Where blocks ask for their next tile: zero between launches. Null where each has one.
        queue: [u32],
        /// Tiles.
        work: u32,
    }
}

/// Rows of a block, keys of a step, and stages of the ring in `kernels/attention/sm90.cu`.
const ROWS: u64 = 128;
const KEYS: u64 = 128;
const STAGES: u64 = 2;
/// Bytes for the barriers.
const BARRIERS: u64 = 256;
/// Elements of a copied row: 128 bytes, as wide as the swizzle.
const HALF: u32 = 64;
/// Bytes of the counter that blocks take their next tile from.
const QUEUE_BYTES: u64 = 4;
const HELD: [u64; 2] = [64, 128];

fn held(head_dim: u64) -> u64 {
    if head_dim <= HELD[0] { HELD[0] } else { HELD[1] }
}

fn shared_bytes(held: u64) -> u32 {
    ((ROWS + 2 * STAGES * KEYS) * held * 2 + BARRIERS) as u32
}

fn unit(dtype: DType, held: u64) -> Unit {
    let mut headers = headers();
    headers.push(("attention/sm90.cuh", include_str!("../../kernels/attention/sm90.cuh").into()));
    headers.push(("attention/tma_params.cuh", TmaParams::cuda()));
    let mut defines = sm80::Tile::exactly(held).defines(dtype, Arch(90));
    defines.push(("TMA_SHARED_BYTES", shared_bytes(held).to_string()));
    Unit {
        name: format!("attention/sm90 {dtype} head_dim {held}"),
        source: source!("attention/sm90.cu"),
        headers,
        defines,
        entries: &["attention_sm90", "attention_sm90_blocks", "attention_sm80_narrow"],
        shared_bytes: shared_bytes(held),
    }
}

fn units(_: Arch) -> Vec<Unit> {
    HELD.iter().flat_map(|&held| [DType::F16, DType::BF16].map(|dtype| unit(dtype, held))).collect()
}

/// The rows of one operand as TMA sees them: elements, tokens, heads, sequences.
struct Rows {
    dims: [u64; 4],
    strides: [u64; 3],
}

impl Rows {
    fn new(op: &Attention, tokens: u64, heads: u64, strides: Strides) -> Self {
        // The stride of an axis with one index is never used, but has to be legal.
        let legal = |count, stride| if count == 1 { 8 } else { stride };
        Self {
            dims: [op.head_dim, tokens, heads, op.batch],
            strides: [legal(tokens, strides.token), legal(heads, strides.head), legal(op.batch, strides.batch)],
        }
    }

    /// Boxes are half a head wide.
    fn layout<'a>(&'a self, dtype: DType, box_dims: &'a [u32; 4]) -> Layout<'a> {
        Layout { dtype, dims: &self.dims, strides: &self.strides, box_dims, swizzle: Swizzle::B128 }
    }
}

const Q_BOX: [u32; 4] = [HALF, ROWS as u32, 1, 1];
const KV_BOX: [u32; 4] = [HALF, KEYS as u32, 1, 1];

fn operands(op: &Attention) -> [(Rows, &'static [u32; 4]); 3] {
    [
        (Rows::new(op, op.q_len, op.heads, op.q), &Q_BOX),
        (Rows::new(op, op.kv_len, op.kv_heads, op.k), &KV_BOX),
        (Rows::new(op, op.kv_len, op.kv_heads, op.v), &KV_BOX),
    ]
}

fn covers(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    sm80::covers(op, target)?;
    match op.form {
        Form::Dense => {}
        Form::Blocks(shape) if u64::from(shape.block) == ROWS => {}
        Form::Blocks(shape) => return Err(format!("blocks of {}: a tile has {ROWS} rows", shape.block)),
        _ => return Err("it runs the dense and the block-sparse form".into()),
    }
    if op.head_dim > HELD[1] {
        return Err(format!("head_dim {} > {}: O does not fit in its registers", op.head_dim, HELD[1]));
    }
    if op.scale_value() <= 0.0 {
        return Err("the scale is not positive".into());
    }
    if op.q_len < ROWS / 2 || op.batch == 0 || op.kv_len == 0 {
        return Err(format!("q_len {}: a tile has {ROWS} rows", op.q_len));
    }
    operands(op).iter().try_for_each(|(rows, box_dims)| rows.layout(op.dtype, box_dims).validate()).map_err(|error| error.to_string())
}

/// Tiles of all heads and sequences.
fn work(op: &Attention) -> u64 {
    op.batch * op.heads * op.q_len.div_ceil(ROWS)
}

/// Blocks that share the keys of a tile: as many as fill the GPU, as long as each has two steps.
fn cluster(op: &Attention, units: u32) -> u64 {
    let steps = match op.form {
        Form::Blocks(shape) => u64::from(shape.capacity / (shape.patterns * shape.q_blocks).max(1)),
        _ => op.kv_len.div_ceil(KEYS),
    };
    [8, 4, 2].into_iter().find(|&size| work(op) * size <= u64::from(units) && steps >= 2 * size).unwrap_or(1)
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let mut common = parameters(op, args, 1);
    // Strides are legal, as `covers` has seen; where the operands start is known only now.
    if [common.q, common.k, common.v].iter().any(|start| !start.is_multiple_of(16)) {
        // SAFETY: the caller's promise; this module holds the kernel too.
        return unsafe { sm80::launch_tile(queue, plan, sm80::Tile::exactly(held(op.head_dim)), args) };
    }
    common.tiles = op.q_len.div_ceil(ROWS) as u32;
    let [q, k, v] = operands(op);
    let map = |(rows, box_dims): (Rows, &[u32; 4]), slice| -> Result<TensorMap> { rows.layout(op.dtype, box_dims).encode(slice) };
    let (work, cluster) = (work(op), cluster(op, plan.target.units));
    let resident = if cluster > 1 { work } else { work.min(plan.target.units.into()) };
    let params = TmaParams {
        q: map(q, &args.q)?,
        k: map(k, &args.k)?,
        v: map(v, &args.v)?,
        common,
        queue: if work > resident { address(workspace) } else { 0 },
        work: work as u32,
    };
    let entry = if matches!(op.form, Form::Blocks(_)) { "attention_sm90_blocks" } else { "attention_sm90" };
    let grid = blocks(resident * cluster);
    let launch = Launch { shared_bytes: shared_bytes(held(op.head_dim)), cluster: [cluster as u32, 1, 1], ..Launch::new(grid, 384) };
    // SAFETY: the caller's promise; the counter in the workspace is zero.
    unsafe { plan.launch(queue, entry, &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    #[test]
    fn rows_that_tma_cannot_read_are_left_to_others() {
        let op = |head_dim| Attention::dense(DType::F16, 2, [32, 8], [4096, 4096], head_dim);
        for head_dim in [8, 64, 72, 128] {
            assert_eq!(covers(&op(head_dim), &TARGET), Ok(()));
        }
        for head_dim in [1, 63, 107, 130, 256] {
            assert!(covers(&op(head_dim), &TARGET).is_err(), "{head_dim}");
        }
    }

    #[test]
    fn few_tiles_are_shared_by_clusters() {
        let op = |heads, queries, keys| Attention::dense(DType::F16, 1, [heads, heads], [queries, keys], 64);
        let of = |heads, queries, keys| cluster(&op(heads, queries, keys), TARGET.units);
        assert_eq!((of(32, 4096, 4096), of(1, 8192, 8192), of(1, 2048, 4096), of(1, 128, 256)), (1, 2, 8, 1));
    }

    #[test]
    fn stages_fit() {
        assert!(HELD.iter().all(|&held| shared_bytes(held) <= 227 << 10));
    }
}
