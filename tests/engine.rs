//! Serving from the compressed form: batches, the pool, adapters that come and go, captured graphs.
#![cfg(all(feature = "cpu", feature = "compress"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "engine/experts.rs"]
mod experts;
#[path = "engine/refusals.rs"]
mod refusals;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::encoded::{EncodedFactor, Population, Rung};
use trifuse::adapters::engine::{AdapterId, Batch, Engine, EngineOptions, Target, Unpack};
use trifuse::adapters::peft::LoraAdapter;
use trifuse::backends::cpu::Cpu;
use trifuse::device::{Open, Slice};
use trifuse::ops::CodeWidth;
use trifuse::session::Session;
use trifuse::{DType, Error};
use trifuse_testkit::cases::Draw;

const DTYPE: DType = DType::F32;
const QUERY: &str = "encoder.layer.0.attention.self.query";
const KEY: &str = "encoder.layer.0.attention.self.key";
const WIDTH: usize = 384;

fn session() -> Session<Cpu> {
    Session::new(Arc::new(Cpu::open(0).unwrap())).unwrap()
}

/// Two projections of the four adapters of population A.
fn population(options: &EncodeOptions) -> Population {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/cli/data/adapters/A");
    let mut adapters: Vec<LoraAdapter> =
        ["apache_french", "bible_kjv", "rust", "sqlite"].iter().map(|name| LoraAdapter::open(folder.join(name)).unwrap()).collect();
    for adapter in &mut adapters {
        adapter.modules.retain(|module, _| module == QUERY || module == KEY);
    }
    let sources: Vec<Source<'_>> = adapters.iter().map(Source::from).collect();
    encode(&sources, options, &|_, _| ()).unwrap()
}

fn on(rung: Rung) -> EncodeOptions {
    EncodeOptions { rungs: Some(vec![rung]), rank: Some(8), ..EncodeOptions::default() }
}

fn open(session: &mut Session<Cpu>, population: &Population, pool_bytes: Option<u64>) -> Engine<Cpu> {
    Engine::open(session, Box::new(population.clone()), EngineOptions::new(DTYPE).with_pool_bytes(pool_bytes)).unwrap()
}

/// `y = ΔW x` of query and key, in one call, from zeros.
fn serve(session: &mut Session<Cpu>, engine: &mut Engine<Cpu>, batch: &Batch<Cpu>) -> Vec<f32> {
    let x = input(session, batch.tokens());
    let both: Vec<Slice<Cpu>> = (0..2).map(|_| session.upload(&vec![0f32; batch.tokens() * WIDTH]).unwrap()).collect();
    engine.apply(session, batch, &x, WIDTH as u64, &[target(QUERY, &both[0]), target(KEY, &both[1])]).unwrap();
    both.iter().flat_map(|y| session.download::<f32>(y).unwrap()).collect()
}

fn input(session: &mut Session<Cpu>, tokens: usize) -> Slice<Cpu> {
    session.upload(&DTYPE.encode(&Draw::seeded("engine").normal(DTYPE, (tokens * WIDTH) as u64, 1.0))).unwrap()
}

fn target<'a>(projection: &'a str, y: &Slice<Cpu>) -> Target<'a, Cpu> {
    Target { projection, y: y.clone(), y_stride: WIDTH as u64 }
}

fn ids(engine: &Engine<Cpu>, names: &[&str]) -> Vec<Option<AdapterId>> {
    names.iter().map(|name| (!name.is_empty()).then(|| engine.adapter(name).unwrap())).collect()
}

fn answer(session: &mut Session<Cpu>, engine: &mut Engine<Cpu>, names: &[&str]) -> Vec<f32> {
    let ids = ids(engine, names);
    let batch = engine.batch(session, &ids).unwrap();
    serve(session, engine, &batch)
}

/// ΔŴ x in float64 from exactly what is held.
fn exact(population: &Population, names: &[&str]) -> Vec<f64> {
    let x = Draw::seeded("engine").normal(DTYPE, (names.len() * WIDTH) as u64, 1.0);
    let mut y = Vec::new();
    for path in [QUERY, KEY] {
        for (name, x) in names.iter().zip(x.chunks_exact(WIDTH)) {
            match population.adapters.get(*name) {
                Some(adapter) => {
                    let delta = adapter.projections[path].delta(&population.projections[path]).unwrap();
                    y.extend(delta.data.chunks_exact(WIDTH).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>()));
                }
                None => y.extend(vec![0.0; WIDTH]),
            }
        }
    }
    y
}

