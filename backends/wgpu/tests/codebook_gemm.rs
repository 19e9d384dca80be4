//! What the conformance cases leave out: small bindings, changed assignments under a captured graph, ranks to 1024.

use super::{download, noise, open, run, upload};
use crate::backend::Kernel;
use crate::backends::wgpu::{Queue, Wgpu};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::ops::codebook_gemm::{CodebookSlice, CodebookSliceArgs, Factor, FactorArgs, ScaledBy};
use crate::ops::codes::{CODEBOOK_LEN, CodeWidth, decode_column, pack};
use crate::ops::index::{AdapterCodes, BasisOf, Codes, Index, TokenAdapters};
use crate::ops::{CodebookGemm, CodebookGemmArgs, Linear, LinearArgs};

/// A factor on the device, and its values for each adapter, `[d, rank]`.
struct Made {
    args: FactorArgs<Wgpu>,
    of: Vec<Vec<f64>>,
}

fn coded(width: Option<CodeWidth>, d: u64, rank: u64) -> Factor {
    let words = if width.is_some() { 0 } else { rank } + rank * width.unwrap_or(CodeWidth::Bytes).column_words(d);
    Factor::Coded { width, words_per_adapter: words as u32 }
}

fn make(device: &Wgpu, queue: &mut Queue, factor: Factor, op: &CodebookGemm, [d, rank]: [u64; 2], seed: u64) -> Made {
    let (size, adapters) = ((d * rank) as usize, op.adapters as usize);
    let Some(shape) = factor.codes(op.adapters, d, rank) else {
        let Factor::Dense { bases } = factor else { unreachable!() };
        let values = op.dtype.decode(&op.dtype.encode(&noise(bases as usize * size, seed)));
        let basis: Vec<i32> = (0..adapters).map(|a| (a as i32 * 5 + 1) % bases as i32).collect();
        let index = (bases > 1).then(|| Index::new(device, queue, &BasisOf::new(&basis, bases).unwrap()).unwrap());
        let args = FactorArgs::Dense { values: upload(device, queue, &op.dtype.encode(&values)), basis_of: index };
        return Made { args, of: basis.iter().map(|&b| values[b as usize * size..][..size].to_vec()).collect() };
    };
    let books = DType::F32.decode(&DType::F32.encode(&noise(adapters * CODEBOOK_LEN, seed)));
    let (mut all, mut of) = (Vec::new(), Vec::new());
    for adapter in 0..adapters {
        let book: Vec<f32> = books[adapter * CODEBOOK_LEN..][..CODEBOOK_LEN].iter().map(|&v| v as f32).collect();
        let (mut columns, mut values) = (Vec::new(), vec![0.0; size]);
        for j in 0..rank as usize {
            let width = shape.width.unwrap_or(CodeWidth::ALL[(j + adapter) % 6]);
            let draw = |count: usize, seed| -> Vec<u8> { noise(d as usize, seed).iter().map(|v| ((v + 1.0) * 0.4999 * count.max(1) as f64) as u8).collect() };
            let place = seed + (adapter * 1024 + j) as u64;
            let words = pack(width, &draw(width.stage1().len(), place), &draw(width.stage2().len(), place + 77)).unwrap();
            let mut column = vec![0.0; d as usize];
            decode_column(width, &words, &book, &mut column);
            column.iter().enumerate().for_each(|(e, &v)| values[e * rank as usize + j] = f64::from(v));
            columns.push((width, words));
        }
        all.push(AdapterCodes::new(d as u32, shape.width, &columns).unwrap());
        of.push(values);
    }
    let codes = Index::new(device, queue, &Codes::new(shape, &all).unwrap()).unwrap();
    Made { args: FactorArgs::Coded { codes, codebooks: upload(device, queue, &DType::F32.encode(&books)) }, of }
}

/// An operation of one slice with its operands. y holds `before`.
struct Posed {
    device: Wgpu,
    queue: Queue,
    op: CodebookGemm,
    args: CodebookGemmArgs<Wgpu>,
    x: Vec<f64>,
    before: Vec<f64>,
    scaling: Vec<f64>,
    input: Made,
    core: Vec<f64>,
    output: Made,
}

fn ids(tokens: u64, adapters: u32, seed: u64) -> Vec<i32> {
    noise(tokens as usize, seed).iter().map(|v| ((v + 1.0) / 2.0 * f64::from(adapters + 1)) as i32 - 1).collect()
}

