//! `attention` on Hopper: TMA, warp specialisation, wgmma.

use super::attention::{AttentionParams, headers, parameters};
use super::attention_sm80 as sm80;
use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Target, TensorCores, Variant, blocks};
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
    workspace: |_, _| 0,
    launch,
};

params! {
    /// Descriptions of q, k and v, and what every variant takes.
    TmaParams {
        q: map,
        k: map,
        v: map,
        common: AttentionParams,
    }
}

/// Rows of a block, keys of a step, and stages of the ring in `kernels/attention/sm90.cu`.
const ROWS: u64 = 128;
const KEYS: u64 = 128;
const STAGES: u64 = 2;
/// Elements of a copied row: 128 bytes, as wide as the swizzle.
const HALF: u32 = 64;
const HELD: [u64; 2] = [64, 128];

fn held(head_dim: u64) -> u64 {
    if head_dim <= HELD[0] { HELD[0] } else { HELD[1] }
}

fn shared_bytes(held: u64) -> u32 {
    let barriers = 1 + 4 * STAGES;
    ((ROWS + 2 * STAGES * KEYS) * held * 2 + barriers * 8) as u32
}

fn unit(dtype: DType, held: u64) -> Unit {
    let mut headers = headers();
    headers.push(("attention/tma_params.cuh", TmaParams::cuda()));
    let mut defines = sm80::Tile::exactly(held).defines(dtype, Arch(90));
    defines.push(("TMA_SHARED_BYTES", shared_bytes(held).to_string()));
    Unit {
        name: format!("attention/sm90 {dtype} head_dim {held}"),
        source: source!("attention/sm90.cu"),
        headers,
        defines,
        entries: &["attention_sm90", "attention_sm80_narrow"],
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
    if !matches!(op.form, Form::Dense) {
        return Err("it runs the dense form".into());
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

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, _workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let mut common = parameters(op, args, 1);
    // Strides are legal, as `covers` has seen; where the operands start is known only now.
    if [common.q, common.k, common.v].iter().any(|start| !start.is_multiple_of(16)) {
        // SAFETY: the caller's promise; this module holds the kernel too.
        return unsafe { sm80::launch_tile(queue, plan, sm80::Tile::exactly(held(op.head_dim)), args) };
    }
    let tiles = op.q_len.div_ceil(ROWS);
    common.tiles = tiles as u32;
    let [q, k, v] = operands(op);
    let map = |(rows, box_dims): (Rows, &[u32; 4]), slice| -> Result<TensorMap> { rows.layout(op.dtype, box_dims).encode(slice) };
    let params = TmaParams { q: map(q, &args.q)?, k: map(k, &args.k)?, v: map(v, &args.v)?, common };
    let launch = Launch { shared_bytes: shared_bytes(held(op.head_dim)), ..Launch::new(blocks(op.batch * op.heads * tiles), 384) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, "attention_sm90", &launch, &params) }
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
    fn stages_fit() {
        assert!(HELD.iter().all(|&held| shared_bytes(held) <= 227 << 10));
    }
}
