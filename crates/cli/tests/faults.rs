//! The runner and the benchmarks against a device that is wrong on purpose: each fault has to be found, and a right device has to pass.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use trifuse::backend::Kernel;
use trifuse::device::{Caps, Clock, Device, Kind, Slice};
use trifuse::ops::{Attention, Checksum, CodebookGemm, FusedMlp, GroupedLinear, Linear, Op, Pointwise, PrefixAttention, Sample};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};
use trifuse_cli::bench::align::Sweep;
use trifuse_cli::bench::layer::Choice;
use trifuse_cli::bench::report::{Flag, Outcome as Measurement};
use trifuse_cli::bench::shape::Suite;
use trifuse_cli::bench::timing::Schedule;
use trifuse_cli::bench::{Options, own, run};
use trifuse_testkit::cases::{Case, OpKind, all};
use trifuse_testkit::conformance::{Mode, Outcome, Subject, run_case};

/// What is wrong with the device.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    LeavesTheLastElement,
    WritesBeforeTheOutput,
    WritesAfterTheOutput,
    WritesAnInput,
    TransposesTheWeight,
    GivesZeros,
    IsOffByAThousandth,
    ChangesFromRunToRun,
    ChangesInTheTenthRun,
    ReplaysNothing,
    RefusesItsOwnVariant,
    ItsClockStandsStill,
    ItsQueueIsSlow,
}

/// Memory of the host behind a queue that works at once; `linear` is all it knows.
struct Faulty {
    fault: Fault,
    caps: Caps,
    runs: Mutex<u32>,
}

type Memory = Arc<Mutex<Vec<u8>>>;
/// Recorded launches.
type Launches = Vec<Box<dyn Fn() + Send>>;

#[derive(Default)]
struct Queue {
    recording: Option<Launches>,
}

impl Device for Faulty {
    const NAME: &'static str = "faulty";
    type Buffer = Memory;
    type Queue = Queue;
    type Graph = Launches;
    type Event = std::time::Instant;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn queue(&self) -> Result<Queue> {
        Ok(Queue::default())
    }

    fn alloc(&self, bytes: u64) -> Result<Memory> {
        Ok(Arc::new(Mutex::new(vec![0; bytes as usize])))
    }

    fn buffer_id(buffer: &Memory) -> usize {
        Arc::as_ptr(buffer) as usize
    }

    fn write(&self, _: &mut Queue, dst: &Slice<Self>, src: &[u8]) -> Result<()> {
        dst.buffer().lock().unwrap()[dst.offset() as usize..][..src.len()].copy_from_slice(src);
        Ok(())
    }

    fn read(&self, _: &mut Queue, src: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        dst.copy_from_slice(&src.buffer().lock().unwrap()[src.offset() as usize..][..dst.len()]);
        Ok(())
    }

    fn copy(&self, _: &mut Queue, src: &Slice<Self>, dst: &Slice<Self>) -> Result<()> {
        put(dst, 0, &bytes_of(src));
        Ok(())
    }

    fn record_event(&self, _: &mut Queue) -> Result<Self::Event> {
        Ok(std::time::Instant::now())
    }

    fn elapsed(&self, _: &mut Queue, earlier: &Self::Event, later: &Self::Event) -> Result<f64> {
        Ok(match self.fault {
            Fault::ItsClockStandsStill => 1e-12,
            // What the host takes to put work into the queue is then the longer time.
            Fault::ItsQueueIsSlow => 1e-5,
            _ => (*later - *earlier).as_secs_f64(),
        })
    }

    fn clock(&self) -> Clock {
        if self.fault == Fault::ItsQueueIsSlow { Clock::Device } else { Clock::Host }
    }

    fn synchronize(&self, _: &mut Queue) -> Result<()> {
        Ok(())
    }

    fn begin_capture(&self, queue: &mut Queue) -> Result<()> {
        queue.recording = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self, queue: &mut Queue) -> Result<Launches> {
        Ok(queue.recording.take().unwrap_or_default())
    }

    unsafe fn replay(&self, _: &mut Queue, graph: &Launches) -> Result<()> {
        if self.fault != Fault::ReplaysNothing {
            graph.iter().for_each(|launch| launch());
        }
        Ok(())
    }
}

fn bytes_of(slice: &Slice<Faulty>) -> Vec<u8> {
    slice.buffer().lock().unwrap()[slice.offset() as usize..][..slice.len() as usize].to_vec()
}

fn put(slice: &Slice<Faulty>, at: i64, bytes: &[u8]) {
    let at = (slice.offset() as i64 + at) as usize;
    slice.buffer().lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
}

