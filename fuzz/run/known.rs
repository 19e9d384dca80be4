//! Inputs that once panicked, or cost out of proportion: what each is answered today, within the limits of all inputs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use libtest_mimic::{Failed, Trial};
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde_json::{Value, json};
use trifuse::adapters::bundle::to_bytes;
use trifuse::adapters::encode::calibration::Calibration;
use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::encoded::{CodedColumns, EncodedAdapter, EncodedFactor, EncodedProjection, MAX_DIMENSION, Matrix, Population, SharedProjection};
use trifuse::adapters::peft::inspect_bytes;
use trifuse::ops::codes::{CODEBOOK_LEN, CodeWidth};

use super::mutate::store;
use super::race::{LIMITS, Limits, check};
use super::subjects::{ALL, Answer, Subject, rng};

/// The name of a test, the subject, the input, and words of the answer; none where it is taken.
type Known = (&'static str, Subject, fn() -> Vec<u8>, Option<&'static str>);

fn all() -> Vec<Known> {
    let of = |name: &str| *ALL.iter().find(|subject| subject.name == name).unwrap();
    let calibrated = Subject { name: "calibrated", parse: calibrated, ..of("calibration") };
    vec![
        ("columns_of_no_bits_take_no_memory", of("bundle"), columns_of_no_bits, Some("less that is empty")),
        ("a_wide_projection_that_holds_nothing", of("bundle"), wide_and_empty, None),
        ("many_projections_take_no_time", of("bundle"), many_projections, None),
        ("a_long_text_is_cut_before_it_is_tokenized", of("lines"), a_long_line, None),
        ("many_targets_and_tensors_take_no_time", of("peft_folder"), many_targets, Some("expected")),
        ("a_pattern_on_a_long_name_takes_no_time", of("peft_folder"), a_long_name, Some("name")),
        ("a_mark_that_is_not_among_the_special_tokens", of("tokenizer"), || tokenizer("/post_processor/special_tokens", json!({})), Some("tokenizer")),
        ("a_token_past_the_models_table", of("tokenizer"), || tokenizer("/model/vocab/hello", json!(50)), Some("is it another model's")),
        ("a_map_that_says_more_than_it_has", of("tokenizer"), a_false_map, Some("precompiled_charsmap")),
        ("a_replacement_by_a_page", of("tokenizer"), a_page_for_a_space, Some("content: expected at most")),
        ("a_template_with_its_text_again", of("tokenizer"), a_text_again, Some("with the text once")),
        ("positions_that_overflow_with_their_type", of("weights"), overflowing_positions, Some("that f32 holds")),
        ("a_few_wide_rows_calibrate_without_a_wide_square", calibrated, wide_rows, None),
        ("one_stored_page_named_again_and_again", of("case_file"), || attention(1, Some(20_000)), Some("kv_len")),
        ("attention_of_a_day", of("case_file"), || attention(30_000, None), Some("cut the case")),
        ("a_median_past_the_greatest_time", of("report"), a_false_median, Some("measure again")),
    ]
}

fn one(projections: BTreeMap<String, EncodedProjection>) -> Population {
    let config = json!({ "peft_type": "LORA", "r": 1, "lora_alpha": 1 });
    let shared = |projection: &EncodedProjection| {
        let d = |factor: &EncodedFactor| if let EncodedFactor::Plain(plain) = factor { plain.rows } else { 1 };
        SharedProjection { d_in: d(&projection.input), d_out: d(&projection.output), input_bases: vec![], output_bases: vec![] }
    };
    let all = projections.iter().map(|(path, projection)| (path.clone(), shared(projection))).collect();
    Population { projections: all, adapters: [("x".to_owned(), EncodedAdapter { config, projections })].into() }
}

fn projection(factor: impl Fn() -> EncodedFactor) -> EncodedProjection {
    let population = super::subjects::support::population(0);
    let some = population.adapters.values().flat_map(|adapter| adapter.projections.values()).next().unwrap();
    EncodedProjection { input: factor(), core: None, output: factor(), scaling: 1.0, certificate: some.certificate.clone() }
}

/// Half a megabyte of numbers, which allow for more columns of no bits than may be.
fn columns_of_no_bits() -> Vec<u8> {
    let plain = projection(|| EncodedFactor::Plain(Matrix::new(100_000, 1, vec![half::f16::ONE; 100_000]).unwrap()));
    let empty = projection(|| EncodedFactor::Coded(CodedColumns { d: 1, columns: vec![(CodeWidth::Zero, vec![]); 4096], codebook: [0.0; CODEBOOK_LEN] }));
    let empty = (0..2000).map(|number| (format!("p{number}"), empty.clone()));
    to_bytes(&one([("a".to_owned(), plain)].into_iter().chain(empty).collect())).unwrap()
}

