//! The sampler on the host: its random numbers, its distribution, its rules one by one.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trifuse::Error;
use trifuse::llm::sample::{Choice, History, SamplingParams, noise, sample};
use trifuse::ops::sample::{RowParams, philox4x32};
use trifuse_testkit::oracle::sample::choose;

/// Histories of any length are slices of this one.
static ZEROS: [u32; 1_000_000] = [0; 1_000_000];

fn at(position: usize) -> History<'static> {
    History { prompt: &ZEROS[..position], answer: &[] }
}

fn token(logits: &[f32], params: &SamplingParams) -> u32 {
    sample(logits, params, History::default(), None).unwrap().token
}

#[test]
fn philox_gives_the_published_words() {
    let all = u32::MAX;
    let known = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([all; 4], [all; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0], [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
    ];
    for (counter, key, words) in known {
        assert_eq!(philox4x32(counter, key), words);
    }
}

#[test]
fn noise_is_the_words_of_the_seed_the_position_and_the_id() {
    let words = philox4x32([25, 7, 0, 0], [0x89ab_cdef, 0x0123_4567]);
    for id in 100..104u32 {
        let u = (f64::from(words[id as usize - 100]) + 0.5) / 2f64.powi(32);
        let expected = -(-(1.0 - u).ln()).ln();
        assert!((noise(0x0123_4567_89ab_cdef, 7, id) - expected).abs() < 1e-12);
    }
    // The mean of Gumbel noise is Euler's constant, its variance a sixth of pi squared.
    let values: Vec<f64> = (0..200_000).map(|id| noise(3, 1, id)).collect();
    let mean = values.iter().sum::<f64>() / 2e5;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 2e5;
    assert!((mean - 0.577_215_66).abs() < 0.01 && (variance - 1.644_934).abs() < 0.03, "{mean} {variance}");
}

/// Chi-squared of counts against probabilities, and its degrees of freedom.
fn chi_squared(counts: &BTreeMap<usize, u32>, exact: &[f64], draws: f64) -> (f64, f64) {
    let impossible = |id: &usize| exact.get(*id).is_none_or(|p| *p == 0.0);
    assert!(!counts.keys().any(impossible), "a token was drawn that has no probability");
    let possible = exact.iter().enumerate().filter(|(_, p)| **p > 0.0);
    let terms: Vec<f64> = possible.map(|(id, p)| (f64::from(counts.get(&id).copied().unwrap_or(0)) - p * draws).powi(2) / (p * draws)).collect();
    (terms.iter().sum(), terms.len() as f64 - 1.0)
}

/// Fails where chi-squared is four standard deviations over its mean.
fn assert_distribution(counts: &BTreeMap<usize, u32>, exact: &[f64], draws: usize) {
    let (found, freedom) = chi_squared(counts, exact, draws as f64);
    assert!(found < freedom + 4.0 * (2.0 * freedom).sqrt(), "chi-squared {found} of {freedom} degrees of freedom: {counts:?}");
}

/// Draws at one position after another.
fn draws(logits: &[f32], params: &SamplingParams, count: usize) -> BTreeMap<usize, u32> {
    let mut counts = BTreeMap::new();
    for position in 0..count {
        *counts.entry(sample(logits, params, at(position), None).unwrap().token as usize).or_insert(0) += 1;
    }
    counts
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit.exp() / sum).collect()
}

#[test]
fn a_million_draws_have_the_exact_probabilities() {
    let logits = [1.5f32, -2.0, 0.25, 3.0, -4.0, 2.0, 0.0];
    let exact = softmax(&logits.map(f64::from));
    let counts = draws(&logits, &SamplingParams::default(), 1_000_000);
    assert_distribution(&counts, &exact, 1_000_000);
    // The test is fine enough: a temperature of 1.01 is another distribution.
    let wrong = softmax(&logits.map(|logit| f64::from(logit) / 1.01));
    let (found, freedom) = chi_squared(&counts, &wrong, 1e6);
    assert!(found > freedom + 4.0 * (2.0 * freedom).sqrt(), "chi-squared {found}");
}

