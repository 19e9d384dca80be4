//! Times of a projection in two factors by their rank: ours, and a peer's where the ledger of a hunt has them.

use std::collections::BTreeSet;

use plotters::prelude::*;
use trifuse::Result;
use trifuse::shrink::profile::Profile;
use trifuse_cli::bench::hunt::Line;
use trifuse_cli::bench::shrunk::{ByRank, Series, by_rank};

use super::sheet::{Area, Drawn, GRID, colour, sheet, short, time_unit};

/// Panels that one picture has room for.
const MOST: usize = 12;
/// Pixels that an entry of the legend takes.
const ENTRY: i32 = 250;

/// The picture; nothing where the profile holds no rank.
pub fn picture(profile: &Profile, lines: &[Line]) -> Result<Option<String>> {
    let all: Vec<ByRank> = by_rank(profile, lines).into_iter().filter(|panel| !panel.series.is_empty()).collect();
    if all.is_empty() {
        return Ok(None);
    }
    let panels = &all[..all.len().min(MOST)];
    let keys: BTreeSet<Series> = panels.iter().flat_map(|panel| panel.series.keys()).copied().collect();
    let (columns, rows) = (panels.len().min(3), panels.len().div_ceil(3));
    let more = if all.len() > MOST { format!("; the first {MOST} of {} panels", all.len()) } else { String::new() };
    let below = format!("{}, {}; dashed: the whole matrix{more}", profile.device, profile.dtype);
    let size = ((60 + 400 * columns as u32).max(60 + ENTRY as u32 * keys.len() as u32), 115 + 280 * rows as u32);
    sheet(size, "Time by rank: the two products of a projection", &below, |area| {
        let (top, rest) = area.split_vertically(22);
        for (place, &series) in (0..).zip(&keys) {
            top.draw(&Circle::new((14 + place * ENTRY, 8), 4, colour(series as usize).filled()))?;
            top.draw_text(series.name(), &("sans-serif", 12).into_text_style(&top), (24 + place * ENTRY, 4))?;
        }
        let areas = rest.split_evenly((rows, columns));
        panels.iter().zip(&areas).try_for_each(|(panel, area)| draw(area, panel))
    })
    .map(Some)
}

fn draw(area: &Area, panel: &ByRank) -> Drawn {
    let ranks = || panel.series.values().flatten().map(|point| point.0);
    let (least, most) = (ranks().min().unwrap_or(0) as f64, ranks().max().unwrap_or(0) as f64);
    let times = panel.series.values().flatten().map(|point| point.1).chain(panel.whole.values().copied());
    let longest = times.fold(0.0, f64::max);
    let (factor, unit) = time_unit(longest);
    let room = ((most - least) * 0.03).max(1.0);
    let [d_out, d_in] = panel.shape;
    let rows = if panel.rows == 1 { "1 row".to_owned() } else { format!("{} rows", panel.rows) };
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(format!("{d_in} to {d_out}, {rows}"), ("sans-serif", 15))
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(least - room..most + room, 0.0..longest / factor * 1.15)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_labels(7)
        .y_labels(6)
        .x_desc("rank")
        .y_desc(unit)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 12))
        .draw()?;
    for (&series, &seconds) in &panel.whole {
        let ends = [least - room, most + room].map(|rank| (rank, seconds / factor));
        chart.draw_series(DashedLineSeries::new(ends, 5, 4, colour(series as usize).stroke_width(1)))?;
    }
    for (&series, points) in &panel.series {
        let places = points.iter().map(|&(rank, seconds)| (rank as f64, seconds / factor));
        // Points, and no line: between two ranks there may be a step.
        chart.draw_series(places.map(|at| Circle::new(at, 2, colour(series as usize).filled())))?;
    }
    Ok(())
}
