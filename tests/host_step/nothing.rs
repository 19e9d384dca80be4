//! A device that does nothing and is done at once: what is left of a step is the host's own work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use trifuse::Result;
use trifuse::backend::Kernel;
use trifuse::device::{Caps, Clock, Device, Hints, Kind, Slice};
use trifuse::ops::{Attention, Checksum, CodebookGemm, FusedMlp, GroupedLinear, Linear, Op, Pointwise, PrefixAttention, Sample};

/// A device whose memory holds zeros, whatever is written or computed. It counts what it is told to do.
pub struct Nothing {
    caps: Caps,
    /// Copies from the host, and their bytes; launches, and replays.
    pub writes: AtomicU64,
    pub written: AtomicU64,
    pub launches: AtomicU64,
    pub replays: AtomicU64,
}

impl Nothing {
    pub fn new() -> Self {
        let caps = Caps {
            name: "nothing".into(),
            driver: String::new(),
            kind: Kind::Other,
            memory_bytes: Some(64 << 30),
            max_buffer_bytes: 1 << 40,
            multiprocessors: 1,
            shared_bytes: 0,
            f16: true,
            subgroup: None,
            cuda_arch: None,
            clock_hz: None,
            memory_bytes_per_second: None,
        };
        let [writes, written, launches, replays] = [0; 4].map(AtomicU64::new);
        Self { caps, writes, written, launches, replays }
    }
}

impl Device for Nothing {
    const NAME: &'static str = "nothing";
    type Buffer = Arc<u8>;
    type Queue = ();
    type Graph = ();
    type Event = ();

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn queue(&self) -> Result<()> {
        Ok(())
    }

    fn alloc(&self, _: u64) -> Result<Arc<u8>> {
        Ok(Arc::new(0))
    }

    fn buffer_id(buffer: &Arc<u8>) -> usize {
        Arc::as_ptr(buffer) as usize
    }

    fn write(&self, (): &mut (), _: &Slice<Self>, src: &[u8]) -> Result<()> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written.fetch_add(src.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn read(&self, (): &mut (), _: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        dst.fill(0);
        Ok(())
    }

    fn copy(&self, (): &mut (), _: &Slice<Self>, _: &Slice<Self>) -> Result<()> {
        Ok(())
    }

    fn record_event(&self, (): &mut ()) -> Result<()> {
        Ok(())
    }

    fn elapsed(&self, (): &mut (), (): &(), (): &()) -> Result<f64> {
        Ok(0.0)
    }

    fn clock(&self) -> Clock {
        Clock::Device
    }

    fn hints(&self) -> Hints {
        let mut hints = Hints::default();
        // As on a GPU: steps are launched ahead.
        hints.beside_host = true;
        hints
    }

    fn synchronize(&self, (): &mut ()) -> Result<()> {
        Ok(())
    }

    fn begin_capture(&self, (): &mut ()) -> Result<()> {
        Ok(())
    }

    fn end_capture(&self, (): &mut ()) -> Result<()> {
        Ok(())
    }

    unsafe fn replay(&self, (): &mut (), (): &()) -> Result<()> {
        self.replays.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

macro_rules! done_at_once {
    ($($op:ty)*) => { $(
        impl Kernel<$op> for Nothing {
            type Plan = ();

            fn variants(&self) -> &'static [&'static str] {
                &["nothing"]
            }

            fn plan(&self, _: &$op, _: Option<&str>) -> Result<()> {
                Ok(())
            }

            fn workspace_bytes((): &()) -> u64 {
                0
            }

            fn variant((): &()) -> &'static str {
                "nothing"
            }

            unsafe fn launch(&self, (): &mut (), (): &(), _: &Slice<Self>, _: &<$op as Op>::Args<Self>) -> Result<()> {
                self.launches.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    )* };
}
done_at_once! { Attention Checksum CodebookGemm FusedMlp GroupedLinear Linear Pointwise PrefixAttention Sample }
