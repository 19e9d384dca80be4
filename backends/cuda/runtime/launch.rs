//! How a kernel is launched: grid, cluster, shared memory, early start (PDL).

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUfunction};

use super::library::{Status, check};

/// Blocks along one axis for `items` pieces of work. Kernels loop over what is past the grid, so no number is too large.
pub fn blocks(items: u64) -> u32 {
    items.min(1 << 30) as u32
}

/// The configuration of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Blocks of a cluster along each axis.
    pub cluster: [u32; 3],
    /// Whether the kernel may start before the one before it ends (PDL). It then has its own wait (griddepcontrol).
    pub overlap: bool,
}

impl Launch {
    /// `grid` blocks of `threads`, without shared memory, clusters or overlap.
    pub const fn new(grid: u32, threads: u32) -> Self {
        Self { grid: [grid, 1, 1], threads, shared_bytes: 0, cluster: [1; 3], overlap: false }
    }

    /// Calls `call` with the driver's configuration of this launch in `stream`.
    pub(crate) fn with_config<T>(&self, stream: sys::CUstream, call: impl FnOnce(&sys::CUlaunchConfig) -> T) -> T {
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

    /// Launches `function` in `stream`.
    ///
    /// # Safety
    /// `params` is what `function` takes, and every address in it is alive.
    pub(crate) unsafe fn run<P: Copy>(&self, function: CUfunction, stream: sys::CUstream, params: &P) -> std::result::Result<(), Status> {
        let mut arguments: [*mut c_void; 1] = [std::ptr::from_ref(params).cast_mut().cast()];
        // SAFETY: the function takes one struct by value, copied before this returns; the rest is the caller's promise.
        self.with_config(stream, |config| check(unsafe { sys::cuLaunchKernelEx(config, function, arguments.as_mut_ptr(), std::ptr::null_mut()) }))
    }
}
