//! Times against a size that rises one by one: a panel for each size that was swept, ours and the best peer's.

use plotters::prelude::*;
use trifuse::Result;
use trifuse::bench::stored::{Peers, Stored};
use trifuse::bench::sweep::{CLASSES, Panel, best_peer, class, panels};

use super::{Area, Drawn, GREY, GRID, colour, device, sheet, short, time_unit};

/// Sizes and seconds.
type Points = Vec<(u64, f64)>;

pub fn picture(report: &Stored, peers: &[Peers]) -> Result<Option<String>> {
    let panels = if report.suite == "align" { panels(report) } else { Vec::new() };
    if panels.is_empty() {
        return Ok(None);
    }
    let rows = panels.len().div_ceil(2) as u32;
    let columns = panels.len().min(2) as u32;
    let size = (60 + 480 * columns, 90 + 270 * rows);
    sheet(size, "Sizes that rise one by one: medians, cold caches", &device(report), |area| {
        let areas = area.split_evenly((rows as usize, columns as usize));
        panels.iter().zip(&areas).enumerate().try_for_each(|(number, (panel, area))| {
            let own: Points = panel.points.iter().map(|point| (point.size, point.measured.cold.median)).collect();
            let other: Points = panel.points.iter().filter_map(|point| Some((point.size, best_peer(report, peers, point.entry)?.1))).collect();
            draw(area, panel, &own, &other, number == 0)
        })
    })
    .map(Some)
}

fn draw(area: &Area, panel: &Panel, own: &Points, other: &Points, legend: bool) -> Drawn {
    let (least, most) = own.iter().fold((u64::MAX, 0), |(least, most), point| (least.min(point.0), most.max(point.0)));
    let longest = own.iter().chain(other).map(|point| point.1).fold(0.0, f64::max);
    let (factor, unit) = time_unit(longest);
    let room = ((most - least) as f64 * 0.03).max(1.0);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(&panel.title, ("sans-serif", 15))
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
    // A thousand points are small ones.
    let radius = if own.len() > 64 { 2 } else { 3 };
    for (number, name) in CLASSES.into_iter().enumerate() {
        let (full, hollow) = (colour(number).mix(0.8).filled(), colour(number).stroke_width(1));
        let of_class = |points: &Points| -> Vec<(f64, f64)> {
            points.iter().filter(|point| class(point.0) == number).map(|&(size, time)| (size as f64, time / factor)).collect()
        };
        let [own, other] = [own, other].map(of_class);
        let peers = !other.is_empty();
        chart
            .draw_series(own.into_iter().map(|at| Circle::new(at, radius, full)))?
            .label(format!("trifuse, {name}"))
            .legend(move |(x, y)| Circle::new((x + 10, y), 4, full));
        let beside = chart.draw_series(other.into_iter().map(|at| TriangleMarker::new(at, radius + 1, hollow)))?;
        if peers {
            beside.label(format!("best peer, {name}")).legend(move |(x, y)| TriangleMarker::new((x + 10, y), 5, hollow));
        }
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
