//! The licences of everything that the crate is built from, held to the list in `deny.toml`.
//!
//! cargo-deny says more (duplicate versions, sources, advisories), but is not on every machine; this rule always runs.

use std::path::Path;
use std::process::Command;

/// What is wrong, a line a package.
pub fn faults() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let deny = std::fs::read_to_string(root.join("deny.toml")).unwrap();
    let allowed = allowed(&deny);
    assert!(allowed.contains(&"MIT"), "deny.toml lists no licences");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    // For this host alone: what other systems need is not downloaded here, so that a machine without a network can tell.
    let version = Command::new("rustc").arg("-vV").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version=1", "--all-features", "--locked", "--filter-platform", host]).current_dir(root);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 50, "cargo metadata lists {} packages only", packages.len());
    packages
        .iter()
        .filter_map(|package| {
            let name = format!("{} {}", package["name"].as_str()?, package["version"].as_str()?);
            match package["license"].as_str() {
                Some(licence) if accepted(licence, &allowed) => None,
                Some(licence) => Some(format!("{name}: licence {licence} is not on the list of deny.toml")),
                None => Some(format!("{name}: no licence named")),
            }
        })
        .collect()
}

/// The strings of the `allow = [ … ]` list under `[licenses]`.
fn allowed(deny: &str) -> Vec<&str> {
    let section = deny.split("[licenses]").nth(1).unwrap_or_default();
    let list = section.split("allow = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    list.split('"').skip(1).step_by(2).collect()
}

/// Whether an SPDX expression can be met with the allowed licences. `AND` binds tighter than `OR`; the old `/` is `OR`.
pub fn accepted(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    any(&words, &mut at, allowed) && at == words.len()
}

fn any(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = all(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(words, at, allowed);
    }
    met
}

fn all(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &[&str]) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = any(words, at, allowed);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return met && closed;
    }
    if words.get(*at) == Some(&"WITH") {
        let with = format!("{word} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
        return allowed.contains(&with.as_str());
    }
    allowed.contains(word)
}
