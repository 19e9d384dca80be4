//! Times against a size that rises one by one: a panel for each size that was swept.

use std::collections::BTreeMap;

use plotters::prelude::*;
use trifuse::Result;
use trifuse::bench::stored::{Entry, Stored};

use super::{Area, Drawn, GREY, GRID, colour, device, sheet, short, time_unit};

/// Sizes and their times, by the panel's title.
type Panels = BTreeMap<(usize, String), Vec<(u64, f64)>>;

/// Fields that are swept: of products, and of attention.
const FIELDS: [(&str, &str); 4] = [("tokens", "M"), ("d_out", "N"), ("d_in", "K"), ("head_dim", "head")];

pub fn picture(report: &Stored) -> Result<Option<String>> {
    if report.suite != "align" {
        return Ok(None);
    }
    let mut panels = Panels::new();
    for (entry, time) in report.results.iter().filter_map(|entry| Some((entry, entry.measured.as_ref()?.cold.median))) {
        for (number, (field, letter)) in FIELDS.into_iter().enumerate() {
            // A product of one row is of the sweeps of one row.
            if let Some(size) = entry.size(field).filter(|size| (field, *size) != ("tokens", 1)) {
                panels.entry((number, title(entry, field, letter))).or_default().push((size, time));
            }
        }
    }
    // A shape that another size's sweep went through stands alone here.
    panels.retain(|_, points| points.len() >= 3);
    if panels.is_empty() {
        return Ok(None);
    }
    let rows = panels.len().div_ceil(2) as u32;
    let columns = panels.len().min(2) as u32;
    let size = (60 + 480 * columns, 90 + 270 * rows);
    sheet(size, "Sizes that rise one by one: medians, cold caches", &device(report), |area| {
        let areas = area.split_evenly((rows as usize, columns as usize));
        panels.iter().zip(&areas).enumerate().try_for_each(|(number, (((_, title), points), area))| panel(area, title, points, number == 0))
    })
    .map(Some)
}

/// The sizes that stay, in words.
fn title(entry: &Entry, swept: &str, letter: &str) -> String {
    if entry.op == "attention" {
        let size = |field| entry.size(field).unwrap_or_default();
        return format!("attention b{} h{} s{}: {letter}", size("batch"), size("heads"), size("kv_len"));
    }
    let others = FIELDS.iter().filter(|(field, _)| *field != swept).filter_map(|(field, letter)| Some(format!("{letter} {}", entry.size(field)?)));
    format!("product, {}: {letter}", others.collect::<Vec<_>>().join(", "))
}

/// Multiples of 8, other even sizes, odd ones.
fn class(size: u64) -> usize {
    match size % 8 {
        0 => 0,
        2 | 4 | 6 => 1,
        _ => 2,
    }
}

fn panel(area: &Area, title: &str, points: &[(u64, f64)], legend: bool) -> Drawn {
    let (least, most) = points.iter().fold((u64::MAX, 0), |(least, most), point| (least.min(point.0), most.max(point.0)));
    let longest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let (factor, unit) = time_unit(longest);
    let room = ((most - least) as f64 * 0.03).max(1.0);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(title, ("sans-serif", 15))
        .x_label_area_size(30)
        .y_label_area_size(58)
        .build_cartesian_2d(least as f64 - room..most as f64 + room, 0.0..longest / factor * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_labels(8)
        .y_labels(6)
        .y_desc(unit)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 12))
        .draw()?;
    for (number, name) in ["multiple of 8", "even", "odd"].into_iter().enumerate() {
        let style = colour(number).mix(0.8).filled();
        let series = chart
            .draw_series(points.iter().filter(|point| class(point.0) == number).map(|&(size, time)| Circle::new((size as f64, time / factor), 3, style)))?;
        series.label(name).legend(move |(x, y)| Circle::new((x + 10, y), 4, style));
    }
    if legend {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .background_style(WHITE.mix(0.9))
            .border_style(GREY.mix(0.3))
            .label_font(("sans-serif", 12))
            .draw()?;
    }
    Ok(())
}
