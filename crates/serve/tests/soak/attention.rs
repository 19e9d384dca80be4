//! Queries of attention with what the library gives for them, and their device, which has faults.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::{Rng as _, SeedableRng as _};
use trifuse::backends::AnyDevice;
use trifuse::ops::checksum::checksum;
use trifuse::{DType, Error};
use trifuse_serve::operations::task::{Attend, Blocks, Done, Job, Source, Task};
use trifuse_serve::operations::{Operate, OperationsModel, Operator, Ran};

use super::case::{self, Case, dense, listed, mapped};
use super::counts::Counts;
use super::faults::Told;
use super::mutate::Rng;
use super::support::backend;

/// Queries of one shape that differ in their q alone.
pub const OTHERS: usize = 3;
/// Bytes that regions may have.
const REGION_BYTES: u64 = 16 << 20;

/// A query, and what a device that does nothing else gives for it: a query with blocks is computed in the way of several, so that its bits are those that it has
/// among others, where the fastest plan for it alone may sum in another order.
pub struct Query {
    pub case: Case,
    pub o: Vec<u8>,
    pub sum: u64,
}

/// Every type with all blocks, with a map and with lists, each with several q.
pub fn queries() -> Vec<[Query; OTHERS]> {
    let mut operator = operator().unwrap();
    let cases = DType::ALL.into_iter().flat_map(|dtype| [dense(dtype), mapped(dtype), listed(dtype)]);
    let all: Vec<[Query; OTHERS]> = cases.map(|case| std::array::from_fn(|number| query(&mut operator, case.clone(), number))).collect();
    // A query that got another's q is seen.
    all.iter().for_each(|[a, b, c]| assert!(a.o != b.o && a.o != c.o && b.o != c.o && a.sum != b.sum));
    all
}

fn query(operator: &mut Operator<AnyDevice>, mut case: Case, number: usize) -> Query {
    case.values[0].rotate_left(number);
    let o = alone(operator, &case);
    case.check(&o);
    Query { case, sum: checksum(&o), o }
}

/// What is opened for operations.
fn operator() -> trifuse::Result<Operator<AnyDevice>> {
    Operator::new(Arc::new(backend::open()))
}

/// The output of a query that is the only task.
fn alone(operator: &mut Operator<AnyDevice>, case: &Case) -> Vec<u8> {
    let bytes = |values: &[i32]| Source::Bytes(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into());
    let blocks = match &case.blocks {
        case::Blocks::All => Blocks::All,
        case::Blocks::Map(map, shape) => Blocks::Map(Source::Bytes(map.clone().into()), [shape.block, shape.q_blocks, shape.kv_blocks, shape.patterns]),
        case::Blocks::Rows(rows, columns, shape) => Blocks::Rows(bytes(rows), bytes(columns), [shape.block, shape.q_blocks, shape.kv_blocks, shape.patterns]),
    };
    let tensors = case.bytes().map(|bytes| Source::Bytes(bytes.into()));
    let length = tensors[0].len();
    let ask = Attend { op: case.op.clone(), tensors, blocks, output: None, bytes: length, wants_bytes: true, wants_checksum: false };
    operator.submit(&[&Task::new(Job::Attend(Box::new(ask)))]);
    operator.finish().results.remove(0).unwrap().bytes
}

/// A device of operations with faults.
struct Device {
    inner: Operator<AnyDevice>,
    /// What its faults are drawn from, where it has any.
    rng: Option<Rng>,
    told: Arc<Told>,
    counts: Arc<Counts>,
    /// The batches that it was given: which of them fail, and with what.
    given: VecDeque<Option<Ran>>,
}

impl Device {
    /// The fault of the next batch, if it has one.
    fn fault(&mut self, tasks: usize) -> Option<Ran> {
        let fails = |error: &dyn Fn() -> Error| {
            self.counts.faults.one();
            Some(Ran { results: (0..tasks).map(|_| Err::<Done, Error>(error())).collect(), planned: Duration::ZERO, together: 0 })
        };
        if self.told.lost.load(Ordering::SeqCst) {
            return fails(&|| Error::device("a launch", "gone, as planned"));
        }
        match self.rng.as_mut()?.random_range(0..200) {
            0..4 => {
                self.counts.stalls.one();
                std::thread::sleep(Duration::from_millis(self.rng.as_mut()?.random_range(5..40)));
                None
            }
            4..8 => {
                self.counts.crowded.many(tasks as u64);
                fails(&|| Error::OutOfMemory { requested: 1, purpose: "a soak's operation".into() })
            }
            _ => None,
        }
    }
}

impl Operate for Device {
    fn submit(&mut self, tasks: &[&Task]) {
        let fault = self.fault(tasks.len());
        if fault.is_none() {
            self.inner.submit(tasks);
        }
        self.given.push_back(fault);
    }

    fn finish(&mut self) -> Ran {
        self.given.pop_front().flatten().unwrap_or_else(|| self.inner.finish())
    }
}

/// A device of operations whose faults are drawn by a seed, where there is one.
pub fn operations(seed: Option<u64>, told: &Arc<Told>, counts: &Arc<Counts>) -> OperationsModel {
    let (told, counts) = (Arc::clone(told), Arc::clone(counts));
    let open = move || {
        let inner = operator()?;
        Ok::<_, Error>(Box::new(Device { inner, rng: seed.map(Rng::seed_from_u64), told, counts, given: VecDeque::new() }) as Box<dyn Operate>)
    };
    OperationsModel { device: backend::name(), open: Box::new(open), region_bytes: REGION_BYTES }
}
