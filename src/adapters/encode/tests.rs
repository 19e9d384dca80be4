//! Encodings of synthetic populations whose right answers are known.

#![allow(clippy::unwrap_used, clippy::panic)]

mod budget;

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::add::add_adapter;
use super::calibration::{Calibration, Inputs, SecondMoment};
use super::{EncodeOptions, Source, encode, payload_bytes};
use crate::adapters::bundle;
use crate::adapters::encoded::{Matrix, Population, Rung};
use crate::adapters::peft::Lora;
use crate::dtype::DType;
use crate::error::Error;
use crate::ops::codes::CodeWidth;

const D: [usize; 2] = [96, 128];
const R: usize = 4;

struct Made {
    name: String,
    config: serde_json::Value,
    modules: BTreeMap<String, Lora>,
}

fn normal(rows: usize, cols: usize, seed: u64) -> Matrix {
    let data = StandardNormal.sample_iter(ChaCha8Rng::seed_from_u64(seed)).take(rows * cols).collect();
    Matrix { rows, cols, data }
}

/// An adapter of one projection; the columns of B fall off, as trained ones do.
fn lora(a: Matrix, seed: u64) -> Lora {
    let (r, d_out) = (a.rows, D[1]);
    let mut b = normal(d_out, r, 1000 + seed);
    b.data.iter_mut().enumerate().for_each(|(i, value)| *value *= 0.1 * 0.6f32.powi((i % r) as i32));
    Lora { a, b, scaling: 2.0, dtype: DType::F16 }
}

fn made(name: &str, modules: impl IntoIterator<Item = Lora>) -> Made {
    let modules = modules.into_iter().enumerate().map(|(i, lora)| (format!("layer.{i}"), lora)).collect();
    Made { name: name.into(), config: serde_json::json!({ "r": R }), modules }
}

/// Adapters whose A is shared, up to a rotation, with `drift` of noise on top.
fn shared_start(count: u64, drift: f32) -> Vec<Made> {
    let start = normal(R, D[0], 1);
    let a = |k: u64| Matrix { data: start.data.iter().zip(&normal(R, D[0], 100 + k).data).map(|(s, n)| s + drift * n).collect(), ..start.clone() };
    (0..count).map(|k| made(&format!("shared{k}"), [lora(a(k), k)])).collect()
}

fn independent(count: u64) -> Vec<Made> {
    (0..count).map(|k| made(&format!("own{k}"), [lora(normal(R, D[0], 200 + k), k)])).collect()
}

fn sources(made: &[Made]) -> Vec<Source<'_>> {
    made.iter().map(|m| Source { name: &m.name, config: &m.config, modules: &m.modules }).collect()
}

fn run(made: &[Made], options: &EncodeOptions) -> Population {
    encode(&sources(made), options, &|_, _| ()).unwrap()
}

fn certificates(population: &Population) -> Vec<&crate::adapters::certificate::Certificate> {
    population.adapters.values().flat_map(|adapter| adapter.projections.values()).map(|p| &p.certificate).collect()
}

/// The cosine cos(ΔW) from the full matrices, by plain loops. It shares nothing with the encoder's own measure.
fn cosine(lora: &Lora, population: &Population, name: &str, path: &str) -> f64 {
    let decoded = population.adapters[name].projections[path].delta(&population.projections[path]).unwrap();
    let (mut dot, mut ours, mut theirs) = (0.0, 0.0, 0.0);
    for i in 0..lora.b.rows {
        for j in 0..lora.a.cols {
            let exact: f64 = (0..lora.rank()).map(|k| f64::from(lora.b.at(i, k)) * f64::from(lora.a.at(k, j))).sum::<f64>() * f64::from(lora.scaling);
            dot += exact * decoded.at(i, j);
            ours += exact * exact;
            theirs += decoded.at(i, j).powi(2);
        }
    }
    dot / (ours * theirs).sqrt()
}

