//! Pictures of stored reports, as SVG: text is left to the viewer's own fonts, so none is needed here.

mod align;
mod density;
mod latency;
pub mod length;
pub mod quality;
pub mod rank;
mod roofline;
pub mod sheet;

use std::path::PathBuf;

use trifuse::{Error, Result};
use trifuse_cli::bench::stored::{Peers, Stored};

/// Every picture that these reports hold something for: the file's name and its text.
///
/// # Errors
/// Reports of different devices: one picture shows one.
pub fn all(reports: &[Stored], peers: &[Peers]) -> Result<Vec<(PathBuf, String)>> {
    if let Some([first, other]) = reports.windows(2).find(|pair| pair[0].device.name != pair[1].device.name).map(|pair| [&pair[0], &pair[1]]) {
        return Err(Error::invalid("reports", format!("one device, {}", first.device.name), format!("{} too", other.device.name)));
    }
    let mut pictures = Vec::new();
    pictures.extend(roofline::picture(reports)?.map(|text| ("roofline.svg".into(), text)));
    pictures.extend(length::picture(reports, peers)?.map(|text| ("attention-length.svg".into(), text)));
    for report in reports {
        pictures.extend(align::picture(report, peers)?.map(|text| (format!("align-{}.svg", report.dtype()).into(), text)));
        pictures.extend(density::picture(report)?.map(|text| (format!("{}-density.svg", report.suite).into(), text)));
        pictures.extend(latency::picture(report)?.map(|text| (format!("{}-latency.svg", report.suite).into(), text)));
    }
    // Two reports of one suite and type have two pictures.
    for number in 1..pictures.len() {
        let again = pictures[..number].iter().filter(|(name, _): &&(PathBuf, String)| *name == pictures[number].0).count();
        if again > 0 {
            let stem = pictures[number].0.with_extension("");
            pictures[number].0 = format!("{}-{}.svg", stem.display(), again + 1).into();
        }
    }
    Ok(pictures)
}
