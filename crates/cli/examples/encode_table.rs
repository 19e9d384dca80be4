//! What is kept at which size: a table for a folder of PEFT adapters.
//!
//! `cargo run --profile dist --example encode_table -- FOLDER [CALIBRATION HELD_OUT]`

use std::path::Path;
use std::time::Instant;

use trifuse::adapters::bundle;
use trifuse::adapters::encode::calibration::Calibration;
use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::encoded::Population;
use trifuse::adapters::peft::open_all;
use trifuse::{Error, Result};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, calibration) = match &arguments[..] {
        [folder] => (folder, None),
        [folder, design, held_out] => (folder, Some(Calibration::load_pair(Path::new(design), Path::new(held_out))?)),
        _ => return Err(Error::invalid("arguments", "FOLDER [CALIBRATION HELD_OUT]", format!("{arguments:?}"))),
    };
    let adapters = open_all(&[folder])?;
    let sources: Vec<Source<'_>> = adapters.iter().map(Source::from).collect();
    let before: u64 = adapters.iter().flat_map(|a| a.modules.values()).map(|lora| lora.bytes()).sum();
    println!("{} adapters, {before} bytes\n", adapters.len());
    println!("| asked | file bytes | times smaller | cos(ΔW) mean | least | in the basis | output error, held out | greatest | bits | rungs | seconds |");
    println!("|---|---|---|---|---|---|---|---|---|---|---|");

    let measured = calibration.clone().map(Calibration::only_measuring);
    let ask = |rank, min_cosine| EncodeOptions { rank, min_cosine, calibration: measured.clone(), ..Default::default() };
    let mut rows = vec![("R = 16, 4 bits".to_string(), ask(Some(16), None))];
    rows.extend([0.9, 0.95, 0.99].map(|least| (format!("cos(ΔW) ≥ {least}"), ask(None, Some(least)))));
    if calibration.is_some() {
        let with = |rank, max_output_error| EncodeOptions { rank, max_output_error, calibration: calibration.clone(), ..Default::default() };
        rows.push(("R = 16, 4 bits, calibrated".into(), with(Some(16), None)));
        rows.extend([0.3, 0.2, 0.14].map(|most| (format!("output error ≤ {most}, calibrated"), with(None, Some(most)))));
        let without = |most| EncodeOptions { max_output_error: Some(most), calibration: measured.clone(), ..Default::default() };
        rows.extend([0.3, 0.2, 0.14].map(|most| (format!("output error ≤ {most}, not calibrated"), without(most))));
    }
    for (asked, options) in rows {
        let start = Instant::now();
        let population = encode(&sources, &options, &|_, _| ())?;
        let seconds = start.elapsed().as_secs_f64();
        println!("| {asked} | {} | {seconds:.1} |", line(&population, before)?);
    }
    Ok(())
}

fn line(population: &Population, before: u64) -> Result<String> {
    let bytes = bundle::to_bytes(population)?.len();
    let all: Vec<_> = population.adapters.values().flat_map(|adapter| adapter.projections.values()).map(|p| &p.certificate).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let cosines: Vec<f64> = all.iter().map(|c| c.cos_delta).collect();
    let errors: Vec<f64> = all.iter().filter_map(|c| c.output_error_held_out).collect();
    let mut rungs = std::collections::BTreeMap::new();
    all.iter().for_each(|c| *rungs.entry(c.rung).or_insert(0) += 1);
    let rungs: Vec<String> = rungs.into_iter().map(|(rung, count)| format!("{rung:?} {count}")).collect();
    Ok(format!(
        "{bytes} | {:.2} | {:.4} | {:.4} | {:.3} | {:.4} | {:.4} | {:.2} | {}",
        before as f64 / bytes as f64,
        mean(&cosines),
        cosines.iter().copied().fold(1.0, f64::min),
        mean(&all.iter().map(|c| c.basis_energy).collect::<Vec<_>>()),
        mean(&errors),
        errors.iter().copied().fold(0.0, f64::max),
        mean(&all.iter().map(|c| c.bits_per_element).collect::<Vec<_>>()),
        rungs.join(", "),
    ))
}
