//! Variants of an operation: tables of them, choosing one, launching its kernels.

use std::any::Any;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUfunction};

use super::Cuda;
use super::jit::{Arch, Unit};
use super::library::{Status, check};
use super::memory::Buffer;
use super::module::{Function, Module};
use super::queue::Queue;
use crate::backend::Kernel;
use crate::device::Slice;
use crate::error::{Error, Result};
use crate::ops::{CodebookGemm, Op};

/// One way to run an operation: a line in the operation's table.
pub struct Variant<O: Op> {
    /// `simt`, `sm80`, `sm90`.
    pub name: &'static str,
    /// The operation's and the variant's name, in error messages.
    pub label: &'static str,
    /// The architectures that its source is for.
    pub runs_on: RunsOn,
    /// What its machine code must show.
    pub tensor_cores: TensorCores,
    /// Whether it can run an operation, or why not.
    pub covers: fn(&O, &Target) -> std::result::Result<(), String>,
    /// What to compile for an operation that it covers, with what is beside it.
    pub unit: fn(&O, &Target) -> Unit,
    /// Everything that `unit` may give on that architecture: what is compiled ahead, and checked without a GPU.
    pub units: fn(Arch) -> Vec<Unit>,
    /// Bytes of workspace.
    pub workspace: fn(&O, &Target) -> u64,
    /// Puts the kernels of a plan into the queue.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    pub launch: LaunchPlan<O>,
}

/// Queue, plan, workspace, operands.
pub type LaunchPlan<O> = unsafe fn(&mut Queue, &Plan<O>, &Slice<Cuda>, &<O as Op>::Args<Cuda>) -> Result<()>;

/// The architectures that a source is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsOn {
    /// That compute capability and everything newer.
    From(u32),
    /// That one alone: instructions such as wgmma exist nowhere else.
    Only(u32),
}

impl RunsOn {
    /// Whether `arch` is one, or why not.
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
    /// By this instruction: `HMMA`, `HGMMA`.
    By(&'static str),
    /// It does without, for this reason.
    Without(&'static str),
}

/// The device, as far as choosing and tiling depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What code is compiled for.
    pub arch: Arch,
    /// Multiprocessors.
    pub units: u32,
    /// Shared memory that one block may use, in bytes.
    pub shared_bytes: u32,
}

/// An operation that this backend has variants of.
pub trait Table: Op {
    /// Best first.
    const VARIANTS: &'static [Variant<Self>];
    /// Their names.
    const NAMES: &'static [&'static str];

    /// What that variant has a kernel of another operation do first.
    fn delta(&self, _variant: &Variant<Self>) -> Option<CodebookGemm> {
        None
    }

    /// Of [`Kernel::prepared_bytes`].
    fn prepared_bytes(_plan: &Plan<Self>) -> u64 {
        0
    }

    /// Of [`Kernel::prepare`].
    ///
    /// # Safety
    /// As there.
    unsafe fn prepare(_queue: &mut Queue, _plan: &Plan<Self>, _prepared: &Slice<Cuda>, _args: &Self::Args<Cuda>) -> Result<()> {
        Ok(())
    }
}

