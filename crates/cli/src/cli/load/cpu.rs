//! The time of processors that the server and the generator have taken.

use std::time::{Duration, Instant};

use trifuse_serve::cpu_seconds;

use super::caller::{Ask, Caller};

/// How long the server's figure is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// What servers call it, this one and all that tell it as clients of Prometheus do.
const NAME: &str = "process_cpu_seconds_total";

/// Seconds of processors, and when they were told.
#[derive(Clone, Copy, Debug)]
struct Told {
    at: Instant,
    seconds: f64,
}

impl Told {
    fn now(seconds: f64) -> Self {
        Self { at: Instant::now(), seconds }
    }

    /// The processors that were busy since then, in the mean.
    fn cores_since(self, earlier: Self) -> Option<f64> {
        let time = self.at.saturating_duration_since(earlier.at).as_secs_f64();
        (time > 0.0).then(|| ((self.seconds - earlier.seconds) / time).max(0.0))
    }
}

/// What both have taken until one moment; nothing of one that does not tell.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    server: Option<Told>,
    client: Option<Told>,
}

/// The processors that were busy in the mean, where it is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cores {
    pub server: Option<f64>,
    pub client: Option<f64>,
}

impl Spent {
    /// What they have taken until now.
    pub fn now(caller: &Caller<'_>) -> Self {
        let answer = caller.ask_to_the_end("/metrics", Ask::Get, PATIENCE).ok().filter(|answer| answer.status == 200);
        let server = answer.and_then(|answer| of_metrics(&String::from_utf8_lossy(&answer.body))).map(Told::now);
        let client = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| cpu_seconds(&stat)).map(Told::now);
        Self { server, client }
    }

    /// The processors that were busy from `earlier` on.
    pub fn cores_since(&self, earlier: &Self) -> Cores {
        let cores = |now: Option<Told>, then: Option<Told>| now?.cores_since(then?);
        Cores { server: cores(self.server, earlier.server), client: cores(self.client, earlier.client) }
    }
}

/// The server's seconds in what it tells.
fn of_metrics(text: &str) -> Option<f64> {
    let value = text.lines().find_map(|line| line.strip_prefix(NAME)?.strip_prefix(' '))?;
    value.split(' ').next()?.parse().ok().filter(|seconds: &f64| seconds.is_finite())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_processors_is_read_where_it_is_told() {
        assert_eq!(of_metrics("# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total 12.5\nprocess_cpu_seconds_total_x 1\n"), Some(12.5));
        assert_eq!(of_metrics("process_cpu_seconds_total 3 1700000000\n"), Some(3.0));
        assert_eq!(["", "process_cpu_seconds_total", "process_cpu_seconds_total x", "process_cpu_seconds_total inf"].map(of_metrics), [None; 4]);
    }

    #[test]
    fn cores_are_seconds_of_processors_a_second() {
        let start = Instant::now();
        let told = |after: u64, seconds: f64| Some(Told { at: start + Duration::from_secs(after), seconds });
        let (before, behind) = (Spent { server: told(0, 5.0), client: None }, Spent { server: told(10, 20.0), client: told(10, 1.0) });
        let cores = behind.cores_since(&before);
        assert_eq!((cores.server, cores.client), (Some(1.5), None));
        assert_eq!(before.cores_since(&before).server, None, "no time has passed");
    }
}
