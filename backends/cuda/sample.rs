//! `sample` on CUDA: a block for each row of logits.

use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Table, TensorCores, Variant, address, address_of, blocks, count, names};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Sample, SampleArgs};

impl Table for Sample {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { count(&VARIANTS) }>(&VARIANTS);
}

const VARIANTS: [Variant<Sample>; 1] = [Variant {
    name: "simt",
    label: "sample/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("there is no product of matrices"),
    supports: |_, _| Ok(()),
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, _| unit(op.dtype),
    units: |_| DType::ALL.map(unit).into(),
    workspace: |_, _| 0,
    launch,
}];

params! {
    /// Parameters of the sampler.
    SampleParams {
        logits: [const element],
        /// The parameters of each row.
        wishes: [const u32],
        mask: [const u32],
        ids: [i32],
        log_probability: [f32],
        rows: u64,
        vocabulary: u64,
        /// Elements from a row of logits to the next.
        stride: u64,
        /// Words of a row of the mask.
        words: u64,
    }
}

/// Threads of a block in `kernels/sample/simt.cu`.
const THREADS: u32 = 512;

fn unit(dtype: DType) -> Unit {
    Unit {
        headers: vec![("sample/params.cuh", SampleParams::cuda())],
        defines: vec![("ELEMENT", dtype.name().into())],
        entries: &["sample_simt"],
        ..Unit::new(format!("sample/simt {dtype}"), source!("sample/simt.cu"))
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Sample>, _workspace: &Slice<Cuda>, args: &SampleArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let params = SampleParams {
        logits: address(&args.logits),
        wishes: address(&args.params),
        mask: address_of(args.mask.as_ref()),
        ids: address(&args.ids),
        log_probability: address(&args.log_probability),
        rows: op.rows,
        vocabulary: op.vocabulary,
        stride: op.stride,
        words: op.mask_words(),
    };
    let launch = Launch { overlap: plan.target.arch >= Arch(90), ..Launch::new(blocks(op.rows), THREADS) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, "sample_simt", &launch, &params) }
}