/// The names in a table.
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
    /// The device it was made for.
    pub target: Target,
    /// Its kernels: of the variant's unit, and of those beside it.
    modules: Vec<Module>,
    /// Of [`Table::delta`].
    pub delta: Option<Box<Plan<CodebookGemm>>>,
    variant: &'static Variant<O>,
    workspace: u64,
    /// Of [`once`](Self::once).
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl<O: Op> Plan<O> {
    /// What `decide` says at the plan's first launch, kept for every later one: choosing among tiles, and asking the driver, takes the host as long as
    /// several launches. It may depend on the plan alone, and a variant has one such thing.
    pub fn once<T: Copy + Send + Sync + 'static>(&self, decide: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        if let Some(kept) = self.kept.get().and_then(|kept| kept.downcast_ref()) {
            return Ok(*kept);
        }
        let decided = decide(self)?;
        self.kept.get_or_init(|| Box::new(decided));
        Ok(decided)
    }

    /// Puts the kernels of this plan into the queue.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    pub unsafe fn run(&self, queue: &mut Queue, workspace: &Slice<Cuda>, args: &O::Args<Cuda>) -> Result<()> {
        // SAFETY: the caller's promise is the variant's condition.
        unsafe { (self.variant.launch)(queue, self, workspace, args) }
    }

    /// The part of this plan's workspace, at its end, that is the workspace of [`Table::delta`].
    pub fn delta_workspace(&self, workspace: &Slice<Cuda>) -> Result<Slice<Cuda>> {
        let bytes = self.delta.as_ref().map_or(0, |delta| delta.workspace);
        let part = workspace.len.checked_sub(bytes).and_then(|first| workspace.part(first, bytes));
        part.ok_or_else(|| Error::invalid("workspace", format!("at least {bytes} bytes"), workspace.len))
    }

    /// Kernel `entry` of this plan.
    fn function(&self, entry: &str) -> Result<&Function> {
        let found = self.modules.iter().find_map(|module| module.function(entry));
        found.ok_or_else(|| {
            let known: Vec<&str> = self.modules.iter().flat_map(Module::entries).collect();
            Error::invalid("kernel", format!("one of {known:?}"), entry)
        })
    }

    /// Puts kernel `entry` of this plan into the queue, if it has any blocks.
    ///
    /// # Safety
    /// `params` is what the kernel takes, and every address in it is alive and as large as the kernel expects.
    pub unsafe fn launch<P: Copy>(&self, queue: &mut Queue, entry: &str, launch: &Launch, params: &P) -> Result<()> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        let function = self.function(entry)?.raw();
        let stream = queue.launching(self.variant.label)?;
        // SAFETY: the caller's promise.
        unsafe { launch.run(function, stream, params) }.map_err(|status| Error::device(format!("launching {} ({entry})", self.variant.label), status))
    }

    /// Gives blocks of kernel `entry` all memory of a multiprocessor: one divides it anew only when idle, so kernels that overlap ask for the same.
    /// A kernel keeps it.
    pub fn most_shared(&self, entry: &str) -> Result<()> {
        self.function(entry)?.most_shared()
    }

    /// Clusters of kernel `entry` that the device runs at once where nothing else does.
    pub fn resident_clusters(&self, entry: &str, launch: &Launch) -> Result<u64> {
        let function = self.function(entry)?.raw();
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
        let variant = choose(O::VARIANTS, op, &target, only)?;
        let (unit, delta) = ((variant.unit)(op, &target), op.delta(variant));
        let mut modules = {
            // With those of the plan inside this one, which then finds them there: all are compiled side by side.
            let inner = delta.as_ref().and_then(|delta| Some((choose(CodebookGemm::VARIANTS, delta, &target, None).ok()?.unit)(delta, &target)));
            self.modules(&unit.all().into_iter().chain(inner.iter().flat_map(Unit::all)).collect::<Vec<_>>())?
        };
        modules.truncate(unit.all().len());
        let delta = delta.map(|delta| <Self as Kernel<CodebookGemm>>::plan(self, &delta, None).map(Box::new)).transpose()?;
        let delta_bytes = delta.as_ref().map_or(0, |delta| delta.workspace);
        let workspace = (variant.workspace)(op, &target).next_multiple_of(16) + delta_bytes;
        Ok(Plan { op: op.clone(), target, modules, delta, variant, workspace, kept: OnceLock::new() })
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

    unsafe fn launch(&self, queue: &mut Queue, plan: &Plan<O>, workspace: &Slice<Self>, args: &O::Args<Self>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { plan.run(queue, workspace, args) }
    }
}

/// The first variant that runs `op` (`only` that one, where it is named), or every variant's reason.
fn choose<O: Op>(table: &'static [Variant<O>], op: &O, target: &Target, only: Option<&str>) -> Result<&'static Variant<O>> {
    let mut reasons = Vec::new();
    for variant in table.iter().filter(|variant| only.is_none_or(|name| name == variant.name)) {
        match variant.runs_on.accept(target.arch).and_then(|()| (variant.covers)(op, target)) {
            Ok(()) => return Ok(variant),
            Err(reason) => reasons.push(format!("{}: {reason}", variant.name)),
        }
    }
    Err(Error::unsupported(O::NAME, reasons.join("; ")))
}

/// Where an operand starts on the device.
pub fn address(slice: &Slice<Cuda>) -> u64 {
    slice.buffer.address() + slice.offset
}

/// Where an operand starts on the device; 0 where there is none.
pub fn address_of(slice: Option<&Slice<Cuda>>) -> u64 {
    slice.map_or(0, address)
}

/// The addresses of an operand.
pub fn range(slice: &Slice<Cuda>) -> Range<u64> {
    address(slice)..address(slice) + slice.len
}

/// Blocks along one axis for `items` pieces of work: kernels go on where the grid ends, so that no number is too large.
pub fn blocks(items: u64) -> u32 {
    items.min(1 << 30) as u32
}

/// How a kernel is started.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Blocks of a cluster.
    pub cluster: [u32; 3],
    /// The kernel waits itself for the one before (griddepcontrol), and may be started before that one ends.
    pub overlap: bool,
}

impl Launch {
    /// `grid` blocks of `threads`, nothing else.
    pub const fn new(grid: u32, threads: u32) -> Self {
        Self { grid: [grid, 1, 1], threads, shared_bytes: 0, cluster: [1; 3], overlap: false }
    }

    /// Calls with what the driver takes for a launch in `stream`.
    fn with_config<T>(&self, stream: sys::CUstream, call: impl FnOnce(&sys::CUlaunchConfig) -> T) -> T {
        // SAFETY: plain data, for which zero is legal.
        let mut attributes: [sys::CUlaunchAttribute; 2] = unsafe { std::mem::zeroed() };
        let mut count = 0;
        if self.cluster != [1; 3] {
            let [x, y, z] = self.cluster;
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[count].value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
            count += 1;
        }
        if self.overlap {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[count].value.programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        call(&sys::CUlaunchConfig {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared_bytes,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        })
    }

    /// # Safety
    /// `params` is what `function` takes, and every address in it is alive.
    unsafe fn run<P: Copy>(&self, function: CUfunction, stream: sys::CUstream, params: &P) -> std::result::Result<(), Status> {
        let mut arguments: [*mut c_void; 1] = [std::ptr::from_ref(params).cast_mut().cast()];
        // SAFETY: the function takes one struct by value, copied before this returns; the rest is the caller's promise.
        self.with_config(stream, |config| check(unsafe { sys::cuLaunchKernelEx(config, function, arguments.as_mut_ptr(), std::ptr::null_mut()) }))
    }
}
