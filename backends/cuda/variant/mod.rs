//! Variants of an operation: their tables, the choice of one, and the launch of its kernels.

#[cfg(test)]
pub(crate) mod drawn;
pub(crate) mod params;
#[cfg(test)]
pub(crate) mod recorded;
pub(crate) mod tensor_map;

use std::any::Any;
use std::sync::OnceLock;

use cudarc::driver::sys;

pub(crate) use super::device::{Cuda, Target, address, address_of, range};
use super::jit::{Arch, Function, Module, Unit};
pub(crate) use super::runtime::launch::{Launch, blocks};
use super::runtime::library::check;
use super::runtime::memory::Buffer;
use super::runtime::queue::Queue;
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::{Error, Result};
use crate::ops::{CodebookGemm, Linear, Op};

/// One way to compute an operation: a line in the operation's table.
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
    /// Whether the variant is worth taking for an operation that it supports, or what is faster. Only the automatic choice asks. A variant
    /// that is named runs whatever it supports.
    pub suits: fn(&O, &Target) -> std::result::Result<(), String>,
    /// The configurations that the variant's kernels are compiled in, where there are several.
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
    /// The name of each configuration on an architecture, as `--variant name:config` takes it.
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

/// The names of the variants in a table.
pub const fn names<O: Op, const N: usize>(table: &[Variant<O>]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = table[at].name;
        at += 1;
    }
    names
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
        let able = O::VARIANTS.iter().filter(|variant| variant.accepts(op, &target).is_ok());
        able.flat_map(|variant| match variant.able(op, &target) {
            several if several.len() > 1 => several.into_iter().map(|(_, config)| format!("{}:{config}", variant.name)).collect(),
            _ => vec![variant.name.to_owned()],
        })
        .collect()
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan<O>, workspace: &Slice<Self>, args: &O::Args<Self>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { plan.run(queue, workspace, args) }
    }
}

/// The first variant that supports `op` and suits it, with the target of its fastest configuration. Where none suits, the last that
/// supports `op`: tables end with what serves everything. `only` names a variant, which then need not suit, or a configuration as
/// `name:config`. The error has every variant's reason.
pub(crate) fn choose<O: Op>(table: &'static [Variant<O>], op: &O, target: &Target, only: Option<&str>) -> Result<(&'static Variant<O>, Target)> {
    let (only, config) = only.map_or((None, None), |only| only.split_once(':').map_or((Some(only), None), |(name, config)| (Some(name), Some(config))));
    let (mut reasons, mut slower) = (Vec::new(), None);
    for variant in table.iter().filter(|variant| only.is_none_or(|name| name == variant.name)) {
        if let Some(config) = config {
            match named(variant, op, target, config)? {
                Ok(target) => return Ok((variant, target)),
                Err(reason) => reasons.push(format!("{}:{config}: {reason}", variant.name)),
            }
            continue;
        }
        match variant.accepts(op, target) {
            Ok(()) if only.is_some() || (variant.suits)(op, target).is_ok() => return Ok((variant, variant.cheapest(op, target))),
            Ok(()) => slower = Some(variant),
            Err(reason) => reasons.push(format!("{}: {reason}", variant.name)),
        }
    }
    slower.map(|variant| (variant, variant.cheapest(op, target))).ok_or_else(|| Error::unsupported(O::NAME, reasons.join("; ")))
}

/// The target of the configuration named `config`, or why it does not support `op`.
fn named<O: Op>(variant: &Variant<O>, op: &O, target: &Target, config: &str) -> Result<std::result::Result<Target, String>> {
    let names = variant.config_names(target.arch);
    let Some(number) = names.iter().position(|name| name == config) else {
        return Err(Error::invalid(format!("configuration of {}", variant.label), format!("one of {names:?}"), config));
    };
    let target = Target { config: Some(number as u16), ..*target };
    Ok(variant.accepts(op, &target).map(|()| target))
}
