//! `linear` with a LayerNorm in its epilogue: configurations of `sm90`, of `kernels/gemm/sm90/layernorm.cuh`.

use crate::backends::cuda::codebook_gemm::long_tile::has_basis;
use crate::backends::cuda::codebook_gemm::prepare::{prepares, with_basis};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::{Entry, entry, listed};
use crate::backends::cuda::gemm::lora::{AdapterSums, adapter_header};
use crate::backends::cuda::gemm::problem::{GemmParams, HALVES, fits, gemm_header, half};
use crate::backends::cuda::gemm::repack::padded;
use crate::backends::cuda::gemm::sm80::units::fallback_units;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::linear::problem::{product, unpacked};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::tensor_map::{Layout, Promotion, Swizzle, TensorMap};
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, address_of, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{Linear, LinearArgs};

pub(crate) const LAYERNORM: Variant<Linear> = Variant {
    name: "sm90",
    label: "linear/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, target| {
        let entry = if op.delta.is_some() { LORA } else { PLAIN };
        Unit { also: rows_units(op.dtype), ..kernel(entry, op.dtype, configured(target)) }
    },
    units: |_: Arch| {
        let kernels = [PLAIN, LORA].into_iter().flat_map(|entry| GROUPS.map(|groups| (entry, groups)));
        let own = kernels.flat_map(|(entry, groups)| HALVES.map(|dtype| kernel(entry, dtype, groups)));
        listed(own, HALVES.into_iter().flat_map(rows_units))
    },
    workspace: |_, _| 0,
    launch,
};

params! {
    /// Parameters of the kernel that has whole rows in a tile.
    LayernormParams {
        x_map: map,
        w_map: map,
        residual_map: map,
        bias: [const element],
        weight: [const element],
        shift: [const element],
        residual: [const element],
        y: [element],
        rows: u64,
        depth: u64,
        eps: f32,
        unused: u32,
    }
}

params! {
    /// Parameters of the kernel that adds the part of LoRA adapters too.
    LayernormLoraParams {
        norm: LayernormParams,
        sums: AdapterSums,
    }
}

params! {
    /// Parameters of the kernel that normalises rows in place.
    LayernormRowsParams {
        weight: [const element],
        shift: [const element],
        y: [element],
        rows: u64,
        eps: f32,
        unused: u32,
    }
}

/// Outputs of a row. A row's sums lie in the registers of four threads.
const COLUMNS: u64 = 384;
/// Rows of a warpgroup, elements of K of a k-block, stages of the ring.
pub(crate) const ROWS: u64 = 64;
const STEP: u64 = 64;
const STAGES: u64 = 3;
/// Rows of the LoRA basis in a k-block.
const BASIS_ROWS: u64 = 16;
/// Blocks that share W by multicast.
const CLUSTER: u64 = 2;
/// Outputs of a run, which has one order in Y and another in shared memory.
const RUN: u64 = 32;

/// Warpgroups of a tile. A row's result is the same from both configurations.
pub(crate) const GROUPS: [u64; 2] = [1, 2];

/// The configurations' names: rows of X by outputs.
pub(crate) fn names(_: Arch) -> Vec<String> {
    GROUPS.map(|groups| format!("{}x{COLUMNS}-layernorm", groups * ROWS)).into()
}

/// The configuration of a target.
fn configured(target: &Target) -> u64 {
    target.configured(GROUPS.into_iter()).unwrap_or(1)
}

/// Bytes of shared memory: stages, barriers, three numbers a column, and up to 1,024 bytes before an aligned start.
const fn shared_bytes(groups: u64, basis: bool) -> u32 {
    let basis = if basis { BASIS_ROWS } else { 0 };
    (STAGES * (COLUMNS + groups * ROWS + basis) * STEP * 2 + 128 + 3 * COLUMNS * 4 + 1024) as u32
}

