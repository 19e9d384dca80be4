use super::{download, noise, open, run, upload};
use crate::backends::wgpu::product::{Epilogue, Sizes};
use crate::backends::wgpu::queue::MAX_WORK;
use crate::backends::wgpu::{Queue, Wgpu};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::ops::pointwise::Kind;
use crate::ops::{Activation, Linear, LinearArgs, Pointwise, PointwiseArgs};

fn act(activation: Option<Activation>, v: f64) -> f64 {
    match activation {
        None => v,
        Some(Activation::GeluTanh) => 0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v.powi(3))).tanh()),
        // Simpson's rule on the density is independent of the shader's series.
        Some(Activation::GeluErf) => {
            let (steps, density) = (2000, |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt());
            let h = v / f64::from(steps);
            let weight = |i: i32| if i == 0 || i == steps { 1.0 } else { f64::from(2 + i % 2 * 2) };
            let area: f64 = (0..=steps).map(|i| weight(i) * density(h * f64::from(i))).sum();
            v * (0.5 + area * h / 3.0)
        }
        Some(Activation::Silu) => v / (1.0 + (-v).exp()),
        Some(Activation::Relu) => v.max(0.0),
    }
}

/// One buffer for every operand, each `pad` elements from the last, filled with a pattern that is a NaN in every type.
struct Operands {
    device: Wgpu,
    queue: Queue,
    bytes: Vec<u8>,
}

impl Operands {
    fn put(&mut self, dtype: DType, values: &[f64], pad: u64) -> (u64, u64) {
        self.bytes.extend(vec![0xff; (pad * dtype.size()) as usize]);
        let at = self.bytes.len() as u64;
        self.bytes.extend(dtype.encode(values));
        (at, values.len() as u64 * dtype.size())
    }
}

/// Runs `op` on noise and compares with f64.
fn compare(op: &Linear, variant: &str, device: Wgpu) {
    let (m, n, k) = (op.tokens as usize, op.d_out as usize, op.d_in as usize);
    let rounded = |values: Vec<f64>| op.dtype.decode(&op.dtype.encode(&values));
    let [x, w, bias, residual] = [(m * k, 1), (n * k, 2), (n, 3), (m * n, 4)].map(|(count, seed)| rounded(noise(count, seed)));
    let queue = device.queue().unwrap();
    let mut all = Operands { device, queue, bytes: vec![0xff; op.dtype.size() as usize] };
    let places = [all.put(op.dtype, &x, 0), all.put(op.dtype, &w, 1), all.put(op.dtype, &bias, 2), all.put(op.dtype, &residual, 1)];
    let place_y = all.put(op.dtype, &vec![f64::NAN; m * n], 1);
    all.put(op.dtype, &[], 3);
    let Operands { device, mut queue, bytes } = all;
    let buffer = upload(&device, &mut queue, &bytes);
    let slice = |(offset, len): (u64, u64)| Slice::new(buffer.buffer.clone(), offset, len);
    let y = slice(place_y);
    let args = LinearArgs {
        x: slice(places[0]),
        w: slice(places[1]),
        bias: op.bias.then(|| slice(places[2])),
        residual: op.residual.then(|| slice(places[3])),
        delta: None,
        norm: None,
        input_norm: None,
        y: y.clone(),
    };
    run(&device, &mut queue, op, Some(variant), &args).unwrap();
    let found = download(&device, &mut queue, &buffer);
    let (start, end) = (y.offset as usize, (y.offset + y.len) as usize);
    assert!(found[..start] == bytes[..start] && found[end..] == bytes[end..], "{op:?}: wrote beside y");
    for (i, found) in op.dtype.decode(&found[start..end]).into_iter().enumerate() {
        let (row, column) = (i / n, i % n);
        let products = (0..k).map(|j| x[row * k + j] * w[column * k + j]);
        let (dot, size) = products.fold((0.0, 1.0), |(dot, size), product: f64| (dot + product, size + product.abs()));
        let wanted = act(op.activation, dot + if op.bias { bias[column] } else { 0.0 }) + if op.residual { residual[i] } else { 0.0 };
        // The worst case of f32 sums is k·2⁻²⁴·Σ|x·w|. Errors that do not conspire grow with √k.
        let bound = op.dtype.ulp(wanted) + 2f64.powi(-23) * (k as f64).sqrt() * size;
        assert!((found - wanted).abs() <= bound, "{op:?} {variant} [{row}, {column}]: {found}, not {wanted}");
    }
}

fn variants(dtype: DType, device: &Wgpu) -> &'static [&'static str] {
    if dtype == DType::F16 && device.caps().f16 { &["f16", "portable"] } else { &["portable"] }
}

