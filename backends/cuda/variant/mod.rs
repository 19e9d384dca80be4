//! Variants of an operation: their tables, the choice of one, and the launch of its kernels.

#[cfg(test)]
pub(crate) mod drawn;
mod kernel;
pub(crate) mod params;
#[cfg(test)]
pub(crate) mod recorded;
mod table;
pub(crate) mod tensor_map;

use std::any::Any;
use std::sync::OnceLock;

use cudarc::driver::sys;
pub(crate) use table::{choose, count, names};

pub(crate) use super::device::{Cuda, Target, address, address_of, range};
use super::jit::{Arch, Function, Module, Unit};
pub(crate) use super::runtime::launch::{Launch, blocks};
use super::runtime::library::check;
use super::runtime::queue::Queue;
use crate::device::Slice;
use crate::error::{Error, Result};
use crate::ops::{CodebookGemm, Linear, Op};

/// One way to compute an operation: a line in the operation's table. Lines of one name are one variant, whose kernels have other tiles,
/// bring an operand in another way or end in another one; each line is then a part of the variant's configurations.
pub struct Variant<O: Op> {
    /// The variant's name, as `simt`, `sm80` or `sm90`.
    pub name: &'static str,
    /// The operation's and the variant's name, in error messages.
    pub label: &'static str,
    /// The architectures that the variant's source is for.
    pub runs_on: RunsOn,
    /// The tensor-core instruction that the variant's machine code must show.
    pub tensor_cores: TensorCores,
    /// Whether the kernels can compute an operation, or why not. With a configuration in the target, only its kernels count. The rule names
    /// no time, no other variant, no count of SMs.
    pub supports: fn(&O, &Target) -> std::result::Result<(), String>,
    /// Whether the line is worth taking for an operation that it supports, or what is faster. A variant that is named runs whatever it
    /// supports: this only says which of its lines is taken.
    pub suits: fn(&O, &Target) -> std::result::Result<(), String>,
    /// The configurations that the line's kernels are compiled in, where the variant has several.
    pub configs: Option<Configs<O>>,
    /// The unit to compile for an operation that the variant supports, with what is beside it.
    pub unit: fn(&O, &Target) -> Unit,
    /// Everything that `unit` may return on an architecture: what is compiled ahead of time, and checked without a GPU.
    pub units: fn(Arch) -> Vec<Unit>,
    /// Bytes of the workspace.
    pub workspace: fn(&O, &Target) -> u64,
    /// Enqueues the kernels of a plan.
    ///
    /// # Safety
    /// The conditions of [`Kernel::launch`] hold.
    pub launch: LaunchPlan<O>,
}

/// The configurations of a variant: tiles, and how blocks share them. A configuration's number is its place among the names.
pub struct Configs<O> {
    /// The name of each configuration on an architecture, as `--variant name:config` takes it. Lines of one variant share none.
    pub names: fn(Arch) -> Vec<String>,
    /// The number of the fastest configuration, by measurements, for an operation that the variant supports.
    pub choose: fn(&O, &Target) -> u16,
}

/// A variant's launch: it takes queue, plan, workspace and operands.
pub type LaunchPlan<O> = unsafe fn(&mut Queue, &Plan<O>, &Slice<Cuda>, &<O as Op>::Args<Cuda>) -> Result<()>;

/// The architectures that a source is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsOn {
    /// This compute capability and everything newer.
    From(u32),
    /// This compute capability alone, since instructions such as wgmma exist nowhere else.
    Only(u32),
}

impl RunsOn {
    /// Whether the source is for `arch`, or why not.
    pub fn accept(self, Arch(found): Arch) -> std::result::Result<(), String> {
        match self {
            Self::From(least) if found < least => Err(format!("compute capability {found} < {least}")),
            Self::Only(exact) if found != exact => Err(format!("compute capability {found}, made for {exact} alone")),
            _ => Ok(()),
        }
    }

    /// Where sources of two lines of a variant, of which one is for everything newer, run between them.
    pub(crate) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::From(one), Self::From(other)) => Self::From(one.min(other)),
            _ => self,
        }
    }
}