/// Whether the kernels can compute an operation, or why not. The number of rows decides nothing, since a row's result must not depend on
/// the rows beside it.
fn supports(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    op.no_input_norm()?;
    if op.norm.is_none() {
        return Err("no norm at the end".into());
    }
    half(op.dtype)?;
    if op.d_out != COLUMNS {
        return Err(format!("rows of {} outputs: a tile holds {COLUMNS}", op.d_out));
    }
    if op.activation.is_some() {
        return Err("an activation before the norm: a launch of its own is for the norm then".into());
    }
    if let Some(delta) = &op.delta {
        if delta.slices.len() != 1 || !has_basis(delta) {
            return Err("adapters of another form than one basis and codes: a launch of its own is for the norm then".into());
        }
        prepares(delta, target)?;
    }
    // No operand is copied first. Products with adapters read 8 elements at once.
    for stride in [op.x_stride, op.w_stride, if op.delta.is_some() { op.d_in } else { padded(op.d_in) }] {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_out), op.d_in, stride)?;
    }
    target.any(GROUPS.into_iter(), |&groups| fits(shared_bytes(groups, op.delta.is_some()), target))
}

/// The kernels: without adapters, with the part of LoRA adapters, and the one that normalises rows in place.
const PLAIN: Entry = entry!("linear_layernorm");
const LORA: Entry = entry!("linear_layernorm_lora");
const ROWS_ALONE: Entry = entry!("linear_layernorm_rows");

fn kernel(entry: Entry, dtype: DType, groups: u64) -> Unit {
    let numbers = [("LAYERNORM_COLUMNS", COLUMNS), ("LAYERNORM_GROUPS", groups), ("LAYERNORM_STAGES", STAGES), ("CLUSTER", CLUSTER)];
    let mut defines: Vec<_> = numbers.map(|(name, value)| (name, value.to_string())).into();
    defines.extend([("ELEMENT", dtype.name().into()), ("ACTIVATION_FORM", ActivationForm::Floor.name().into())]);
    entry.alone(Unit {
        headers: vec![
            gemm_header(),
            adapter_header(),
            ("gemm/layernorm_params.cuh", LayernormParams::cuda()),
            ("gemm/layernorm_lora_params.cuh", LayernormLoraParams::cuda()),
            ("gemm/layernorm_rows_params.cuh", LayernormRowsParams::cuda()),
        ],
        defines,
        shared_bytes: if entry == ROWS_ALONE { 0 } else { shared_bytes(groups, entry == LORA) },
        ..Unit::new(format!("{} {dtype}, {groups} warp groups", entry.name()), source!("gemm/sm90/layernorm.cu"))
    })
}

/// The kernels for unaligned operands: a fallback for the sums, then the norm in place. No number of warpgroups changes them.
fn rows_units(dtype: DType) -> Vec<Unit> {
    [fallback_units(dtype), vec![kernel(ROWS_ALONE, dtype, 1)]].concat()
}

