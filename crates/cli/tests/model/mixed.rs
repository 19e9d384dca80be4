//! A batch with a different adapter on every row gives each row what it gets alone, bit for bit; and what is refused.

use std::sync::Arc;

use libtest_mimic::Trial;
use trifuse::DType;
use trifuse::adapters::encode::EncodeOptions;
use trifuse::backends::AnyDevice;
use trifuse::model::Row;
use trifuse::model::calibrate::calibrate;

use super::backends::{SLOW, ignored, slow};
use super::support::{Golden, adapters, batch, bits, encoder, plain, population};

const A: [&str; 4] = ["A/rust", "A/sqlite", "A/bible_kjv", "A/apache_french"];

pub fn trials(device: &Arc<AnyDevice>) -> Vec<Trial> {
    // One of them runs on every device.
    let slow = slow(device.as_ref());
    let mut trials = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        let forms: [(&str, Vec<&str>, EncodeOptions); 3] = [
            ("plain", A.to_vec(), plain()),
            ("in the published form", A.to_vec(), EncodeOptions { rank: Some(16), ..EncodeOptions::default() }),
            ("of two ranks", [&A[..], &["C/r4_rust"]].concat(), plain()),
        ];
        for (form, names, options) in forms {
            let device = device.clone();
            let title = format!("mixed {dtype}: adapters {form}, each row as it is alone");
            if slow && !trials.is_empty() {
                trials.push(ignored(format!("{title} ({SLOW})")));
                continue;
            }
            trials.push(Trial::test(title, move || {
                each_row_as_alone(&device, &names, &options, dtype);
                Ok(())
            }));
        }
    }
    let other = device.clone();
    trials.push(Trial::test("calibration on text keeps more of the output in the same form", move || {
        calibration(&other);
        Ok(())
    }));
    let other = device.clone();
    trials.push(Trial::test("batches that are submitted before others are finished have their own bits", move || {
        submitted(&other);
        Ok(())
    }));
    let device = device.clone();
    trials.push(Trial::test("refusals leave the encoder usable", move || {
        refusals(&device);
        Ok(())
    }));
    trials
}

fn each_row_as_alone(device: &Arc<AnyDevice>, names: &[&str], options: &EncodeOptions, dtype: DType) {
    let golden = Golden::open();
    let mut encoder = encoder(device, dtype);
    encoder.attach(Box::new(population(&adapters(names), options).unwrap())).unwrap();
    // Twice, so that an adapter has rows apart; one row in as many as there are names has none.
    let sentences: Vec<Vec<i32>> = golden.ids.iter().chain(&golden.ids).cloned().collect();
    let turns: Vec<Option<&str>> = names.iter().map(|name| Some(*name)).chain([None]).collect();
    let rows = batch(&encoder, &sentences, &turns);
    let together = encoder.embed(&rows).unwrap();
    let mut apart = 0;
    let seen = |number: usize| number.is_multiple_of(if slow(device.as_ref()) { 6 } else { 2 });
    for (number, (row, both)) in rows.iter().zip(together.chunks(384)).enumerate().filter(|(number, _)| seen(*number)) {
        assert_eq!(bits(&encoder.embed(&[*row]).unwrap()), bits(both), "row {number}, {} tokens, {:?}", row.ids.len(), row.adapter);
        let base = encoder.embed(&[Row { adapter: None, ..*row }]).unwrap();
        apart += usize::from(bits(&base) != bits(both));
    }
    assert_eq!(
        apart,
        rows.iter().enumerate().filter(|(number, row)| seen(*number) && row.adapter.is_some()).count(),
        "an adapter changes its rows and no others"
    );
    let mut turned = rows.clone();
    turned.reverse();
    let reversed: Vec<f32> = encoder.embed(&turned).unwrap().chunks(384).rev().flatten().copied().collect();
    assert_eq!(bits(&reversed), bits(&together), "the order of the rows");
}

fn submitted(device: &Arc<AnyDevice>) {
    let golden = Golden::open();
    let mut encoder = encoder(device, DType::F32);
    encoder.attach(Box::new(population(&adapters(&A[..2]), &plain()).unwrap())).unwrap();
    let few = batch(&encoder, &golden.ids[..3], &[Some(A[0]), None, Some(A[1])]);
    let other = batch(&encoder, &golden.ids[3..6], &[Some(A[1]), Some(A[0])]);
    let many: Vec<Row<'_>> = few.iter().chain(&other).cycle().take(40).copied().collect();
    let [few_alone, other_alone] = [&few, &other].map(|rows| bits(&encoder.embed(rows).unwrap()));
    let many_alone: Vec<u32> = few_alone.iter().chain(&other_alone).cycle().take(40 * 384).copied().collect();
    assert!(encoder.finish().is_err(), "nothing was submitted");
    // Of one class, and of one whose buffers take the place of those that are used. The third batch of a class is a replay.
    let batches = [(&few, &few_alone), (&other, &other_alone), (&many, &many_alone), (&few, &few_alone), (&other, &other_alone)];
    for (rows, _) in batches {
        encoder.submit(rows).unwrap();
    }
    assert!(encoder.submit(&[]).is_err() && encoder.submit(&row(&[-1])).is_err(), "they are not on the device");
    for (number, (_, alone)) in batches.into_iter().enumerate() {
        assert_eq!(&bits(&encoder.finish().unwrap()), alone, "batch {number}");
    }
    assert!(encoder.finish().is_err(), "all are finished");
    // Others take the adapters' place while a batch with them runs.
    encoder.submit(&few).unwrap();
    encoder.attach(Box::new(population(&adapters(&A[2..3]), &plain()).unwrap())).unwrap();
    assert!(encoder.embed_each([many.clone()], &mut |_| Ok(())).is_err(), "a batch is not finished");
    assert_eq!(bits(&encoder.finish().unwrap()), few_alone);
    // What comes before a batch that fails is given.
    let (base, mut given) = (row(&golden.ids[0]), 0);
    let failed = encoder.embed_each([base.to_vec(), base.to_vec(), Vec::new(), base.to_vec()], &mut |_| {
        given += 1;
        Ok(())
    });
    assert!(failed.is_err() && given == 2, "{given} were given");
}

