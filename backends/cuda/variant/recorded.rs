//! What a choice would lose on shapes of which every configuration was timed, for the tests of choices: a change of a choice is seen without a GPU. The
//! times are drawn from `lab/choice-h100.tsv.xz` (`lab/choice.md`): a shape a line, and the microseconds of its configurations.

use std::collections::{BTreeMap, HashMap};

/// Configurations that are no slower than three times the fastest, by name, in microseconds.
pub(crate) type Times<'a> = HashMap<&'a str, f64>;

/// What is chosen for a shape.
pub(crate) struct Choice {
    /// The name of the variant and its configuration.
    pub(crate) name: String,
    /// Its time, where it was timed.
    pub(crate) time: Option<f64>,
    /// What the shape is counted among.
    pub(crate) class: &'static str,
}

/// What a choice loses on all shapes: the time of what is chosen over the least time.
pub(crate) struct Losses {
    /// How many shapes the choice was asked for.
    pub(crate) shapes: usize,
    /// How many of them have no time of what was chosen.
    pub(crate) untimed: usize,
    pub(crate) mean: f64,
    pub(crate) most: f64,
    /// All of it in words, the worst shape first.
    pub(crate) told: String,
    regrets: Vec<f64>,
}

impl Losses {
    /// How many shapes lose more than that.
    pub(crate) fn beyond(&self, regret: f64) -> usize {
        self.regrets.iter().filter(|lost| **lost > regret).count()
    }
}

/// Asks `chosen` for each shape of `file`, a path in the repository. None where the file is not there, or not of this form.
pub(crate) fn losses(file: &str, mut chosen: impl FnMut(&str, &Times<'_>) -> Choice) -> Option<Losses> {
    let text = std::fs::read_to_string(format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))).ok()?;
    let (mut raced, mut untimed) = (Vec::new(), Vec::new());
    let mut classes = BTreeMap::<_, Vec<f64>>::new();
    for (number, line) in text.lines().enumerate() {
        let (shape, timed) = line.split_once('\t')?;
        let times = timed.split(' ').map(|one| one.split_once('=').and_then(|(name, time)| Some((name, time.parse().ok()?)))).collect::<Option<Times<'_>>>()?;
        let (best, least) = times.iter().min_by(|one, other| one.1.total_cmp(other.1))?;
        let Choice { name, time, class } = chosen(shape, &times);
        let told = format!("{shape}: {name}, {best} takes {least}");
        let Some(time) = time else {
            untimed.push(told);
            continue;
        };
        let half = if number % 2 == 0 { "even" } else { "odd" };
        for class in [class, half] {
            classes.entry(class).or_default().push(time / least);
        }
        raced.push((time / least, told));
    }
    raced.sort_by(|one, other| other.0.total_cmp(&one.0));
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let regrets: Vec<f64> = raced.iter().map(|(regret, _)| *regret).collect();
    let (all, most) = (mean(&regrets), regrets.iter().copied().fold(1.0, f64::max));
    let of_class = |(class, of): (&str, Vec<f64>)| format!("{class} {} {:.3} {:.2}", of.len(), mean(&of), of.iter().copied().fold(1.0, f64::max));
    let classes: Vec<String> = classes.into_iter().map(of_class).collect();
    let told = format!("mean {all:.3}, most {most:.2}; shapes, mean and most of {}; {raced:#?}; untimed {untimed:#?}", classes.join(", "));
    Some(Losses { shapes: raced.len() + untimed.len(), untimed: untimed.len(), mean: all, most, told, regrets })
}
