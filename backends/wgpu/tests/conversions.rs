use half::{bf16, f16};

use super::{download, open, upload};
use crate::backends::wgpu::source::{Element, File, Operand, Source};
use crate::device::{Device, Slice};
use crate::dtype::DType;

const COPY: &[File] = &[File {
    name: "copy",
    text: "struct Params { count: u32 }
        @compute @workgroup_size(64)
        fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) counts: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
            let number = group_number(id, counts);
            let i = number * 64u + lane;
            if (number < launch.groups && i < launch.params.count) { store_y(i, load_x(i)); }
        }",
}];

/// `bytes` of elements of `from`, copied by a shader to elements of `to`.
fn convert(from: DType, to: DType, bytes: &[u8]) -> Vec<u8> {
    let device = open();
    let mut queue = device.queue().unwrap();
    let count = bytes.len() as u64 / from.size();
    let x = upload(&device, &mut queue, bytes);
    let y = Slice::new(device.alloc(count * to.size()).unwrap(), 0, count * to.size());
    let source = Source {
        kernel: "copy".into(),
        files: COPY,
        operands: vec![Operand::read("x", Element::Float(from)), Operand::write("y", Element::Float(to))],
        constants: Vec::new(),
        f16: false,
    };
    let pipeline = device.pipeline(&source).unwrap();
    queue.dispatch(&device, &pipeline, &[Some(&x), Some(&y)], &(count as u32), count.div_ceil(64)).unwrap();
    download(&device, &mut queue, &y)
}

#[test]
fn sixteen_bit_elements_widen_exactly() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for dtype in [DType::F16, DType::BF16] {
        let found = DType::F32.decode(&convert(dtype, DType::F32, &all));
        for (bits, (found, wanted)) in found.iter().zip(dtype.decode(&all)).enumerate() {
            assert!(found.to_bits() == wanted.to_bits() || (found.is_nan() && wanted.is_nan()), "{dtype} {bits:#06x}: {found}, not {wanted}");
        }
    }
}

#[test]
fn rounding_is_to_nearest_even() {
    // Values around every f16 and bf16: itself, the midpoint to the next, and an f32 step to either side of both.
    let mut values = vec![f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, f32::MIN_POSITIVE];
    for bits in 0..=u16::MAX {
        for base in [f16::from_bits(bits).to_f32().to_bits(), bf16::from_bits(bits).to_f32().to_bits()] {
            for step in [0, 0x1000, 0x8000] {
                values.extend([-1i32, 0, 1].map(|by| f32::from_bits(base.wrapping_add(step).wrapping_add_signed(by))));
            }
        }
        // Subnormal f16 lie 2⁻²⁴ apart.
        values.push(f32::from(bits) * 2f32.powi(-25));
    }
    // Drivers may take a subnormal f32 for zero.
    values.retain(|value| !value.is_subnormal());
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    for dtype in [DType::F16, DType::BF16] {
        let found = convert(DType::F32, dtype, &bytes);
        for (&value, found) in values.iter().zip(found.chunks_exact(2)) {
            let wanted = dtype.encode(&[f64::from(value)]);
            let both_nan = value.is_nan() && dtype.decode(found)[0].is_nan();
            assert!(found == wanted || both_nan, "{dtype} of {value:e} ({:#010x}): {found:x?}, not {wanted:x?}", value.to_bits());
        }
    }
}

#[test]
fn more_workgroups_than_one_axis_holds() {
    let count = (1 << 16) * 64 + 77;
    let bytes: Vec<u8> = (0..count as u32).flat_map(|i| ((i % 2048) as f32).to_le_bytes()).collect();
    let found = convert(DType::F32, DType::F16, &bytes);
    for (i, half) in found.chunks_exact(2).enumerate() {
        assert_eq!(f16::from_le_bytes([half[0], half[1]]).to_f32(), (i % 2048) as f32, "{i}");
    }
}
