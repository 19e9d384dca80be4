//! Weight-stationary `linear`, on many rows and a short K: a configuration of `sm90`, of
//! `kernels/gemm/sm90/weight_stationary.cuh`.

use crate::backends::cuda::codebook_gemm::prepare::{shrunk, with_basis};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::{Entry, entry, listed};
use crate::backends::cuda::gemm::lora::{AdaptedParams, adapted_headers};
use crate::backends::cuda::gemm::problem::{GemmParams, HALVES, Product, fits, gemm_header, half};
use crate::backends::cuda::gemm::repack::padded;
use crate::backends::cuda::gemm::sm80::units::fallback_units;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::gemm::sm90::units::Form;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::linear::problem::{early, product, takes_lora, unpacked};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::tensor_map::{Layout, Promotion, Swizzle};
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const WEIGHT_STATIONARY: Variant<Linear> = Variant {
    name: "sm90",
    label: "linear/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, _| unit(op),
    units: |_: Arch| {
        let own = [PLAIN, ADAPTED, LORA].into_iter().flat_map(|entry| Form::all(&HALVES, false).map(move |form| kernel(entry, form)));
        listed(own, HALVES.into_iter().flat_map(fallback_units))
    },
    workspace: |_, _| 0,
    launch,
};

/// Rows of W that a block keeps in shared memory (its slab), and the most elements of K.
const SLAB: u64 = 192;
const MOST_DEPTH: u64 = 384;
/// Rows of X of a tile, elements of K of a k-block, stages of X.
const TILE: u64 = 64;
const STEP: u64 = 64;
const STAGES: u64 = 10;
/// Stages of X where a LoRA basis and the adapters' output factors, of a slab each, lie in shared memory too.
const BASIS_STAGES: u64 = 6;
const BASIS_ROWS: u64 = 16;
const FACTORS: u64 = 3;
const THREADS: u32 = 512;

/// The one configuration's name: rows of X by outputs of a tile.
pub(crate) fn names(_: Arch) -> Vec<String> {
    vec![format!("{TILE}x{SLAB}-weight_stationary")]
}
/// Blocks of a cluster, which share X by multicast.
const CLUSTER: u64 = 2;
/// Outputs of a run, which has one order in Y and another in shared memory.
const RUN: u64 = 32;

const SHARED_BYTES: u32 = {
    // The slab, the stages, the barriers, the bias, and up to 1,024 bytes before an aligned start.
    (SLAB * MOST_DEPTH * 2 + STAGES * TILE * STEP * 2 + 256 + SLAB * 4 + 1024) as u32
};
const LORA_SHARED_BYTES: u32 = {
    let factors = FACTORS * SLAB * BASIS_ROWS * 2;
    ((SLAB + BASIS_ROWS) * MOST_DEPTH * 2 + BASIS_STAGES * TILE * STEP * 2 + factors + 256 + SLAB * 4 + 1024) as u32
};
const _: () = assert!(LORA_SHARED_BYTES < SHARED_BYTES);

/// Pairs of slabs across the outputs, and the clusters that share the rows of each pair. There are at most as many clusters as tiles.
fn grid(rows: u64, outputs: u64, target: &Target) -> (u64, u64) {
    let pairs = outputs.div_ceil(CLUSTER * SLAB).max(1);
    (pairs, (u64::from(target.units) / CLUSTER / pairs).min(rows.div_ceil(TILE)))
}

/// The share, in percent, of the SMs' accumulators that hold outputs.
pub(crate) fn share(op: &Linear, target: &Target) -> u64 {
    let (_, lanes) = grid(u64::MAX, op.d_out, target);
    lanes * op.d_out * 100 / (u64::from(target.units) * SLAB).max(1)
}

pub(crate) fn supports(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_norm()?;
    op.no_wide_outputs()?;
    // Its bits were not compared with those of other kernels.
    op.sums(true)?;
    if op.d_in > MOST_DEPTH {
        return Err(format!("a K of {}: {SLAB} rows of W longer than {MOST_DEPTH} do not stay in shared memory", op.d_in));
    }
    if !op.d_out.is_multiple_of(RUN) {
        return Err(format!("{} outputs: it writes runs of {RUN}", op.d_out));
    }
    // No operand is copied first. Products with adapters read 8 elements at once.
    for stride in [op.x_stride, op.w_stride, if op.delta.is_some() { op.d_in } else { padded(op.d_in) }] {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_out), op.d_in, stride)?;
    }
    fits(SHARED_BYTES, target)
}

/// The kernels: without adapters; with h, which a kernel before has left; and with the adapters' basis as further rows of W.
const PLAIN: Entry = entry!("linear_weight_stationary");
const ADAPTED: Entry = entry!("linear_weight_stationary_adapted");
const LORA: Entry = entry!("linear_weight_stationary_lora");

fn kernel(entry: Entry, Form { dtype, activation, .. }: Form) -> Unit {
    let stages = [("SLAB_STAGES", STAGES), ("SLAB_BASIS_STAGES", BASIS_STAGES)].map(|(name, value)| (name, value.to_string()));
    entry.alone(Unit {
        headers: [vec![gemm_header()], adapted_headers()].concat(),
        defines: [vec![("ELEMENT", dtype.name().into()), ("ACTIVATION_FORM", activation.name().into())], stages.into()].concat(),
        shared_bytes: if entry == LORA { LORA_SHARED_BYTES } else { SHARED_BYTES },
        ..Unit::new(format!("{} {dtype}, {}", entry.name(), activation.name()), source!("gemm/sm90/weight_stationary.cu"))
    })
}