fn pose(device: Wgpu, op: CodebookGemm) -> Posed {
    let mut queue = device.queue().unwrap();
    let (slice, dtype, adapters) = (op.slices[0].clone(), op.dtype, op.adapters as usize);
    let rounded = |count: u64, seed| dtype.decode(&dtype.encode(&noise(count as usize, seed)));
    let (x, before) = (rounded(op.tokens * op.x_stride, 1), rounded(op.tokens * slice.y_stride, 2));
    let floats = |count: usize, seed| DType::F32.decode(&DType::F32.encode(&noise(count, seed)));
    let (scaling, core) = (floats(adapters, 3), floats(adapters * (slice.rank * slice.rank) as usize, 4));
    let input = make(&device, &mut queue, slice.input, &op, [op.d_in, slice.rank], 5);
    let output = make(&device, &mut queue, slice.output, &op, [slice.d_out, slice.rank], 6);
    let tokens = TokenAdapters::new(&ids(op.tokens, op.adapters, 7), op.adapters).unwrap();
    let args = CodebookGemmArgs {
        x: upload(&device, &mut queue, &dtype.encode(&x)),
        token_adapter: Index::new(&device, &mut queue, &tokens).unwrap(),
        scaling: upload(&device, &mut queue, &DType::F32.encode(&scaling)),
        slices: vec![CodebookSliceArgs {
            input: input.args.clone(),
            core: slice.core.then(|| upload(&device, &mut queue, &DType::F32.encode(&core))),
            output: output.args.clone(),
            y: upload(&device, &mut queue, &dtype.encode(&before)),
        }],
        prepared: None,
    };
    Posed { device, queue, op, args, x, before, scaling, input, core, output }
}

impl Posed {
    /// The delta of a token in f64, and the size of the numbers that were summed.
    fn delta(&self, token: usize, adapter: usize) -> Vec<(f64, f64)> {
        let slice = &self.op.slices[0];
        let (d_in, rank) = (self.op.d_in as usize, slice.rank as usize);
        let (x, i, o) = (&self.x[token * self.op.x_stride as usize..][..d_in], &self.input.of[adapter], &self.output.of[adapter]);
        let mut h: Vec<(f64, f64)> =
            (0..rank).map(|j| (0..d_in).map(|k| x[k] * i[k * rank + j]).fold((0.0, 0.0), |(sum, size), v| (sum + v, size + v.abs()))).collect();
        if slice.core {
            let q = &self.core[adapter * rank * rank..][..rank * rank];
            let column = |j: usize| h.iter().enumerate().fold((0.0, 0.0), |sum, (i, v)| (sum.0 + v.0 * q[i * rank + j], sum.1 + v.1 * q[i * rank + j].abs()));
            h = (0..rank).map(column).collect();
        }
        let of = |row: &[f64]| h.iter().zip(row).fold((0.0, 0.0), |sum, (h, o)| (sum.0 + h.0 * o, sum.1 + h.1 * o.abs()));
        o.chunks_exact(rank).map(of).map(|(sum, size)| (self.scaling[adapter] * sum, self.scaling[adapter].abs() * size)).collect()
    }

    fn compare(&mut self, ids: &[i32]) {
        let (dtype, slice) = (self.op.dtype, self.op.slices[0].clone());
        let found = download(&self.device, &mut self.queue, &self.args.slices[0].y);
        let (stride, bytes) = (slice.y_stride as usize, dtype.encode(&self.before));
        let values = dtype.decode(&found);
        for (token, &id) in ids.iter().enumerate() {
            let row = token * stride;
            let delta = if id >= 0 { self.delta(token, id as usize) } else { vec![(0.0, 0.0); slice.d_out as usize] };
            for (o, (delta, size)) in delta.into_iter().enumerate() {
                let wanted = delta + if self.op.accumulate { self.before[row + o] } else { 0.0 };
                // Every sum is in f32, and errors do not conspire: their size grows with the root of the length.
                let length = (self.op.d_in + 2 * slice.rank) as f64;
                let bound = dtype.ulp(wanted) + 2f64.powi(-23) * length.sqrt() * size;
                assert!((values[row + o] - wanted).abs() <= bound, "{:?} [{token}, {o}]: {}, not {wanted}", self.op, values[row + o]);
            }
            let between = (row + slice.d_out as usize) * dtype.size() as usize..(row + stride) * dtype.size() as usize;
            assert!(found[between.clone()] == bytes[between], "{:?}: wrote between rows", self.op);
        }
    }

    fn check(mut self) {
        run(&self.device, &mut self.queue, &self.op, Some("portable"), &self.args).unwrap();
        self.compare(&ids(self.op.tokens, self.op.adapters, 7));
    }
}

fn op(dtype: DType, tokens: u64, [d_in, d_out, rank]: [u64; 3], input: Factor, output: Factor) -> CodebookGemm {
    let slice = CodebookSlice { d_out, y_stride: d_out + 3, rank, input, core: true, output };
    CodebookGemm {
        dtype,
        tokens,
        d_in,
        x_stride: d_in + 1,
        adapters: 5,
        scaled_by: ScaledBy::Adapter,
        accumulate: true,
        slices: vec![slice],
        batch_invariant: false,
    }
}

