//! Names of models: an alias leads to what it led to last, and a request keeps what it began with.

use std::collections::BTreeMap;

use proptest::prelude::*;
use trifuse_serve::queueing::registry::{Conflict, Generation, Lease, Model, Registry};

fn generation(alias: usize, number: u32) -> Generation<u32> {
    Generation::new(format!("a{alias}"), number.to_string(), number)
}

#[derive(Clone, Debug)]
enum Deed {
    Load { alias: usize, replace: bool },
    Unload { alias: usize },
    Lease { alias: usize },
    Return { pick: usize },
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        (0usize..3, any::<bool>()).prop_map(|(alias, replace)| Deed::Load { alias, replace }),
        (0usize..3).prop_map(|alias| Deed::Unload { alias }),
        (0usize..3).prop_map(|alias| Deed::Lease { alias }),
        any::<usize>().prop_map(|pick| Deed::Return { pick }),
    ]
}

proptest! {
    #[test]
    fn a_lease_outlives_its_name_and_nothing_goes_while_it_is_held(deeds in proptest::collection::vec(deed(), 1..80)) {
        let mut registry = Registry::new("base");
        let (mut model, mut held, mut loaded, mut gone) = (BTreeMap::<usize, u32>::new(), Vec::<Lease<u32>>::new(), 0u32, Vec::new());
        for (number, deed) in (0u32..).zip(deeds) {
            match deed {
                Deed::Load { alias, replace } => {
                    let done = registry.load(generation(alias, number), replace, None);
                    prop_assert_eq!(done.is_ok(), replace || !model.contains_key(&alias));
                    loaded += 1;
                    if done.is_ok() {
                        model.insert(alias, number);
                    }
                }
                Deed::Unload { alias } => prop_assert_eq!(registry.unload(&format!("a{alias}"), None), Ok(model.remove(&alias).is_some())),
                Deed::Lease { alias } => match registry.lease(&format!("base:a{alias}")) {
                    Ok(Model::Adapter(lease)) => {
                        prop_assert_eq!(Some(&lease.adapter), model.get(&alias));
                        held.push(lease);
                    }
                    Ok(Model::Base) => prop_assert!(false, "the base in an adapter's place"),
                    Err(_) => prop_assert!(!model.contains_key(&alias)),
                },
                Deed::Return { pick } if !held.is_empty() => drop(held.swap_remove(pick % held.len())),
                Deed::Return { .. } => {}
            }
            for unused in registry.take_unused() {
                prop_assert!(held.iter().all(|lease| lease.adapter != unused.adapter), "it is held");
                prop_assert!(model.values().all(|own| *own != unused.adapter), "a name leads to it");
                gone.push(unused.adapter);
            }
        }
        held.clear();
        gone.extend(registry.take_unused().iter().map(|unused| unused.adapter));
        prop_assert_eq!(gone.len() + model.len(), loaded as usize, "each goes once");
    }
}

#[test]
fn a_name_that_is_not_there_leads_nowhere() {
    let mut registry = Registry::new("org/base");
    (0..12).for_each(|alias| registry.load(generation(alias, 1), false, None).unwrap());
    assert!(matches!(registry.lease("org/base"), Ok(Model::Base)));
    assert!(matches!(registry.lease("org/base:a3"), Ok(Model::Adapter(lease)) if lease.alias == "a3"));
    for name in ["", "org", "org/base:", "org/base:org/base", "a3:org/base", "org/base/a3", "A3", " a3"] {
        let there = registry.lease(name).unwrap_err();
        assert_eq!((there.names.len(), there.more, there.names[0].as_str()), (10, 3, "org/base"), "{name}");
    }
}

#[test]
fn a_name_changes_from_what_was_expected_alone() {
    let mut registry = Registry::new("base");
    assert_eq!(registry.load(Generation::new("base", "1", 1), true, None), Err(Conflict::Taken));
    assert_eq!(registry.load(generation(0, 1), false, Some("0")), Err(Conflict::Generation(None)));
    registry.load(generation(0, 1), false, None).unwrap();
    assert_eq!(registry.load(generation(0, 2), false, None), Err(Conflict::Taken));
    assert_eq!(registry.load(generation(0, 2), true, Some("7")), Err(Conflict::Generation(Some("1".into()))));
    registry.load(generation(0, 2), true, Some("1")).unwrap();
    assert_eq!(registry.unload("a0", Some("1")), Err(Conflict::Generation(Some("2".into()))));
    assert_eq!(registry.unload("a0", Some("2")), Ok(true));
}