fn unit(op: &Linear) -> Unit {
    let form = Form::plain(op.dtype, ActivationForm::of(op.activation));
    let adapted = if op.delta.is_some() { vec![kernel(ADAPTED, form), kernel(LORA, form)] } else { Vec::new() };
    Unit { also: [adapted, fallback_units(op.dtype)].concat(), ..kernel(PLAIN, form) }
}

/// The parameters with tensor maps. X's box is half a tile a block. W's is a k-block of the slab in the order that the kernel describes.
fn gemm_params(product: &Product<'_>) -> Result<GemmParams> {
    let (dtype, k) = (product.dtype, product.depth);
    let x = Layout {
        dtype,
        dims: &[k, product.rows],
        strides: &[product.x_stride],
        box_dims: &[STEP as u32, (TILE / CLUSTER) as u32],
        swizzle: Swizzle::B128,
        promotion: Promotion::B128,
    };
    let stride = product.w_stride;
    let w = Layout {
        dtype,
        dims: &[k, 2, 4, 4, product.columns / RUN],
        strides: &[stride, 8 * stride, 2 * stride, RUN * stride],
        box_dims: &[STEP as u32, 2, 4, 4, (SLAB / RUN) as u32],
        swizzle: Swizzle::B128,
        promotion: Promotion::B128,
    };
    Ok(GemmParams { x_map: x.encode_at(address(&product.x))?, w_map: w.encode_at(address(&product.w))?, ..product.params() })
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if op.tokens == 0 {
        return Ok(());
    }
    // Where there are more slabs than are resident at once, each still has a cluster of its own.
    let (pairs, lanes) = grid(op.tokens, op.d_out, &plan.target);
    let lanes = lanes.max(1);
    let blocks = Launch { shared_bytes: SHARED_BYTES, cluster: [CLUSTER as u32, 1, 1], ..Launch::new((lanes * pairs * CLUSTER) as u32, THREADS) };
    let alone = unpacked(op, args);
    if let (Some(delta), Some(own), true) = (&plan.delta, &args.delta, takes_lora(&alone)) {
        // SAFETY: the caller's promise. The second kernel reads what the first leaves in the workspace.
        unsafe {
            let workspace = plan.delta_workspace(workspace)?;
            if let Some(sums) = with_basis(queue, delta, &workspace, own, SLAB)? {
                // Nothing is in y, and the kernel's PDL wait stands before its first read.
                let launch = Launch { shared_bytes: LORA_SHARED_BYTES, overlap: true, ..blocks };
                let gemm = GemmParams { adds: 0, ..gemm_params(&alone)? };
                return plan.launch(queue, LORA.name(), &launch, &AdaptedParams { gemm, sums });
            }
            if let Some(sums) = shrunk(queue, delta, &workspace, own, SLAB)? {
                let launch = Launch { overlap: early(queue, args), ..blocks };
                return plan.launch(queue, ADAPTED.name(), &launch, &AdaptedParams { gemm: gemm_params(&alone)?, sums });
            }
        }
    }
    // SAFETY: the caller's promise; width and vector say that rows start where TMA can read them, and 16 bytes be written.
    unsafe {
        let (product, overlap) = product(queue, plan, workspace, args)?;
        if !product.aligned() || !product.writes_whole() {
            return product.launch_fallback(queue, plan);
        }
        // Without an adapters' part, the kernel's PDL wait stands before its first read.
        let launch = Launch { overlap: overlap || !product.adds, ..blocks };
        plan.launch(queue, PLAIN.name(), &launch, &gemm_params(&product)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    fn op(sizes: [u64; 3]) -> Linear {
        Linear::new(DType::F16, [sizes[0], sizes[2], sizes[1]])
    }

    #[test]
    fn it_takes_a_short_k_in_slabs() {
        for sizes in [
            [131_072, 1152, 384],
            [131_072, 384, 384],
            [4096, 1536, 384],
            [65_536, 768, 64],
            [5000, 4192, 8],
            [131_072, 416, 384],
            [200, 1536, 384],
            [5000, 1 << 20, 64],
        ] {
            assert_eq!(supports(&op(sizes), &Target::H200), Ok(()), "{sizes:?}");
        }
        for sizes in [[131_072, 1152, 392], [131_072, 1160, 384], [131_072, 384, 380]] {
            assert!(supports(&op(sizes), &Target::H200).is_err(), "{sizes:?}");
        }
    }

    #[test]
    fn every_multiprocessor_has_a_slab_and_rows() {
        assert_eq!(grid(131_072, 1152, &Target::H200), (3, 22));
        assert_eq!(grid(131_072, 1536, &Target::H200), (4, 16));
        assert_eq!(grid(100, 384, &Target::H200), (1, 2), "two tiles");
        assert_eq!(grid(100, 1 << 20, &Target::H200).1, 0, "more slabs than multiprocessors");
    }
}
