//! Encodings within asked bytes: kept to the byte, well spent, and refused truthfully.

use proptest::prelude::*;

use super::*;

fn before(all: &[Made]) -> u64 {
    all.iter().flat_map(|made| made.modules.values()).map(Lora::bytes).sum()
}

/// The bytes that a refusal says were reached, and its message. `None` if the encoding was not refused.
fn refusal(all: &[Made], options: &EncodeOptions) -> Option<(u64, String)> {
    match encode(&sources(all), options, &|_, _| ()) {
        Ok(population) => {
            let (file, asked) = (bundle::file_bytes(&population).unwrap(), options.max_ratio.unwrap() * before(all) as f64);
            assert!(file as f64 <= asked, "{file} bytes for {asked}");
            assert_eq!(file, bundle::to_bytes(&population).unwrap().len() as u64);
            None
        }
        Err(Error::Missed { reached, asked, .. }) => {
            let bytes = reached.split(' ').next().unwrap().parse().unwrap();
            Some((bytes, format!("asked for {asked}, reached {reached}")))
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// Adapters large enough that their codes outweigh headers. With `drift` they come from one start, else from starts of their own.
fn many(count: u64, drift: Option<f32>) -> Vec<Made> {
    const D: [usize; 2] = [320, 448];
    let one = |k: u64, i: u64| {
        let (start, own) = (normal(R, D[0], 500 + i), normal(R, D[0], 20 * k + i));
        let a = match drift {
            Some(drift) => Matrix { data: start.data.iter().zip(&own.data).map(|(s, n)| s + drift * n).collect(), ..start },
            None => own,
        };
        let mut b = normal(D[1], R, 1000 + 20 * k + i);
        b.data.iter_mut().enumerate().for_each(|(at, value)| *value *= 0.1 * 0.6f32.powi((at % R) as i32));
        Lora { a, b, scaling: 2.0, dtype: DType::F16 }
    };
    (0..count).map(|k| made(&format!("many{k}"), (0..3).map(|i| one(k, i)))).collect()
}

/// A population with several projections, ranks and gaps.
fn mixed() -> Vec<Made> {
    let mut all = shared_start(5, 0.1);
    all.extend(independent(2));
    all.push(made("rank9", [lora(normal(9, D[0], 5), 5), lora(normal(2, D[0], 6), 6)]));
    all.push(made("wide", (0..3).map(|i| lora(normal(R, D[0], 300 + i), 60 + i))));
    all
}

#[test]
fn asked_bytes_are_kept_and_well_spent() {
    for all in [many(6, Some(0.1)), many(3, None)] {
        let reached = |ratio: f64| {
            let population = run(&all, &EncodeOptions { max_ratio: Some(ratio), ..Default::default() });
            let used = bundle::file_bytes(&population).unwrap() as f64 / before(&all) as f64;
            assert!(used <= ratio && used > 0.93 * ratio, "{used} for {ratio}");
            let cosines: Vec<f64> = certificates(&population).iter().map(|c| c.cos_delta).collect();
            [cosines.iter().sum::<f64>() / cosines.len() as f64, cosines.iter().copied().fold(1.0, f64::min)]
        };
        let [low, middle, high] = [0.16, 0.25, 0.35].map(reached);
        assert!(low[0] < middle[0] && middle[0] < high[0], "{low:?} {middle:?} {high:?}");
        assert!(high[1] > high[0] - 0.03, "all about alike: {high:?}");
    }
}

#[test]
fn as_much_is_kept_as_by_asking_for_the_cosine_that_these_bytes_keep() {
    for all in [many(6, Some(0.1)), many(3, None)] {
        let faithful = run(&all, &EncodeOptions { min_cosine: Some(0.97), ..Default::default() });
        let ratio = bundle::file_bytes(&faithful).unwrap() as f64 / before(&all) as f64;
        let asked = run(&all, &EncodeOptions { max_ratio: Some(ratio), ..Default::default() });
        let mean = |population: &Population| certificates(population).iter().map(|c| c.cos_delta).sum::<f64>() / (3 * all.len()) as f64;
        assert!(mean(&asked) > mean(&faithful) - 0.01, "{} {}", mean(&asked), mean(&faithful));
    }
}

#[test]
fn what_cannot_shrink_is_said_and_is_the_truth() {
    let all = mixed();
    for rank in [None, Some(R)] {
        let asked = |bytes: u64| EncodeOptions { rank, max_ratio: Some((bytes as f64 + 0.5) / before(&all) as f64), ..Default::default() };
        let (least, message) = refusal(&all, &asked(100)).unwrap();
        assert!(message.contains("at most 100 of") && message.contains("cannot shrink"), "{message}");
        assert_eq!(rank.is_some(), message.contains("of bases"), "{message}");
        assert!(refusal(&all, &asked(least)).is_none(), "what is said to be possible is");
        assert_eq!(refusal(&all, &asked(least - 1)).map(|found| found.0), Some(least));
    }
}

#[test]
fn a_fidelity_that_takes_more_is_refused_with_what_it_takes() {
    let all = shared_start(6, 0.1);
    let asked = |bytes: u64| EncodeOptions { min_cosine: Some(0.98), max_ratio: Some((bytes as f64 + 0.5) / before(&all) as f64), ..Default::default() };
    let (taken, message) = refusal(&all, &asked(100)).unwrap();
    assert!(message.contains("cos(ΔW) of at least 0.98"), "{message}");
    assert!(refusal(&all, &asked(taken)).is_none());
    assert!(refusal(&all, &asked(taken - 1)).is_some());
}

#[test]
fn bytes_are_asked_together_with_bits_a_width_an_energy_or_inputs() {
    let all = independent(6);
    let ask = EncodeOptions { max_ratio: Some(0.6), ..Default::default() };
    for options in [
        EncodeOptions { bits: Some(2.5), ..ask.clone() },
        EncodeOptions { width: Some(CodeWidth::Three), ..ask.clone() },
        EncodeOptions { energy: Some(0.5), ..ask.clone() },
        EncodeOptions { calibration: Some(calibration()), ..ask.clone() },
        EncodeOptions { rungs: Some(vec![Rung::SharedOutput]), ..ask.clone() },
    ] {
        assert_eq!(refusal(&all, &options), None, "{options:?}");
    }
    let file = |bits: Option<f64>| bundle::file_bytes(&run(&all, &EncodeOptions { bits, ..ask.clone() })).unwrap();
    assert!(file(Some(1.5)) < file(None), "bits are a limit of their own");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn no_file_is_larger_than_asked(shared in 0u64..5, own in 1u64..4, drift in 0.0f32..0.5, ratio in 0.01f64..1.2) {
        let mut all = shared_start(shared, drift);
        all.extend(independent(own));
        // `refusal` checks whichever it is, refused or kept.
        if let Some((least, _)) = refusal(&all, &EncodeOptions { max_ratio: Some(ratio), ..Default::default() }) {
            prop_assert!(least as f64 > ratio * before(&all) as f64);
        }
    }
}