fn calibration(device: &Arc<AnyDevice>) {
    let golden = Golden::open();
    let mut encoder = encoder(device, DType::F32);
    // A few sentences, so the inputs are few too; they are each other's held-out text in turn.
    let sentences: Vec<Vec<i32>> = golden.ids.iter().chain(&golden.ids).cloned().collect();
    let calibration = calibrate(&mut encoder, &sentences, 256, &|_| {}).unwrap();
    assert_eq!(calibration.names().count(), 36);
    let mut adapters = adapters(&A);
    adapters.iter_mut().for_each(|adapter| adapter.modules.retain(|path, _| path.starts_with("encoder.layer.2.")));
    let error = |calibration| {
        let options = EncodeOptions { rank: Some(6), calibration: Some(calibration), ..EncodeOptions::default() };
        let population = population(&adapters, &options).unwrap();
        let errors: Vec<f64> =
            population.adapters.values().flat_map(|a| a.projections.values()).map(|p| p.certificate.output_error_held_out.unwrap()).collect();
        errors.iter().sum::<f64>() / errors.len() as f64
    };
    let (blind, seen) = (error(calibration.clone().only_measuring()), error(calibration));
    assert!(seen < 0.9 * blind, "{seen} encoded for these inputs, {blind} for any");
}

/// One sentence for the base model.
fn row(ids: &[i32]) -> [Row<'_>; 1] {
    [Row { ids, adapter: None }]
}

fn refusals(device: &Arc<AnyDevice>) {
    let golden = Golden::open();
    let mut encoder = encoder(device, DType::F32);
    let before = encoder.embed(&row(&golden.ids[0])).unwrap();
    let long = vec![7; encoder.config().max_tokens + 1];
    let vocabulary = encoder.config().vocabulary as i32;
    for ids in [&[][..], &[-1], &[vocabulary], &long] {
        assert!(encoder.embed(&row(ids)).is_err());
    }
    assert!(encoder.embed(&[]).is_err());
    assert!(encoder.adapter("A/rust").unwrap_err().to_string().contains("no adapters"));
    let mut other = adapters(&["A/rust"]);
    let (_, query) = other[0].modules.remove_entry("encoder.layer.0.attention.self.query").unwrap();
    other[0].modules.insert("model.layers.0.self_attn.q_proj".into(), query);
    let error = encoder.attach(Box::new(population(&other, &plain()).unwrap())).unwrap_err().to_string();
    assert!(error.contains("q_proj") && error.contains("another"), "{error}");
    let swapped = other[0].modules.remove("encoder.layer.0.intermediate.dense").unwrap();
    other[0].modules.retain(|_, _| false);
    other[0].modules.insert("encoder.layer.0.output.dense".into(), swapped);
    assert!(encoder.attach(Box::new(population(&other, &plain()).unwrap())).is_err());
    encoder.attach(Box::new(population(&adapters(&["A/rust", "A/sqlite"]), &plain()).unwrap())).unwrap();
    let gone = encoder.adapter("A/sqlite").unwrap();
    encoder.attach(Box::new(population(&adapters(&["A/rust"]), &plain()).unwrap())).unwrap();
    assert!(encoder.adapter("B/rust").unwrap_err().to_string().contains("A/rust"));
    let first = encoder.prepare(&row(&golden.ids[0])).unwrap();
    encoder.prepare(&row(&golden.ids[1])).unwrap();
    assert!(encoder.run(&first).is_err(), "its place was taken");
    let first = encoder.prepare(&row(&golden.ids[0])).unwrap();
    assert!(encoder.prepare(&[Row { ids: &golden.ids[1], adapter: Some(gone) }]).is_err());
    assert!(encoder.run(&first).is_err(), "its tokens may be those of the batch that was refused");
    // Batches of other classes have places of their own, and leave their embeddings in the same buffers.
    let rows = if slow(device.as_ref()) { 8 } else { 64 };
    let many: Vec<Row<'_>> = golden.ids.iter().cycle().take(rows).map(|ids| Row { ids, adapter: None }).collect();
    // The larger one first: what makes the buffers grow takes every place.
    let (many, few) = (encoder.prepare(&many).unwrap(), encoder.prepare(&row(&golden.ids[0])).unwrap());
    assert_ne!(few.shape(), many.shape());
    assert!(encoder.read(&few).is_err(), "it was not run yet");
    encoder.run(&few).unwrap();
    let alone = encoder.read(&few).unwrap();
    encoder.run(&many).unwrap();
    assert!(encoder.read(&few).is_err(), "these are the embeddings of the others");
    encoder.run(&few).unwrap();
    assert_eq!(encoder.read(&few).unwrap(), alone);
    let off = encoder.embed(&row(&golden.ids[0])).unwrap().iter().zip(&before).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off <= 1e-6, "the base model as before: off by {off}");
}