/// A projection of as many inputs as may be and no bits, beside one of rank 3, to which PEFT's files pad it: 200 MB.
fn wide_and_empty() -> Vec<u8> {
    let plain = |rows: usize, cols: usize| EncodedFactor::Plain(Matrix::new(rows, cols, vec![half::f16::ONE; rows * cols]).unwrap());
    let columns = vec![(CodeWidth::Zero, vec![]); 2];
    let empty = EncodedFactor::Coded(CodedColumns { d: MAX_DIMENSION, columns, codebook: [0.0; CODEBOOK_LEN] });
    let wide = EncodedProjection { input: empty, ..projection(|| plain(3, 2)) };
    let mut population = one([("a".to_owned(), projection(|| plain(3, 3))), ("b".to_owned(), wide)].into());
    population.projections.get_mut("b").unwrap().d_in = MAX_DIMENSION;
    to_bytes(&population).unwrap()
}

fn many_projections() -> Vec<u8> {
    let nothing = SharedProjection { d_in: 1, d_out: 1, input_bases: vec![], output_bases: vec![] };
    let projections = (0..60_000).map(|number| (format!("layer.{number}"), nothing.clone())).collect();
    to_bytes(&Population { projections, adapters: BTreeMap::new() }).unwrap()
}

fn a_long_line() -> Vec<u8> {
    format!("{{\"text\":\"{}\"}}\n", "a ".repeat(7_500_000)).into_bytes()
}

/// An adapter's two files in one input.
fn folder(config: &Value, tensors: &[u8]) -> Vec<u8> {
    let config = config.to_string().into_bytes();
    [&(config.len() as u32).to_le_bytes(), &config[..], tensors].concat()
}

fn many_targets() -> Vec<u8> {
    let names: Vec<String> = (0..40_000).map(|number| format!("base_model.model.l{number}.q.lora_A.weight")).collect();
    let tensors: Vec<_> = names.iter().map(|name| (name.as_str(), "F32", &[1usize, 1][..], vec![0; 4])).collect();
    let targets: Vec<String> = (0..40_000).map(|number| format!("x{number:05}")).collect();
    folder(&json!({ "peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": targets }), &store(None, &tensors))
}

fn a_long_name() -> Vec<u8> {
    let name = format!("base_model.model.{}.q.lora_A.weight", "ab".repeat(500_000));
    folder(&json!({ "peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": "(?:.*a){20}" }), &store(None, &[(&name, "F32", &[1, 1], vec![0; 4])]))
}

/// A sound tokenizer but for one value.
fn tokenizer(place: &str, value: Value) -> Vec<u8> {
    let sound = ALL.iter().find(|subject| subject.name == "tokenizer").unwrap().sound;
    let mut all = (0..).map(|number| serde_json::from_slice::<Value>(&sound(&mut rng(0, number))).unwrap());
    let mut file = all.find(|file| file["model"]["type"] == "WordPiece" && file.pointer(place).is_some()).unwrap();
    *file.pointer_mut(place).unwrap() = value;
    file.to_string().into_bytes()
}

fn a_text_again() -> Vec<u8> {
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    tokenizer("/post_processor/single", json!([text, text, text]))
}

/// The largest numbers as the first of the table of positions and of that of types.
fn overflowing_positions() -> Vec<u8> {
    let mut file = (ALL.iter().find(|subject| subject.name == "weights").unwrap().sound)(&mut rng(0, 0));
    let end = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..end]).unwrap();
    for name in ["position", "token_type"] {
        let at = end + header[format!("embeddings.{name}_embeddings.weight")]["data_offsets"][0].as_u64().unwrap() as usize;
        file[at..at + 4].copy_from_slice(&f32::MAX.to_le_bytes());
    }
    file
}

fn a_false_map() -> Vec<u8> {
    tokenizer("/normalizer", json!({ "type": "Precompiled", "precompiled_charsmap": "x".repeat(5000) }))
}

fn a_page_for_a_space() -> Vec<u8> {
    tokenizer("/normalizer", json!({ "type": "Replace", "pattern": { "String": " " }, "content": "x".repeat(5000) }))
}

/// One thread, whose addresses for matrix products are reserved before memory is counted: 520 MiB, of which little is touched.
static POOL: LazyLock<ThreadPool> = LazyLock::new(|| ThreadPoolBuilder::new().num_threads(1).build().unwrap());

/// A calibration file of one projection.
fn rows([rows, d_in]: [usize; 2]) -> Vec<u8> {
    let values = (0..rows * d_in).flat_map(|number| ((number * number % 97) as f32 - 40.0).to_le_bytes()).collect();
    store(None, &[("q", "F32", &[rows, d_in], values)])
}