#[test]
fn an_exactly_shared_start_loses_nothing_to_the_basis() {
    let population = run(&shared_start(6, 0.0), &EncodeOptions { rank: Some(R), ..Default::default() });
    for certificate in certificates(&population) {
        assert_eq!(certificate.rung, Rung::SharedInput);
        assert!(certificate.basis_energy > 0.9999, "{certificate:?}");
        assert!(certificate.cos_delta > 0.994, "four bits keep 0.995 of a Gaussian: {certificate:?}");
        assert!((certificate.bits_per_element - 4.0).abs() < 1e-9);
    }
}

#[test]
fn independent_starts_are_measured_honestly_and_climb() {
    let all = independent(16);
    let honest = run(&all, &EncodeOptions::default());
    let worst = certificates(&honest).iter().map(|c| c.cos_delta).fold(1.0, f64::min);
    assert!(worst < 0.9, "sixteen columns cannot hold sixteen independent adapters: {worst}");

    let climbed = run(&all, &EncodeOptions { min_cosine: Some(0.99), ..Default::default() });
    assert!(certificates(&climbed).iter().all(|c| c.cos_delta >= 0.99 && c.rung == Rung::PrivateCoded));
    assert!(climbed.projections["layer.0"].input_bases.is_empty(), "a basis that nobody uses is not kept");
}

#[test]
fn a_required_cosine_holds_for_every_adapter_when_recomputed_from_the_file() {
    let all: Vec<Made> = shared_start(8, 0.15).into_iter().chain(independent(2)).collect();
    for least in [0.9, 0.97, 0.995, 0.9999, 0.999_999] {
        let options = EncodeOptions { min_cosine: Some(least), ..Default::default() };
        let population = run(&all, &options);
        let read = bundle::Bundle::from_bytes("memory", bundle::to_bytes(&population).unwrap()).unwrap().population().unwrap();
        for adapter in &all {
            let found = cosine(&adapter.modules["layer.0"], &read, &adapter.name, "layer.0");
            assert!(found >= least, "{}: {found} for {least}", adapter.name);
            let stated = population.adapters[&adapter.name].projections["layer.0"].certificate.cos_delta;
            assert!((stated - found).abs() < 1e-9, "{stated} {found}");
        }
    }
    let rungs =
        |least: f64| certificates(&run(&all, &EncodeOptions { min_cosine: Some(least), ..Default::default() })).iter().map(|c| c.rung).collect::<Vec<_>>();
    assert!(rungs(0.97).contains(&Rung::SharedInput) && rungs(0.97).contains(&Rung::PrivateCoded), "{:?}", rungs(0.97));
    assert!(rungs(0.999_999).iter().all(|&rung| rung == Rung::Plain));
}

#[test]
fn less_fidelity_takes_fewer_bytes() {
    let all = shared_start(8, 0.1);
    let bytes = |least: f64| payload_bytes(&run(&all, &EncodeOptions { min_cosine: Some(least), ..Default::default() })).1;
    assert!(bytes(0.9) < bytes(0.97) && bytes(0.97) < bytes(0.99) && bytes(0.99) < bytes(0.999));
}

#[test]
fn what_cannot_be_had_is_refused_with_what_was_reached() {
    let all = independent(8);
    let fixed = EncodeOptions { rank: Some(4), min_cosine: Some(0.99), rungs: Some(vec![Rung::SharedInput]), ..Default::default() };
    match encode(&sources(&all), &fixed, &|_, _| ()) {
        Err(Error::Missed { subject, asked, reached }) => {
            assert!(subject.contains("own") && asked.contains("0.99") && reached.contains("cos"), "{subject} {asked} {reached}")
        }
        other => panic!("{other:?}"),
    }
    let small = EncodeOptions { max_ratio: Some(0.05), min_cosine: Some(0.999), ..Default::default() };
    assert!(matches!(encode(&sources(&all), &small, &|_, _| ()), Err(Error::Missed { .. })));
}