fn assert_close(found: &[f32], wanted: &[f64]) {
    let error: f64 = found.iter().zip(wanted).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt();
    let size = wanted.iter().map(|b| b * b).sum::<f64>().sqrt();
    assert!(size > 0.0 && error / size < 1e-5, "relative error {}", error / size);
}

const MIXED: [&str; 7] = ["rust", "", "sqlite", "rust", "bible_kjv", "apache_french", "sqlite"];

#[test]
fn a_mixed_batch_is_right_on_every_rung() {
    for rung in [Rung::SharedInput, Rung::ClusteredInput, Rung::SharedOutput, Rung::PrivateCoded, Rung::Plain] {
        let (mut session, population) = (session(), population(&on(rung)));
        for unpack in [Unpack::WhereFaster, Unpack::Always, Unpack::Never] {
            let options = EngineOptions::new(DTYPE).with_unpack(unpack);
            let mut engine = Engine::open(&mut session, Box::new(population.clone()), options).unwrap();
            assert_close(&answer(&mut session, &mut engine, &MIXED), &exact(&population, &MIXED));
        }
    }
}

/// What an unpacked adapter takes does not depend on its rung: two factors of eight columns each.
#[test]
fn unpacked_adapters_of_every_rung_take_two_dense_factors() {
    for rung in [Rung::SharedInput, Rung::ClusteredInput, Rung::SharedOutput, Rung::PrivateCoded, Rung::Plain] {
        let (mut session, population) = (session(), population(&on(rung)));
        let engine = Engine::open(&mut session, Box::new(population), EngineOptions::new(DTYPE).with_unpack(Unpack::Always)).unwrap();
        let (adapters, bases) = engine.device_bytes();
        assert_eq!((adapters, bases), (4 * 2 * 2 * (WIDTH * 8) as u64 * DTYPE.size(), 0), "{rung:?}");
        assert_eq!((engine.forms(QUERY), engine.forms(KEY)), (1, 1));
    }
}

#[test]
fn operations_that_are_told_ahead_are_those_that_are_planned() {
    for rung in [Rung::SharedInput, Rung::ClusteredInput, Rung::Plain] {
        let (mut session, population) = (session(), population(&on(rung)));
        for unpack in [Unpack::Always, Unpack::Never] {
            let mut engine = Engine::open(&mut session, Box::new(population.clone()), EngineOptions::new(DTYPE).with_unpack(unpack)).unwrap();
            let both = [(QUERY, WIDTH as u64), (KEY, WIDTH as u64)];
            let told: HashSet<_> = engine.operations(MIXED.len(), WIDTH as u64, &both).unwrap().into_iter().collect();
            assert!(!told.is_empty() && told.iter().all(|op| session.plan(op.clone()).is_ok()), "{rung:?}");
            let before = session.counters();
            answer(&mut session, &mut engine, &MIXED);
            assert_eq!((session.counters() - before).plans, told.len() as u64, "{rung:?}");
            assert!(engine.operations(1, WIDTH as u64, &[("nowhere", 8)]).is_err());
        }
    }
}

#[test]
fn tokens_of_the_base_model_keep_every_bit() {
    let (mut session, population) = (session(), population(&on(Rung::SharedInput)));
    let mut engine = open(&mut session, &population, None);
    let batch = engine.batch(&mut session, &[None, None]).unwrap();
    let before: Vec<f32> = (0..2 * WIDTH).map(|i| f32::from_bits(0x3f80_0001 + i as u32 * 77)).collect();
    let (x, y) = (input(&mut session, 2), session.upload(&before).unwrap());
    engine.apply(&mut session, &batch, &x, WIDTH as u64, &[target(QUERY, &y)]).unwrap();
    assert!(session.download::<f32>(&y).unwrap().iter().zip(&before).all(|(a, b)| a.to_bits() == b.to_bits()));
    assert!(!engine.adapters().any(|(_, id)| engine.is_resident(id)));
}

#[test]
fn a_small_pool_gives_the_same_bits_as_a_large_one() {
    let (mut session, population) = (session(), population(&on(Rung::SharedInput)));
    let mut large = open(&mut session, &population, None);
    let room = large.device_bytes().0 / 2;
    let mut small = open(&mut session, &population, Some(room));
    assert!(small.device_bytes().0 <= room);
    // Four adapters through two places, twice round.
    for names in [["rust", "sqlite"], ["bible_kjv", "apache_french"], ["rust", "bible_kjv"], ["sqlite", "apache_french"]].iter().cycle().take(8) {
        assert_eq!(answer(&mut session, &mut small, names), answer(&mut session, &mut large, names));
        assert_eq!(small.adapters().filter(|(_, id)| small.is_resident(*id)).count(), 2);
    }
    let three = ids(&small, &["rust", "sqlite", "bible_kjv"]);
    assert!(matches!(small.batch(&mut session, &three), Err(Error::Invalid { .. })));
    assert_close(&answer(&mut session, &mut small, &["rust"]), &exact(&population, &["rust"]));
}