/// `Y = X·Wᵀ` and nothing else, with the fault of run number `run`.
fn compute(op: &Linear, args: &trifuse::ops::LinearArgs<Faulty>, fault: Fault, run: u32) {
    let (x, w) = (op.dtype.decode(&bytes_of(&args.x)), op.dtype.decode(&bytes_of(&args.w)));
    let (k, n) = (op.d_in as usize, op.d_out as usize);
    let weight = |o: usize, i: usize| if fault == Fault::TransposesTheWeight { w[i * n + o] } else { w[o * k + i] };
    let mut y: Vec<f64> = (0..op.tokens as usize * n).map(|at| (0..k).map(|i| x[at / n * k + i] * weight(at % n, i)).sum()).collect();
    match fault {
        Fault::GivesZeros => y.fill(0.0),
        Fault::IsOffByAThousandth => y.iter_mut().for_each(|y| *y *= 1.002),
        Fault::ChangesFromRunToRun => y[3] += op.dtype.ulp(y[3]) * f64::from(run),
        Fault::ChangesInTheTenthRun if run == 10 => y[3] += op.dtype.ulp(y[3]),
        _ => {}
    }
    let mut bytes = op.dtype.encode(&y);
    if fault == Fault::LeavesTheLastElement {
        bytes.truncate(bytes.len() - op.dtype.size() as usize);
    }
    put(&args.y, 0, &bytes);
    match fault {
        Fault::WritesBeforeTheOutput => put(&args.y, -2, &[0, 0]),
        Fault::WritesAfterTheOutput => put(&args.y, bytes.len() as i64, &[0, 0]),
        Fault::WritesAnInput => put(&args.x, 4, &[1, 2]),
        _ => {}
    }
}

impl Kernel<Linear> for Faulty {
    type Plan = Linear;

    fn variants(&self) -> &'static [&'static str] {
        &["plain"]
    }

    fn plan(&self, op: &Linear, only: Option<&str>) -> Result<Linear> {
        if self.fault == Fault::RefusesItsOwnVariant && only.is_none() {
            return Err(Error::unsupported("linear", "on purpose"));
        }
        Ok(op.clone())
    }

    fn workspace_bytes(_: &Linear) -> u64 {
        0
    }

    fn variant(_: &Linear) -> &'static str {
        "plain"
    }

    unsafe fn launch(&self, queue: &mut Queue, plan: &Linear, _: &Slice<Self>, args: &trifuse::ops::LinearArgs<Self>) -> Result<()> {
        let mut runs = self.runs.lock().unwrap();
        *runs += 1;
        let (plan, args, fault, run) = (plan.clone(), args.clone(), self.fault, *runs);
        let launch = move || compute(&plan, &args, fault, run);
        match &mut queue.recording {
            Some(recording) => recording.push(Box::new(launch)),
            None => launch(),
        }
        Ok(())
    }
}

macro_rules! unsupported {
    ($($op:ty)*) => { $(
        impl Kernel<$op> for Faulty {
            type Plan = ();

            fn variants(&self) -> &'static [&'static str] {
                &[]
            }

            fn plan(&self, _: &$op, _: Option<&str>) -> Result<()> {
                Err(Error::unsupported(<$op>::NAME, "the faulty device knows linear alone"))
            }

            fn workspace_bytes((): &()) -> u64 {
                0
            }

            fn variant((): &()) -> &'static str {
                ""
            }

            unsafe fn launch(&self, _: &mut Queue, (): &(), _: &Slice<Self>, _: &<$op as Op>::Args<Self>) -> Result<()> {
                Err(Error::unsupported(<$op>::NAME, "the faulty device knows linear alone"))
            }
        }
    )* };
}
unsupported! { CodebookGemm Attention PrefixAttention FusedMlp GroupedLinear Pointwise Sample Checksum }

fn session(fault: Fault) -> Session<Faulty> {
    let caps = Caps {
        name: "faulty".into(),
        driver: String::new(),
        kind: Kind::Cpu,
        memory_bytes: None,
        max_buffer_bytes: 1 << 30,
        multiprocessors: 1,
        shared_bytes: 0,
        f16: true,
        subgroup: None,
        cuda_arch: None,
        clock_hz: None,
        memory_bytes_per_second: None,
    };
    Session::new(Arc::new(Faulty { fault, caps, runs: Mutex::new(0) })).unwrap()
}

fn subject(name: &str) -> Subject {
    Subject::from(all().into_iter().find(|case: &Case| case.name() == name).unwrap())
}

