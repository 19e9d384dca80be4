use std::collections::BTreeMap;

use proptest::prelude::*;
use trifuse::Error;
use trifuse::adapters::bundle::{Bundle, to_bytes, write};
use trifuse::adapters::encoded::{CodedColumns, EncodedAdapter, EncodedFactor, EncodedProjection, Matrix, Population, Rung, SharedProjection};
use trifuse::ops::codes::{CODEBOOK_LEN, CodeWidth};
use trifuse::safetensors_file::TensorFile;

use crate::support::{forge, population};

fn reread(population: &Population) -> Bundle {
    Bundle::from_bytes("test.s2lc", to_bytes(population).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn what_is_written_is_read_back(seed: u64) {
        let population = population(seed);
        let bundle = reread(&population);
        let read = bundle.population().unwrap();
        prop_assert_eq!(&read, &population.as_stored());
        prop_assert_eq!(&read.as_stored(), &read, "rounding for the file twice is rounding once");
        for (name, adapter) in &population.adapters {
            for (module, projection) in &adapter.projections {
                let shared = &population.projections[module];
                let stored = &read.adapters[name].projections[module];
                prop_assert_eq!(stored.delta(shared).unwrap(), projection.delta(shared).unwrap(), "{} {}", name, module);
                let (kept, given) = (&stored.certificate, &projection.certificate);
                prop_assert!(kept.cos_delta <= given.cos_delta && kept.cos_delta > given.cos_delta - 1.1e-6);
                prop_assert!(kept.output_error_gaussian >= given.output_error_gaussian);
            }
        }
    }

    #[test]
    fn every_byte_is_accounted_for(seed in 0u64..1000) {
        let population = population(seed);
        let bytes = to_bytes(&population).unwrap();
        let bundle = reread(&population);
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let adapters: u64 = bundle.adapters().map(|name| bundle.adapter_bytes(name)).sum();
        prop_assert_eq!(header + adapters + bundle.shared_bytes(), bundle.file_bytes());
        for (name, adapter) in &population.adapters {
            let payload: u64 = adapter.projections.values().map(|projection| projection.stored_bytes()).sum();
            let index = bundle.adapter_bytes(name) - payload;
            prop_assert!(index >= 60 && index < 200 + 160 * adapter.projections.len() as u64, "an index of {} bytes", index);
        }
    }
}

/// The smallest population with shared and coded factors, a core and a plain factor.
fn small() -> (Population, Vec<u8>) {
    let fits = |population: &Population| {
        let mut projections = population.adapters.values().flat_map(|adapter| adapter.projections.values());
        let mut kinds = projections.clone().flat_map(|projection| [&projection.input, &projection.output]);
        projections.any(|projection| projection.core.is_some())
            && kinds.clone().any(|factor| matches!(factor, EncodedFactor::Coded(_)))
            && kinds.clone().any(|factor| matches!(factor, EncodedFactor::Plain(_)))
            && kinds.any(|factor| matches!(factor, EncodedFactor::Shared(_)))
    };
    let candidates = (0..200).map(population).filter(fits).map(|population| (to_bytes(&population).unwrap(), population));
    let (bytes, population) = candidates.min_by_key(|(bytes, _)| bytes.len()).unwrap();
    (population, bytes)
}

fn open_and_verify(bytes: Vec<u8>) -> trifuse::Result<Bundle> {
    let bundle = Bundle::from_bytes("test.s2lc", bytes)?;
    bundle.verify()?;
    Ok(bundle)
}

#[test]
fn any_flipped_byte_is_found() {
    let (_, bytes) = small();
    open_and_verify(bytes.clone()).unwrap();
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for at in 0..bytes.len() {
        for flip in [0x01, 0x20, 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] ^= flip;
            if at < end {
                assert!(matches!(Bundle::from_bytes("t", bytes), Err(Error::Input { .. })), "byte {at} of the header, by {flip:#x}");
            } else {
                let error = open_and_verify(bytes).err().unwrap_or_else(|| panic!("byte {at}, by {flip:#x}, was not found"));
                assert!(error.to_string().contains("damaged"), "byte {at}, by {flip:#x}: {error}");
            }
        }
    }
}

#[test]
fn any_cut_is_found() {
    let (_, bytes) = small();
    for length in 0..bytes.len() {
        assert!(matches!(Bundle::from_bytes("t", bytes[..length].to_vec()), Err(Error::Input { .. })), "cut at {length}");
    }
    assert!(Bundle::from_bytes("t", [bytes.as_slice(), &[0]].concat()).is_err());
}

