//! How much is asked of a server: 0.7 of what it can do, and in bursts twice as much as it can do.

/// The part of what can be done that is asked for in quiet times, and in bursts.
const QUIET: f64 = 0.7;
const BURST: f64 = 2.0;
/// Seconds from one burst to the next, and when in them a burst begins and ends: the longest wait that is let in passes before it ends.
const PERIOD: f64 = 2.0;
const BEGINS: f64 = 0.5;
const ENDS: f64 = 1.05;

/// Requests a second at a time, where `can` can be done.
pub fn rate(at: f64, can: f64) -> f64 {
    if (BEGINS..ENDS).contains(&(at % PERIOD)) { can * BURST } else { can * QUIET }
}

/// Requests that are due in the first seconds.
pub fn due(seconds: f64, can: f64) -> f64 {
    let burst = |at: f64| (at % PERIOD).clamp(BEGINS, ENDS) - BEGINS + (at / PERIOD).floor() * (ENDS - BEGINS);
    can * (QUIET * seconds + (BURST - QUIET) * burst(seconds))
}