#[test]
fn several_bases_serve_where_one_of_that_rank_does_not() {
    let (mut all, second) = (shared_start(6, 0.0), normal(R, D[0], 77));
    all.extend((0..6).map(|k| made(&format!("second{k}"), [lora(second.clone(), 50 + k)])));
    let options = EncodeOptions { rank: Some(R), min_cosine: Some(0.98), rungs: Some(vec![Rung::SharedInput, Rung::ClusteredInput]), ..Default::default() };
    let population = run(&all, &options);
    assert_eq!(population.projections["layer.0"].input_bases.len(), 2);
    assert!(certificates(&population).iter().all(|c| c.rung == Rung::ClusteredInput && c.cos_delta >= 0.98));
}

#[test]
fn a_common_output_side_is_found() {
    let flipped = |m: Made| {
        let modules = m.modules.into_iter().map(|(path, l)| (path, Lora { a: l.b.transposed(), b: l.a.transposed(), ..l })).collect();
        Made { modules, ..m }
    };
    let all: Vec<Made> = shared_start(12, 0.02).into_iter().map(flipped).collect();
    let population = run(&all, &EncodeOptions { min_cosine: Some(0.98), ..Default::default() });
    assert!(certificates(&population).iter().all(|c| c.rung == Rung::SharedOutput && c.cos_delta >= 0.98));
    assert!(cosine(&all[0].modules["layer.0"], &population, "shared0", "layer.0") >= 0.98);
}

#[test]
fn the_reference_systems_own_form_is_to_be_had() {
    let options = EncodeOptions { rank: Some(R), width: Some(CodeWidth::FourThree), ..Default::default() };
    for certificate in certificates(&run(&shared_start(4, 0.0), &options)) {
        assert_eq!(certificate.bits_per_element, 7.0);
        assert!(certificate.cos_delta > 0.9996, "{certificate:?}");
    }
}

#[test]
fn the_result_depends_on_the_seed_and_on_nothing_else() {
    let all: Vec<Made> = shared_start(5, 0.1).into_iter().chain(independent(3)).collect();
    let wide = |k: u64| made(&format!("wide{k}"), (0..4).map(|i| lora(normal(R, D[0], 300 + 10 * k + i), 60 + i)));
    let all: Vec<Made> = all.into_iter().chain((0..3).map(wide)).collect();
    let options = EncodeOptions { min_cosine: Some(0.97), ..Default::default() };
    let on = |threads: usize| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| run(&all, &options));
    let one = bundle::to_bytes(&on(1)).unwrap();
    assert!(one == bundle::to_bytes(&on(3)).unwrap());
}

#[test]
fn several_ranks_missing_projections_and_untrained_adapters_are_encoded() {
    let mut all = shared_start(3, 0.1);
    all.push(made("rank9", [lora(normal(9, D[0], 5), 5), lora(normal(2, D[0], 6), 6)]));
    let mut untrained = lora(normal(R, D[0], 7), 7);
    untrained.b.data.fill(0.0);
    all.push(made("untrained", [untrained]));
    for options in
        [EncodeOptions::default(), EncodeOptions { min_cosine: Some(0.99), ..Default::default() }, EncodeOptions { max_ratio: Some(0.6), ..Default::default() }]
    {
        let population = run(&all, &options);
        assert_eq!(population.adapters["shared0"].projections.len(), 1);
        assert_eq!(population.adapters["rank9"].projections.len(), 2);
        let nothing = &population.adapters["untrained"].projections["layer.0"];
        assert!(nothing.delta(&population.projections["layer.0"]).unwrap().data.iter().all(|&value| value == 0.0));
        assert_eq!((nothing.certificate.cos_delta, nothing.certificate.output_error_gaussian), (1.0, 0.0));
        bundle::to_bytes(&population).unwrap();
    }
    let alone = [made("untrained", [Lora { b: Matrix { data: vec![0.0; D[1] * R], rows: D[1], cols: R }, ..lora(normal(R, D[0], 7), 7) }])];
    assert!(certificates(&run(&alone, &EncodeOptions::default())).iter().all(|c| c.cos_delta == 1.0));
}

