//! What `scripts/public_items.py` tells of a small crate, by the pages that this machine's rustdoc writes, and of changes of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use libtest_mimic::{Arguments, Failed, Trial};

const SOURCE: &str = r"
pub use shapes::Point;
pub mod shapes {
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    pub struct Point<T> { pub x: T, y: T }
    impl<T: Copy> Point<T> {
        pub const SIDES: usize = 2;
        pub fn moved<U>(&mut self, by: &[U], pair: (u8,)) -> Result<Vec<T>, std::fmt::Error> where U: Into<T> { drop((by, pair)); Ok(vec![self.x, self.y]) }
        pub fn up(self) -> T { self.y }
        fn hidden(self) {}
    }
    impl<T> From<T> for Point<T> where T: Clone {
        fn from(x: T) -> Self { Self { y: x.clone(), x } }
    }
    pub enum Colour { Red, Grey { level: u8 }, Named(&'static str) }
    pub trait Draw: Send {
        type Canvas: Sized;
        fn draw(&self, on: &mut Self::Canvas);
        fn again(&self) {}
    }
    impl Draw for Colour { type Canvas = String; fn draw(&self, _: &mut String) {} }
    impl Draw for u8 { type Canvas = u8; fn draw(&self, _: &mut u8) {} }
}
pub const MOST: usize = 16;
pub type Few = Vec<shapes::Colour>;
pub unsafe fn add(a: [u8; 2]) -> u8 { a[0] }
";

const ITEMS: &str = "\
tiny: mod
tiny::Few: pub type Few = Vec<Colour>
tiny::MOST: pub const MOST: usize
tiny::Point: pub use shapes::Point
tiny::add: pub unsafe fn add(a: [u8; 2]) -> u8
tiny::shapes: mod
tiny::shapes::Colour: impl Draw for Colour
tiny::shapes::Colour: impl Draw for Colour: type Canvas = String
tiny::shapes::Colour: pub enum Colour
tiny::shapes::Colour::Grey: variant Grey
tiny::shapes::Colour::Grey::level: u8
tiny::shapes::Colour::Named: variant Named(&'static str)
tiny::shapes::Colour::Red: variant Red
tiny::shapes::Draw: impl Draw for u8
tiny::shapes::Draw: impl Draw for u8: type Canvas = u8
tiny::shapes::Draw: pub trait Draw: Send
tiny::shapes::Draw::Canvas: type Canvas: Sized
tiny::shapes::Draw::again: fn again(&self)
tiny::shapes::Draw::draw: required fn draw(&self, on: &mut Self::Canvas)
tiny::shapes::Point: #[non_exhaustive] pub struct Point<T> { /* private fields */ }
tiny::shapes::Point: impl<T> From<T> for Point<T> where T: Clone
tiny::shapes::Point::SIDES: pub const SIDES: usize of impl<T: Copy> Point<T>
tiny::shapes::Point::moved: pub fn moved<U>(&mut self, by: &[U], pair: (u8,)) -> Result<Vec<T>, Error> where U: Into<T> of impl<T: Copy> Point<T>
tiny::shapes::Point::up: pub fn up(self) -> T of impl<T: Copy> Point<T>
tiny::shapes::Point::x: T
";

/// What is changed, by what it becomes, and the lines that go and come.
const CHANGES: [(&str, &str, &[&str], &[&str]); 6] = [
    (
        "pub unsafe fn add(a: [u8; 2])",
        "pub unsafe fn add(a: [u8; 3])",
        &["tiny::add: pub unsafe fn add(a: [u8; 2]) -> u8"],
        &["tiny::add: pub unsafe fn add(a: [u8; 3]) -> u8"],
    ),
    ("pub fn up(self) -> T { self.y }", "", &["tiny::shapes::Point::up: pub fn up(self) -> T of impl<T: Copy> Point<T>"], &[]),
    ("Red, ", "Red, Blue, ", &[], &["tiny::shapes::Colour::Blue: variant Blue"]),
    ("level: u8", "level: u16", &["tiny::shapes::Colour::Grey::level: u8"], &["tiny::shapes::Colour::Grey::level: u16"]),
    ("fn again(&self) {}", "fn again(&self);", &["tiny::shapes::Draw::again: fn again(&self)"], &["tiny::shapes::Draw::again: required fn again(&self)"]),
    (
        "impl Draw for u8 { type Canvas = u8; fn draw(&self, _: &mut u8) {} }",
        "",
        &["tiny::shapes::Draw: impl Draw for u8", "tiny::shapes::Draw: impl Draw for u8: type Canvas = u8"],
        &[],
    ),
];

fn main() {
    let arguments = Arguments::from_args();
    let absent = ["python3", &rustdoc()].into_iter().find(|program| Command::new(program).arg("--version").output().is_err()).map(str::to_owned);
    let trial = |name: &str, test: fn() -> Result<(), Failed>| match &absent {
        None => Trial::test(name, test),
        Some(program) => Trial::test(format!("{name} (skipped: {program} is not installed)"), || Ok(())).with_ignored_flag(true),
    };
    let trials = vec![
        trial("every_item_has_a_line", every_item_has_a_line),
        trial("a_change_is_seen", a_change_is_seen),
        trial("a_crate_without_pages_is_named", a_crate_without_pages_is_named),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

/// The rustdoc beside the compiler, where cargo says which.
fn rustdoc() -> String {
    std::env::var("RUSTDOC").unwrap_or_else(|_| "rustdoc".into())
}

/// What the script says of a folder of pages.
fn told(folder: &Path, name: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/public_items.py");
    Command::new("python3").arg(script).arg(folder).arg(name).output().unwrap()
}

/// The lines of a crate of this source, whose pages go into `folder`.
fn items(folder: &Path, source: &str) -> String {
    let file = folder.join("tiny.rs");
    std::fs::write(&file, source).unwrap();
    let made = Command::new(rustdoc()).args(["--edition", "2024", "--crate-name", "tiny", "-o"]).arg(folder).arg(file).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let output = told(folder, "tiny");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn every_item_has_a_line() -> Result<(), Failed> {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(items(folder.path(), SOURCE), ITEMS);
    // The page of what is gone stays in the folder, and is not read.
    assert_eq!(items(folder.path(), "pub fn one() {}"), "tiny: mod\ntiny::one: pub fn one()\n");
    assert!(folder.path().join("tiny/shapes/struct.Point.html").is_file());
    Ok(())
}

fn a_change_is_seen() -> Result<(), Failed> {
    let folder = tempfile::tempdir().unwrap();
    let mut source = SOURCE.to_owned();
    let (mut gone, mut come): (BTreeSet<&str>, BTreeSet<&str>) = Default::default();
    for (from, to, less, more) in CHANGES {
        assert_eq!(source.matches(from).count(), 1, "{from}");
        source = source.replace(from, to);
        gone.extend(less);
        come.extend(more);
    }
    let changed = items(folder.path(), &source.replace("impl Draw for Colour { ", "impl Draw for Colour { fn again(&self) {} "));
    let (before, after): (BTreeSet<&str>, BTreeSet<&str>) = (ITEMS.lines().collect(), changed.lines().collect());
    assert_eq!(before.difference(&after).copied().collect::<BTreeSet<_>>(), gone);
    assert_eq!(after.difference(&before).copied().collect::<BTreeSet<_>>(), come);
    Ok(())
}

fn a_crate_without_pages_is_named() -> Result<(), Failed> {
    let folder = tempfile::tempdir().unwrap();
    let output = told(folder.path(), "absent");
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty() && why.contains("the pages of absent") && why.contains("cargo doc"), "{why}");
    Ok(())
}
