//! Block-sparse attention by the share of the blocks that are there, beside the dense kernel; and by the length of the sequence.

use plotters::prelude::*;
use trifuse::Result;
use trifuse_cli::bench::density::{Shares, shares};
use trifuse_cli::bench::stored::Stored;

use super::sheet::{Area, Drawn, GREY, GRID, colour, device, legend, prefix, sheet, short, time_unit};

pub fn picture(report: &Stored) -> Result<Option<String>> {
    let shares = if report.suite == "sparse" { shares(report) } else { Vec::new() };
    let Some(shares) = shares.first() else { return Ok(None) };
    let lengths = lengths(report);
    let columns = if lengths.len() >= 3 { 2 } else { 1 };
    sheet((40 + 500 * columns as u32, 520), "Block-sparse attention: medians, cold caches", &device(report), |area| {
        let areas = area.split_evenly((1, columns));
        by_share(&areas[0], shares)?;
        areas.get(1).map_or(Ok(()), |area| by_length(area, &lengths))
    })
    .map(Some)
}

/// Lengths of the sequence and executed operations a second, of random blocks whose share is the same.
fn lengths(report: &Stored) -> Vec<(u64, f64)> {
    let listed = report.results.iter().filter_map(|entry| Some((entry, entry.measured.as_ref()?, entry.more.get("blocks")?)));
    let same = listed.filter(|(.., blocks)| blocks["percent"] == 10 && blocks["layout"] == "random" && blocks["size"] == 128);
    let points = same.filter_map(|(entry, measured, _)| Some((entry.size("kv_len")?, measured.rates.executed_flops)));
    let mut points: Vec<(u64, f64)> = points.filter(|(length, rate)| *length > 0 && *rate >= 1.0).collect();
    points.sort_by_key(|point| point.0);
    points
}

fn by_share(area: &Area, shares: &Shares) -> Drawn {
    let every = || shares.kinds.iter().flat_map(|(_, points)| points.iter().map(|point| point.1)).chain([shares.seconds]);
    let longest = every().fold(0.0, f64::max);
    let (factor, unit) = time_unit(longest);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption(format!("{}, by share", shares.dense.name), ("sans-serif", 15))
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(0.0..105.0, 0.0..longest / factor * 1.1)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_desc("blocks that are there, %")
        .y_desc(unit)
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 12))
        .draw()?;
    let dense = shares.seconds / factor;
    chart
        .draw_series(DashedLineSeries::new([(0.0, dense), (105.0, dense)], 6, 5, GREY.stroke_width(2)))?
        .label("all blocks, dense kernel")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], GREY.stroke_width(2)));
    for (number, (name, points)) in shares.kinds.iter().enumerate() {
        let colour = colour(number);
        let at = |&(share, time): &(f64, f64)| (share * 100.0, time / factor);
        chart
            .draw_series(LineSeries::new(points.iter().map(at), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|point| Circle::new(at(point), 3, colour.filled())))?;
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)
}

fn by_length(area: &Area, points: &[(u64, f64)]) -> Drawn {
    let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let (factor, unit) = prefix(most);
    let ends = points.iter().fold((u64::MAX, 0), |(least, most), point| (least.min(point.0), most.max(point.0)));
    let lengths = (ends.0 as f64 / 1.2..ends.1 as f64 * 1.2).log_scale().base(2.0);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .caption("10 % random blocks of 128, by length", ("sans-serif", 15))
        .x_label_area_size(40)
        .y_label_area_size(58)
        .build_cartesian_2d(lengths, 0.0..most / factor * 1.1)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_desc("tokens of a sequence")
        .y_desc(format!("executed, {unit}FLOP/s"))
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 12))
        .draw()?;
    let at = |&(length, rate): &(u64, f64)| (length as f64, rate / factor);
    chart.draw_series(LineSeries::new(points.iter().map(at), colour(0).stroke_width(2)))?;
    chart.draw_series(points.iter().map(|point| Circle::new(at(point), 3, colour(0).filled())))?;
    Ok(())
}
