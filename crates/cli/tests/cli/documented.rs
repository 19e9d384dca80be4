//! `docs/command-line.md` against what `--help` says.

use super::support::{out, run};

/// The text below the heading `name`, up to the next of its level or above.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let start = page.find(&format!("{heading}\n")).unwrap_or_else(|| panic!("no section {heading:?}"));
    let body = &page[start + heading.len()..];
    let end = ["\n## ", "\n### "].iter().filter_map(|next| body.find(next)).min().unwrap_or(body.len());
    &body[..end]
}

/// The options that a help text lists, each by all its names.
fn options(help: &str) -> Vec<Vec<&str>> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with("--") || line.starts_with('-') && !line.starts_with("- "));
    lines.map(|line| line.split([' ', ',', '[']).filter(|word| word.starts_with('-')).collect()).collect()
}

#[test]
fn every_option_of_every_command_has_its_place_in_the_documentation() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/command-line.md")).unwrap();
    let of_all = section(&page, "## Options of every command");
    let help = out(&run(&["--help"]));
    let (_, list) = help.split_once("Commands:").unwrap();
    // What it says of a command may go on in lines that are set further in.
    let starts = list.lines().skip(1).take_while(|line| !line.trim().is_empty()).filter(|line| !line.starts_with("   "));
    let commands: Vec<&str> = starts.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.len() >= 8 && commands.contains(&"verify"), "{commands:?}");
    for command in commands.into_iter().filter(|&command| command != "help") {
        let own = section(&page, &format!("### `{command}`"));
        let help = out(&run(&[command, "--help"]));
        let options = options(&help);
        assert!(options.contains(&vec!["--backend"]), "{command}: the options were not found in {help}");
        for names in options {
            // By itself, before its value, or in a line that shows how the command is used.
            let named =
                |text: &str| names.iter().any(|name| [format!("`{name}`"), format!("`{name} "), format!(" {name} ")].iter().any(|way| text.contains(way)));
            assert!(named(own) || named(of_all) || names.contains(&"--help"), "{command}: {names:?} is not in the documentation");
        }
    }
}

/// Names of fields at any depth.
fn fields(value: &serde_json::Value, found: &mut std::collections::BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => object.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            fields(value, found);
        }),
        serde_json::Value::Array(values) => values.iter().take(3).for_each(|value| fields(value, found)),
        _ => {}
    }
}

#[test]
fn every_field_of_a_report_is_on_the_page() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/command-line.md")).unwrap();
    let mut found = std::collections::BTreeSet::new();
    for suite in ["attention", "mlp", "layer", "linear", "adapters", "sparse", "forward-pass", "align", "micro"] {
        fields(&crate::bench::measured(suite, &[]), &mut found);
    }
    for suite in ["linear", "adapters"] {
        fields(&crate::bench::raced(suite, &[]), &mut found);
    }
    let unknown: Vec<&String> = found.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert!(found.len() > 60, "{found:?}");
}
