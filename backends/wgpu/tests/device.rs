use super::{download, open, run, upload};
use crate::backend::Kernel;
use crate::backends::wgpu::Wgpu;
use crate::backends::wgpu::source::{File, Source};
use crate::device::{Device, Open, Slice};
use crate::dtype::DType;
use crate::error::Error;
use crate::ops::{Attention, CodeWidth, CodebookGemm, Linear, LinearArgs};

#[test]
fn devices_are_listed_as_they_open() {
    let list = Wgpu::list().unwrap();
    let device = open();
    assert_eq!(device.caps().name, list[0].name);
    assert!(matches!(Wgpu::open(list.len()), Err(Error::NoBackend { .. })));
}

#[test]
fn copies_are_exact_to_the_byte() {
    let device = open();
    let mut queue = device.queue().unwrap();
    let whole = upload(&device, &mut queue, &[0xaa; 64]);
    for offset in 0..9u64 {
        for len in 0..13u64 {
            device.write(&mut queue, &whole, &[0xaa; 64]).unwrap();
            let bytes: Vec<u8> = (1..=len as u8).collect();
            let part = whole.sub_slice(offset, len).unwrap();
            device.write(&mut queue, &part, &bytes).unwrap();
            assert_eq!(download(&device, &mut queue, &part), bytes, "{len} at {offset}");
            let mut wanted = vec![0xaa; 64];
            wanted[offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
            assert_eq!(download(&device, &mut queue, &whole), wanted, "{len} at {offset}");
        }
    }
}

#[test]
fn sums_over_sizes_that_no_device_has_stay_in_range() {
    let device = open();
    // This is legal, as there is no key, and so nothing to read.
    let op = Attention { lse: true, ..Attention::dense(DType::F16, 1 << 58, [2, 1], [3, 0], 1) };
    assert!(op.lse_len() > 1 << 60 && device.plan(&op, None).is_ok());
    let op = CodebookGemm::s2lc(DType::F16, 1 << 60, [1; 3], 1, CodeWidth::Four);
    assert!(matches!(device.plan(&op, None), Err(Error::Unsupported { .. })));
}

#[test]
fn buffers_have_their_own_numbers() {
    let device = open();
    let (a, b) = (device.alloc(0).unwrap(), device.alloc(0).unwrap());
    assert_ne!(Wgpu::buffer_id(&a), Wgpu::buffer_id(&b));
    assert_eq!(Wgpu::buffer_id(&a), Wgpu::buffer_id(&a.clone()));
}

#[test]
fn a_device_owns_what_it_made() {
    let [one, other] = [open(), open()];
    let (own, theirs) = (one.alloc(4).unwrap(), other.alloc(4).unwrap());
    assert!(one.owns(&own) && other.owns(&theirs) && !one.owns(&theirs) && !other.owns(&own));
}

#[test]
fn too_much_memory_is_an_error_and_leaves_the_device_usable() {
    let device = open();
    let mut queue = device.queue().unwrap();
    assert!(matches!(device.alloc(u64::MAX), Err(Error::OutOfMemory { requested: u64::MAX, .. })));
    assert!(matches!(device.alloc(device.caps().max_buffer_bytes + 1), Err(Error::OutOfMemory { .. })));
    let slice = upload(&device, &mut queue, b"still here");
    assert_eq!(download(&device, &mut queue, &slice), b"still here");
}

#[test]
fn a_shader_that_is_wrong_is_a_compile_error() {
    const WRONG: &[File] = &[File { name: "wrong", text: "struct Params { a: u32 }\n@compute @workgroup_size(1) fn main() { missing(); }" }];
    let source = Source { kernel: "wrong".into(), files: WRONG, operands: Vec::new(), constants: Vec::new(), f16: false };
    let error = open().pipeline(&source).err().unwrap();
    assert!(matches!(&error, Error::Compile { kernel, log } if kernel == "wrong" && log.contains("missing")), "{error}");
}

/// wgpu's own check of usages refuses this copy. The refusal must come back as an error from the wait, not as a panic.
#[test]
fn a_refused_submission_is_an_error() {
    let device = open();
    let mut queue = device.queue().unwrap();
    let (a, b) = (device.alloc(4).unwrap(), device.alloc(4).unwrap());
    queue.copy(&a.raw, 0, &b.raw, 64);
    assert!(matches!(device.synchronize(&mut queue), Err(Error::Device { .. })));
    device.synchronize(&mut queue).unwrap();
    // An error that no scope sees is reported once, by the next call that checks.
    let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::STORAGE;
    drop(device.raw.create_buffer(&wgpu::BufferDescriptor { label: None, size: 4, usage, mapped_at_creation: false }));
    assert!(matches!(device.synchronize(&mut queue), Err(Error::Device { .. })));
    device.synchronize(&mut queue).unwrap();
}

#[test]
fn a_lost_device_is_an_error_from_then_on() {
    let device = open();
    let mut queue = device.queue().unwrap();
    let slice = upload(&device, &mut queue, &[1; 8]);
    device.raw.destroy();
    for _ in 0..2 {
        assert!(matches!(device.read(&mut queue, &slice, &mut [0; 8]), Err(Error::Device { .. })));
        assert!(matches!(device.synchronize(&mut queue), Err(Error::Device { .. })));
        assert!(matches!(device.alloc(8), Err(Error::Device { .. })));
    }
}

/// y = x·W with W twice the identity.
fn doubling(n: u64) -> (Linear, Vec<u8>) {
    let weight: Vec<f64> = (0..n * n).map(|i| if i % (n + 1) == 0 { 2.0 } else { 0.0 }).collect();
    (Linear::new(DType::F32, [1, n, n]), DType::F32.encode(&weight))
}

fn args(x: &Slice<Wgpu>, w: &Slice<Wgpu>, y: &Slice<Wgpu>) -> LinearArgs<Wgpu> {
    LinearArgs { x: x.clone(), w: w.clone(), bias: None, residual: None, delta: None, norm: None, input_norm: None, y: y.clone() }
}

#[test]
fn captured_work_waits_for_a_replay_and_sees_new_operands() {
    let device = open();
    let mut queue = device.queue().unwrap();
    let (op, weight) = doubling(8);
    let w = upload(&device, &mut queue, &weight);
    let [x, y, z] = [1.0, 0.0, 0.0].map(|value| upload(&device, &mut queue, &DType::F32.encode(&[value; 8])));
    device.begin_capture(&mut queue).unwrap();
    run(&device, &mut queue, &op, None, &args(&x, &w, &y)).unwrap();
    run(&device, &mut queue, &op, None, &args(&y, &w, &z)).unwrap();
    assert!(device.read(&mut queue, &y, &mut [0; 4]).is_err());
    let graph = device.end_capture(&mut queue).unwrap();
    assert_eq!(DType::F32.decode(&download(&device, &mut queue, &z)), [0.0; 8]);
    for value in [3.0, -5.0, 7.0] {
        device.write(&mut queue, &x, &DType::F32.encode(&[value; 8])).unwrap();
        // SAFETY: the buffers are alive.
        unsafe { device.replay(&mut queue, &graph).unwrap() };
        assert_eq!(DType::F32.decode(&download(&device, &mut queue, &z)), [4.0 * value; 8]);
    }
    assert!(device.end_capture(&mut queue).is_err());
}

#[test]
fn two_queues_on_two_threads_keep_their_order() {
    let device = open();
    let worker = |seed: f64| {
        let mut queue = device.queue().unwrap();
        let (op, weight) = doubling(32);
        let w = upload(&device, &mut queue, &weight);
        let a = upload(&device, &mut queue, &DType::F32.encode(&[seed; 32]));
        let b = upload(&device, &mut queue, &DType::F32.encode(&[0.0; 32]));
        for round in 0..20 {
            device.write(&mut queue, &a, &DType::F32.encode(&[seed + f64::from(round); 32])).unwrap();
            for _ in 0..5 {
                run(&device, &mut queue, &op, None, &args(&a, &w, &b)).unwrap();
                run(&device, &mut queue, &op, None, &args(&b, &w, &a)).unwrap();
            }
            let found = DType::F32.decode(&download(&device, &mut queue, &a));
            assert_eq!(found, [(seed + f64::from(round)) * 1024.0; 32]);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| worker(1.0));
        scope.spawn(|| worker(100.0));
    });
}
