//! What the cases cannot steer: every layout of the work, keys split and not, and work done in parts. The reference is a plain softmax in
//! f64.

use super::{download, noise, open, run, upload};
use crate::backend::Kernel;
use crate::backends::wgpu::Wgpu;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::ops::Attention;
use crate::ops::attention::{AttentionArgs, AttentionIndex, Strides};

/// The operands of a dense, packed `[b, s, h, d]` problem, on the host.
struct Host {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
}

impl Host {
    fn new(op: &Attention) -> Self {
        let rounded = |tokens, heads, seed| op.dtype.decode(&op.dtype.encode(&noise((op.batch * tokens * heads * op.head_dim) as usize, seed)));
        Self { q: rounded(op.q_len, op.heads, 1), k: rounded(op.kv_len, op.kv_heads, 2), v: rounded(op.kv_len, op.kv_heads, 3) }
    }

    fn upload(&self, op: &Attention, device: &Wgpu) -> AttentionArgs<Wgpu> {
        let queue = &mut device.queue().unwrap();
        let mut put = |values: &[f64], dtype: DType| upload(device, queue, &dtype.encode(values));
        AttentionArgs {
            q: put(&self.q, op.dtype),
            k: put(&self.k, op.dtype),
            v: put(&self.v, op.dtype),
            index: AttentionIndex::None,
            slots: None,
            o: put(&vec![f64::NAN; self.q.len()], op.dtype),
            lse: op.lse.then(|| put(&vec![f64::NAN; op.lse_len() as usize], DType::F32)),
        }
    }

    /// The output and LSE, computed in f64.
    fn answer(&self, op: &Attention) -> (Vec<f64>, Vec<f64>) {
        let [d, heads, q_len, kv_len] = [op.head_dim, op.heads, op.q_len, op.kv_len].map(|n| n as usize);
        let kv_heads = op.kv_heads as usize;
        let (mut o, mut lse) = (vec![0.0; self.q.len()], Vec::new());
        for (b, h, i) in (0..op.batch as usize).flat_map(|b| (0..heads).flat_map(move |h| (0..q_len).map(move |i| (b, h, i)))) {
            let row = ((b * q_len + i) * heads + h) * d;
            let key = |j: usize| ((b * kv_len + j) * kv_heads + h / (heads / kv_heads)) * d;
            let position = (i + kv_len) as i64 - q_len as i64;
            let near = |j: usize| op.window.is_none_or(|w| (j as i64 - position).unsigned_abs() <= w);
            let seen: Vec<usize> = (0..kv_len).filter(|&j| (!op.causal || j as i64 <= position) && near(j)).collect();
            let dot = |j: usize| (0..d).map(|c| self.q[row + c] * self.k[key(j) + c]).sum::<f64>();
            let weights: Vec<f64> = seen.iter().map(|&j| (f64::from(op.scale_value()) * dot(j)).exp()).collect();
            let sum: f64 = weights.iter().sum();
            lse.push(sum.ln());
            for (&j, weight) in seen.iter().zip(&weights) {
                (0..d).for_each(|c| o[row + c] += weight / sum * self.v[key(j) + c]);
            }
        }
        (o, lse)
    }
}

fn variants(dtype: DType, device: &Wgpu) -> &'static [&'static str] {
    if dtype == DType::F16 && device.caps().f16 { &["f16", "portable"] } else { &["portable"] }
}

/// Runs `op` in every variant and compares with f64.
fn compare(op: &Attention, device: &Wgpu) {
    let (host, queue) = (Host::new(op), &mut device.queue().unwrap());
    let (o, lse) = host.answer(op);
    for &variant in variants(op.dtype, device) {
        let args = host.upload(op, device);
        run(device, queue, op, Some(variant), &args).unwrap();
        for (found, wanted) in op.dtype.decode(&download(device, queue, &args.o)).into_iter().zip(&o) {
            // Values are below 1, and so is every weighted mean of them.
            assert!((found - wanted).abs() <= op.dtype.ulp(*wanted) + 1e-5, "{op:?} {variant}: {found}, not {wanted}");
        }
        for (found, &wanted) in DType::F32.decode(&download(device, queue, args.lse.as_ref().unwrap())).into_iter().zip(&lse) {
            assert!(found == wanted || (found - wanted).abs() <= 1e-5, "{op:?} {variant}: LSE {found}, not {wanted}");
        }
    }
}

fn dense(dtype: DType, batch: u64, heads: [u64; 2], lengths: [u64; 2], head_dim: u64) -> Attention {
    Attention { lse: true, ..Attention::dense(dtype, batch, heads, lengths, head_dim) }
}

fn splits(op: &Attention, device: &Wgpu) -> bool {
    let plan = Kernel::<Attention>::plan(device, op, None).unwrap();
    <Wgpu as Kernel<Attention>>::workspace_bytes(&plan) > 0
}

