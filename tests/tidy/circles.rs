//! No circle of files: what a file stands on never leads back to it.
//!
//! An arrow runs from a file to the one that declares what it names, wherever a `pub use` gives it from. What a module's
//! own `mod` and `pub use` lines say of the files below it is its list of contents and no arrow.

use std::collections::{BTreeMap, VecDeque};

use crate::paths::Paths;
use crate::source::File;

/// The bench's lowest floor: what is measured. A file of the bench on neither list measures, or holds what measuring reports.
const MODEL: [&str; 18] = [
    "align",
    "extent",
    "layer/points",
    "layout",
    "listed",
    "models",
    "own",
    "padding",
    "pattern",
    "projection/sizes",
    "published",
    "schedule",
    "sequences",
    "shape",
    "shape/layers",
    "shape/point",
    "shares",
    "suite",
];
/// The bench's highest floor: what is made of a stored report.
const RENDER: [&str; 7] = ["compare/mod", "density", "markdown", "shrunk", "stored", "sweep", "units"];

/// The floor of a file of the bench.
fn floor(file: &File) -> Option<usize> {
    let name = file.inner()?.strip_prefix("bench/")?.strip_suffix(".rs")?;
    Some(if MODEL.contains(&name) { 0 } else { 1 + usize::from(RENDER.contains(&name)) })
}

/// Arrows of the bench that run from a floor to a higher one.
pub fn bench(files: &[File]) -> Vec<String> {
    let graph = Graph::read(files);
    let up = graph.arrows().filter(|(from, to, _)| matches!((floor(from), floor(to)), (Some(low), Some(high)) if low < high));
    up.map(|(from, to, line)| from.fault(line, format_args!("a lower floor of the bench may not import {}", to.path))).collect()
}

/// The files by their number, and the line of the first arrow from one to another.
pub struct Graph<'a> {
    files: &'a [File],
    arrows: BTreeMap<usize, BTreeMap<usize, usize>>,
}

impl<'a> Graph<'a> {
    /// Reads what each of `files` names.
    pub fn read(files: &'a [File]) -> Self {
        let paths = Paths::read(files);
        let mut arrows: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
        for mention in paths.mentions.iter().filter(|mention| !(mention.published && paths.is_from_below(mention))) {
            let from = mention.file;
            if let Some(to) = paths.target(mention).filter(|to| *to != from) {
                arrows.entry(from).or_default().entry(to).or_insert(mention.line);
            }
        }
        Self { files, arrows }
    }

    /// From one file to another, with the line.
    pub fn arrows(&self) -> impl Iterator<Item = (&'a File, &'a File, usize)> + '_ {
        self.arrows.iter().flat_map(|(from, arrows)| arrows.iter().map(|(to, line)| (&self.files[*from], &self.files[*to], *line)))
    }

    fn next(&self, file: usize) -> impl Iterator<Item = usize> + '_ {
        self.arrows.get(&file).into_iter().flat_map(|arrows| arrows.keys().copied())
    }

    /// The files that arrows lead to from `start`, each with the one before it, the nearest first found.
    fn reached(&self, start: usize) -> BTreeMap<usize, usize> {
        let mut before = BTreeMap::new();
        let mut open = VecDeque::from([start]);
        while let Some(file) = open.pop_front() {
            for next in self.next(file) {
                before.entry(next).or_insert_with(|| {
                    open.push_back(next);
                    file
                });
            }
        }
        before
    }

    /// Sets of files of which each leads to each other.
    fn circles(&self) -> Vec<Vec<usize>> {
        let reached: BTreeMap<usize, BTreeMap<usize, usize>> = self.arrows.keys().map(|file| (*file, self.reached(*file))).collect();
        let leads = |from: usize, to: usize| reached.get(&from).is_some_and(|files| files.contains_key(&to));
        let mut found: Vec<Vec<usize>> = Vec::new();
        for file in reached.keys().copied().filter(|file| leads(*file, *file)) {
            match found.iter_mut().find(|circle| leads(circle[0], file) && leads(file, circle[0])) {
                Some(circle) => circle.push(file),
                None => found.push(vec![file]),
            }
        }
        found
    }

    /// The shortest way from one of the files back to itself, arrow by arrow.
    fn shortest(&self, circle: &[usize]) -> Vec<String> {
        let way = |start: usize| {
            let before = self.reached(start);
            let mut way = vec![start];
            let mut at = before[&start];
            while at != start {
                way.push(at);
                at = before[&at];
            }
            way.push(start);
            way.reverse();
            way
        };
        let shortest = circle.iter().map(|file| way(*file)).min_by_key(Vec::len).unwrap_or_default();
        shortest.windows(2).map(|pair| format!("{}:{} -> {}", self.files[pair[0]].path, self.arrows[&pair[0]][&pair[1]], self.files[pair[1]].path)).collect()
    }
}

/// A fault a circle.
pub fn faults(files: &[File]) -> Vec<String> {
    let graph = Graph::read(files);
    let told = |circle: Vec<usize>| {
        let names: Vec<&str> = circle.iter().map(|file| files[*file].path.as_str()).collect();
        format!("a circle of {} files: {}\n    {}", names.len(), names.join(", "), graph.shortest(&circle).join("\n    "))
    };
    graph.circles().into_iter().map(told).collect()
}

/// What there is: circles, files that are in one, and arrows between two files of one circle.
#[derive(Debug, PartialEq, Eq)]
pub struct Counts {
    /// Sets of files of which each leads to each other.
    pub circles: usize,
    /// Files in them.
    pub files: usize,
    /// Arrows between two files of the same set.
    pub arrows: usize,
}

impl Counts {
    /// Counts among these files.
    pub fn of(files: &[File]) -> Self {
        let graph = Graph::read(files);
        let circles = graph.circles();
        let inside = |circle: &Vec<usize>| circle.iter().flat_map(|file| graph.next(*file)).filter(|next| circle.contains(next)).count();
        Self { circles: circles.len(), files: circles.iter().map(Vec::len).sum(), arrows: circles.iter().map(inside).sum() }
    }
}
