//! Perplexities of a model's variants against their times: a panel for each text and time.

use std::collections::BTreeSet;

use plotters::prelude::*;
use trifuse::Result;
use trifuse_cli::bench::shrunk::{Evaluated, Quality, quality};

use super::sheet::{Area, COLOURS, Drawn, GRID, colour, sheet, short, time_unit};

/// Pixels that an entry of the legend takes.
const ENTRY: (i32, i32) = (235, 20);

/// The picture; nothing where no model has both a perplexity and a time.
pub fn picture(reports: &[Evaluated]) -> Result<Option<String>> {
    let panels = quality(reports);
    let Some(report) = reports.first().filter(|_| !panels.is_empty()) else { return Ok(None) };
    let mut models: Vec<&str> = Vec::new();
    for mark in panels.iter().flat_map(|panel| &panel.marks) {
        if !models.contains(&mark.model.as_str()) {
            models.push(&mark.model);
        }
    }
    let (columns, rows) = (2, panels.len().div_ceil(2));
    let width = 60 + 480 * columns;
    let beside = (width - 20) / ENTRY.0;
    let above = models.len().div_ceil(beside as usize) as i32 * ENTRY.1;
    let types: BTreeSet<&str> = reports.iter().map(|report| report.dtype.name()).collect();
    let types = types.into_iter().collect::<Vec<_>>().join(" and ");
    let below = format!("{}, {}; bars: intervals of 95 %; lower and further to the left is better", report.device.name, types);
    sheet((width as u32, (90 + above) as u32 + 300 * rows as u32), "Perplexity against time", &below, |area| {
        let (top, rest) = area.split_vertically(above);
        for (place, name) in (0..).zip(&models) {
            let (x, y) = (14 + place % beside * ENTRY.0, place / beside * ENTRY.1);
            top.draw(&mark(place as usize, (x, y + 8)))?;
            top.draw_text(name, &("sans-serif", 12).into_text_style(&top), (x + 10, y + 4))?;
        }
        let areas = rest.split_evenly((rows, columns as usize));
        panels.iter().zip(&areas).try_for_each(|(panel, area)| draw(area, panel, &models))
    })
    .map(Some)
}

/// A model's mark: a disc, and a ring where all colours have a disc already.
fn mark<C>(number: usize, at: C) -> Circle<C, i32> {
    let style = if number < COLOURS.len() { colour(number).filled() } else { colour(number).stroke_width(2) };
    Circle::new(at, 4, style)
}

fn draw(area: &Area, panel: &Quality, models: &[&str]) -> Drawn {
    let times = || panel.marks.iter().map(|mark| mark.seconds);
    let (factor, unit) = time_unit(times().fold(0.0, f64::max));
    let longest = times().fold(0.0, f64::max) / factor;
    let ends = panel.marks.iter().flat_map(|mark| mark.perplexity);
    let (low, high) = ends.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(format!("{}: {}", panel.text, panel.axis), ("sans-serif", 15))
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..longest * 1.1, low / 1.1..high * 1.1)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_labels(8)
        .y_labels(6)
        .x_desc(unit)
        .y_desc("perplexity")
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 12))
        .draw()?;
    for one in &panel.marks {
        let number = models.iter().position(|name| *name == one.model).unwrap_or(0);
        let (x, [middle, low, high]) = (one.seconds / factor, one.perplexity);
        chart.draw_series(LineSeries::new([(x, low), (x, high)], colour(number).stroke_width(1)))?;
        chart.draw_series(std::iter::once(mark(number, (x, middle))))?;
    }
    Ok(())
}