#[test]
fn seeds_and_neighbouring_positions_are_independent() {
    let logits = [0.0f32, 0.7, -0.4];
    let p = softmax(&logits.map(f64::from));
    let pairs: Vec<f64> = p.iter().flat_map(|a| p.iter().map(move |b| a * b)).collect();
    let token = |seed, position| sample(&logits, &SamplingParams { seed, ..Default::default() }, at(position), None).unwrap().token as usize;
    let (mut positions, mut seeds) = (BTreeMap::new(), BTreeMap::new());
    for index in 0..100_000 {
        *positions.entry(3 * token(5, 2 * index) + token(5, 2 * index + 1)).or_insert(0) += 1;
        *seeds.entry(3 * token(index as u64, 9) + token(index as u64 + (1 << 32), 9)).or_insert(0) += 1;
    }
    assert_distribution(&positions, &pairs, 100_000);
    assert_distribution(&seeds, &pairs, 100_000);
}

#[test]
fn thresholds_and_temperature_give_the_exact_probabilities_of_what_is_left() {
    let mut draw = ChaCha8Rng::seed_from_u64(1);
    let logits: Vec<f32> = (0..300).map(|_| draw.random_range(-4.0..4.0)).collect();
    let params = SamplingParams { temperature: 0.8, top_k: 60, top_p: 0.9, min_p: 0.3, seed: 11, ..Default::default() };
    // By the definition: sorted, cut three times, and the probabilities of the rest.
    let mut sorted: Vec<(usize, f64)> = logits.iter().map(|logit| f64::from(*logit) / f64::from(0.8f32)).enumerate().collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
    sorted.truncate(60);
    let highest = sorted[0].1;
    sorted.retain(|(_, logit)| (logit - highest).exp() >= 0.3);
    let after_min_p = sorted.len();
    let sum: f64 = sorted.iter().map(|(_, logit)| logit.exp()).sum();
    let mut reached = 0.0;
    sorted.retain(|(_, logit)| {
        let keep = reached < 0.9 * sum;
        reached += logit.exp();
        keep
    });
    assert!(after_min_p < 60 && sorted.len() < after_min_p && sorted.len() > 10, "each of them cuts: {after_min_p} {}", sorted.len());
    let sum: f64 = sorted.iter().map(|(_, logit)| logit.exp()).sum();
    let mut exact = vec![0.0; 300];
    sorted.iter().for_each(|(id, logit)| exact[*id] = logit.exp() / sum);
    assert_distribution(&draws(&logits, &params, 100_000), &exact, 100_000);
}

/// The tokens that are drawn in some hundred draws.
fn drawn(logits: &[f32], params: SamplingParams) -> Vec<u32> {
    let tokens: BTreeSet<u32> = (0..400).map(|position| sample(logits, &params, at(position), None).unwrap().token).collect();
    tokens.into_iter().collect()
}

#[test]
fn at_temperature_0_the_lowest_of_equal_ids_wins() {
    let greedy = SamplingParams::greedy();
    assert_eq!(token(&[1.0, 3.0, 3.0, 2.0, 3.0], &greedy), 1);
    assert_eq!(token(&[-0.0, 0.0], &greedy), 0);
    assert_eq!(token(&[f32::NEG_INFINITY, -1e38, -1e38], &greedy), 1);
    assert_eq!(token(&[0.5; 70_000], &greedy), 0);
    // No seed and no threshold matters.
    assert_eq!(token(&[1.0, 3.0, 2.9], &SamplingParams { seed: 99, top_k: 2, top_p: 0.1, min_p: 0.5, ..greedy }), 1);
}

#[test]
fn top_k_keeps_the_highest_and_the_lowest_of_equal_ids() {
    let top_k = |top_k| SamplingParams { top_k, ..Default::default() };
    let logits = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0];
    assert_eq!(drawn(&logits, top_k(1)), [1]);
    assert_eq!(drawn(&logits, top_k(2)), [1, 3]);
    assert_eq!(drawn(&logits, top_k(4)), [0, 1, 3, 5]);
    assert_eq!(drawn(&logits, top_k(0)), [0, 1, 2, 3, 4, 5]);
    assert_eq!(drawn(&logits, top_k(6)), [0, 1, 2, 3, 4, 5]);
    assert_eq!(drawn(&logits, top_k(u32::MAX)), [0, 1, 2, 3, 4, 5]);
    assert_eq!(drawn(&[-0.0, 0.0, 0.0], top_k(1)), [0]);
}