/// Whether a variant's machine code must use the tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorCores {
    /// With this instruction: `HMMA`, `HGMMA`.
    By(&'static str),
    /// With an instruction by the unit's source: the first entry with which the source's path begins.
    BySource(&'static [(&'static str, &'static str)]),
    /// Without tensor cores, for this reason.
    Without(&'static str),
}

impl TensorCores {
    /// The instruction that a unit's machine code must show, if any.
    pub fn instruction(self, unit: &Unit) -> Option<&'static str> {
        match self {
            Self::By(instruction) => Some(instruction),
            Self::BySource(all) => all.iter().find(|(start, _)| unit.source.path.starts_with(start)).map(|(_, instruction)| *instruction),
            Self::Without(_) => None,
        }
    }

    /// All instructions that the variant's units show, or why they show none.
    pub fn instructions(self) -> std::result::Result<String, &'static str> {
        match self {
            Self::By(instruction) => Ok(instruction.into()),
            Self::BySource(all) => Ok(all.iter().map(|(_, instruction)| *instruction).collect::<Vec<_>>().join(", ")),
            Self::Without(reason) => Err(reason),
        }
    }
}

impl<O: Op> Variant<O> {
    /// Whether the variant runs on the target's architecture and can compute `op`, or why not.
    pub fn accepts(&self, op: &O, target: &Target) -> std::result::Result<(), String> {
        self.runs_on.accept(target.arch).and_then(|()| (self.supports)(op, target))
    }

    /// The names of the variant's configurations on an architecture, in the order of their numbers; none where it has no configurations.
    pub fn config_names(&self, arch: Arch) -> Vec<String> {
        self.configs.as_ref().map_or_else(Vec::new, |configs| (configs.names)(arch))
    }

    /// The targets of the configurations that can compute `op`, with their names; none where the variant has no configurations.
    pub fn able(&self, op: &O, target: &Target) -> Vec<(Target, String)> {
        let names = self.config_names(target.arch);
        let numbered = (0..).zip(names).map(|(number, name)| (Target { config: Some(number), ..*target }, name));
        numbered.filter(|(target, _)| self.accepts(op, target).is_ok()).collect()
    }

    /// The target of the fastest configuration for `op`, which the variant supports. If that configuration cannot compute `op`, the first
    /// that can.
    pub fn cheapest(&self, op: &O, target: &Target) -> Target {
        let chosen = Target { config: self.configs.as_ref().map(|configs| (configs.choose)(op, target)), ..*target };
        if self.accepts(op, &chosen).is_ok() {
            return chosen;
        }
        self.able(op, target).first().map_or(chosen, |(target, _)| *target)
    }
}

/// The place of `one` in `all`, as a configuration's number.
pub fn number<T: PartialEq>(mut all: impl Iterator<Item = T>, one: &T) -> u16 {
    all.position(|other| other == *one).unwrap_or_default() as u16
}

/// An operation that this backend has variants of.
pub trait Table: Op {
    /// The operation's variants, best first.
    const VARIANTS: &'static [Variant<Self>];
    /// The names of the variants.
    const NAMES: &'static [&'static str];

    /// The operation whose kernels a variant launches first, if any, and its variant where the first one needs that.
    fn delta(&self, _variant: &Variant<Self>, _target: &Target) -> Option<(CodebookGemm, Option<&'static str>)> {
        None
    }

    /// The products whose kernels a variant launches one behind another, if any.
    fn products(&self, _variant: &Variant<Self>) -> Vec<Linear> {
        Vec::new()
    }

    /// What [`Kernel::prepared_bytes`] returns for a plan.
    fn prepared_bytes(_plan: &Plan<Self>) -> u64 {
        0
    }

    /// Does what [`Kernel::prepare`] is to do for a plan.
    ///
    /// # Safety
    /// The conditions of [`Kernel::prepare`] hold.
    unsafe fn prepare(_queue: &mut Queue, _plan: &Plan<Self>, _prepared: &Slice<Cuda>, _args: &Self::Args<Cuda>) -> Result<()> {
        Ok(())
    }
}

