//! Embeddings against those that NumPy computed in float64 from the definition.

use std::sync::Arc;

use libtest_mimic::Trial;
use trifuse::DType;
use trifuse::backends::AnyDevice;
use trifuse::model::Text;

use super::backends::{SLOW, ignored, slow};
use super::support::{Golden, adapters, batch, encoder, model, plain, population};

/// Of the base model and the adapters, alone in their engine (one form a projection) and beside one of another rank (two).
const REFERENCES: [(&str, &[&str]); 5] = [
    ("base", &[]),
    ("A/rust", &["A/rust"]),
    ("A/apache_french", &["A/rust", "A/apache_french"]),
    ("C/r4_rust", &["A/rust", "C/r4_rust"]),
    ("A/rust", &["A/rust", "C/r4_rust"]),
];

pub fn trials(device: &Arc<AnyDevice>) -> Vec<Trial> {
    let slow = slow(device.as_ref());
    let mut trials = Vec::new();
    for dtype in DType::ALL {
        // bf16 keeps 8 bits of each of some seventy roundings on the way.
        let most = match dtype {
            DType::F32 => 1e-5,
            DType::F16 => 2e-3,
            DType::BF16 => 2e-2,
        };
        // Two of bf16 and f16 show what rounding does; f32 shows every way.
        let count = if dtype == DType::F32 { REFERENCES.len() } else { 2 };
        for (number, (name, beside)) in REFERENCES.into_iter().take(count).enumerate() {
            let device = device.clone();
            let title = format!("golden {name} {dtype} with {} attached{}", beside.len(), if number == 4 { ", two forms" } else { "" });
            // The base model in every dtype, and in f32 one adapter of two and two forms.
            if slow && (number == 1 || number == 3) {
                trials.push(ignored(format!("{title} ({SLOW})")));
                continue;
            }
            trials.push(Trial::test(title, move || {
                against(&device, name, beside, dtype, most);
                Ok(())
            }));
        }
    }
    trials
}

fn against(device: &Arc<AnyDevice>, name: &str, attached: &[&str], dtype: DType, most: f32) {
    let golden = Golden::open();
    let mut encoder = encoder(device, dtype);
    let sentences: Vec<&str> = golden.sentences.iter().map(String::as_str).collect();
    let tokens: Vec<Vec<i32>> = Text::open(&model(), encoder.config()).unwrap().tokens(&sentences).unwrap().into_iter().map(|tokens| tokens.ids).collect();
    assert_eq!(tokens, golden.ids, "the tokenizer");
    if !attached.is_empty() {
        encoder.attach(Box::new(population(&adapters(attached), &plain()).unwrap())).unwrap();
    }
    let adapter = attached.iter().find(|other| **other == name).copied();
    let rows = batch(&encoder, &tokens, &[adapter]);
    let expected = golden.embeddings(name);
    // Run, captured, replayed.
    for pass in 0..3 {
        let found = encoder.embed(&rows).unwrap();
        assert_eq!(found.len(), expected.len());
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= most, "pass {pass}: off by {off:e}, {most:e} allowed");
        if dtype == DType::F32 {
            for (a, b) in found.chunks(384).zip(expected.chunks(384)) {
                let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
                let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
                assert!(cosine >= 0.999_99, "pass {pass}: cosine {cosine}");
            }
        }
    }
}
