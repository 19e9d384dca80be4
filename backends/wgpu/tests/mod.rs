//! Tests of the backend against plain loops in f64, on whatever Vulkan adapter there is. The software driver is enough.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attention;
mod codebook_gemm;
mod conversions;
mod device;
mod linear;
mod pointwise;

use super::{Queue, Wgpu};
use crate::backend::Kernel;
use crate::device::{Device, Open, Slice};
use crate::ops::{Op, check};

fn open() -> Wgpu {
    Wgpu::open(0).unwrap()
}

fn upload(device: &Wgpu, queue: &mut Queue, bytes: &[u8]) -> Slice<Wgpu> {
    let slice = Slice::new(device.alloc(bytes.len() as u64).unwrap(), 0, bytes.len() as u64);
    device.write(queue, &slice, bytes).unwrap();
    slice
}

fn download(device: &Wgpu, queue: &mut Queue, slice: &Slice<Wgpu>) -> Vec<u8> {
    let mut bytes = vec![0; slice.len as usize];
    device.read(queue, slice, &mut bytes).unwrap();
    bytes
}

fn run<O: Op>(device: &Wgpu, queue: &mut Queue, op: &O, variant: Option<&str>, args: &O::Args<Wgpu>) -> crate::Result<()>
where
    Wgpu: Kernel<O>,
{
    let plan = device.plan(op, variant)?;
    check(device, op, args)?;
    let bytes = <Wgpu as Kernel<O>>::workspace_bytes(&plan);
    let workspace = Slice::new(device.alloc(bytes)?, 0, bytes);
    // SAFETY: the operands were checked, the workspace is of the size asked for and this launch's own.
    unsafe { device.launch(queue, &plan, &workspace, args) }
}

/// Pseudo-random numbers in -1..1, equal from run to run.
fn noise(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    };
    (0..count).map(|_| next()).collect()
}
