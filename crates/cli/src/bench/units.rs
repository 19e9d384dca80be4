//! Amounts in the unit that reads best.

/// A time in the unit that reads best.
pub fn seconds(time: f64) -> String {
    match time {
        1.0.. => format!("{time:.3} s"),
        1e-3.. => format!("{:.3} ms", time * 1e3),
        _ => format!("{:.2} µs", time * 1e6),
    }
}

/// Operations a second in the unit that reads best.
pub fn flops(rate: f64) -> String {
    scaled(rate, "FLOP/s")
}

/// Bytes a second in the unit that reads best, powers of 1000.
pub fn bytes(rate: f64) -> String {
    scaled(rate, "B/s")
}

/// Bytes in the unit that reads best, powers of 1000.
pub fn amount(count: u64) -> String {
    scaled(count as f64, "B")
}

fn scaled(value: f64, unit: &str) -> String {
    let (factor, prefix) = [(1e12, "T"), (1e9, "G"), (1e6, "M")].into_iter().find(|(factor, _)| value >= *factor).unwrap_or((1e3, "k"));
    format!("{:.1} {prefix}{unit}", value / factor)
}
