//! A backend of one's own, outside the library: memory of the host, a queue that works at once, `linear` in plain loops; and the testkit's proof of it.
//!
//! `cargo run --example own_backend`

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use trifuse::backend::Kernel;
use trifuse::device::{Caps, Clock, Device, Kind, Slice};
use trifuse::ops::{Activation, Attention, Checksum, CodebookGemm, FusedMlp, GroupedLinear, Linear, LinearArgs, Op, Pointwise, PrefixAttention, Sample};
use trifuse::{Error, Result, session::Session};
use trifuse_testkit::cases::{OpKind, Problem, all};
use trifuse_testkit::conformance::{Mode, Outcome, Subject, run_case};

struct Plain(Caps);

type Memory = Arc<Mutex<Vec<u8>>>;
type Launches = Vec<Box<dyn Fn() + Send>>;

/// What is recorded while a graph is captured.
#[derive(Default)]
struct Queue(Option<Launches>);

fn get(slice: &Slice<Plain>) -> Vec<u8> {
    let memory = slice.buffer().lock().unwrap_or_else(PoisonError::into_inner);
    memory[slice.offset() as usize..][..slice.len() as usize].to_vec()
}

fn put(slice: &Slice<Plain>, bytes: &[u8]) {
    let mut memory = slice.buffer().lock().unwrap_or_else(PoisonError::into_inner);
    memory[slice.offset() as usize..][..bytes.len()].copy_from_slice(bytes);
}

impl Device for Plain {
    const NAME: &'static str = "plain";
    type Buffer = Memory;
    type Queue = Queue;
    type Graph = Launches;
    type Event = Instant;

    fn caps(&self) -> &Caps {
        &self.0
    }

    fn queue(&self) -> Result<Queue> {
        Ok(Queue::default())
    }

    fn alloc(&self, bytes: u64) -> Result<Memory> {
        let full = |_| Error::OutOfMemory { requested: bytes, purpose: "a buffer".into() };
        let mut memory = Vec::new();
        memory.try_reserve_exact(bytes as usize).map_err(full)?;
        memory.resize(bytes as usize, 0);
        Ok(Arc::new(Mutex::new(memory)))
    }

    fn buffer_id(buffer: &Memory) -> usize {
        Arc::as_ptr(buffer) as usize
    }

    fn write(&self, _: &mut Queue, dst: &Slice<Self>, src: &[u8]) -> Result<()> {
        put(dst, src);
        Ok(())
    }

    fn read(&self, _: &mut Queue, src: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        dst.copy_from_slice(&get(src)[..dst.len()]);
        Ok(())
    }

    fn copy(&self, _: &mut Queue, src: &Slice<Self>, dst: &Slice<Self>) -> Result<()> {
        put(dst, &get(src));
        Ok(())
    }

    fn record_event(&self, _: &mut Queue) -> Result<Instant> {
        Ok(Instant::now())
    }

    fn elapsed(&self, _: &mut Queue, earlier: &Instant, later: &Instant) -> Result<f64> {
        Ok((*later - *earlier).as_secs_f64())
    }

    fn clock(&self) -> Clock {
        Clock::Host
    }

    fn synchronize(&self, _: &mut Queue) -> Result<()> {
        Ok(())
    }

    fn begin_capture(&self, queue: &mut Queue) -> Result<()> {
        queue.0 = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self, queue: &mut Queue) -> Result<Launches> {
        Ok(queue.0.take().unwrap_or_default())
    }

    unsafe fn replay(&self, _: &mut Queue, graph: &Launches) -> Result<()> {
        graph.iter().for_each(|launch| launch());
        Ok(())
    }
}

fn activate(activation: Option<Activation>, z: f64) -> f64 {
    match activation {
        None => z,
        Some(Activation::Relu) => z.max(0.0),
        Some(Activation::Silu) => z / (1.0 + (-z).exp()),
        Some(Activation::GeluTanh) => 0.5 * z * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (z + 0.044_715 * z.powi(3))).tanh()),
        Some(Activation::GeluErf) => 0.5 * z * (1.0 + libm::erf(z / std::f64::consts::SQRT_2)),
    }
}