#[test]
fn adapters_come_and_go_between_batches() {
    let (mut session, whole) = (session(), population(&on(Rung::SharedInput)));
    let mut part = whole.clone();
    let late = part.adapters.remove("rust").unwrap();
    let mut engine = open(&mut session, &part, None);
    let early = answer(&mut session, &mut engine, &["sqlite"]);
    let old_ids = ids(&engine, &["sqlite"]);
    let old = engine.batch(&mut session, &old_ids).unwrap();
    let generation = engine.generation();
    let rust = engine.add(&mut session, "rust", late.clone()).unwrap();
    assert!(engine.add(&mut session, "rust", late.clone()).is_err());
    assert_close(&answer(&mut session, &mut engine, &MIXED), &exact(&whole, &MIXED));
    // Memory grew, so a batch from before is refused, and not served from memory that is no longer looked at.
    assert!(engine.generation() > generation);
    let (x, y) = (input(&mut session, 1), session.upload(&[0f32; WIDTH]).unwrap());
    assert!(matches!(engine.apply(&mut session, &old, &x, WIDTH as u64, &[target(QUERY, &y)]), Err(Error::Invalid { .. })));
    engine.remove(rust).unwrap();
    assert!(engine.remove(rust).is_err() && engine.adapter("rust").is_err() && engine.batch(&mut session, &[Some(rust)]).is_err());
    assert_eq!(answer(&mut session, &mut engine, &["sqlite"]), early);
    // A form that no class has yet.
    let plain = population(&on(Rung::Plain));
    let mut grafted = plain.adapters["bible_kjv"].clone();
    grafted.projections.remove(KEY);
    engine.add(&mut session, "plain", grafted).unwrap();
    let served = answer(&mut session, &mut engine, &["plain"]);
    let wanted = exact(&plain, &["bible_kjv"]);
    assert_close(&served[..WIDTH], &wanted[..WIDTH]);
    assert!(served[WIDTH..].iter().all(|&value| value == 0.0));
}

#[test]
fn an_adapter_that_does_not_fit_the_population_is_refused() {
    let (mut session, whole) = (session(), population(&on(Rung::SharedInput)));
    let mut engine = open(&mut session, &whole, None);
    let mut elsewhere = whole.adapters["rust"].clone();
    let projection = elsewhere.projections.remove(QUERY).unwrap();
    elsewhere.projections.insert("encoder.layer.9.attention.self.query".into(), projection);
    assert!(matches!(engine.add(&mut session, "elsewhere", elsewhere), Err(Error::Invalid { .. })));
    let mut other_rank = population(&EncodeOptions { rank: Some(5), ..on(Rung::SharedInput) }).adapters["rust"].clone();
    other_rank.projections.remove(KEY);
    assert!(matches!(engine.add(&mut session, "other rank", other_rank), Err(Error::Invalid { .. })));
    assert_close(&answer(&mut session, &mut engine, &MIXED), &exact(&whole, &MIXED));
}

#[test]
fn an_adapter_that_could_not_be_copied_is_not_taken_for_resident() {
    let (mut session, whole) = (session(), population(&on(Rung::SharedInput)));
    let mut engine = open(&mut session, &whole, None);
    let mut damaged = whole.adapters["rust"].clone();
    let EncodedFactor::Coded(coded) = &mut damaged.projections.get_mut(QUERY).unwrap().output else { panic!("its form is coded") };
    // Both bytes of every field name a centroid that no codebook has.
    coded.columns[0] = (CodeWidth::Bytes, vec![u32::MAX; CodeWidth::Bytes.column_words(WIDTH as u64) as usize]);
    let id = engine.add(&mut session, "damaged", damaged).unwrap();
    for _ in 0..2 {
        assert!(matches!(engine.batch(&mut session, &[Some(id)]), Err(Error::Invalid { .. })));
        assert!(!engine.is_resident(id));
    }
    assert_close(&answer(&mut session, &mut engine, &MIXED), &exact(&whole, &MIXED));
}

