//! `grouped_linear` on few rows in one launch: the variant `sm90_skinny`, of `kernels/gemm/sm90/skinny_list.cu`. Each product has some of the clusters.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::listed;
use crate::backends::cuda::gemm::problem::{GemmParams, HALVES, Product, fits, gemm_header, half};
use crate::backends::cuda::gemm::sm80::units::fallback_units;
use crate::backends::cuda::gemm::sm90::skinny::SkinnyShape;
use crate::backends::cuda::gemm::sm90::skinny_config::Stream;
use crate::backends::cuda::grouped_linear::problem::{no_gate, streams};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::linear::problem::unpacked;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, TensorCores, Variant, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{GroupedLinear, GroupedLinearArgs};

pub(crate) const SKINNY: Variant<GroupedLinear> = Variant {
    name: "sm90_skinny",
    label: "grouped_linear/sm90_skinny",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports: |op, target| {
        half(op.dtype())?;
        no_gate(op)?;
        if op.tokens() > ROWS || op.problems.len() > MOST {
            return Err(format!("{} products of {} rows: it takes {MOST} of {ROWS}", op.problems.len(), op.tokens()));
        }
        op.problems.iter().try_for_each(streams)?;
        fits(SHAPE.shared_bytes(), target)
    },
    suits: |op, _| if op.problems.len() > 1 { Ok(()) } else { Err("one product: its own launch divides K where that is faster".into()) },
    configs: None,
    unit: |op, _| Unit { also: fallback_units(op.dtype()), ..unit(op.dtype()) },
    units: |_: Arch| listed(HALVES.map(unit), HALVES.into_iter().flat_map(fallback_units)),
    workspace: |_, _| 0,
    launch,
};

/// The most products of a launch, and their rows.
const MOST: usize = 3;
const ROWS: u64 = 16;
/// The shape of the blocks' stages: that of few rows, whatever the tiles are.
const SHAPE: SkinnyShape = SkinnyShape::ALL[0];
const ENTRY: &str = "gemm_skinny_list";

params! {
    /// A product of the launch, and its clusters: the first of them, and how many there are.
    SkinnyProblem {
        gemm: GemmParams,
        tile_rows: u32,
        first: u32,
        clusters: u32,
    }
}

params! {
    /// Parameters of the launch. Where there are fewer products, the others begin behind the last cluster.
    SkinnyListParams {
        problems: [SkinnyProblem; 3],
        /// Whether W and bias are read before the PDL wait.
        ahead: u32,
    }
}

fn unit(dtype: DType) -> Unit {
    let headers = vec![gemm_header(), ("gemm/skinny_list_params.cuh", format!("{}{}", SkinnyProblem::cuda(), SkinnyListParams::cuda()))];
    let mut defines = SHAPE.defines(false);
    defines.extend([("ELEMENT", dtype.name().into()), ("ACTIVATION_FORM", ActivationForm::Floor.name().into()), ("LIST_PROBLEMS", MOST.to_string())]);
    Unit {
        headers,
        defines,
        entries: &[ENTRY],
        shared_bytes: SHAPE.shared_bytes(),
        ..Unit::new(format!("{ENTRY} {dtype}, {}", SHAPE.name()), source!("gemm/sm90/skinny_list.cu"))
    }
}

/// How many of `room` clusters each product of these outputs and K has: one, and each of the others for that which then has the most bytes a cluster.
fn clusters(sizes: &[[u64; 2]], room: u64) -> [u64; MOST] {
    let mut all = [0; MOST];
    all.iter_mut().take(sizes.len()).for_each(|count| *count = 1);
    for _ in sizes.len() as u64..room {
        let load = |(number, &[columns, depth]): (usize, &[u64; 2])| (columns * depth / all[number], number);
        let Some((_, most)) = sizes.iter().enumerate().take(MOST).map(load).max() else { break };
        all[most] += 1;
    }
    all
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<GroupedLinear>, _: &Slice<Cuda>, args: &GroupedLinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if op.tokens() == 0 {
        return Ok(());
    }
    let room = SkinnyShape::clusters(plan.target.units);
    let shares = plan.once(|plan| Ok(clusters(&plan.op.problems.iter().map(|problem| [problem.d_out, problem.d_in]).collect::<Vec<_>>(), room)))?;
    let products: Vec<Product<'_>> = op.problems.iter().zip(&args.problems).map(|(problem, own)| unpacked(problem, own)).collect();
    if !products.iter().all(Product::aligned) {
        // SAFETY: the caller's promise.
        return products.iter().try_for_each(|product| unsafe { product.launch_fallback(queue, plan) });
    }
    let stream = Stream::tiles(SHAPE, false);
    let mut problems = Vec::with_capacity(MOST);
    let mut first = 0;
    for (product, share) in products.iter().zip(shares) {
        let (tile_rows, count) = stream.cut(product.columns, share);
        problems.push(SkinnyProblem { gemm: SHAPE.params(product, tile_rows)?, tile_rows, first, clusters: count as u32 });
        first += count as u32;
    }
    let last = *problems.last().ok_or_else(|| Error::invalid("grouped_linear: problems", "at least one", "none"))?;
    let problems = std::array::from_fn(|number| problems.get(number).copied().unwrap_or(SkinnyProblem { first, ..last }));
    let constants = products.iter().flat_map(Product::constants).collect::<Vec<_>>();
    let (ahead, open) = queue.prefetch_allowed(&constants, products.iter().map(|product| range(&product.y)).collect());
    let params = SkinnyListParams { problems, ahead: ahead.into() };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, ENTRY, &Launch { overlap: ahead, ..SHAPE.launch(first.into()) }, &params)? };
    queue.leave_open(open);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_go_where_the_bytes_are() {
        assert_eq!(clusters(&[[4096, 1440]; 3], 66), [22, 22, 22]);
        assert_eq!(clusters(&[[11_008, 1640]; 2], 66), [33, 33, 0]);
        assert_eq!(clusters(&[[4096, 1440], [1024, 576], [1024, 576]], 66), [54, 6, 6]);
        assert_eq!(clusters(&[[8, 8], [100_000, 4096]], 2), [1, 1, 0]);
        for count in 1..=MOST {
            assert_eq!(clusters(&[[72, 64]; MOST][..count], 66).iter().sum::<u64>(), 66);
        }
    }
}
