//! The speed of attention against the length of its sequence, ours and the peers'.

use std::collections::BTreeMap;

use plotters::prelude::*;
use trifuse::Result;
use trifuse_cli::bench::stored::{Entry, Peers, Stored};

use super::sheet::{Area, Drawn, GRID, colour, device, legend, prefix, sheet, short};

/// Lengths and rates by what draws one line.
type Lines = BTreeMap<String, Vec<(u64, f64)>>;

pub fn picture(reports: &[Stored], peers: &[Peers]) -> Result<Option<String>> {
    let Some(report) = reports.iter().find(|report| report.suite == "attention") else { return Ok(None) };
    let (mut own, mut other) = (Lines::new(), Lines::new());
    for entry in &report.results {
        let Some(measured) = entry.measured.as_ref().filter(|measured| measured.rates.executed_flops >= 1.0) else { continue };
        let Some((form, length)) = form(entry) else { continue };
        let flops = measured.cost.executed_flops;
        own.entry(form.clone()).or_default().push((length, measured.rates.executed_flops));
        for peer in peers.iter().flat_map(|peers| peers.of(report, entry)) {
            if let Some(times) = &peer.cold {
                other.entry(format!("{}, {form}", peer.peer)).or_default().push((length, flops / times.median));
            }
        }
    }
    for lines in [&mut own, &mut other] {
        lines.retain(|_, points| points.len() >= 3);
        lines.values_mut().for_each(|points| points.sort_by_key(|point| point.0));
    }
    if own.is_empty() {
        return Ok(None);
    }
    let title = "Attention, prefill: executed operations against the length, cold caches";
    sheet((960, 600), title, &device(report), |area| draw(area, &own, &other)).map(Some)
}

/// What sequences of several lengths have in common, and the length; nothing of what is no prefill.
fn form(entry: &Entry) -> Option<(String, u64)> {
    let size = |field| entry.size(field);
    let dense = entry.op == "attention" && entry.more.get("blocks").is_none_or(|blocks| blocks.is_null());
    let length = size("kv_len").filter(|length| dense && *length > 0 && size("q_len") == Some(*length))?;
    let causal = if entry.more.get("causal").is_some_and(|causal| causal == true) { ", causal" } else { "" };
    Some((format!("b{} h{}/{} d{}{causal}", size("batch")?, size("heads")?, size("kv_heads")?, size("head_dim")?), length))
}

fn draw(area: &Area, own: &Lines, other: &Lines) -> Drawn {
    let every = || own.values().chain(other.values()).flatten();
    let (least, most) = every().fold((u64::MAX, 0), |(least, most), point| (least.min(point.0), most.max(point.0)));
    let (factor, unit) = prefix(every().map(|point| point.1).fold(0.0, f64::max));
    let top = every().map(|point| point.1).fold(0.0, f64::max) / factor * 1.1;
    let lengths = (least as f64 / 1.2..most as f64 * 1.2).log_scale().base(2.0);
    let mut chart = ChartBuilder::on(area).x_label_area_size(46).y_label_area_size(70).build_cartesian_2d(lengths, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_desc("tokens of a sequence")
        .y_desc(format!("{unit}FLOP/s"))
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .draw()?;
    let point = |&(length, rate): &(u64, f64)| (length as f64, rate / factor);
    for (number, (name, points)) in own.iter().enumerate() {
        let colour = colour(number);
        chart
            .draw_series(LineSeries::new(points.iter().map(point), colour.stroke_width(3)))?
            .label(format!("trifuse, {name}"))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(3)));
        chart.draw_series(points.iter().map(|at| Circle::new(point(at), 4, colour.filled())))?;
    }
    for (number, (name, points)) in other.iter().enumerate() {
        let colour = colour(own.len() + number);
        chart
            .draw_series(DashedLineSeries::new(points.iter().map(point), 6, 4, colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 8, y)], colour.stroke_width(2)));
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)
}