#[test]
fn top_p_keeps_the_token_that_reaches_it() {
    let logits = [0.125f32, 0.5, 0.25, 0.125].map(f32::ln);
    let top_p = |top_p| SamplingParams { top_p, ..Default::default() };
    for (p, expected) in [(1e-9, &[1][..]), (0.49, &[1]), (0.51, &[1, 2]), (0.74, &[1, 2]), (0.76, &[0, 1, 2]), (0.88, &[0, 1, 2, 3]), (1.0, &[0, 1, 2, 3])] {
        assert_eq!(drawn(&logits, top_p(p)), expected, "top_p {p}");
    }
    // More tokens than are sorted at first, all equal: the lowest ids.
    let params = |seed| SamplingParams { top_p: 0.8999, seed, ..Default::default() };
    let highest = (0..40_000).map(|seed| token(&[0.0; 1000], &params(seed))).max();
    assert_eq!(highest, Some(899));
}

#[test]
fn top_p_sorts_as_many_tokens_as_it_needs() {
    let mut draw = ChaCha8Rng::seed_from_u64(8);
    let logits: Vec<f32> = (0..3000).map(|_| draw.random_range(-1.0..1.0)).collect();
    let mut sorted: Vec<u32> = (0..3000).collect();
    sorted.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    let mass = |ids: &[u32]| ids.iter().map(|id| f64::from(logits[*id as usize]).exp()).sum::<f64>();
    for top_p in [0.01f32, 0.1, 0.3, 0.6, 0.95] {
        let kept = (1..3000).find(|count| mass(&sorted[..*count]) >= f64::from(top_p) * mass(&sorted)).unwrap();
        for seed in 0..60 {
            let score = |id: u32| f64::from(logits[id as usize]) + noise(seed, 0, id);
            let expected = sorted[..kept].iter().copied().max_by(|a, b| score(*a).total_cmp(&score(*b)));
            assert_eq!(Some(token(&logits, &SamplingParams { top_p, seed, ..Default::default() })), expected, "{kept} tokens");
        }
    }
}

#[test]
fn min_p_is_a_part_of_the_highest_probability() {
    let logits = [0.6f32, 0.2, 0.1, 0.1].map(f32::ln);
    let min_p = |min_p| SamplingParams { min_p, ..Default::default() };
    assert_eq!([0.0, 0.16, 0.17, 0.33, 0.34, 1.0].map(|p| drawn(&logits, min_p(p)).len()), [4, 4, 2, 2, 1, 1]);
    // The temperature comes first.
    assert_eq!(drawn(&logits, SamplingParams { temperature: 4.0, ..min_p(0.34) }).len(), 4);
}

#[test]
fn masks_are_obeyed() {
    let logits: Vec<f32> = (0..70).map(|id| id as f32 / 10.0).collect();
    let allowed = [3u32, 31, 32, 64];
    let mut mask = [0u32; 3];
    allowed.iter().for_each(|id| mask[*id as usize / 32] |= 1 << (id % 32));
    let draw = |params: &SamplingParams, position| sample(&logits, params, at(position), Some(&mask)).unwrap().token;
    assert_eq!(draw(&SamplingParams::greedy(), 0), 64);
    let flat = SamplingParams { temperature: 50.0, ..Default::default() };
    let seen: BTreeSet<u32> = (0..400).map(|position| draw(&flat, position)).collect();
    assert!(seen.into_iter().eq(allowed));
    // Thresholds see what the mask leaves.
    assert_eq!(draw(&SamplingParams { top_k: 1, ..flat }, 0), 64);
    let told = |mask: &[u32]| sample(&logits, &SamplingParams::greedy(), at(0), Some(mask)).unwrap_err().to_string();
    assert!(told(&[0; 3]).contains("rule out every token"), "{}", told(&[0; 3]));
    assert_eq!(told(&[!0; 2]), "mask: expected 3 words for a vocabulary of 70, found 2");
}