#[test]
fn bad_populations_and_options_are_refused() {
    let all = shared_start(2, 0.1);
    let twice = [sources(&all), sources(&all)].concat();
    assert!(encode(&twice, &EncodeOptions::default(), &|_, _| ()).is_err());
    assert!(encode(&[], &EncodeOptions::default(), &|_, _| ()).is_err());
    let mut bad = shared_start(2, 0.1);
    bad[1].modules.get_mut("layer.0").unwrap().a.data[3] = f32::NAN;
    assert!(encode(&sources(&bad), &EncodeOptions::default(), &|_, _| ()).is_err());
    bad[1].modules.insert("layer.0".into(), lora(normal(R, D[0] + 1, 3), 3));
    assert!(encode(&sources(&bad), &EncodeOptions::default(), &|_, _| ()).is_err());
    for options in [
        EncodeOptions { min_cosine: Some(1.5), ..Default::default() },
        EncodeOptions { rank: Some(0), ..Default::default() },
        EncodeOptions { rank: Some(3), energy: Some(0.5), ..Default::default() },
        EncodeOptions { bits: Some(f64::NAN), ..Default::default() },
        EncodeOptions { rungs: Some(vec![]), ..Default::default() },
    ] {
        assert!(matches!(encode(&sources(&all), &options, &|_, _| ()), Err(Error::Invalid { .. })), "{options:?}");
    }
}

/// Inputs that fill only a few directions, as real ones do.
fn calibration_rows() -> Matrix {
    let (rows, few) = (600, 12);
    let (mix, small, basis) = (normal(rows, few, 11), normal(rows, D[0], 12), normal(few, D[0], 13));
    let data = (0..rows * D[0]).map(|k| {
        let (i, j) = (k / D[0], k % D[0]);
        (0..few).map(|c| mix.at(i, c) * basis.at(c, j) / (1.0 + c as f32)).sum::<f32>() + 0.05 * small.data[k]
    });
    Matrix { rows, cols: D[0], data: data.collect() }
}

fn calibration() -> Calibration {
    Calibration::from_rows([("layer.0".to_string(), calibration_rows())].into()).unwrap()
}

#[test]
fn calibration_lowers_the_error_on_inputs_that_it_did_not_see() {
    let all = independent(16);
    let error = |calibration: Calibration| {
        let population = run(&all, &EncodeOptions { calibration: Some(calibration), ..Default::default() });
        let found = certificates(&population).iter().map(|c| c.output_error_held_out.unwrap()).sum::<f64>() / 16.0;
        (found, payload_bytes(&population).1)
    };
    let (with, with_bytes) = error(calibration());
    let (without, without_bytes) = error(calibration().only_measuring());
    assert!(with < 0.5 * without, "{with} {without}");
    assert!(with_bytes as f64 <= 1.05 * without_bytes as f64);

    let options = EncodeOptions { max_output_error: Some(0.1), calibration: Some(calibration()), ..Default::default() };
    let met = run(&all, &options);
    assert!(certificates(&met).iter().all(|c| c.output_error_held_out.unwrap() <= 0.1));
    let plain = run(&all, &EncodeOptions { max_output_error: Some(0.1), ..Default::default() });
    assert!(payload_bytes(&met).1 < payload_bytes(&plain).1, "inputs known are bytes saved");
}

#[test]
fn a_second_moment_encodes_as_the_rows_that_it_sums() {
    let rows = calibration_rows();
    let (design, held_out) = rows.data.split_at(450 * D[0]);
    let mut moment = SecondMoment::new(D[0]);
    moment.add(&Matrix { rows: 450, cols: D[0], data: design.to_vec() }).unwrap();
    let mut summed = Calibration::default();
    summed.insert("layer.0", Inputs::from_moment(moment, Matrix { rows: 150, cols: D[0], data: held_out.to_vec() }).unwrap());
    let of = |calibration: Calibration| run(&independent(4), &EncodeOptions { calibration: Some(calibration), ..Default::default() });
    assert_eq!(of(summed), of(calibration()));
}