/// `Y = act(X·Wᵀ + bias) + residual`, rounded once. The session has checked every operand.
fn linear(op: &Linear, args: &LinearArgs<Plain>) {
    let values = |slice: &Slice<Plain>| op.dtype.decode(&get(slice));
    let (x, w) = (values(&args.x), values(&args.w));
    let [bias, residual] = [&args.bias, &args.residual].map(|of| of.as_ref().map(values));
    let [columns, depth, x_stride, w_stride] = [op.d_out, op.d_in, op.x_stride, op.w_stride].map(|size| size as usize);
    let element = |at: usize| {
        let (row, column) = (at / columns, at % columns);
        let product: f64 = (0..depth).map(|k| x[row * x_stride + k] * w[column * w_stride + k]).sum();
        let sum = product + bias.as_ref().map_or(0.0, |bias| bias[column]);
        activate(op.activation, sum) + residual.as_ref().map_or(0.0, |residual| residual[at])
    };
    let y: Vec<f64> = (0..op.tokens as usize * columns).map(element).collect();
    put(&args.y, &op.y_dtype().encode(&y));
}

impl Kernel<Linear> for Plain {
    type Plan = Linear;

    fn variants(&self) -> &'static [&'static str] {
        &["loops"]
    }

    fn plan(&self, op: &Linear, _: Option<&str>) -> Result<Linear> {
        match op.no_delta().and_then(|()| op.no_norm()) {
            Ok(()) => Ok(op.clone()),
            Err(_) => Err(Error::unsupported("linear", "loops: adapters and norms are operations of their own here")),
        }
    }

    fn workspace_bytes(_: &Linear) -> u64 {
        0
    }

    fn variant(_: &Linear) -> &'static str {
        "loops"
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Linear, _: &Slice<Self>, args: &LinearArgs<Self>) -> Result<()> {
        let (op, args) = (plan.clone(), args.clone());
        let launch = move || linear(&op, &args);
        match &mut queue.0 {
            Some(recorded) => recorded.push(Box::new(launch)),
            None => launch(),
        }
        Ok(())
    }
}

/// What the backend leaves out says so, and callers look for another.
macro_rules! left_out {
    ($($op:ty)*) => { $(
        impl Kernel<$op> for Plain {
            type Plan = ();

            fn variants(&self) -> &'static [&'static str] {
                &[]
            }

            fn plan(&self, _: &$op, _: Option<&str>) -> Result<()> {
                Err(Error::unsupported(<$op>::NAME, "this backend has linear alone"))
            }

            fn workspace_bytes((): &()) -> u64 {
                0
            }

            fn variant((): &()) -> &'static str {
                ""
            }

            unsafe fn launch(&self, _: &mut Queue, (): &(), _: &Slice<Self>, _: &<$op as Op>::Args<Self>) -> Result<()> {
                Err(Error::unsupported(<$op>::NAME, "this backend has linear alone"))
            }
        }
    )* };
}
left_out! { Attention Checksum CodebookGemm FusedMlp GroupedLinear Pointwise PrefixAttention Sample }

pub fn run() -> Result<()> {
    let caps = Caps {
        name: "plain loops".into(),
        driver: String::new(),
        kind: Kind::Cpu,
        memory_bytes: None,
        max_buffer_bytes: 1 << 32,
        multiprocessors: 1,
        shared_bytes: 0,
        f16: true,
        subgroup: None,
        cuda_arch: None,
        clock_hz: None,
        memory_bytes_per_second: None,
    };
    let mut session = Session::new(Arc::new(Plain(caps)))?;
    // The cases that loops have time for; a backend that means it runs all of them, and the contract's tests too.
    let subjects = all().into_iter().filter(|case| case.kind() == OpKind::Linear).map(Subject::from);
    let [mut passed, mut left_out] = [0; 2];
    for subject in subjects {
        if !matches!(subject.problem()?, Problem::Linear(posed) if posed.op.cost().executed_flops < 3e6) {
            continue;
        }
        for mode in [Mode::Direct, Mode::Captured, Mode::Aligned] {
            match run_case(&mut session, &subject, None, mode)? {
                Outcome::Passed(_) => passed += 1,
                Outcome::Unsupported { .. } => left_out += 1,
                Outcome::Failed { why } => return Err(Error::Missed { subject: subject.name().into(), asked: "float64's answer".into(), reached: why }),
            }
        }
    }
    println!("an own backend: {passed} runs of linear's cases agree with float64, {left_out} are left out");
    assert!(passed > 100 && left_out > 0, "{passed}, {left_out}");
    Ok(())
}

#[allow(dead_code, reason = "a test runs `run` alone")]
fn main() -> Result<()> {
    run()
}
