//! Every measured point under the roof of what was measured to be possible (Williams, Waterman and Patterson, 2009).

use plotters::prelude::*;
use trifuse::Result;
use trifuse_cli::bench::stored::{Ceilings, Measured, Stored};

use super::sheet::{Area, COLOURS, Drawn, GREY, GRID, colour, device, legend, prefix, sheet, short};

/// A point: operations a byte, operations a second.
type Point = (f64, f64);

pub fn picture(reports: &[Stored]) -> Result<Option<String>> {
    let groups: Vec<(String, Vec<Point>)> = reports.iter().map(|report| (named(report), points(report))).filter(|(_, points)| !points.is_empty()).collect();
    let Some((ceilings, first)) = roofs(reports).zip(reports.first()).filter(|_| !groups.is_empty()) else { return Ok(None) };
    let title = "Roofline: executed operations, cold caches";
    sheet((960, 620), title, &device(first), |area| draw(area, &ceilings, &groups)).map(Some)
}

/// Each report has measured its own: what the device can do is the best of them.
fn roofs(reports: &[Stored]) -> Option<Ceilings> {
    let more = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).max_by(f64::total_cmp);
    reports.iter().map(|report| report.ceilings.clone()).reduce(|best, other| Ceilings {
        copy_bytes_per_second: best.copy_bytes_per_second.max(other.copy_bytes_per_second),
        product_flops_per_second: more(best.product_flops_per_second, other.product_flops_per_second),
        product: None,
        peak_flops_per_second: more(best.peak_flops_per_second, other.peak_flops_per_second),
        peak_bytes_per_second: more(best.peak_bytes_per_second, other.peak_bytes_per_second),
    })
}

/// The suite, and its type where that is not the usual one.
fn named(report: &Stored) -> String {
    match report.dtype() {
        "f16" | "" => report.suite.clone(),
        dtype => format!("{}, {dtype}", report.suite),
    }
}

fn points(report: &Stored) -> Vec<Point> {
    // Launches of next to nothing lie under no roof.
    let measured = report.results.iter().filter(|entry| entry.op != "launches").flat_map(|entry| &entry.measured);
    let drawable = |m: &&Measured| [m.cost.executed_flops, m.cost.bytes, m.rates.executed_flops].iter().all(|&value| value >= 1.0);
    measured.filter(drawable).map(|m| (m.cost.executed_flops / m.cost.bytes, m.rates.executed_flops)).collect()
}

/// Two ends of a logarithmic axis with at least two powers of ten between them: those are what is labelled.
fn decades(low: f64, high: f64) -> (f64, f64) {
    let (first, last) = (low.log10().ceil(), high.log10().floor());
    if first < last {
        (low, high)
    } else if first == last {
        (low, 10f64.powf(last + 1.0))
    } else {
        (10f64.powf(last), 10f64.powf(first))
    }
}

fn draw(area: &Area, ceilings: &Ceilings, groups: &[(String, Vec<Point>)]) -> Drawn {
    let every = || groups.iter().flat_map(|(_, points)| points);
    let (least, most) = every().fold((f64::INFINITY, 0.0f64), |(least, most), point| (least.min(point.0), most.max(point.0)));
    // What a processor can do is not known well enough to be drawn, so only one of the two limits is there.
    let limits = ceilings.peak_bytes_per_second.zip(ceilings.peak_flops_per_second);
    let roofs = limits.map(|limits| limits.1).into_iter().chain(ceilings.product_flops_per_second);
    let highest = roofs.chain(every().map(|point| point.1)).fold(0.0, f64::max);
    let lowest = every().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let ridge = highest / ceilings.copy_bytes_per_second;
    let (left, right) = (least / 2.0, most.max(ridge) * 2.0);
    let (factor, unit) = prefix(highest);
    let ((left, right), (bottom, top)) = (decades(left, right), decades(lowest / 2.0 / factor, highest * 1.6 / factor));
    let mut chart =
        ChartBuilder::on(area).x_label_area_size(46).y_label_area_size(70).build_cartesian_2d((left..right).log_scale(), (bottom..top).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .x_desc("executed operations a byte (each operand moved once)")
        .y_desc(format!("{unit}FLOP/s"))
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .draw()?;
    let roof = |bytes: f64, flops: f64| {
        (0..=240).map(move |step| left * (right / left).powf(f64::from(step) / 240.0)).map(move |x| (x, (bytes * x).min(flops) / factor))
    };
    let visible = move |line: &(f64, f64)| line.1 >= bottom;
    if let Some((bytes, flops)) = limits {
        chart
            .draw_series(DashedLineSeries::new(roof(bytes, flops).filter(visible), 6, 5, GREY.stroke_width(1)))?
            .label("the device's limits")
            .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], GREY.stroke_width(1)));
    }
    let product = ceilings.product_flops_per_second.unwrap_or(f64::INFINITY);
    chart
        .draw_series(LineSeries::new(roof(ceilings.copy_bytes_per_second, product).filter(visible), BLACK.stroke_width(2)))?
        .label("measured: copy, best product")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], BLACK.stroke_width(2)));
    for (number, (suite, points)) in groups.iter().enumerate() {
        let colour = colour(number);
        // Suites past the colours have hollow points.
        let style = if number < COLOURS.len() { colour.mix(0.75).filled() } else { colour.stroke_width(1) };
        chart
            .draw_series(points.iter().map(|(x, y)| Circle::new((*x, y / factor), 5, style)))?
            .label(suite)
            .legend(move |(x, y)| Circle::new((x + 10, y), 5, style));
    }
    legend(&mut chart, SeriesLabelPosition::LowerRight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_two_powers_of_ten() {
        assert_eq!(decades(2.0, 8.0), (1.0, 10.0));
        assert_eq!(decades(5.0, 50.0), (5.0, 100.0));
        assert_eq!(decades(0.05, 50.0), (0.05, 50.0));
    }
}
