//! `bundle`: adapters listed, added, taken out and renamed, while the others decode to what they did.

use std::path::Path;

use crate::support::{err, files, object, out, population, run, scratch, text};
use trifuse::adapters::bundle::Bundle;

fn names(bundle: &Path) -> Vec<String> {
    out(&run(&["bundle", "list", text(bundle)])).lines().map(str::to_owned).collect()
}

#[test]
fn adapters_come_and_go_and_the_others_stay() {
    let folder = scratch();
    let [bundle, more, fewer] = ["two.s2lc", "three.s2lc", "fewer.s2lc"].map(|name| folder.path().join(name));
    let [rust, sqlite, kjv] = ["rust", "sqlite", "bible_kjv"].map(|name| format!("{}/{name}", population("B")));
    assert!(run(&["compress", &rust, &sqlite, "-o", text(&bundle), "--rank", "8", "-q"]).status.success());
    assert_eq!(names(&bundle), ["rust", "sqlite"]);
    assert_eq!(object(&run(&["bundle", "list", text(&bundle), "--json"]), "bundle")["adapters"], serde_json::json!(["rust", "sqlite"]));
    let decoded = |bundle: &Path, name: &str| {
        Bundle::open(bundle).unwrap().population().unwrap().adapters[name].projections["encoder.layer.0.attention.self.query"].clone()
    };
    let delta = |bundle: &Path, name: &str| {
        let shared = Bundle::open(bundle).unwrap().shared("encoder.layer.0.attention.self.query").unwrap();
        decoded(bundle, name).delta(&shared).unwrap().data
    };
    let before = delta(&bundle, "rust");

    let added = run(&["bundle", "add", text(&bundle), &format!("kjv={kjv}"), "-o", text(&more), "--min-cosine", "0.95", "--json"]);
    assert_eq!(added.status.code(), Some(0), "{}", err(&added));
    let added = object(&added, "bundle");
    assert_eq!(added["added"], serde_json::json!(["kjv"]));
    let kept = added["adapters"].as_array().unwrap().iter().find(|adapter| adapter["name"] == "kjv").unwrap();
    assert!(kept["cos_delta_min"].as_f64().unwrap() >= 0.95, "{kept}");
    assert_eq!((names(&bundle).len(), names(&more)), (2, vec!["kjv".to_owned(), "rust".into(), "sqlite".into()]));
    assert!(delta(&more, "rust") == before);

    let renamed = run(&["bundle", "rename", text(&more), "kjv", "bible"]);
    assert_eq!(renamed.status.code(), Some(0), "{}", err(&renamed));
    let removed = run(&["bundle", "remove", text(&more), "sqlite", "bible", "-o", text(&fewer)]);
    assert!(removed.status.success() && out(&removed).contains("removed: sqlite, bible"), "{}{}", out(&removed), err(&removed));
    assert_eq!((names(&more), names(&fewer)), (vec!["bible".to_owned(), "rust".into(), "sqlite".into()], vec!["rust".to_owned()]));
    assert!(delta(&fewer, "rust") == before);
}

#[test]
fn what_cannot_be_done_leaves_the_bundle_as_it_was() {
    let folder = scratch();
    let bundle = folder.path().join("c.s2lc");
    let taken = folder.path().join("taken.s2lc");
    std::fs::write(&taken, "mine").unwrap();
    let adapter = format!("{}/r4_rust", population("C"));
    assert!(run(&["compress", &adapter, "-o", text(&bundle), "-q"]).status.success());
    let whole = std::fs::read(&bundle).unwrap();
    let wrong: [(&[&str], u8, &str); 8] = [
        (&["add", text(&bundle), &adapter], 2, "r4_rust"),
        (&["add", text(&bundle), "no/such/folder"], 4, "no/such/folder"),
        (&["add", text(&bundle), &adapter, "--min-cosine", "2"], 2, "min cosine"),
        (&["remove", text(&bundle), "fortran"], 2, "r4_rust"),
        (&["remove", text(&bundle), "r4_rust"], 2, "an adapter that stays"),
        (&["rename", text(&bundle), "r4_rust", "../up"], 2, "../up"),
        (&["rename", text(&bundle), "fortran", "new"], 2, "fortran"),
        (&["rename", text(&bundle), "r4_rust", "new", "-o", text(&taken)], 2, "taken"),
    ];
    for (arguments, status, words) in wrong {
        let output = run(&[&["bundle"], arguments].concat());
        assert_eq!(output.status.code(), Some(status.into()), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains(words), "{arguments:?}: {}", err(&output));
    }
    assert!(std::fs::read(&bundle).unwrap() == whole);
    assert_eq!(files(folder.path()), ["c.s2lc", "taken.s2lc"]);
}