#[test]
fn penalties_and_bias_change_logits_as_they_say() {
    let greedy = |change: fn(&mut SamplingParams), prompt: &[u32], answer: &[u32], logits: &[f32]| {
        let mut params = SamplingParams::greedy();
        change(&mut params);
        sample(logits, &params, History { prompt, answer }, None).unwrap().token
    };
    let repetition = |params: &mut SamplingParams| params.repetition = 2.0;
    assert_eq!(greedy(repetition, &[0, 0], &[0], &[2.1, 1.0]), 0, "once, however often it is there: 1.05");
    assert_eq!(greedy(repetition, &[0], &[], &[1.9, 1.0]), 1, "0.95");
    assert_eq!(greedy(repetition, &[0], &[], &[-1.0, -1.9]), 1, "-2: a negative logit falls");
    let presence = |params: &mut SamplingParams| params.presence = 1.0;
    assert_eq!(greedy(presence, &[], &[0, 0, 0], &[1.9, 1.0]), 1);
    assert_eq!(greedy(presence, &[], &[0, 0, 0], &[2.1, 1.0]), 0);
    assert_eq!(greedy(presence, &[0], &[], &[1.1, 1.0]), 0, "the prompt does not count");
    let frequency = |params: &mut SamplingParams| params.frequency = 0.5;
    assert_eq!([1, 2, 3].map(|times| greedy(frequency, &[0; 9], &[0, 0, 0][..times], &[1.1, 0.0])), [0, 0, 1]);
    let all = |params: &mut SamplingParams| (params.repetition, params.presence, params.frequency) = (2.0, 0.25, 0.5);
    // 4 / 2 - 0.25 - 2 * 0.5.
    assert_eq!([0.74, 0.76].map(|other| greedy(all, &[], &[0, 0], &[4.0, other])), [0, 1]);
    let bias = |params: &mut SamplingParams| params.bias = vec![(1, 0.5), (0, f32::NEG_INFINITY), (1, 0.25)];
    assert_eq!([0.74, 0.76].map(|other| greedy(bias, &[], &[], &[9.0, 0.0, other])), [1, 2]);
}

#[test]
fn log_probabilities_are_those_of_the_model() {
    let logits = [1.0f32, 3.0, 2.0, 3.0, f32::NEG_INFINITY];
    let mut params = SamplingParams { top: 3, bias: vec![(2, 50.0)], ..SamplingParams::greedy() };
    let Choice { token, log_probability, top } = sample(&logits, &params, at(5), None).unwrap();
    let exact = softmax(&[1.0, 3.0, 2.0, 3.0]);
    assert_eq!(token, 2);
    assert!((log_probability - exact[2].ln()).abs() < 1e-12);
    assert_eq!(top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 2]);
    assert!(top.iter().all(|(id, logarithm)| (logarithm - exact[*id as usize].ln()).abs() < 1e-12));
    params.top = 5;
    let all = sample(&logits, &params, at(5), None).unwrap().top;
    assert_eq!(all.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 2, 0, 4]);
    assert_eq!(all[4].1, f64::NEG_INFINITY);
    // Large logits do not overflow.
    let huge = sample(&[3e38, 3e38], &SamplingParams::default(), at(0), None).unwrap();
    assert!((huge.log_probability - 0.5f64.ln()).abs() < 1e-12);
}

/// Logits of a made-up model: they depend on the last tokens.
fn model(history: &[u32]) -> Vec<f32> {
    let mut draw = ChaCha8Rng::seed_from_u64(history.iter().rev().take(3).fold(7, |seed, token| 31 * seed + u64::from(*token)));
    (0..101).map(|_| draw.random_range(-3.0..3.0)).collect()
}

#[test]
fn a_seed_gives_the_same_text_in_any_batch() {
    let params: Vec<SamplingParams> =
        (0..12).map(|index| SamplingParams { seed: index / 2, top_p: 0.95, top_k: 40 + index as u32 % 2, frequency: 0.3, ..Default::default() }).collect();
    let prompt = |index: usize| vec![index as u32 % 5, 1];
    let step = |index: usize, answer: &mut Vec<u32>| {
        let prompt = prompt(index);
        let choice = sample(&model(&[&prompt[..], &answer[..]].concat()), &params[index], History { prompt: &prompt, answer }, None).unwrap();
        answer.push(choice.token);
    };
    let alone: Vec<Vec<u32>> = (0..12).map(|index| (0..40).fold(Vec::new(), |mut answer, _| (step(index, &mut answer), answer).1)).collect();
    let mut draw = ChaCha8Rng::seed_from_u64(2);
    let mut mixed = vec![Vec::new(); 12];
    while mixed.iter().any(|answer| answer.len() < 40) {
        let index = draw.random_range(0..12);
        if mixed[index].len() < 40 {
            step(index, &mut mixed[index]);
        }
    }
    assert_eq!(mixed, alone);
    let texts: BTreeSet<&Vec<u32>> = alone.iter().collect();
    assert!(texts.len() >= 10, "seeds and prompts give texts of their own: {}", texts.len());
}