/// Workgroups of different layout compute one query, a few and many. 20 keys are one split, 700 are more.
#[test]
fn every_layout_with_split_keys_and_without() {
    let device = open();
    for dtype in DType::ALL {
        for (q_len, heads) in [(1, [2, 2]), (1, [6, 1]), (3, [2, 1]), (21, [2, 1])] {
            for (kv_len, split) in [(20, false), (700, true)] {
                let op = dense(dtype, 2, heads, [q_len, kv_len], 37);
                assert_eq!(splits(&op, &device), split, "{op:?}");
                compare(&op, &device);
                compare(&Attention { causal: true, ..op.clone() }, &device);
                // Many parts see no key of some rows.
                compare(&Attention { causal: true, window: Some(5), ..op.clone() }, &device);
                compare(&Attention { window: Some(300), ..op }, &device);
            }
        }
    }
}

#[test]
fn every_count_of_quads_a_lane() {
    let device = open();
    // These are few, because compiling takes the time. The cases have the other head dimensions.
    for (dtype, head_dim) in [(DType::F32, 1), (DType::F32, 130), (DType::F16, 193), (DType::F32, 256), (DType::F16, 256)] {
        for (q_len, kv_len) in [(1, 300), (35, 40)] {
            compare(&dense(dtype, 1, [1, 1], [q_len, kv_len], head_dim), &device);
        }
    }
}

/// Queries before the first key, in split parts too, give 0 and minus infinity.
#[test]
fn rows_without_keys_are_zero() {
    let device = open();
    for kv_len in [0, 600] {
        let op = Attention { causal: true, ..dense(DType::F32, 1, [1, 1], [kv_len + 40, kv_len], 16) };
        assert_eq!(splits(&op, &device), kv_len > 0);
        compare(&op, &device);
    }
}

/// The bytes of the result, with at most `groups` workgroups a dispatch.
fn answer(op: &Attention, host: &Host, device: &Wgpu, groups: Option<u64>) -> Vec<u8> {
    let (args, queue) = (host.upload(op, device), &mut device.queue().unwrap());
    let mut plan = Kernel::<Attention>::plan(device, op, None).unwrap();
    plan.groups = groups.unwrap_or(plan.groups);
    let len = <Wgpu as Kernel<Attention>>::workspace_bytes(&plan);
    let workspace = Slice::new(device.alloc(len).unwrap(), 0, len);
    crate::ops::check(device, op, &args).unwrap();
    // SAFETY: the operands were checked, the workspace is of the size asked for and this launch's own.
    unsafe { <Wgpu as Kernel<Attention>>::launch(device, queue, &plan, &workspace, &args) }.unwrap();
    let mut bytes = download(device, queue, &args.o);
    bytes.extend(download(device, queue, args.lse.as_ref().unwrap()));
    bytes
}

/// One dispatch may run too long, or the device may bind less than the operands. The work is then done in parts.
#[test]
fn work_in_parts_gives_the_same_bits() {
    for op in [dense(DType::F16, 5, [2, 1], [40, 70], 33), dense(DType::BF16, 5, [4, 2], [1, 600], 24)] {
        let (host, device) = (Host::new(&op), open());
        let whole = answer(&op, &host, &device, None);
        assert!(whole == answer(&op, &host, &device, None), "a second run");
        assert!(whole == answer(&op, &host, &device, Some(3)), "three workgroups a dispatch");
        // The device has room for the two longest sequences.
        let mut device = device;
        device.limits.max_storage_buffer_binding_size = 2 * 2 * op.k.batch.max(op.q.batch) + 512;
        assert!(whole == answer(&op, &host, &device, None), "two sequences a dispatch");
        compare(&op, &device);
        device.limits.max_storage_buffer_binding_size = 512;
        let refused = Kernel::<Attention>::plan(&device, &op, None);
        assert!(matches!(refused, Err(crate::Error::Unsupported { .. })));
    }
}

/// Strides of zero give all queries one key. Nothing is multiplied by them, and there is little to bind.
#[test]
fn keys_may_share_memory() {
    let device = open();
    let shared = Strides { batch: 0, token: 0, head: 0 };
    let op = Attention { k: shared, v: shared, ..dense(DType::F32, 2, [2, 2], [3, 50], 8) };
    let queue = &mut device.queue().unwrap();
    let key = noise(8, 5);
    let args =
        AttentionArgs { k: upload(&device, queue, &DType::F32.encode(&key)), ..Host::new(&dense(DType::F32, 2, [2, 2], [3, 50], 8)).upload(&op, &device) };
    let args = AttentionArgs { v: args.k.clone(), ..args };
    run(&device, queue, &op, None, &args).unwrap();
    for (i, found) in DType::F32.decode(&download(&device, queue, &args.o)).into_iter().enumerate() {
        assert!((found - key[i % 8]).abs() <= 1e-6, "{found}, not {}", key[i % 8]);
    }
}