#[test]
fn every_type_at_odd_sizes_and_offsets() {
    for dtype in DType::ALL {
        for shape in [[1, 1, 1], [3, 5, 7], [65, 67, 33], [64, 64, 64], [2, 130, 1], [129, 3, 17], [7, 127, 255]] {
            for &variant in variants(dtype, &open()) {
                compare(&Linear { bias: true, residual: true, ..Linear::new(dtype, [shape[0], shape[2], shape[1]]) }, variant, open());
                compare(&Linear::new(dtype, [shape[0], shape[2], shape[1]]), variant, open());
            }
        }
    }
}

#[test]
fn activations_are_those_of_their_papers() {
    for activation in Activation::ALL {
        compare(&Linear { bias: true, activation: Some(activation), ..Linear::new(DType::F32, [20, 40, 30]) }, "portable", open());
    }
}

/// The products have one term each, so that only the activation's own error is seen.
#[test]
fn activations_are_exact_to_a_few_units() {
    let device = open();
    let mut queue = device.queue().unwrap();
    let values: Vec<f64> = (-1200..=1200).map(|i| f64::from(f32::from(i as i16) / 100.0)).collect();
    let x = upload(&device, &mut queue, &DType::F32.encode(&values));
    let w = upload(&device, &mut queue, &DType::F32.encode(&[1.0]));
    let y = upload(&device, &mut queue, &DType::F32.encode(&values));
    for activation in Activation::ALL {
        let op = Linear { activation: Some(activation), ..Linear::new(DType::F32, [values.len() as u64, 1, 1]) };
        let args = LinearArgs { x: x.clone(), w: w.clone(), bias: None, residual: None, delta: None, norm: None, input_norm: None, y: y.clone() };
        run(&device, &mut queue, &op, None, &args).unwrap();
        for (&value, found) in values.iter().zip(DType::F32.decode(&download(&device, &mut queue, &y))) {
            let wanted = act(Some(activation), value);
            assert!((found - wanted).abs() <= 4e-7 * (1.0 + wanted.abs()), "{activation:?}({value}): {found}, not {wanted}");
        }
    }
}

#[test]
fn no_tokens_are_no_work() {
    compare(&Linear { bias: true, ..Linear::new(DType::F16, [0, 5, 5]) }, "portable", open());
}

/// A device that binds less than the operands does the work in parts.
#[test]
fn operands_larger_than_a_binding_are_worked_on_in_parts() {
    for dtype in DType::ALL {
        let mut device = open();
        device.limits.max_storage_buffer_binding_size = 16 << 10;
        compare(&Linear { bias: true, residual: true, ..Linear::new(dtype, [150, 33, 211]) }, "portable", device);
    }
    let mut device = open();
    device.limits.max_storage_buffer_binding_size = 1 << 10;
    let queue = &mut device.queue().unwrap();
    let slice = upload(&device, queue, &[0; 8192]);
    let args = LinearArgs {
        x: slice.clone(),
        w: slice.clone(),
        bias: None,
        residual: None,
        delta: None,
        norm: None,
        input_norm: None,
        y: upload(&device, queue, &[0; 4]),
    };
    let refused = run(&device, queue, &Linear::new(DType::F32, [1, 2048, 1]), None, &args);
    assert!(matches!(refused, Err(crate::Error::Unsupported { .. })));
}

#[test]
fn no_dispatch_takes_a_slow_device_longer_than_its_driver_allows() {
    let device = open();
    for [d_out, d_in] in [[28_672, 8192], [1 << 20, 1 << 10], [64, 1 << 22], [1, 1]] {
        let sizes = Sizes { d_out, d_in, x_stride: d_in, w_stride: d_in };
        let product = device.product("portable", DType::F16, sizes, Epilogue::default()).unwrap().unwrap();
        assert!(2 * d_in * product.rows * product.columns.min(d_out) <= MAX_WORK, "{d_out} x {d_in}: {} rows, {} columns", product.rows, product.columns);
    }
}

#[test]
fn activations_of_great_numbers_are_those_numbers_or_nothing() {
    let device = open();
    let mut queue = device.queue().unwrap();
    let values: Vec<f64> = [89.0, 300.0, 1e20, 1e38, f32::MAX].iter().flat_map(|&value| [value, -value]).map(f64::from).collect();
    for activation in Activation::ALL {
        let op = Pointwise { dtype: DType::F32, rows: 1, columns: values.len() as u64, kind: Kind::Activation(activation) };
        let [x, y] = [&values, &vec![7.0; values.len()]].map(|values| upload(&device, &mut queue, &DType::F32.encode(values)));
        run(&device, &mut queue, &op, None, &PointwiseArgs::new(x, y.clone())).unwrap();
        for (x, y) in values.iter().zip(DType::F32.decode(&download(&device, &mut queue, &y))) {
            assert!((y - x.max(0.0)).abs() <= 1e-6 * x.max(0.0) + 1e-30, "{activation:?} of {x:e}: {y:e}");
        }
    }
}
