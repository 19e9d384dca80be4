//! `linear` on few rows with LoRA adapters in one launch: configurations of `sm90_skinny`, of `kernels/gemm/sm90/skinny_lora.cuh`.

use crate::backends::cuda::codebook_gemm::factor::{FactorParams, factor, factor_header};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::problem::{GemmParams, HALVES, fits, gemm_header};
use crate::backends::cuda::gemm::sm80::units::fallback_units;
use crate::backends::cuda::gemm::sm90::skinny::SkinnyShape;
use crate::backends::cuda::gemm::sm90::skinny_config::Stream;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::linear::problem::{product, streams, unpacked};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::tensor_map::{Layout, Promotion, Swizzle};
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, address_of};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::codebook_gemm::{CodebookGemmArgs, CodebookSlice, CodebookSliceArgs, Factor, FactorArgs};
use crate::ops::{Linear, LinearArgs};

pub(crate) const ADAPTED: Variant<Linear> = Variant {
    name: "sm90_skinny",
    label: "linear/sm90_skinny",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports: |op, target| {
        streams(op)?;
        op.sums(true)?;
        // The kernel reads X and W in place, X 8 elements at once.
        for strides in [[op.x_stride, op.w_stride], [op.d_in; 2]] {
            SkinnyShape::supports(op.dtype, [op.tokens, op.d_out, op.d_in], strides)?;
        }
        let rank = rank(op)?;
        target.any(Adapted::all(target.arch).into_iter(), |adapted| adapted.holds(op.tokens, rank, target))
    },
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, target| match configured(target) {
        Some(adapted) => adapted.unit(op.dtype, ActivationForm::of(op.activation)),
        // `supports` has refused this operation.
        None => Unit::new("linear/sm90_skinny, with adapters", source!("gemm/sm90/skinny_lora.cu")),
    },
    units: |arch: Arch| {
        let forms = || Adapted::all(arch).into_iter().flat_map(|adapted| ActivationForm::ALL.map(|form| (adapted, form)));
        HALVES.iter().flat_map(|&dtype| forms().map(move |(adapted, form)| adapted.unit(dtype, form))).collect()
    },
    workspace: |_, _| 0,
    launch,
};

pub(crate) fn names(arch: Arch) -> Vec<String> {
    Adapted::all(arch).iter().map(Adapted::config).collect()
}

fn configured(target: &Target) -> Option<Adapted> {
    target.configured(Adapted::all(target.arch).into_iter())
}

params! {
    /// Parameters of `linear_skinny_lora`.
    LinearAdaptedParams {
        gemm: GemmParams,
        /// Tensor map of the basis.
        basis_map: map,
        /// The words of the token index.
        index: [const i32],
        scaling: [const f32],
        core: [const f32],
        input: FactorParams,
        output: FactorParams,
        tile_rows: u32,
        unused: u32,
    }
}

/// Threads of a block: one warpgroup more than without adapters.
const THREADS: u32 = 512;
/// Rows of the basis in a stage.
const BASIS_ROWS: u64 = 128;
/// Values in an adapter's table.
const TABLE_ENTRIES: u64 = 160;
/// Bytes that the kernel keeps for the barriers of the stages.
const BARRIERS: u64 = 256;
/// Tokens, and columns of both factors, that kernels are compiled for.
pub(crate) const TOKENS: [u64; 2] = [16, 32];
pub(crate) const RANKS: [u64; 2] = [16, 32];

/// The rank of an operation's adapters, where they have the form of the kernels; or why not.
pub(crate) fn rank(op: &Linear) -> std::result::Result<u64, String> {
    let delta = op.delta.as_ref().ok_or("no adapters")?;
    let [slice] = delta.slices.as_slice() else { return op.one_slice().and(Err("no slice".into())) };
    let (Factor::Dense { bases: 1 }, Factor::Coded { .. }) = (slice.input, slice.output) else {
        return Err("other factors than one basis on the input side and codes on the output side".into());
    };
    if slice.rank % 8 != 0 {
        return Err(format!("rank {}: rows of the basis are read in whole eights", slice.rank));
    }
    Ok(slice.rank)
}

