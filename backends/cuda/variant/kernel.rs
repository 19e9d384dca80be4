//! A variant's plan behind the trait [`Kernel`]: every operation that has a table is one of this backend's.

use std::sync::OnceLock;

use super::{Cuda, Plan, Table, choose};
use crate::backend::Kernel;
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::memory::Buffer;
use crate::backends::cuda::runtime::queue::Queue;
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{CodebookGemm, Linear};

impl<O: Table> Kernel<O> for Cuda {
    type Plan = Plan<O>;

    fn variants(&self) -> &'static [&'static str] {
        O::NAMES
    }

    fn plan(&self, op: &O, only: Option<&str>) -> Result<Plan<O>> {
        let target = self.target();
        let (variant, target) = choose(O::VARIANTS, op, &target, only)?;
        let (unit, delta) = ((variant.unit)(op, &target), op.delta(variant, &target));
        let mut modules = {
            // The units of the inner plan are compiled in parallel with these, and the inner plan then finds them loaded.
            let inner = delta.as_ref().and_then(|(delta, only)| {
                let (variant, target) = choose(CodebookGemm::VARIANTS, delta, &self.target(), *only).ok()?;
                Some((variant.unit)(delta, &target))
            });
            self.modules(&unit.all().into_iter().chain(inner.iter().flat_map(Unit::all)).collect::<Vec<_>>())?
        };
        modules.truncate(unit.all().len());
        let delta = delta.map(|(delta, only)| <Self as Kernel<CodebookGemm>>::plan(self, &delta, only).map(Box::new)).transpose()?;
        let products = op.products(variant).iter().map(|product| <Self as Kernel<Linear>>::plan(self, product, None)).collect::<Result<Vec<_>>>()?;
        let delta_bytes = delta.as_ref().map_or(0, |delta| delta.workspace);
        let product_bytes: u64 = products.iter().map(|product| product.workspace.next_multiple_of(16)).sum();
        let workspace = product_bytes + (variant.workspace)(op, &target).next_multiple_of(16) + delta_bytes;
        Ok(Plan { op: op.clone(), target, modules, delta, products, variant, workspace, kept: OnceLock::new() })
    }

    fn workspace_bytes(plan: &Plan<O>) -> u64 {
        plan.workspace
    }

    fn workspace(&self, plan: &Plan<O>) -> Result<Buffer> {
        // Counters start from zero.
        self.memory.alloc_zeroed(plan.workspace)
    }

    fn prepared_bytes(plan: &Plan<O>) -> u64 {
        O::prepared_bytes(plan)
    }

    unsafe fn prepare(&self, queue: &mut Queue, plan: &Plan<O>, prepared: &Slice<Self>, args: &O::Args<Self>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { O::prepare(queue, plan, prepared, args) }
    }

    fn variant(plan: &Plan<O>) -> &'static str {
        plan.variant.name
    }

    fn config(plan: &Plan<O>) -> Option<String> {
        plan.target.configured(plan.variant.config_names(plan.target.arch).into_iter())
    }

    fn configs(&self, op: &O) -> Vec<String> {
        let target = self.target();
        let of = |name: &&'static str| {
            let able: Vec<_> = O::VARIANTS.iter().filter(|variant| variant.name == *name && variant.accepts(op, &target).is_ok()).collect();
            let configs: Vec<String> = able.iter().flat_map(|variant| variant.able(op, &target)).map(|(_, config)| format!("{name}:{config}")).collect();
            match configs.len() {
                0 | 1 => able.first().map(|variant| variant.name.to_owned()).into_iter().collect(),
                _ => configs,
            }
        };
        O::NAMES.iter().flat_map(of).collect()
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan<O>, workspace: &Slice<Self>, args: &O::Args<Self>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { plan.run(queue, workspace, args) }
    }
}
