//! How the times of every run are spread: a histogram a shape.

use plotters::prelude::*;
use trifuse::Result;
use trifuse_cli::bench::stored::{Stored, Times};

use super::sheet::{Area, Drawn, GRID, colour, device, sheet, short, time_unit};

const BINS: usize = 30;
const COLUMNS: usize = 3;

/// The picture of a suite in which the spread is the subject; nothing for another.
pub fn picture(report: &Stored) -> Result<Option<String>> {
    // Shares of the blocks have a picture of their own.
    let counted = report.results.iter().filter(|entry| report.suite != "sparse" || entry.more.get("blocks").is_some_and(|blocks| !blocks["count"].is_null()));
    let shapes: Vec<(&str, &Times)> = counted.filter_map(|entry| Some((entry.name.as_str(), &entry.measured.as_ref()?.cold))).collect();
    if !["sparse", "forward-pass"].contains(&report.suite.as_str()) || shapes.is_empty() {
        return Ok(None);
    }
    let (rows, columns) = (shapes.len().div_ceil(COLUMNS), shapes.len().min(COLUMNS));
    let size = (40 + 370 * columns as u32, 90 + 240 * rows as u32);
    let title = format!("{}: times of every run, cold caches", report.suite);
    sheet(size, &title, &device(report), |area| {
        let areas = area.split_evenly((rows, columns));
        shapes.iter().zip(&areas).try_for_each(|((name, times), area)| panel(area, name, times))
    })
    .map(Some)
}

fn panel(area: &Area, name: &str, times: &Times) -> Drawn {
    let (factor, unit) = time_unit(times.max);
    // A clock that ticks slowly gives one time only: it still gets a bar of some width.
    let width = ((times.max - times.min) / BINS as f64).max(times.max * 1e-3);
    let mut counts = [0u32; BINS + 1];
    for sample in &times.samples {
        let bin = ((sample - times.min) / width) as usize;
        counts[bin.min(BINS)] += 1;
    }
    let (left, right) = (times.min - 2.0 * width, times.max.max(times.min + BINS as f64 * width) + 2.0 * width);
    let most = counts.iter().copied().max().unwrap_or(1);
    let top = f64::from(most) * 1.2;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(name, ("sans-serif", 13))
        .x_label_area_size(40)
        .y_label_area_size(44)
        .build_cartesian_2d(left / factor..right / factor, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_labels(5)
        // Runs are whole: of few there is no label between two.
        .y_labels(5.min(most as usize + 1))
        .x_desc(unit)
        .y_desc("runs")
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .label_style(("sans-serif", 12))
        .draw()?;
    let bar = |bin: usize| (times.min + bin as f64 * width) / factor;
    let bars = counts.iter().enumerate().filter(|(_, count)| **count > 0);
    chart.draw_series(bars.map(|(bin, &count)| Rectangle::new([(bar(bin), 0.0), (bar(bin + 1), f64::from(count))], colour(0).mix(0.7).filled())))?;
    for (number, (name, time)) in [("p50", times.median), ("p95", times.p95), ("p99", times.p99)].into_iter().enumerate() {
        let (x, colour) = (time / factor, colour(number + 1));
        let height = top * (0.98 - 0.1 * number as f64);
        chart.draw_series([PathElement::new([(x, 0.0), (x, height)], colour.stroke_width(2))])?;
        chart.draw_series([Text::new(name, (x + 0.4 * width / factor, height), ("sans-serif", 12).into_font().color(&colour))])?;
    }
    Ok(())
}
