//! Times against a size that rises one by one: a panel for each size that was swept, ours and the best peer's.

use std::collections::{BTreeMap, BTreeSet};

use plotters::prelude::*;
use trifuse::Result;
use trifuse_cli::bench::stored::{Peers, Stored};
use trifuse_cli::bench::sweep::{CLASSES, Panel, best_peer, class, panels};

use super::sheet::{Area, Drawn, GRID, colour, device, sheet, short, time_unit};

/// Whether it is the best peer's, and the class of sizes.
type Key = (bool, usize);
/// Sizes and seconds by what they are drawn as.
type Series = BTreeMap<Key, Vec<(u64, f64)>>;

/// Pixels that an entry of the legend takes.
const ENTRY: (i32, i32) = (165, 20);

pub fn picture(report: &Stored, peers: &[Peers]) -> Result<Option<String>> {
    let panels = if report.suite == "align" { panels(report) } else { Vec::new() };
    if panels.is_empty() {
        return Ok(None);
    }
    let series: Vec<Series> = panels.iter().map(|panel| series(report, peers, panel)).collect();
    let keys: BTreeSet<Key> = series.iter().flat_map(BTreeMap::keys).copied().collect();
    let (rows, columns) = (panels.len().div_ceil(2), panels.len().min(2));
    let width = 60 + 480 * columns as i32;
    let beside = (width - 20) / ENTRY.0;
    // Above the panels, since every corner of one holds points of some report.
    let above = keys.len().div_ceil(beside as usize) as u32 * ENTRY.1 as u32;
    let size = (width as u32, 90 + above + 280 * rows as u32);
    sheet(size, "Sizes that rise one by one: medians, cold caches", &device(report), |area| {
        let (top, rest) = area.split_vertically(above);
        legend(&top, &keys, beside)?;
        let areas = rest.split_evenly((rows, columns));
        panels.iter().zip(&series).zip(&areas).try_for_each(|((panel, series), area)| draw(area, panel, series))
    })
    .map(Some)
}

fn series(report: &Stored, peers: &[Peers], panel: &Panel) -> Series {
    let mut all = Series::new();
    for point in &panel.points {
        let mut put = |peer, time| all.entry((peer, class(point.size))).or_default().push((point.size, time));
        put(false, point.measured.cold.median);
        if let Some((_, time)) = best_peer(report, peers, point.entry) {
            put(true, time);
        }
    }
    all
}

/// `beside` entries in a row.
fn legend(area: &Area, keys: &BTreeSet<Key>, beside: i32) -> Drawn {
    for (place, &(peer, class)) in (0..).zip(keys) {
        let (x, y) = (14 + place % beside * ENTRY.0, place / beside * ENTRY.1);
        let at = (x, y + 8);
        let who = if peer {
            area.draw(&triangle(class, at, 4))?;
            "best peer"
        } else {
            area.draw(&circle(class, at, 4))?;
            "trifuse"
        };
        area.draw_text(&format!("{who}, {}", CLASSES[class]), &("sans-serif", 12).into_text_style(area), (x + 10, y + 4))?;
    }
    Ok(())
}

/// Ours.
fn circle<C>(class: usize, at: C, radius: i32) -> Circle<C, i32> {
    Circle::new(at, radius, colour(class).mix(0.8).filled())
}

/// The best peer's.
fn triangle<C>(class: usize, at: C, radius: i32) -> TriangleMarker<C, i32> {
    TriangleMarker::new(at, radius + 1, colour(class).filled())
}

fn draw(area: &Area, panel: &Panel, series: &Series) -> Drawn {
    let (least, most) = panel.points.iter().fold((u64::MAX, 0), |(least, most), point| (least.min(point.size), most.max(point.size)));
    let longest = series.values().flatten().map(|point| point.1).fold(0.0, f64::max);
    let (factor, unit) = time_unit(longest);
    let room = ((most - least) as f64 * 0.03).max(1.0);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(&panel.title, ("sans-serif", 15))
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(least as f64 - room..most as f64 + room, 0.0..longest / factor * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_labels(8)
        .y_labels(6)
        .x_desc(panel.axis)
        .y_desc(unit)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 12))
        .draw()?;
    // A thousand points are small ones.
    let radius = if panel.points.len() > 64 { 2 } else { 3 };
    for (&(peer, class), points) in series {
        let places = points.iter().map(|&(size, time)| (size as f64, time / factor));
        if peer {
            chart.draw_series(places.map(|at| triangle(class, at, radius)))?;
        } else {
            chart.draw_series(places.map(|at| circle(class, at, radius)))?;
        }
    }
    Ok(())
}
