use super::{download, noise, open, run, upload};
use crate::device::Device;
use crate::dtype::DType;
use crate::ops::pointwise::Kind;
use crate::ops::{Activation, Pointwise, PointwiseArgs};

/// Rows of gates that fit a binding, and a row that is longer than several: all gates of a batch, and then all that they let through.
#[test]
fn gates_longer_than_a_binding_are_worked_on_in_parts() {
    for dtype in DType::ALL {
        for [rows, columns] in [[5, 33], [1, 3001], [2, 1500]] {
            let mut device = open();
            device.limits.max_storage_buffer_binding_size = 2 << 10;
            assert!(columns < 100 || 2 * columns * dtype.size() > device.window_bytes());
            let mut queue = device.queue().unwrap();
            let values = dtype.decode(&dtype.encode(&noise(2 * (rows * columns) as usize, 7)));
            let [x, y] = [&values[..], &vec![f64::NAN; (rows * columns) as usize]].map(|values| upload(&device, &mut queue, &dtype.encode(values)));
            let op = Pointwise::new(dtype, rows, columns, Kind::Glu(Activation::Silu));
            run(&device, &mut queue, &op, None, &PointwiseArgs::new(x, y.clone())).unwrap();
            let found = dtype.decode(&download(&device, &mut queue, &y));
            let unit = if dtype == DType::F32 { 1e-6 } else { 1e-2 };
            for (row, of) in values.chunks_exact(2 * columns as usize).enumerate() {
                let (gates, ups) = of.split_at(columns as usize);
                for (column, (gate, up)) in gates.iter().zip(ups).enumerate() {
                    let (wanted, found) = (gate / (1.0 + (-gate).exp()) * up, found[row * columns as usize + column]);
                    assert!((found - wanted).abs() <= unit * (1.0 + wanted.abs()), "{dtype} {op:?}: {row}, {column}: {found}, not {wanted}");
                }
            }
        }
    }
}