#[test]
fn ruling_out_tokens_that_do_not_win_changes_nothing() {
    let logits = model(&[1, 2]);
    let params = SamplingParams { seed: 4, ..Default::default() };
    for position in 0..200 {
        let token = sample(&logits, &params, at(position), None).unwrap().token;
        let half: Vec<f32> = logits.iter().enumerate().map(|(id, logit)| if id as u32 == token || id % 2 == 0 { *logit } else { f32::NEG_INFINITY }).collect();
        assert_eq!(sample(&half, &params, at(position), None).unwrap().token, token);
        let longer = [&logits[..], &[f32::NEG_INFINITY; 27]].concat();
        assert_eq!(sample(&longer, &params, at(position), None).unwrap().token, token);
    }
}

#[test]
fn the_host_chooses_as_the_operation_is_defined() {
    let mut draw = ChaCha8Rng::seed_from_u64(21);
    let mut compared = 0;
    for round in 0..1500u64 {
        let vocabulary = draw.random_range(1..600usize);
        let step = [0.0f32, 0.5][draw.random_range(0..2)];
        let logit = |draw: &mut ChaCha8Rng| draw.random_range(-6.0f32..6.0);
        let logits: Vec<f32> = (0..vocabulary).map(|_| logit(&mut draw)).map(|x| if step > 0.0 { (x / step).round() * step } else { x }).collect();
        let [temperature, top_p, min_p] =
            [draw.random_range(0.0..2.0f32).max(1e-3), draw.random_range(0.01..1.1f32).min(1.0), draw.random_range(-0.3..0.6f32).max(0.0)];
        let params = SamplingParams {
            temperature: if round % 5 == 0 { 0.0 } else { temperature },
            top_p,
            min_p,
            top_k: draw.random_range(0..80),
            seed: draw.random(),
            ..Default::default()
        };
        let position = draw.random_range(0..1000);
        let mask: Option<Vec<u32>> = draw.random_bool(0.5).then(|| (0..vocabulary.div_ceil(32)).map(|_| draw.random()).collect());
        let row = RowParams {
            temperature: params.temperature,
            top_p,
            min_p,
            top_k: params.top_k,
            seed: [params.seed as u32, (params.seed >> 32) as u32],
            position: position as u32,
            reserved: 0,
        };
        let wide: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
        let found = sample(&logits, &params, at(position), mask.as_deref()).ok().map(|choice| choice.token as usize);
        match choose(&wide, &row, mask.as_deref()) {
            None => assert_eq!(found, None),
            Some(winner) => assert_eq!(found, Some(winner.id), "round {round}: {params:?}, a lead of {}", winner.lead),
        }
        compared += usize::from(found.is_some());
    }
    assert!(compared > 1400, "{compared}");
}

#[test]
fn what_has_no_meaning_is_refused() {
    let refused = |logits: &[f32], change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        change(&mut params);
        match sample(logits, &params, History { prompt: &[1], answer: &[] }, None) {
            Err(Error::Invalid { subject, .. }) => subject,
            other => panic!("{other:?}"),
        }
    };
    let of = |change| refused(&[1.0, 2.0], change);
    let temperatures = [of(|p| p.temperature = -1.0), of(|p| p.temperature = f32::NAN), of(|p| p.temperature = f32::INFINITY), of(|p| p.temperature = 1e-6)];
    assert_eq!(temperatures, ["sampling: temperature"; 4]);
    assert_eq!([of(|p| p.top_p = 0.0), of(|p| p.top_p = 1.1), of(|p| p.top_p = f32::NAN)], ["sampling: top_p"; 3]);
    assert_eq!([of(|p| p.min_p = -0.1), of(|p| p.min_p = 1.1)], ["sampling: min_p"; 2]);
    assert_eq!([of(|p| p.repetition = 0.0), of(|p| p.presence = f32::NAN)], ["sampling: repetition", "sampling: presence"]);
    assert_eq!([of(|p| p.frequency = f32::INFINITY), of(|p| p.top = 3)], ["sampling: frequency", "sampling: top"]);
    assert_eq!([of(|p| p.bias = vec![(2, 0.0)]), of(|p| p.bias = vec![(0, f32::INFINITY)])], ["sampling: bias"; 2]);
    assert_eq!(refused(&[1.0, f32::NAN], |_| ()), "logits");
    assert_eq!(refused(&[1.0, f32::INFINITY], |_| ()), "logits");
    assert_eq!(refused(&[1.0], |p| p.presence = 1.0), "history");
    assert_eq!([refused(&[], |_| ()), refused(&[f32::NEG_INFINITY; 2], |_| ())], ["sampling"; 2]);
}