/// Eight rows of 20,000 inputs: a square of those is 3.2 GB.
fn wide_rows() -> Vec<u8> {
    let _ = calibrated(&rows([8, 200]));
    rows([8, 20_000])
}

fn calibrated(bytes: &[u8]) -> Answer {
    let end = 8 + bytes[0] as usize;
    let d_in = serde_json::from_slice::<Value>(&bytes[8..end]).unwrap()["q"]["shape"][1].as_u64().unwrap() as usize;
    let ramp = |count: usize| (0..count).flat_map(|number| ((number % 89) as f32 * 0.01 - 0.3).to_le_bytes()).collect();
    let tensors = store(None, &[("q.lora_A.weight", "F32", &[1, d_in], ramp(d_in)), ("q.lora_B.weight", "F32", &[4, 1], ramp(4))]);
    let adapter = inspect_bytes("wide", br#"{"peft_type":"LORA","r":1,"lora_alpha":1}"#, tensors).into_adapter().map_err(|error| error.to_string())?;
    let calibration = Calibration::from_bytes("calibration.safetensors".as_ref(), bytes).map_err(|error| error.to_string())?;
    // Input codes too, which feed errors back through the metric.
    for most in [None, Some(0.5)] {
        let options = EncodeOptions { calibration: Some(calibration.clone()), max_output_error: most, rank: Some(1), ..EncodeOptions::default() };
        POOL.install(|| encode(&[Source::from(&adapter)], &options, &|_, _| {})).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What a calibration by rows takes: two numbers of f64 an element of the rows that are encoded for, and two squares of these rows; the
/// rows in f32, twice while they are read and once in the options; the held-out rows in f64.
fn a_calibration_takes_what_its_rows_do() -> Result<(), Failed> {
    let _ = calibrated(&rows([8, 200]));
    let [count, d_in] = [400, 6000];
    let (design, held_out) = (count * 3 / 4, count / 4);
    let memory = 16 * design * (d_in + design) + 3 * 4 * count * d_in + 8 * held_out * d_in + (8 << 20);
    assert!(memory < 8 * d_in * d_in / 2, "a square would go unseen");
    let subject = Subject { name: "calibrated", sound: |_| vec![], change: |_, _| vec![], parse: calibrated };
    let seen = check(&subject, &rows([count, d_in]), &Limits { memory, ..LIMITS });
    seen.map_err(|found| Failed::from(format!("{found}; expected {memory} bytes at most")))?.answer.map_err(Failed::from)
}

/// A case of one head of size 1: this many queries and keys, or this many pages, all of them one stored page.
fn attention(rows: usize, pages: Option<usize>) -> Vec<u8> {
    let page = pages.unwrap_or(rows);
    let zeros = |count: usize| vec![0; count];
    let shape = [1, rows, 1, 1];
    let stored = [1, page, 1, 1];
    let mut tensors: Vec<(&str, &str, &[usize], Vec<u8>)> = vec![
        ("q", "F32", &shape, zeros(4 * rows)),
        ("k", "F32", &stored, zeros(4 * page)),
        ("v", "F32", &stored, zeros(4 * page)),
        ("o", "F64", &shape, zeros(8 * rows)),
    ];
    let table = [1, page];
    if let Some(pages) = pages {
        tensors.push(("page_table", "I32", &table, zeros(4 * pages)));
        tensors.push(("kv_len", "I32", &[1], ((pages * pages) as i32).to_le_bytes().to_vec()));
    }
    let params = json!({ "dtype": "f32", "causal": false, "window": -1, "scale": 0, "block": 0 }).to_string();
    store(Some(&json!({ "op": "attention", "params": params })), &tensors)
}

fn a_false_median() -> Vec<u8> {
    let sound = ALL.iter().find(|subject| subject.name == "report").unwrap().sound;
    let mut report: Value = serde_json::from_slice(&sound(&mut rng(0, 0))).unwrap();
    *report.pointer_mut("/results/0/cold/median").unwrap() = json!(4097);
    report.to_string().into_bytes()
}

pub fn trials() -> Vec<Trial> {
    let trial = |(name, subject, input, expected): Known| {
        Trial::test(name, move || {
            let answer = check(&subject, &input(), &LIMITS).map_err(|found| Failed::from(found.to_string()))?.answer;
            let as_expected = match expected {
                None => answer.is_ok(),
                Some(words) => answer.as_ref().is_err_and(|why| why.contains(words)),
            };
            if as_expected { Ok(()) } else { Err(format!("expected {expected:?}, found {answer:?}").chars().take(600).collect::<String>().into()) }
        })
    };
    let calibration = Trial::test("a_calibration_takes_what_its_rows_do", a_calibration_takes_what_its_rows_do);
    all().into_iter().map(trial).chain([calibration]).collect()
}