/// A kernel for a product with adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adapted {
    pub stream: Stream,
    pub tokens: u64,
    pub rank: u64,
    /// Bytes of shared memory for the adapters.
    own_bytes: u64,
}

impl Adapted {
    /// The kernel for this many tokens, this rank and these rows of W. None where a block has no room for the U rows of one adapter a
    /// token.
    pub(crate) fn new(tokens: u64, rank: u64, (rows, split): (u64, bool), shared_bytes: u32) -> Option<Self> {
        let parts = if split { 4 } else { 2 };
        // U, g, the tables, a word for each column of codes, four words a token; h; and the rest.
        let own_bytes = tokens * (rows * rank * 2 + (rank + 8) * 2 + TABLE_ENTRIES * 2 + rank * 4 + 16) + parts * tokens * rank * 4 + 256;
        let tile = SkinnyShape::within(u64::from(shared_bytes).checked_sub(own_bytes + BARRIERS)?, tokens, rows, BASIS_ROWS * rank * 2)?;
        Some(Self { stream: Stream::tiles(tile, split), tokens, rank, own_bytes })
    }

    /// Every kernel of an architecture.
    pub(crate) fn all(arch: Arch) -> Vec<Self> {
        let shared_bytes = arch.shared_bytes().unwrap_or(0);
        let of = |tokens| RANKS.into_iter().flat_map(move |rank| SkinnyShape::WEIGHT_ROWS_FOR.map(|rows| Self::new(tokens, rank, rows, shared_bytes)));
        TOKENS.into_iter().flat_map(of).flatten().collect()
    }

    /// The configuration's name: the tile, and the highest rank.
    fn config(&self) -> String {
        format!("{}-rank{}-lora", self.stream.config(), self.rank)
    }

    /// Whether the kernel has room for this many rows of X and this rank, and a thread block of the target for the kernel; or why not.
    fn holds(&self, rows: u64, rank: u64, target: &Target) -> std::result::Result<(), String> {
        if rank > self.rank {
            return Err(format!("{rows} tokens of rank {rank}: a block has no room for that many adapters' rows"));
        }
        self.stream.holds(rows, target)?;
        fits(self.shared_bytes(), target)
    }

    fn shared_bytes(&self) -> u32 {
        self.stream.tile.shared_bytes() + (self.own_bytes + BARRIERS) as u32
    }

    fn unit(&self, dtype: DType, activation: ActivationForm) -> Unit {
        let mut defines = self.stream.tile.defines(self.stream.split);
        defines.extend([("ELEMENT", dtype.name().into()), ("ACTIVATION_FORM", activation.name().into()), ("RANK", self.rank.to_string())]);
        defines.extend([("TABLE_ENTRIES", TABLE_ENTRIES.to_string()), ("ADAPTER_BYTES", self.own_bytes.to_string())]);
        let rows = if self.stream.split { "K split".into() } else { format!("{} rows of W", self.stream.tile.weight_rows()) };
        Unit {
            name: format!("linear/sm90_skinny {dtype}, {} rows, rank {}, {}, {rows}", self.tokens, self.rank, activation.name()),
            source: source!("gemm/sm90/skinny_lora.cu"),
            headers: vec![gemm_header(), factor_header(), ("gemm/skinny_lora_params.cuh", LinearAdaptedParams::cuda())],
            defines,
            entries: &["linear_skinny_lora"],
            shared_bytes: self.shared_bytes(),
            also: fallback_units(dtype),
        }
    }

    fn start(&self, clusters: u64) -> Launch {
        Launch { threads: THREADS, shared_bytes: self.shared_bytes(), ..self.stream.tile.launch(clusters) }
    }

