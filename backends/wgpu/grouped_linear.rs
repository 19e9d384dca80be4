//! `grouped_linear`: the dispatches of its products one behind another, in one submission.

use super::linear;
use super::product::VARIANTS;
use super::{Queue, Wgpu};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::error::{Error, Result};
use crate::ops::{GroupedLinear, GroupedLinearArgs, Linear};

/// A plan of `grouped_linear`: one of each product.
pub struct Plan {
    products: Vec<linear::Plan>,
}

impl Kernel<GroupedLinear> for Wgpu {
    type Plan = Plan;

    fn variants(&self) -> &'static [&'static str] {
        VARIANTS
    }

    fn plan(&self, op: &GroupedLinear, only: Option<&str>) -> Result<Plan> {
        if op.gate.is_some() {
            let reason = "portable: a gate: an operation of its own is for what it lets through";
            return Err(Error::unsupported(format!("grouped_linear on {}", Self::NAME), reason));
        }
        let products = op.problems.iter().map(|problem| Kernel::<Linear>::plan(self, problem, only)).collect::<Result<_>>()?;
        Ok(Plan { products })
    }

    /// Products without adapters have none.
    fn workspace_bytes(_plan: &Plan) -> u64 {
        0
    }

    fn variant(plan: &Plan) -> &'static str {
        plan.products.first().map_or("", <Self as Kernel<Linear>>::variant)
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan, workspace: &Slice<Self>, args: &GroupedLinearArgs<Self>) -> Result<()> {
        for (product, own) in plan.products.iter().zip(&args.problems) {
            // SAFETY: the caller's promise, of each product.
            unsafe { Kernel::<Linear>::launch(self, queue, product, workspace, own)? };
        }
        Ok(())
    }
}
