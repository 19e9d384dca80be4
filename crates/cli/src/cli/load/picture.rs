//! Latencies by percentile, a line for each pace; and percentiles by rate where there are several.

use plotters::prelude::*;
use trifuse::Result;

use super::report::{Loaded, Run};
use crate::cli::bench::pictures::sheet::{Area, Drawn, GRID, colour, legend, sheet, short, time_unit};

/// The picture; nothing where nothing was answered.
pub fn picture(loaded: &Loaded) -> Result<Option<String>> {
    let runs: Vec<&Run> = loaded.runs.iter().filter(|run| run.answered > 0).collect();
    if runs.is_empty() {
        return Ok(None);
    }
    let rates: Vec<(f64, &Run)> = runs.iter().filter_map(|run| Some((run.rate?, *run))).collect();
    let columns = 1 + usize::from(rates.len() > 1);
    let title = format!("{}: latency from when each request was due", loaded.route.path());
    let below = format!("{}, trifuse {}, {} cores, seed {}, {} s", loaded.url, loaded.environment.version, loaded.machine.cores, loaded.seed, loaded.seconds);
    sheet((40 + 500 * columns as u32, 520), &title, &below, |area| {
        let areas = area.split_evenly((1, columns));
        by_share(&areas[0], &runs)?;
        areas.get(1).map_or(Ok(()), |area| by_rate(area, &rates))
    })
    .map(Some)
}

/// The shortest and the longest of some times, with room around them for a logarithmic axis, and their unit.
fn extent(times: impl Iterator<Item = f64>) -> (f64, f64, f64, &'static str) {
    let (least, most) = times.filter(|time| *time > 0.0).fold((f64::INFINITY, 0.0f64), |(least, most), time| (least.min(time), most.max(time)));
    let (factor, unit) = time_unit(most);
    (least.min(most) / factor / 1.5, most / factor * 1.5, factor, unit)
}

fn by_share(area: &Area, runs: &[&Run]) -> Drawn {
    // Each power of ten of what is left above a percentile has as much room.
    let left = |share: f64| 1.0 / (1.0 - share);
    let drawn =
        |run: &Run| run.spectrum.iter().filter(|(share, time)| *share < 1.0 && *time > 0.0).map(|(share, time)| (left(*share), *time)).collect::<Vec<_>>();
    let lines: Vec<(String, Vec<(f64, f64)>)> = runs.iter().map(|run| (run.name(), drawn(run))).collect();
    let (least, most, factor, unit) = extent(lines.iter().flat_map(|(_, points)| points.iter().map(|point| point.1)));
    let last = lines.iter().flat_map(|(_, points)| points.iter().map(|point| point.0)).fold(10.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption("by percentile", ("sans-serif", 15))
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d((1.0..last * 1.2).log_scale(), (least..most).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_desc("percentile")
        .y_desc(unit)
        .x_label_formatter(&|left| format!("{}", ((1.0 - 1.0 / left) * 1e8).round() / 1e6))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 12))
        .draw()?;
    for (number, (name, points)) in lines.iter().enumerate() {
        let colour = colour(number);
        chart
            .draw_series(LineSeries::new(points.iter().map(|(left, time)| (*left, time / factor)), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft)
}

/// A percentile of a run.
type Percentile = fn(&Run) -> f64;

fn by_rate(area: &Area, rates: &[(f64, &Run)]) -> Drawn {
    let percentiles: [(&str, Percentile); 4] =
        [("p50", |run| run.latency.p50), ("p90", |run| run.latency.p90), ("p99", |run| run.latency.p99), ("p99.9", |run| run.latency.p999)];
    let (least, most, factor, unit) = extent(rates.iter().flat_map(|(_, run)| percentiles.map(|(_, of)| of(run))));
    let (first, last) = rates.iter().fold((f64::INFINITY, 0.0f64), |(first, last), (rate, _)| (first.min(*rate), last.max(*rate)));
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption("by rate", ("sans-serif", 15))
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(first * 0.9..last * 1.1, (least..most).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_desc("requests a second")
        .y_desc(unit)
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 12))
        .draw()?;
    for (number, (name, of)) in percentiles.into_iter().enumerate() {
        let colour = colour(number);
        let points: Vec<(f64, f64)> = rates.iter().map(|(rate, run)| (*rate, of(run).max(1e-9) / factor)).collect();
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
    }
    legend(&mut chart, SeriesLabelPosition::UpperLeft)
}