    /// Enqueues the kernel, or the fallback where an operand is unaligned.
    ///
    /// # Safety
    /// The conditions of [`Plan::launch`] hold.
    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
        let op = &plan.op;
        let own = unpacked(op, args);
        let (Some(Operands { slice, basis, operands, of }), true) = (Operands::of(op, args), own.aligned()) else {
            // SAFETY: the caller's promise. What is on multiples of 16 bytes is on multiples of 4 too.
            unsafe {
                let (product, _) = product(queue, plan, workspace, args)?;
                return product.launch_fallback(queue, plan);
            }
        };
        let (tile_rows, clusters) = self.stream.cut(op.d_out, SkinnyShape::clusters(plan.target.units));
        let mut gemm = self.stream.tile.params(&own, tile_rows)?;
        // The kernel adds nothing from y.
        gemm.adds = 0;
        let basis_map = Layout {
            dtype: op.dtype,
            dims: &[slice.rank, op.d_in],
            strides: &[slice.rank],
            box_dims: &[slice.rank as u32, BASIS_ROWS as u32],
            swizzle: Swizzle::None,
            promotion: Promotion::B128,
        }
        .encode(basis)?;
        let params = LinearAdaptedParams {
            gemm,
            basis_map,
            index: address(of.token_adapter.slice()),
            scaling: address(&of.scaling),
            core: address_of(operands.core.as_ref()),
            input: factor(slice.input, &operands.input, op.d_in, slice.rank),
            output: factor(slice.output, &operands.output, op.d_out, slice.rank),
            tile_rows,
            unused: 0,
        };
        // SAFETY: the caller's promise; the width says that rows start where TMA can read them.
        unsafe { plan.launch(queue, "linear_skinny_lora", &self.start(clusters), &params) }
    }
}

/// The operands of an adapter delta: its one slice with its operands, and those of all slices.
struct Operands<'a> {
    slice: &'a CodebookSlice,
    basis: &'a Slice<Cuda>,
    operands: &'a CodebookSliceArgs<Cuda>,
    of: &'a CodebookGemmArgs<Cuda>,
}

impl<'a> Operands<'a> {
    /// The operands, if the basis starts at a multiple of 16 bytes.
    fn of(op: &'a Linear, args: &'a LinearArgs<Cuda>) -> Option<Self> {
        let (delta, of) = (op.delta.as_ref()?, args.delta.as_ref()?);
        let (slice, operands) = (delta.slices.first()?, of.slices.first()?);
        let FactorArgs::Dense { values: basis, .. } = &operands.input else { return None };
        address(basis).is_multiple_of(16).then_some(Self { slice, basis, operands, of })
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    match configured(&plan.target) {
        // SAFETY: the caller's promise.
        Some(adapted) if plan.op.tokens > 0 => unsafe { adapted.launch(queue, plan, workspace, args) },
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{CodeWidth, CodebookGemm};

    #[test]
    fn blocks_have_room_for_the_adapters_of_a_batch() {
        let all = Adapted::all(Target::H200.arch);
        assert!(all.iter().all(|adapted| adapted.shared_bytes() <= Target::H200.shared_bytes), "{all:?}");
        let takes = |[tokens, d_out, rank]: [u64; 3]| {
            let delta = CodebookGemm::s2lc(DType::F16, tokens, [4096, d_out, rank], 5, CodeWidth::FourThree);
            (ADAPTED.supports)(&Linear { delta: Some(delta), ..Linear::new(DType::F16, [tokens, 4096, d_out]) }, &Target::H200).is_ok()
        };
        for sizes in [[1, 4096, 8], [16, 4096, 16], [16, 4096, 32], [16, 17000, 16], [16, 17000, 32], [32, 11008, 16], [32, 17000, 16], [17, 1024, 8]] {
            assert!(takes(sizes), "{sizes:?}");
        }
        for sizes in [[33, 4096, 16], [32, 4096, 32], [16, 4096, 40], [16, 4096, 9]] {
            assert!(!takes(sizes), "{sizes:?}");
        }
    }
}