/// A variant chosen and compiled for an operation.
pub struct Plan<O: Op> {
    /// The operation.
    pub op: O,
    /// The device and configuration that the plan was made for.
    pub target: Target,
    /// Loaded kernels of the variant's unit, and of the units beside it.
    modules: Vec<Module>,
    /// The plan of the operation in [`Table::delta`].
    pub delta: Option<Box<Plan<CodebookGemm>>>,
    /// The plans of the products in [`Table::products`].
    pub products: Vec<Plan<Linear>>,
    variant: &'static Variant<O>,
    workspace: u64,
    /// What [`once`](Self::once) has decided.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl<O: Op> Plan<O> {
    /// The result of `decide`, computed at the plan's first launch and kept for every later one. Choosing a tile, or asking the driver,
    /// takes the host as long as several launches. The result may depend on the plan alone. A variant has one such result.
    pub fn once<T: Copy + Send + Sync + 'static>(&self, decide: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        if let Some(kept) = self.kept.get().and_then(|kept| kept.downcast_ref()) {
            return Ok(*kept);
        }
        let decided = decide(self)?;
        self.kept.get_or_init(|| Box::new(decided));
        Ok(decided)
    }

    /// Enqueues the kernels of this plan.
    ///
    /// # Safety
    /// The conditions of [`Kernel::launch`] hold.
    pub unsafe fn run(&self, queue: &mut Queue, workspace: &Slice<Cuda>, args: &O::Args<Cuda>) -> Result<()> {
        // SAFETY: the caller's promise is the variant's condition.
        unsafe { (self.variant.launch)(queue, self, workspace, args) }
    }

    /// The workspace of [`Table::delta`]: the end of this plan's workspace.
    pub fn delta_workspace(&self, workspace: &Slice<Cuda>) -> Result<Slice<Cuda>> {
        let bytes = self.delta.as_ref().map_or(0, |delta| delta.workspace);
        let part = workspace.len.checked_sub(bytes).and_then(|first| workspace.sub_slice(first, bytes));
        part.ok_or_else(|| Error::invalid("workspace", format!("at least {bytes} bytes"), workspace.len))
    }

    /// The workspace of one of [`Table::products`]: they lie one behind another at the start of this plan's workspace.
    pub fn product_workspace(&self, workspace: &Slice<Cuda>, number: usize) -> Result<Slice<Cuda>> {
        let first = self.products.iter().take(number).map(|product| product.workspace.next_multiple_of(16)).sum();
        let bytes = self.products.get(number).map_or(0, |product| product.workspace);
        workspace.sub_slice(first, bytes).ok_or_else(|| Error::invalid("workspace", format!("at least {} bytes", first + bytes), workspace.len))
    }

    /// Kernel `entry` in the first of this plan's units, from number `unit` on, that has it.
    fn function(&self, unit: usize, entry: &str) -> Result<&Function> {
        let found = self.modules.iter().skip(unit).find_map(|module| module.function(entry));
        found.ok_or_else(|| {
            let known: Vec<&str> = self.modules.iter().flat_map(Module::entries).collect();
            Error::invalid("kernel", format!("one of {known:?}"), entry)
        })
    }

    /// Enqueues kernel `entry` of this plan, if it has any blocks.
    ///
    /// # Safety
    /// `params` is what the kernel takes, and every address in it is alive and as large as the kernel expects.
    pub unsafe fn launch<P: Copy>(&self, queue: &mut Queue, entry: &str, launch: &Launch, params: &P) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_of(queue, 0, entry, launch, params) }
    }

    /// Enqueues kernel `entry` of the first unit, from number `unit` on in the order of [`Unit::all`], that has it. Two units may have
    /// kernels of one name.
    ///
    /// # Safety
    /// The conditions of [`launch`](Self::launch) hold.
    pub unsafe fn launch_of<P: Copy>(&self, queue: &mut Queue, unit: usize, entry: &str, launch: &Launch, params: &P) -> Result<()> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        let function = self.function(unit, entry)?.raw();
        let stream = queue.launching(self.variant.label)?;
        // SAFETY: the caller's promise.
        unsafe { launch.run(function, stream, params) }.map_err(|status| Error::device(format!("launching {} ({entry})", self.variant.label), status))
    }

    /// Gives blocks of kernel `entry` all shared memory of an SM, for good. An SM divides its memory anew only when idle, so kernels that
    /// overlap ask for the same.
    pub fn most_shared(&self, entry: &str) -> Result<()> {
        self.function(0, entry)?.most_shared()
    }

    /// Clusters of kernel `entry` that the device runs at once if it runs nothing else.
    pub fn resident_clusters(&self, entry: &str, launch: &Launch) -> Result<u64> {
        let function = self.function(0, entry)?.raw();
        let mut count = 0;
        // SAFETY: the function is loaded; stores one number.
        let asked = launch.with_config(std::ptr::null_mut(), |config| check(unsafe { sys::cuOccupancyMaxActiveClusters(&mut count, function, config) }));
        asked.map_err(|status| Error::device(format!("counting resident clusters of {} ({entry})", self.variant.label), status))?;
        Ok(count.max(0) as u64)
    }
}
