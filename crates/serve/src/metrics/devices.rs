//! What each device of each model has done, and whether it works.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::replica::{Done, Replica};

/// A device of a model.
#[derive(Clone, Debug)]
pub struct Device {
    /// The model's name.
    pub model: String,
    /// The device's number among those of the model.
    pub number: usize,
    /// What it has done.
    pub replica: Arc<Replica>,
}

/// All devices of all models.
#[derive(Clone, Debug, Default)]
pub struct Devices(Arc<Mutex<Vec<Device>>>);

impl Devices {
    fn lock(&self) -> MutexGuard<'_, Vec<Device>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds those of a model.
    pub fn add(&self, model: &str, replicas: &[Arc<Replica>]) {
        let one = |(number, replica): (usize, &Arc<Replica>)| Device { model: model.to_owned(), number, replica: Arc::clone(replica) };
        self.lock().extend(replicas.iter().enumerate().map(one));
    }

    /// All of them, in the order in which they came.
    pub fn list(&self) -> Vec<Device> {
        self.lock().clone()
    }
}

/// A counter: its name, what it counts, and the count of a device.
type Counted = (&'static str, &'static str, fn(Done) -> u64);

impl Collector for Devices {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let list = self.list();
        let labels =
            |device: &Device| [("model", device.model.clone()), ("replica", device.number.to_string()), ("device", device.replica.device().to_owned())];
        let mut metric = encoder.encode_descriptor("trifuse_device_working", "Whether a device works: 1, or 0 once it is lost", None, MetricType::Gauge)?;
        for device in &list {
            ConstGauge::new(i64::from(!device.replica.is_lost())).encode(metric.encode_family(&labels(device))?)?;
        }
        let counters: [Counted; 3] = [
            ("trifuse_device_tasks", "Sentences, prompts and operations that a device has dealt with", |done| done.tasks),
            ("trifuse_device_tokens", "Tokens of sentences that a device has read, and of answers that it has written", |done| done.tokens),
            ("trifuse_device_handed_on", "Tasks that failed with a device, and that another has taken over", |done| done.handed_on),
        ];
        for (name, help, of) in counters {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for device in &list {
                ConstCounter::new(of(device.replica.done())).encode(metric.encode_family(&labels(device))?)?;
            }
        }
        Ok(())
    }
}