#[test]
fn adapters_that_went_leave_their_room_to_those_that_come() {
    let (mut session, population) = (session(), population(&on(Rung::SharedInput)));
    let mut engine = open(&mut session, &population, None);
    let one = engine.add(&mut session, "0", population.adapters["rust"].clone()).unwrap();
    let room = engine.device_bytes();
    engine.remove(one).unwrap();
    for name in 1..20 {
        let id = engine.add(&mut session, &name.to_string(), population.adapters["rust"].clone()).unwrap();
        assert_eq!(engine.device_bytes(), room);
        engine.remove(id).unwrap();
    }
    assert_close(&answer(&mut session, &mut engine, &MIXED), &exact(&population, &MIXED));
}

#[test]
fn an_adapter_that_there_is_no_room_for_leaves_the_others_as_they_were() {
    let (mut session, whole) = (session(), population(&on(Rung::SharedInput)));
    let mut part = whole.clone();
    let late = part.adapters.remove("rust").unwrap();
    let mut engine = open(&mut session, &part, None);
    let before = answer(&mut session, &mut engine, &["sqlite", "bible_kjv"]);
    let generation = engine.generation();
    // All the memory that the device gives, to the last kibibyte; none of it is ever touched.
    let mut hog = Vec::new();
    for size in (10..40).rev().map(|bits| 1 << bits) {
        while let Ok(slice) = session.alloc(size) {
            hog.push(slice);
        }
    }
    assert!(matches!(engine.add(&mut session, "rust", late.clone()), Err(Error::OutOfMemory { .. })));
    drop(hog);
    assert_eq!((engine.generation(), engine.adapter("rust").is_err()), (generation, true));
    assert_eq!(answer(&mut session, &mut engine, &["sqlite", "bible_kjv"]), before);
    engine.add(&mut session, "rust", late).unwrap();
    assert_close(&answer(&mut session, &mut engine, &MIXED), &exact(&whole, &MIXED));
}

#[test]
fn ranks_are_those_of_the_factors_whatever_a_certificate_says() {
    let mut population = population(&on(Rung::SharedInput));
    let shared = population.projections.get_mut(QUERY).unwrap();
    shared.output_bases = shared.input_bases.clone();
    population.adapters.retain(|name, _| name == "rust");
    let adapter = population.adapters.get_mut("rust").unwrap();
    let projection = adapter.projections.get_mut(QUERY).unwrap();
    (projection.core, projection.output, projection.certificate.rank) = (None, EncodedFactor::Shared(0), 1 << 40);
    let mut session = session();
    let mut engine = open(&mut session, &population, None);
    let served = answer(&mut session, &mut engine, &["rust"]);
    assert_close(&served, &exact(&population, &["rust"]));
}

#[test]
fn a_captured_graph_serves_whatever_the_batch_holds_now() {
    let (mut session, population) = (session(), population(&on(Rung::SharedInput)));
    let mut engine = open(&mut session, &population, None);
    let all: Vec<Option<AdapterId>> = ids(&engine, &["rust", "rust", "rust"]);
    let mut batch = engine.batch(&mut session, &all).unwrap();
    let x = input(&mut session, 3);
    let y = session.upload(&vec![0f32; 3 * WIDTH]).unwrap();
    // The first use compiles and allocates; a capture only records.
    engine.apply(&mut session, &batch, &x, WIDTH as u64, &[target(QUERY, &y)]).unwrap();
    let graph = session.capture(|session| engine.apply(session, &batch, &x, WIDTH as u64, &[target(QUERY, &y)])).unwrap();
    // More segments than at capture, then fewer, then none.
    for names in [["rust", "sqlite", "bible_kjv"], ["", "apache_french", ""], ["", "", ""]] {
        let now = ids(&engine, &names);
        engine.update(&mut session, &mut batch, &now).unwrap();
        session.write(&y, bytemuck::cast_slice(&vec![0f32; 3 * WIDTH])).unwrap();
        session.replay(&graph).unwrap();
        let (found, wanted) = (session.download::<f32>(&y).unwrap(), exact(&population, &names));
        if names == [""; 3] {
            assert!(found.iter().all(|&value| value == 0.0));
        } else {
            assert_close(&found, &wanted[..3 * WIDTH]);
        }
    }
}

