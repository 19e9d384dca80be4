//! Mixtures of experts: each token takes several adapters with gates, and the bits do not depend on where experts lie.

use std::sync::OnceLock;

use proptest::prelude::*;
use trifuse::adapters::engine::Routing;

use super::*;

const NAMES: [&str; 4] = ["apache_french", "bible_kjv", "rust", "sqlite"];

/// Choices of tokens, `None` for no expert, each with its gate.
type Choices = Vec<(Option<usize>, f32)>;

/// `y = Σ gate · ΔW x` of query and key from zeros, with the experts loaded in that order.
fn mix(session: &mut Session<Cpu>, engine: &mut Engine<Cpu>, load: &[usize], top: usize, choices: &Choices) -> Vec<f32> {
    for &first in load {
        let one = ids(engine, &[NAMES[first]]);
        engine.batch(session, &one).unwrap();
    }
    let routing = routing(engine, top, choices);
    let mixture = engine.mixture(session, &routing).unwrap();
    let tokens = routing.tokens();
    let x = input(session, tokens);
    let both: Vec<Slice<Cpu>> = (0..2).map(|_| session.upload(&vec![0f32; tokens * WIDTH]).unwrap()).collect();
    engine.apply_mixture(session, &mixture, &x, WIDTH as u64, &[target(QUERY, &both[0]), target(KEY, &both[1])]).unwrap();
    both.iter().flat_map(|y| session.download::<f32>(y).unwrap()).collect()
}

fn routing(engine: &Engine<Cpu>, top: usize, choices: &Choices) -> Routing {
    let experts = choices.iter().map(|choice| choice.0.map(|expert| engine.adapter(NAMES[expert]).unwrap())).collect();
    Routing::new(top, experts, choices.iter().map(|choice| choice.1).collect()).unwrap()
}

/// Shared bases, and bases of two clusters: the experts of the second take other arrays.
fn populations() -> &'static [Population; 2] {
    static MADE: OnceLock<[Population; 2]> = OnceLock::new();
    MADE.get_or_init(|| [Rung::SharedInput, Rung::PrivateCoded].map(|rung| population(&on(rung))))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn experts_give_the_same_bits_wherever_they_lie(
        load in Just([0usize, 1, 2, 3]).prop_shuffle(), top in 1usize..4, which in 0usize..2,
        drawn in proptest::collection::vec((proptest::option::weighted(0.9, 0usize..4), -1.5f32..1.5), 15),
    ) {
        let choices: Choices = drawn[..15 / top * top].to_vec();
        let (mut session, population) = (session(), &populations()[which]);
        let mut placed = open(&mut session, population, None);
        let found = mix(&mut session, &mut placed, &load, top, &choices);
        let mut sorted = open(&mut session, population, None);
        let wanted = mix(&mut session, &mut sorted, &[], top, &choices);
        prop_assert!(found.iter().zip(&wanted).all(|(a, b)| a.to_bits() == b.to_bits()));

        let tokens = choices.len() / top;
        let mut exactly = vec![0.0; 2 * tokens * WIDTH];
        for choice in 0..top {
            let of_token = |token: usize| choices[token * top + choice];
            let names: Vec<&str> = (0..tokens).map(|token| of_token(token).0.map_or("", |expert| NAMES[expert])).collect();
            for (at, (sum, delta)) in exactly.iter_mut().zip(exact(population, &names)).enumerate() {
                *sum += f64::from(of_token(at / WIDTH % tokens).1) * delta;
            }
        }
        if exactly.iter().any(|&value| value != 0.0) {
            assert_close(&found, &exactly);
        }
    }
}

#[test]
fn all_experts_of_a_routing_are_there_at_once_or_it_is_refused() {
    let (mut session, population) = (session(), &populations()[0]);
    let mut engine = open(&mut session, population, None);
    let room = engine.device_bytes().0 / 2;
    let mut small = open(&mut session, population, Some(room));
    // Two in each pass, and four in all.
    let four: Choices = (0..4).map(|expert| (Some(expert), 1.0)).collect();
    let wide = routing(&small, 2, &four);
    let error = small.mixture(&mut session, &wide).err().unwrap().to_string();
    assert!(error.contains("at most 2 adapters"), "{error}");
    let wide = routing(&engine, 2, &four);
    let mut made = engine.mixture(&mut session, &wide).unwrap();
    for other in [routing(&engine, 1, &four), routing(&engine, 2, &four[..2].to_vec())] {
        assert!(engine.reroute(&mut session, &mut made, &other).is_err());
    }
}