#[test]
fn damage_to_one_adapter_leaves_the_others_readable() {
    let population = (0..).map(population).find(|population| population.adapters.len() == 3).unwrap();
    let mut bytes = to_bytes(&population).unwrap();
    let place = TensorFile::from_bytes("t", bytes.clone()).unwrap().info("adapters.rust.index").unwrap().range;
    bytes[place.start] ^= 1;
    let bundle = Bundle::from_bytes("t", bytes).unwrap();
    assert!(bundle.adapter("rust").unwrap_err().to_string().contains("rust: its bytes are damaged"));
    assert!(bundle.adapter("v1.2").is_ok() && bundle.adapter("bible kjv").is_ok());
}

#[test]
fn forged_files_are_checked_for_sense() {
    let (population, bytes) = small();
    assert_eq!(open_and_verify(forge(&bytes).unwrap()).unwrap().population().unwrap(), population.as_stored());
    // The same bytes with one text of the header for another of its length.
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let forged = |from: &str, to: &str| {
        let header = std::str::from_utf8(&bytes[8..end]).unwrap();
        assert!(header.contains(from) && from.len() == to.len());
        forge(&[&bytes[..8], header.replace(from, to).as_bytes(), &bytes[end..]].concat()).unwrap()
    };
    let name = population.adapters.keys().next().unwrap();
    let error = Bundle::from_bytes("t", forged(name, &"/".repeat(name.len()))).unwrap_err().to_string();
    assert!(error.contains("can be a folder's"), "{error}");
    let error = Bundle::from_bytes("t", forged(r#""version":"1""#, r#""version":"2""#)).unwrap_err().to_string();
    assert!(error.contains("version") && error.contains("\"2\""), "{error}");
}

#[test]
fn what_does_not_fit_together_is_not_written() {
    type Spoil = fn(&mut Population);
    let spoils: [(&str, Spoil); 6] = [
        ("more bytes than can be added up", |p| {
            p.adapters.values_mut().flat_map(|adapter| adapter.projections.values_mut()).for_each(|projection| projection.certificate.bytes = u64::MAX);
        }),
        ("a name that leaves the folder", |p| {
            let (_, adapter) = p.adapters.pop_first().unwrap();
            p.adapters.insert("../x".into(), adapter);
        }),
        ("an unknown projection", |p| {
            p.projections.clear();
        }),
        ("a scale that is not finite", |p| {
            p.adapters.values_mut().flat_map(|adapter| adapter.projections.values_mut()).for_each(|projection| projection.scaling = f32::INFINITY);
        }),
        ("a certificate that is not finite", |p| {
            p.adapters.values_mut().flat_map(|adapter| adapter.projections.values_mut()).for_each(|projection| projection.certificate.cos_delta = f64::NAN);
        }),
        ("a core of another size", |p| {
            p.adapters
                .values_mut()
                .flat_map(|adapter| adapter.projections.values_mut())
                .for_each(|projection| projection.core = Matrix::new(1, 9, vec![1.0; 9]).ok());
        }),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (name, spoil) in spoils {
        let (mut population, _) = small();
        spoil(&mut population);
        assert!(write(folder.path().join("x.s2lc"), &population).is_err(), "{name}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn a_file_on_disk_reads_like_one_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.s2lc");
    let (population, bytes) = small();
    assert_eq!(write(&path, &population).unwrap(), bytes.len() as u64);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
    let bundle = Bundle::open(&path).unwrap();
    assert_eq!(bundle.population().unwrap(), population.as_stored());
    // Replacing the file leaves an open bundle as it was.
    write(&path, &Population { projections: Default::default(), adapters: Default::default() }).unwrap();
    assert_eq!(bundle.population().unwrap(), population.as_stored());
    assert_eq!(Bundle::open(&path).unwrap().adapters().len(), 0);
    let text = bundle.adapter("missing").unwrap_err().to_string();
    assert!(text.contains("x.s2lc") && text.contains("\"missing\""), "{text}");
    assert!(bundle.shared("missing").is_err() && Bundle::open(folder.path().join("none")).is_err());
}

#[test]
fn the_header_sums_up_every_adapter() {
    let population = population(3);
    let bundle = reread(&population);
    for (name, adapter) in &population.as_stored().adapters {
        let entry = &bundle.header().adapters[name];
        let least = adapter.projections.values().map(|projection| projection.certificate.cos_delta).fold(1.0, f64::min);
        let plain = adapter.projections.values().filter(|projection| projection.certificate.rung == Rung::Plain).count();
        assert_eq!((entry.least_cos_delta, entry.rungs.get(&Rung::Plain).copied().unwrap_or(0)), (least, plain));
    }
}

/// A bundle's projections of no bases, and of one row and column.
fn bare(count: usize) -> BTreeMap<String, SharedProjection> {
    let one = SharedProjection { d_in: 1, d_out: 1, input_bases: vec![], output_bases: vec![] };
    (0..count).map(|number| (format!("layer.{number}"), one.clone())).collect()
}

#[test]
fn many_projections_cost_what_they_are_many() {
    let bundle = reread(&Population { projections: bare(40_000), adapters: BTreeMap::new() });
    let began = std::time::Instant::now();
    bundle.verify().unwrap();
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    let error = Bundle::from_bytes("test.s2lc", to_bytes(&Population { projections: bare(70_000), adapters: BTreeMap::new() }).unwrap()).unwrap_err();
    assert!(error.to_string().contains("at most 65536 projections"), "{error}");
}

/// An adapter whose every factor is 4,096 columns of no bits, on so many projections, and these.
fn empty(projections: usize) -> (BTreeMap<String, SharedProjection>, EncodedAdapter) {
    let (population, _) = small();
    let adapter = population.adapters.values().next().unwrap().clone();
    let certificate = adapter.projections.values().next().unwrap().certificate.clone();
    let nothing = || EncodedFactor::Coded(CodedColumns { d: 1, columns: vec![(CodeWidth::Zero, vec![]); 4096], codebook: [0.0; CODEBOOK_LEN] });
    let empty = EncodedProjection { input: nothing(), core: None, output: nothing(), scaling: 1.0, certificate };
    let shared = bare(projections);
    let projections = shared.keys().map(|path| (path.clone(), empty.clone())).collect();
    (shared, EncodedAdapter { projections, ..adapter })
}

#[test]
fn columns_of_no_bits_are_bounded() {
    let (projections, adapter) = empty(40);
    let error = reread(&Population { projections, adapters: [("rust".to_owned(), adapter)].into() }).adapter("rust").unwrap_err().to_string();
    assert!(error.contains("less that is empty"), "{error}");
}

/// Each adapter is within its own bound, and takes some thousand times its bytes.
#[test]
fn a_population_is_bounded_as_a_whole() {
    let (projections, adapter) = empty(12);
    let adapters = |count: usize| (0..count).map(|number| (format!("a{number:02}"), adapter.clone())).collect();
    let bundle = reread(&Population { projections: projections.clone(), adapters: adapters(30) });
    assert!(bundle.verify().is_ok() && bundle.most_memory() < 72 << 20, "{}", bundle.most_memory());
    let Err(Error::Input { item: Some(item), problem, .. }) = bundle.population() else { panic!("it is within the bound") };
    assert!(("a15".."a29").contains(&item.as_str()) && problem.contains("found ") && problem.contains("--max-bytes"), "{item}: {problem}");
    assert_eq!(bundle.population_within(u64::MAX).unwrap().adapters.len(), 30);

    // What is held is counted: a byte less than all is too few.
    let (population, _) = small();
    let bundle = reread(&population);
    let (mut too_few, mut enough) = (0, bundle.most_memory());
    while enough - too_few > 1 {
        let most = too_few.midpoint(enough);
        match bundle.population_within(most) {
            Ok(read) => {
                assert_eq!(read, population.as_stored());
                enough = most;
            }
            Err(_) => too_few = most,
        }
    }
    assert!(enough > bundle.shared_bytes() && enough < 16 * bundle.file_bytes(), "{enough} of {}", bundle.file_bytes());
}

#[test]
fn a_long_configuration_is_refused() {
    let (mut population, _) = small();
    let name = population.adapters.keys().next().unwrap().clone();
    population.adapters.get_mut(&name).unwrap().config = serde_json::json!({ "r": vec![0; 1 << 20] });
    let error = reread(&population).adapter(&name).unwrap_err().to_string();
    assert!(error.contains("a configuration of at most"), "{error}");
}

#[test]
fn figures_past_rounding_are_written_again() {
    let (mut population, _) = small();
    for projection in population.adapters.values_mut().flat_map(|adapter| adapter.projections.values_mut()) {
        projection.certificate.output_error_gaussian = f64::MAX;
    }
    let read = reread(&population).population().unwrap();
    assert!(read.adapters.values().all(|adapter| adapter.projections.values().all(|projection| projection.certificate.output_error_gaussian == f64::MAX)));
    assert_eq!(reread(&read).population().unwrap(), read);
}