#[test]
fn every_rank_to_1024() {
    for (n, rank) in [1, 2, 15, 16, 17, 130, 1023, 1024].into_iter().enumerate() {
        let (input, output) = (coded(None, 20, rank), Factor::Dense { bases: 2 });
        pose(open(), op(DType::ALL[n % 3], 7, [20, 30, rank], input, output)).check();
        pose(open(), op(DType::ALL[n % 3], 7, [20, 30, rank], Factor::Dense { bases: 1 }, coded(Some(CodeWidth::FourThree), 30, rank))).check();
    }
}

/// A device that binds little works on rows in parts, and on adapters and bases in parts.
#[test]
fn operands_larger_than_a_binding_are_worked_on_in_parts() {
    for (factor, accumulate) in
        [(Factor::Dense { bases: 4 }, true), (Factor::Dense { bases: 4 }, false), (coded(None, 60, 21), true), (coded(None, 60, 21), false)]
    {
        for dtype in DType::ALL {
            let mut device = open();
            device.limits.max_storage_buffer_binding_size = 12 << 10;
            let op = CodebookGemm { accumulate, ..op(dtype, 150, [60, 60, 21], factor, factor) };
            let plan = device.plan(&op, None).unwrap();
            assert!(<Wgpu as Kernel<CodebookGemm>>::workspace_bytes(&plan) < 150 * 21 * 4 * 2, "the rows were to be worked on in parts");
            pose(device, op).check();
        }
    }
    let mut device = open();
    device.limits.max_storage_buffer_binding_size = 1 << 10;
    let refused = device.plan(&op(DType::F32, 1, [60, 60, 21], Factor::Dense { bases: 1 }, Factor::Dense { bases: 1 }), None);
    assert!(matches!(refused, Err(crate::Error::Unsupported { .. })));
}

/// The number of segments is data. A replay may see another number, up to one a token, and none.
#[test]
fn a_captured_graph_follows_the_assignment() {
    let op =
        CodebookGemm { accumulate: false, adapters: 40, ..op(DType::F16, 61, [24, 33, 6], Factor::Dense { bases: 2 }, coded(Some(CodeWidth::Three), 33, 6)) };
    let mut posed = pose(open(), op.clone());
    let plan = posed.device.plan(&op, None).unwrap();
    let bytes = <Wgpu as Kernel<CodebookGemm>>::workspace_bytes(&plan);
    let workspace = Slice::new(posed.device.alloc(bytes).unwrap(), 0, bytes);
    posed.device.begin_capture(&mut posed.queue).unwrap();
    // SAFETY: the operands fit the operation, which `run` checks in the tests above; the workspace is this launch's own.
    unsafe { Kernel::<CodebookGemm>::launch(&posed.device, &mut posed.queue, &plan, &workspace, &posed.args).unwrap() };
    let graph = posed.device.end_capture(&mut posed.queue).unwrap();
    for assignment in [vec![39; 61], (0..61).map(|t| t % 40).collect(), vec![-1; 61], ids(61, 40, 99), (0..61).map(|t| t / 30 * 7 - 1).collect()] {
        let tokens = TokenAdapters::new(&assignment, 40).unwrap();
        posed.args.token_adapter.update(&posed.device, &mut posed.queue, &tokens).unwrap();
        let poison = DType::F16.encode(&posed.before);
        posed.device.write(&mut posed.queue, &posed.args.slices[0].y.clone(), &poison).unwrap();
        // SAFETY: every buffer that the graph names is alive.
        unsafe { posed.device.replay(&mut posed.queue, &graph).unwrap() };
        posed.compare(&assignment);
    }
}

/// `linear` with a zero weight is its delta alone: rows in parts, on a device that binds little.
#[test]
fn the_delta_of_linear_in_parts() {
    for dtype in DType::ALL {
        let mut device = open();
        device.limits.max_storage_buffer_binding_size = 12 << 10;
        let mut delta = op(dtype, 130, [31, 45, 9], coded(Some(CodeWidth::Four), 31, 9), coded(None, 45, 9));
        (delta.x_stride, delta.slices[0].y_stride) = (31, 45);
        let mut posed = pose(device, delta.clone());
        let zeros = upload(&posed.device, &mut posed.queue, &dtype.encode(&[0.0; 31 * 45]));
        let (x, y) = (posed.args.x.clone(), posed.args.slices[0].y.clone());
        let residual = upload(&posed.device, &mut posed.queue, &dtype.encode(&posed.before));
        let op = Linear { residual: true, delta: Some(delta), ..Linear::new(dtype, [130, 31, 45]) };
        let args = LinearArgs { x, w: zeros, bias: None, residual: Some(residual), delta: Some(posed.args.clone()), norm: None, input_norm: None, y };
        run(&posed.device, &mut posed.queue, &op, Some("portable"), &args).unwrap();
        posed.compare(&ids(130, 5, 7));
    }
}