/// The parameters with tensor maps. W's box is a block's part of a k-block, in the order that the kernel describes. The residual's is runs
/// of 32 columns of 64 rows.
fn norm_params(product: &GemmParams, dtype: DType, groups: u64, eps: f32, [weight, shift]: [u64; 2]) -> Result<LayernormParams> {
    let (rows, k, stride) = (product.rows, product.depth, product.w_stride);
    let map = |dims: &[u64], strides: &[u64], box_dims: &[u32], swizzle, start| {
        Layout { dtype, dims, strides, box_dims, swizzle, promotion: Promotion::B128 }.encode_at(start)
    };
    let w_box = [STEP as u32, 2, 4, 4, (COLUMNS / RUN / CLUSTER) as u32];
    let residual_map = match product.residual {
        0 => TensorMap::NONE,
        start => map(&[RUN, rows, COLUMNS / RUN], &[COLUMNS, RUN], &[RUN as u32, ROWS as u32, (COLUMNS / RUN) as u32], Swizzle::None, start)?,
    };
    Ok(LayernormParams {
        x_map: map(&[k, rows], &[product.x_stride], &[STEP as u32, (groups * ROWS) as u32], Swizzle::B128, product.x)?,
        w_map: map(&[k, 2, 4, 4, COLUMNS / RUN], &[stride, 8 * stride, 2 * stride, RUN * stride], &w_box, Swizzle::B128, product.w)?,
        residual_map,
        bias: product.bias,
        weight,
        shift,
        residual: product.residual,
        y: product.y,
        rows,
        depth: k,
        eps,
        unused: 0,
    })
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if op.tokens == 0 {
        return Ok(());
    }
    let (Some(eps), Some(norm)) = (op.norm.map(f32::from_bits), &args.norm) else {
        return Err(Error::invalid("linear", "a norm", "none"));
    };
    let alone = unpacked(op, args);
    let (params, [weight, shift]) = (alone.params(), [address(&norm.weight), address(&norm.bias)]);
    // SAFETY: the caller's promise; width and vector say that rows start where TMA can read them, and 16 bytes be written.
    unsafe {
        if alone.aligned() && params.vector == 1 {
            let sums = match (&plan.delta, &args.delta) {
                (Some(delta), Some(own)) => with_basis(queue, delta, &plan.delta_workspace(workspace)?, own, 1)?,
                _ => None,
            };
            if op.delta.is_some() && sums.is_none() {
                return Err(Error::invalid("linear: delta", "of one basis", "another form"));
            }
            let groups = configured(&plan.target);
            let clusters = op.tokens.div_ceil(groups * ROWS * CLUSTER).min((u64::from(plan.target.units) / CLUSTER).max(1));
            // The kernel's PDL wait stands before its first read.
            let launch = Launch {
                shared_bytes: shared_bytes(groups, sums.is_some()),
                cluster: [CLUSTER as u32, 1, 1],
                overlap: true,
                ..Launch::new((clusters * CLUSTER) as u32, (groups as u32 + 1) * 128)
            };
            let norm = norm_params(&params, op.dtype, groups, eps, [weight, shift])?;
            return match sums {
                Some(sums) => plan.launch(queue, LORA.name(), &launch, &LayernormLoraParams { norm, sums }),
                None => plan.launch(queue, PLAIN.name(), &launch, &norm),
            };
        }
        // The part of adapters is written to y first.
        let (product, _) = product(queue, plan, workspace, args)?;
        product.launch_fallback(queue, plan)?;
        let rows = LayernormRowsParams { weight, shift, y: address_of(Some(&args.y)), rows: op.tokens, eps, unused: 0 };
        plan.launch(queue, ROWS_ALONE.name(), &Launch::new(blocks(op.tokens.div_ceil(8)), 256), &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(tokens: u64) -> Linear {
        Linear { bias: true, residual: true, norm: Some(1e-12f32.to_bits()), ..Linear::new(DType::F16, [tokens, 1536, 384]) }
    }

    #[test]
    fn the_number_of_rows_decides_nothing() {
        for tokens in [1, 64, 4096, 131_072] {
            assert_eq!(supports(&op(tokens), &Target::H200), Ok(()), "{tokens}");
        }
    }

    #[test]
    fn what_it_does_not_do_has_a_reason() {
        let odd = [
            Linear { norm: None, ..op(64) },
            Linear { d_out: 768, ..op(64) },
            Linear { d_in: 1540, x_stride: 1540, w_stride: 1540, ..op(64) },
            Linear { x_stride: 1540, ..op(64) },
            Linear { w_stride: 1540, ..op(64) },
            Linear { dtype: DType::F32, ..op(64) },
            Linear { activation: Some(crate::ops::Activation::Relu), ..op(64) },
        ];
        for op in odd {
            assert!(supports(&op, &Target::H200).is_err(), "{op:?}");
        }
    }
}
