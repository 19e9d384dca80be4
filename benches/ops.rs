//! The quick lists of `trifuse bench` under criterion, on every backend of this build: `cargo bench --bench ops -- linear`.
//!
//! Shapes, operands and the check before timing are those of [`trifuse_cli::bench`]; the time is the device's own where it has
//! a clock. The caches are warm: criterion runs the same work many times over. `trifuse bench` times them cold too.

#![allow(clippy::unwrap_used)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use trifuse::backend::{Backend, Kernel};
use trifuse::backends::{Choice, NAMES, Visit};
use trifuse::ops::{Cost, Op};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};
use trifuse_cli::bench::layer::with_layer;
use trifuse_cli::bench::sample::Checked;
use trifuse_cli::bench::shape::{Point, Shape, Suite};
use trifuse_cli::bench::suite::{Extent, points};
use trifuse_cli::bench::work::{Made, Measure, Work, with_point};

fn main() -> ExitCode {
    let mut criterion = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(3)).configure_from_args();
    let mut right = true;
    for name in NAMES {
        match Choice::Named(name, 0).open(All(&mut criterion)) {
            Ok(sound) => right &= sound,
            Err(error @ Error::NoBackend { .. }) => eprintln!("{name}: not measured: {error}"),
            Err(error) => {
                eprintln!("{name}: FAILED: {error}");
                right = false;
            }
        }
    }
    criterion.final_summary();
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct All<'a>(&'a mut Criterion);

impl Visit for All<'_> {
    /// Whether no answer is wrong.
    type Out = bool;

    fn visit<B: Backend>(self, backend: B) -> Result<bool> {
        let mut right = true;
        let mut session = Session::new(Arc::new(backend))?;
        let extent = Extent { kind: session.caps().kind, quick: true };
        // A sweep is for one look at many sizes; `trifuse bench align` takes it.
        let suites = Suite::ALL.into_iter().filter(|suite| *suite != Suite::Align);
        for (suite, dtype) in suites.flat_map(|suite| DType::ALL.map(|dtype| (suite, dtype))) {
            // A copy is no operation of the crate.
            for point in points(suite, dtype, extent).into_iter().filter(|point| !matches!(point.shape, Shape::Copy { .. })) {
                let timed = Timed { criterion: self.0, point: &point };
                let made = match point.shape {
                    Shape::Layer { .. } => with_layer(&mut session, &point, |session, ready| {
                        timed.run(session, "layer", ready.cost, |session| session.replay(&ready.graph));
                        Ok(())
                    })?,
                    _ => with_point(&mut session, &point, None, timed)?,
                };
                let why = match made {
                    Made::Measured(()) => continue,
                    Made::Wrong(why) => {
                        right = false;
                        format!("WRONG: {why}")
                    }
                    Made::Unsupported(why) => why,
                };
                eprintln!("{} {} {dtype}: not measured: {why}", B::NAME, point.name());
            }
        }
        Ok(right)
    }
}

/// Hands a point to criterion.
struct Timed<'a> {
    criterion: &'a mut Criterion,
    point: &'a Point,
}

impl<B: Backend> Measure<B> for Timed<'_> {
    type Out = ();

    fn on<O: Op>(self, session: &mut Session<B>, work: &Work<O, B>, _: Checked) -> Result<()>
    where
        B: Kernel<O>,
    {
        self.run(session, O::NAME, work.cost(), |session| work.enqueue(session));
        Ok(())
    }
}

impl Timed<'_> {
    /// Times what `enqueue` puts into the queue.
    fn run<B: Backend>(self, session: &mut Session<B>, op: &str, cost: Cost, enqueue: impl Fn(&mut Session<B>) -> Result<()>) {
        let Self { criterion, point } = self;
        let mut group = criterion.benchmark_group(format!("{} {op}", B::NAME));
        // Shown as elements a second: one element is one floating-point operation.
        group.throughput(Throughput::Elements(cost.executed_flops as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("{} {}", point.dtype, point.name())), |bencher| {
            bencher.iter_custom(|runs| {
                let first = session.record_event().unwrap();
                for _ in 0..runs {
                    enqueue(session).unwrap();
                }
                let last = session.record_event().unwrap();
                Duration::from_secs_f64(session.elapsed(&first, &last).unwrap())
            });
        });
        group.finish();
    }
}
