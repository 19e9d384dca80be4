//! What the device reaches, measured, and what it cannot pass.

use super::micro::filled;
pub use super::rates::{Bound, Ceilings};
use super::sample::Checked;
use super::suite::ceilings;
use super::timing::{Caches, Flush, Schedule};
use super::work::{Made, Measure, Work, with_point};
use trifuse::backend::{Backend, Kernel};
use trifuse::device::{Caps, Kind};
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::Op;
use trifuse::session::Session;

impl Ceilings {
    /// Measures them.
    ///
    /// # Errors
    /// What the device reports.
    pub fn measure<D: Backend>(session: &mut Session<D>, flush: &Flush<D>, schedule: Schedule, dtype: DType) -> Result<Self> {
        let caps = session.caps().clone();
        let mut best: Option<(f64, String)> = None;
        for point in ceilings(dtype, caps.kind) {
            let made = with_point(session, &point, None, Rate { flush, schedule })?;
            let Made::Measured(rate) = made else { continue };
            if best.as_ref().is_none_or(|(least, _)| rate > *least) {
                best = Some((rate, point.shape.name()));
            }
        }
        let (product_flops_per_second, product) = best.unzip();
        Ok(Self {
            copy_bytes_per_second: copy(session, flush, schedule)?,
            product_flops_per_second,
            product,
            peak_flops_per_second: peak_flops(&caps, dtype),
            peak_bytes_per_second: caps.memory_bytes_per_second.map(|bytes| bytes as f64),
        })
    }
}

/// Operations of a point a second.
struct Rate<'a, D: Backend> {
    flush: &'a Flush<D>,
    schedule: Schedule,
}

impl<D: Backend> Measure<D> for Rate<'_, D> {
    type Out = f64;

    fn on<O: Op>(self, session: &mut Session<D>, work: &Work<O, D>, _: Checked) -> Result<f64>
    where
        D: Kernel<O>,
    {
        let times = self.flush.time(session, self.schedule, Caches::Cold, &mut |session| work.enqueue(session))?;
        Ok(work.cost().executed_flops / times.seconds.median)
    }
}

fn copy<D: Backend>(session: &mut Session<D>, flush: &Flush<D>, schedule: Schedule) -> Result<f64> {
    let bytes: u64 = if session.caps().kind == Kind::Cpu { 128 << 20 } else { 2 << 30 };
    let bytes = bytes.min(session.caps().max_buffer_bytes) / 4 * 4;
    let (from, to) = (filled(session, bytes)?, session.alloc(bytes)?);
    let times = flush.time(session, schedule, Caches::Cold, &mut |session| session.copy(&from, &to))?;
    Ok(2.0 * bytes as f64 / times.seconds.median)
}

/// The most that the matrix units of all SMs do at their highest clock.
pub fn peak_flops(caps: &Caps, dtype: DType) -> Option<f64> {
    let narrow = dtype.size() == 2;
    if caps.kind == Kind::Cpu {
        let cores = std::thread::available_parallelism().map_or(1, usize::from).max(caps.multiprocessors as usize);
        // Two fused multiply-adds of 512 bits a clock, at a clock that no processor holds on all of its cores.
        return Some(cores as f64 * 5.5e9 * if narrow { 128.0 } else { 64.0 });
    }
    // Operations a clock of one SM's matrix units, f16 and bf16, from NVIDIA's papers on each architecture;
    // in f32 half of that bounds both the vector units and TF32.
    let a_clock: f64 = match caps.cuda_arch? {
        80 => 2048.0,
        86 | 87 | 89 => 1024.0,
        90 => 4096.0,
        _ => return None,
    };
    Some(a_clock * if narrow { 1.0 } else { 0.5 } * f64::from(caps.multiprocessors) * caps.clock_hz? as f64)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use trifuse::ops::Cost;

    fn h200() -> Caps {
        Caps {
            name: "H200".into(),
            driver: String::new(),
            kind: Kind::Discrete,
            memory_bytes: None,
            max_buffer_bytes: 0,
            multiprocessors: 132,
            shared_bytes: 0,
            f16: true,
            subgroup: None,
            cuda_arch: Some(90),
            clock_hz: Some(1_980_000_000),
            memory_bytes_per_second: Some(4_800_000_000_000),
        }
    }

    fn ceilings() -> Ceilings {
        Ceilings {
            copy_bytes_per_second: 4e12,
            product_flops_per_second: Some(7e14),
            product: None,
            peak_flops_per_second: peak_flops(&h200(), DType::F16),
            peak_bytes_per_second: Some(4.8e12),
        }
    }

    #[test]
    fn the_peak_is_that_of_the_paper() {
        // NVIDIA: 989 TFLOP/s at 1830 MHz.
        let peak = peak_flops(&h200(), DType::F16).unwrap();
        assert!((peak / 1.98e9 * 1.83e9 - 989.4e12).abs() < 1e12, "{peak:e}");
        assert_eq!(peak_flops(&Caps { cuda_arch: None, ..h200() }, DType::F16), None);
    }

    #[test]
    fn what_no_device_can_do_is_refused() {
        let cost = |flops, bytes| Cost { executed_flops: flops, useful_flops: flops, dense_flops: flops, bytes };
        let refused = |cost, seconds| ceilings().impossible(cost, seconds, 1 << 28).is_some();
        assert!(refused(cost(1.1e12, 0.0), 1e-3) && !refused(cost(0.9e12, 0.0), 1e-3));
        assert!(refused(cost(0.0, 4.9e9), 1e-3) && !refused(cost(0.0, 4.7e9), 1e-3));
        assert!(!refused(cost(0.0, 1e8), 1e-6), "so few bytes may lie in a cache");
        assert!(refused(cost(1.0, 1.0), 0.0) && refused(cost(1.0, 1.0), -1.0));
    }

    #[test]
    fn the_floor_is_the_larger_of_two_times() {
        let cost = |flops, bytes| Cost { executed_flops: flops, useful_flops: flops, dense_flops: flops, bytes };
        assert_eq!(ceilings().floor(cost(7e14, 1.0)), (1.0, Bound::Compute));
        assert_eq!(ceilings().floor(cost(1.0, 8e12)), (2.0, Bound::Memory));
    }
}