#[test]
fn a_batch_whose_adapters_lost_their_room_is_refused_until_they_are_back() {
    let (mut session, population) = (session(), population(&on(Rung::SharedInput)));
    let room = open(&mut session, &population, None).device_bytes().0 / 2;
    let mut engine = open(&mut session, &population, Some(room));
    let [first, second] = [["rust", "sqlite"], ["bible_kjv", "apache_french"]];
    let [first_ids, second_ids] = [ids(&engine, &first), ids(&engine, &second)];
    let mut batch = engine.batch(&mut session, &first_ids).unwrap();
    assert_close(&serve(&mut session, &mut engine, &batch), &exact(&population, &first));

    // The places of the first batch's adapters now hold others: applying it would answer with those.
    let other = engine.batch(&mut session, &second_ids).unwrap();
    assert_close(&serve(&mut session, &mut engine, &other), &exact(&population, &second));
    let (x, y) = (input(&mut session, 2), session.upload(&[0f32; 2 * WIDTH]).unwrap());
    let refused = engine.apply(&mut session, &batch, &x, WIDTH as u64, &[target(QUERY, &y)]).unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }) && refused.to_string().contains("update it first"), "{refused}");
    assert!(engine.check(&batch).is_err() && engine.check(&other).is_ok());

    engine.update(&mut session, &mut batch, &first_ids).unwrap();
    assert_close(&serve(&mut session, &mut engine, &batch), &exact(&population, &first));
    assert!(engine.check(&other).is_err());

    engine.remove(engine.adapter("rust").unwrap()).unwrap();
    assert!(engine.check(&batch).unwrap_err().to_string().contains("removed"));
}

#[test]
fn a_batch_that_failed_leaves_nothing_behind() {
    let (mut session, mut population) = (session(), population(&on(Rung::SharedInput)));
    // The adapters' own basis is not the first: one cannot be taken for the other.
    for shared in population.projections.values_mut() {
        let mut other = shared.input_bases[0].clone();
        other.data.reverse();
        shared.input_bases.insert(0, other);
    }
    let projections = population.adapters.values_mut().flat_map(|adapter| adapter.projections.values_mut());
    projections.for_each(|projection| projection.input = EncodedFactor::Shared(1));
    let mut engine = open(&mut session, &population, None);
    let names = ["rust", "", "rust"];
    let all = ids(&engine, &names);
    // Nothing is written while launches are recorded: the adapters do not get to the device.
    assert!(session.capture(|session| engine.batch(session, &all).map(drop)).is_err());
    assert_close(&answer(&mut session, &mut engine, &names), &exact(&population, &names));

    let mut batch = engine.batch(&mut session, &all).unwrap();
    let none = vec![None; names.len()];
    assert!(session.capture(|session| engine.update(session, &mut batch, &none)).is_err());
    assert_close(&serve(&mut session, &mut engine, &batch), &exact(&population, &names));
    engine.remove(engine.adapter("rust").unwrap()).unwrap();
    assert!(engine.check(&batch).is_err(), "it still holds what it held before");
}

#[test]
fn what_belongs_to_another_engine_is_refused() {
    let (mut session, population) = (session(), population(&on(Rung::SharedInput)));
    let [mut own, mut other] = [(); 2].map(|()| open(&mut session, &population, None));
    let names = ["rust", "sqlite"];
    let [own_ids, other_ids] = [ids(&own, &names), ids(&other, &names)];
    assert!(own.batch(&mut session, &other_ids).is_err(), "the same number would be another adapter");
    let mut theirs = other.batch(&mut session, &other_ids).unwrap();
    assert!(own.check(&theirs).is_err() && own.update(&mut session, &mut theirs, &own_ids).is_err());
}

#[test]
fn wrong_calls_are_errors() {
    let (mut session, population) = (session(), population(&on(Rung::SharedInput)));
    let mut engine = open(&mut session, &population, None);
    assert!(engine.adapter("nobody").unwrap_err().to_string().contains("rust"));
    let one = ids(&engine, &["rust"]);
    let mut batch = engine.batch(&mut session, &one).unwrap();
    let (x, y) = (input(&mut session, 1), session.upload(&[0f32; WIDTH]).unwrap());
    assert!(engine.apply(&mut session, &batch, &x, WIDTH as u64, &[target("encoder.layer.7.no.such", &y)]).is_err());
    assert!(engine.apply(&mut session, &batch, &x, WIDTH as u64, &[target(QUERY, &y), target(KEY, &y)]).is_err(), "one y for two projections");
    assert!(engine.update(&mut session, &mut batch, &[None, None]).is_err());
    let options = EngineOptions::new(DTYPE).with_pool_bytes(Some(10));
    assert!(Engine::open(&mut session, Box::new(population), options).is_err());
}