#[test]
fn a_projection_without_inputs_is_encoded_as_if_there_were_no_calibration_and_says_so() {
    let wide = |k: u64| made(&format!("wide{k}"), (0..2).map(|i| lora(normal(R, D[0], 300 + 10 * k + i), 60 + i)));
    let all: Vec<Made> = (0..4).map(wide).collect();
    let calibrated = run(&all, &EncodeOptions { calibration: Some(calibration()), ..Default::default() });
    let without = run(&all, &EncodeOptions::default());
    assert_eq!(calibrated.projections["layer.1"], without.projections["layer.1"]);
    for (name, adapter) in &calibrated.adapters {
        let [seen, unseen] = ["layer.0", "layer.1"].map(|path| &adapter.projections[path].certificate);
        assert!(seen.calibrated && seen.output_error_held_out.is_some());
        assert!(!unseen.calibrated && unseen.output_error_held_out.is_none());
        assert_eq!(adapter.projections["layer.1"], without.adapters[name].projections["layer.1"]);
    }
    let measured = run(&all, &EncodeOptions { calibration: Some(calibration().only_measuring()), ..Default::default() });
    let first = &measured.adapters["wide0"].projections["layer.0"].certificate;
    assert!(!first.calibrated && first.output_error_held_out.is_some());

    let mut stranger = Calibration::default();
    stranger.insert("model.layer.0", Inputs::from_rows(&calibration_rows()).unwrap());
    let options = EncodeOptions { calibration: Some(stranger), ..Default::default() };
    assert!(matches!(encode(&sources(&all), &options, &|_, _| ()), Err(Error::Invalid { .. })), "inputs of no projection are a mistake");
}

#[test]
fn a_newcomer_is_never_projected_silently() {
    let mut population = run(&shared_start(8, 0.05), &EncodeOptions { min_cosine: Some(0.98), ..Default::default() });
    let before = population.clone();
    let stranger = &independent(1)[0];
    let source = Source { name: &stranger.name, config: &stranger.config, modules: &stranger.modules };
    let forbidden = EncodeOptions { min_cosine: Some(0.98), rungs: Some(vec![Rung::SharedInput]), rank: Some(R), ..Default::default() };
    assert!(matches!(add_adapter(&mut population, source, &forbidden), Err(Error::Missed { .. })));
    assert_eq!(population, before);

    let report = add_adapter(&mut population, source, &EncodeOptions::default()).unwrap();
    let added = &report["layer.0"];
    assert!(added.projected.as_ref().unwrap().cos_delta < 0.8, "{added:?}");
    assert!(added.kept.cos_delta >= 0.98 && cosine(&stranger.modules["layer.0"], &population, &stranger.name, "layer.0") >= 0.98);
    assert!(add_adapter(&mut population, source, &EncodeOptions::default()).is_err(), "the name is taken");

    // One of the family, with one new direction of its own.
    let family = &shared_start(9, 0.05)[8];
    let source = Source { name: &family.name, config: &family.config, modules: &family.modules };
    let wider = EncodeOptions { min_cosine: Some(0.98), rungs: Some(vec![Rung::SharedInput]), ..Default::default() };
    let report = add_adapter(&mut population, source, &wider).unwrap();
    assert!(report["layer.0"].kept.cos_delta >= 0.98);
    for (name, adapter) in &before.adapters {
        let then = adapter.projections["layer.0"].delta(&before.projections["layer.0"]).unwrap();
        assert_eq!(population.adapters[name].projections["layer.0"].delta(&population.projections["layer.0"]).unwrap(), then);
    }
    bundle::to_bytes(&population).unwrap();
}