fn outcome(fault: Fault, mode: Mode) -> Outcome {
    run_case(&mut session(fault), &subject("linear/d_in31_f16"), Some("plain"), mode).unwrap()
}

#[test]
fn a_right_device_passes() {
    for mode in [Mode::Direct, Mode::Captured, Mode::Repeated(5)] {
        match outcome(Fault::None, mode) {
            Outcome::Passed(metrics) => assert_eq!(metrics.len(), 1),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn every_fault_is_found_and_named() {
    for (fault, words) in [
        (Fault::LeavesTheLastElement, "NaN"),
        (Fault::WritesBeforeTheOutput, "wrote where it must not: 2 bytes before y"),
        (Fault::WritesAfterTheOutput, "wrote where it must not: 0 bytes after the end of y"),
        (Fault::WritesAnInput, "wrote where it must not: x, byte 4 of"),
        (Fault::TransposesTheWeight, "y: max |error|"),
        (Fault::GivesZeros, "y: max |error|"),
        (Fault::IsOffByAThousandth, "relative L2"),
        (Fault::ChangesFromRunToRun, "run 2 differs from the first run in y"),
        (Fault::RefusesItsOwnVariant, "on purpose"),
    ] {
        match outcome(fault, Mode::Direct) {
            Outcome::Failed { why } => assert!(why.contains(words), "{fault:?}: {why}"),
            other => panic!("{fault:?}: {other:?}"),
        }
    }
    match outcome(Fault::ReplaysNothing, Mode::Captured) {
        Outcome::Failed { why } => assert!(why.contains("replay 1 differs"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_shows_seldom_is_found_by_repeating() {
    assert!(matches!(outcome(Fault::ChangesInTheTenthRun, Mode::Direct), Outcome::Passed(_)));
    assert!(matches!(outcome(Fault::ChangesInTheTenthRun, Mode::Repeated(9)), Outcome::Passed(_)));
    match outcome(Fault::ChangesInTheTenthRun, Mode::Repeated(10)) {
        Outcome::Failed { why } => assert!(why.contains("run 10 differs from the first run in y"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_device_does_not_do_is_said_in_its_own_words() {
    for kind in OpKind::ALL.into_iter().filter(|&kind| kind != OpKind::Linear) {
        let case = all().into_iter().find(|case| case.kind() == kind).unwrap();
        match run_case(&mut session(Fault::None), &Subject::from(case), None, Mode::Direct).unwrap() {
            Outcome::Unsupported { reason } => assert!(reason.contains("linear alone"), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
}

/// What `trifuse bench linear --quick` says of its one shape.
fn measurement(fault: Fault) -> Measurement {
    let options = Options {
        suite: Suite::Linear,
        dtype: DType::F16,
        quick: true,
        shape: None,
        variant: None,
        schedule: Schedule { warmup: 0, iterations: 1, limit_seconds: 0.01 },
        sweep: Sweep::default(),
        adapters: None,
        layers: Choice::default(),
        own: own::Choice::default(),
    };
    let mut report = run(&mut session(fault), &options, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.results.len(), 1);
    report.results.remove(0).outcome
}

#[test]
fn what_is_wrong_is_not_timed() {
    for (fault, words) in [
        (Fault::LeavesTheLastElement, "was not written, or is not finite"),
        (Fault::TransposesTheWeight, "max |error|"),
        (Fault::GivesZeros, "max |error|"),
        (Fault::IsOffByAThousandth, "relative L2"),
    ] {
        match measurement(fault) {
            Measurement::Wrong { why } => assert!(why.contains(words), "{fault:?}: {why}"),
            other => panic!("{fault:?}: {other:?}"),
        }
    }
}

#[test]
fn a_time_that_cannot_be_true_is_refused_and_a_doubtful_one_is_flagged() {
    match measurement(Fault::ItsClockStandsStill) {
        Measurement::Refused { why } => assert!(why.contains("operations a second"), "{why}"),
        other => panic!("{other:?}"),
    }
    for (fault, launch_bound) in [(Fault::None, false), (Fault::ItsQueueIsSlow, true)] {
        match measurement(fault) {
            Measurement::Measured(measured) => {
                assert_eq!(measured.flags.contains(&Flag::LaunchBound), launch_bound, "{fault:?}: {:?}", measured.flags);
                assert_eq!(measured.flags.contains(&Flag::HostClock), !launch_bound, "{fault:?}: {:?}", measured.flags);
            }
            other => panic!("{fault:?}: {other:?}"),
        }
    }
}
