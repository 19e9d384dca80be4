//! A stored report as a page of Markdown.

use super::density;
use super::stored::{Entry, Measured, Peers, Stored};
use super::sweep;
use super::units::amount;
pub use super::units::{bytes, flops, seconds};

/// A row's cells after the shape's name and the variant.
type Cells = fn(&Entry, &Measured) -> Vec<String>;

/// The table of a suite: the names of its columns, and a row a shape. A suite's own columns stand after the shape's name
/// and the variant, or what came instead of a time.
pub fn table(report: &Stored) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let (head, cells): (&[&str], Cells) = match report.suite.as_str() {
        "micro" => (&["cold", "warm", "a launch", "a launch, host", "rate"], micro),
        "align" => (&["cold", "± 95 %", "warm", "executed", "over aligned", "neighbour"], align),
        "sparse" => (&["p50", "mean", "std", "p95", "p99", "executed", "useful", "dense-equivalent", "ceiling"], sparse),
        "layer" => (&["cold", "± 95 %", "warm", "parts, cold", "parts, warm", "executed", "useful", "dense-equivalent", "ceiling", "error"], layer),
        "forward-pass" => (&["p50", "mean", "std", "p95", "p99", "a projection", "device", "f16 LoRA", "times smaller"], forward_pass),
        _ => (&["cold", "± 95 %", "p95", "p99", "warm", "executed", "bytes", "ceiling", "error"], plain),
    };
    let row = |entry: &Entry| match &entry.measured {
        Some(measured) => {
            [vec![entry.name.clone(), configured(&measured.variant, measured.config.as_deref()) + marks(measured)], cells(entry, measured)].concat()
        }
        None => [vec![entry.name.clone(), entry.status.clone()], vec!["–".into(); head.len()]].concat(),
    };
    (["shape", "variant"].iter().chain(head).copied().collect(), report.results.iter().map(row).collect())
}

/// Rows of a sweep above which a page has its summary.
const MOST_SIZES: usize = 64;

/// The page: what measured, against what, the table, and why there is no time where there is none.
///
/// The page of a sweep shows only the sizes that stand against a neighbour, and what has no time. The neighbour's time is the quotient.
/// A long sweep gets a line for each axis and class of sizes, with the best of `peers` where they were measured.
pub fn page(report: &Stored, peers: &[Peers]) -> String {
    let (head, mut rows) = table(report);
    let mut head: Vec<String> = head.into_iter().map(str::to_owned).collect();
    if report.results.iter().any(|entry| entry.aligned.is_some()) {
        let mut told = report.results.iter().map(|entry| entry.aligned.is_some() || entry.measured.is_none());
        rows.retain(|_| told.next().unwrap_or(true));
        if rows.len() > MOST_SIZES {
            (head, rows) = (sweep::HEAD.map(str::to_owned).to_vec(), sweep::summary(report, peers));
        }
    }
    let rule = (0..head.len()).map(|column| if column < 2 { "---" } else { "---:" }.to_owned()).collect();
    let line = |cells: &Vec<String>| format!("| {} |", cells.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | "));
    let lines: Vec<String> = [head, rule].iter().chain(&rows).map(line).collect();
    let dtype = report.dtype();
    let title = if dtype == "f16" || dtype.is_empty() { report.suite.clone() } else { format!("{}, {dtype}", report.suite) };
    let mut page = format!("### {title}\n\n{}\n\n{}\n", heading(report), lines.join("\n"));
    if let Some(parts) = parts_table(report) {
        page += &format!("\n{parts}\n");
    }
    for note in notes(report) {
        page += &format!("\n- {note}");
    }
    page.trim_end().to_owned() + "\n"
}

/// What measured, and what it was held against.
pub fn heading(report: &Stored) -> String {
    let (device, here, timing, ceilings) = (&report.device, &report.environment, &report.timing, &report.ceilings);
    let nvrtc = here.nvrtc.as_ref().map_or_else(String::new, |version| format!(", NVRTC {version}"));
    let build = match (here.optimised, here.profile.as_deref()) {
        (false, _) => ", built without optimisation".into(),
        (true, None | Some("dist")) => String::new(),
        (true, Some(profile)) => format!(", built as {profile}"),
    };
    // A run that was interrupted early has no shape, and so no type.
    let dtype = if report.dtype().is_empty() { String::new() } else { format!(" {};", report.dtype()) };
    // So many digits tell one revision from another, as git shows them.
    let revision = here.revision.get(..7).unwrap_or(&here.revision);
    let clocks = report.clocks.map_or_else(String::new, |clocks| format!(" at {} MHz", clocks.multiprocessors_hz / 1_000_000));
    let product = match (ceilings.product_flops_per_second, &ceilings.product) {
        (Some(rate), Some(name)) => format!(", our best product {} ({name})", flops(rate)),
        _ => String::new(),
    };
    format!(
        "{}{clocks} ({}), {}{nvrtc}; trifuse {}, revision {revision}{build}, {};{dtype} medians of {} after {}, clock of the {}.\nCeilings: copy {}{product}.",
        device.name,
        report.backend,
        device.driver,
        here.version,
        here.platform,
        timing.iterations,
        timing.warmup,
        timing.clock,
        bytes(ceilings.copy_bytes_per_second),
    )
}

/// A variant and its configuration, as `--variant` takes them.
fn configured(variant: &str, config: Option<&str>) -> String {
    config.map_or_else(|| variant.to_owned(), |config| format!("{variant}:{config}"))
}

fn marks(measured: &Measured) -> &'static str {
    let has = |flag: &str| measured.flags.iter().any(|own| own == flag);
    match (has("launch_bound"), has("noisy")) {
        (true, true) => " † ‡",
        (true, false) => " †",
        (false, true) => " ‡",
        (false, false) => "",
    }
}

/// What a reader must know besides the table.
pub fn notes(report: &Stored) -> Vec<String> {
    let without =
        |entry: &Entry| (entry.measured.is_none()).then(|| format!("{}: {}: {}", entry.name, entry.status, entry.why.as_deref().unwrap_or("no reason told")));
    let mut notes: Vec<String> = report.results.iter().filter_map(without).collect();
    notes.extend(report.results.iter().filter_map(registered));
    let marked = |sign: char| report.results.iter().flat_map(|entry| &entry.measured).any(|measured| marks(measured).contains(sign));
    notes.extend(marked('†').then(|| "†: the device may have waited for the host".into()));
    notes.extend(marked('‡').then(|| "‡: the 95 % interval of the median is wider than a tenth of it".into()));
    let flags = [
        ("host_clock", "timed by the host's clock: putting work into the queue is counted"),
        ("cut", "some shapes were timed fewer times than asked for (--limit)"),
        ("above_ceiling", "some shapes are faster than the ceilings of this run: other work disturbed those, or a cache held what is counted as moved"),
        ("not_optimised", "this program was built without optimisation"),
    ];
    let flagged = |name: &str| report.results.iter().flat_map(|entry| &entry.measured).any(|measured| measured.flags.iter().any(|own| own == name));
    notes.extend(flags.iter().filter(|(name, _)| flagged(name)).map(|(_, words)| (*words).to_owned()));
    notes.extend(if report.suite == "sparse" { density::break_even(report) } else { Vec::new() });
    notes.extend((!report.complete).then(|| "interrupted: not every shape was measured".into()));
    notes
}

/// How much of a population the device holds, and what would fit.
fn registered(entry: &Entry) -> Option<String> {
    let memory = entry.measured.as_ref()?.memory?;
    let of = memory.registered?;
    Some(format!(
        "{}: {} adapters on {} of {} projections, {}, registered in {}; {} bytes an adapter, so that 80 GB hold {} and 141 GB {}",
        entry.name,
        of.adapters,
        of.projections,
        of.projections_asked,
        amount(memory.device_bytes),
        seconds(of.seconds),
        of.adapter_bytes,
        of.fit_80_gb,
        of.fit_141_gb,
    ))
}

fn plain(_: &Entry, measured: &Measured) -> Vec<String> {
    let (cold, rates) = (&measured.cold, &measured.rates);
    let times = [seconds(cold.median), interval(measured), seconds(cold.p95), seconds(cold.p99), seconds(measured.warm.median)];
    let share = format!("{:.0} %", rates.share_of_ceiling * 100.0);
    let error = format!("{:.2}", measured.checked.error_of_allowed);
    [times.to_vec(), vec![flops(rates.executed_flops), bytes(rates.bytes), share, error]].concat()
}

fn micro(_: &Entry, measured: &Measured) -> Vec<String> {
    let each = |time: f64| if measured.launches > 1 { seconds(time) } else { "–".into() };
    let rates = &measured.rates;
    let rate = match (measured.launches, measured.cost.executed_flops > 0.0) {
        (2.., _) => "–".into(),
        (_, true) => flops(rates.executed_flops),
        _ => bytes(rates.bytes),
    };
    vec![seconds(measured.cold.median), seconds(measured.warm.median), each(measured.launch_seconds), each(measured.launch_host_seconds), rate]
}

fn align(entry: &Entry, measured: &Measured) -> Vec<String> {
    let (slowdown, neighbour) =
        entry.aligned.as_ref().map_or_else(|| ("–".into(), "–".into()), |aligned| (format!("{:.2}", aligned.slowdown), aligned.neighbour.clone()));
    vec![seconds(measured.cold.median), interval(measured), seconds(measured.warm.median), flops(measured.rates.executed_flops), slowdown, neighbour]
}

/// The spread of the cold times.
fn spread(measured: &Measured) -> Vec<String> {
    let cold = &measured.cold;
    [cold.median, cold.mean, cold.std, cold.p95, cold.p99].map(seconds).to_vec()
}

fn sparse(_: &Entry, measured: &Measured) -> Vec<String> {
    let rates = &measured.rates;
    let work = [rates.executed_flops, rates.useful_flops, rates.dense_equivalent_flops].map(flops).to_vec();
    [spread(measured), work, vec![format!("{:.0} %", rates.share_of_ceiling * 100.0)]].concat()
}

/// The whole, and the sum of its launches by themselves.
fn layer(_: &Entry, measured: &Measured) -> Vec<String> {
    let (cold, rates) = (&measured.cold, &measured.rates);
    let parts = measured.parts.as_ref().map_or_else(|| ["–", "–"].map(str::to_owned), |parts| [parts.cold_seconds, parts.warm_seconds].map(seconds));
    let times = [vec![seconds(cold.median), interval(measured), seconds(measured.warm.median)], parts.to_vec()].concat();
    let work = [rates.executed_flops, rates.useful_flops, rates.dense_equivalent_flops].map(flops).to_vec();
    let share = [format!("{:.0} %", rates.share_of_ceiling * 100.0), format!("{:.2}", measured.checked.error_of_allowed)];
    [times, work, share.to_vec()].concat()
}

/// Every launch of every layer by itself, where there are layers.
fn parts_table(report: &Stored) -> Option<String> {
    let mut lines =
        vec!["| shape | launch | variant | cold | warm | executed | bytes | ceiling |".to_owned(), format!("| --- | --- | --- {}|", "| ---: ".repeat(5))];
    for entry in &report.results {
        for part in entry.measured.iter().flat_map(|measured| &measured.parts).flat_map(|parts| &parts.each) {
            let (times, rates) = ([part.cold_seconds, part.warm_seconds].map(seconds).join(" | "), &part.rates);
            let share = rates.share_of_ceiling * 100.0;
            let (name, done, moved) = (entry.name.replace('|', "\\|"), flops(rates.executed_flops), bytes(rates.bytes));
            lines.push(format!(
                "| {name} | {} | {} {} | {times} | {done} | {moved} | {share:.0} % |",
                part.name,
                part.op,
                configured(&part.variant, part.config.as_deref())
            ));
        }
    }
    (lines.len() > 2).then(|| lines.join("\n"))
}

fn forward_pass(_: &Entry, measured: &Measured) -> Vec<String> {
    let held = match &measured.memory {
        None => vec!["–".into(); 3],
        Some(memory) => {
            let ratio = memory.lora_f16_ratio.map_or_else(|| "on the host".into(), |ratio| format!("{ratio:.1}"));
            vec![amount(memory.device_bytes), amount(memory.lora_f16_bytes), ratio]
        }
    };
    [spread(measured), vec![seconds(measured.launch_seconds)], held].concat()
}

fn interval(measured: &Measured) -> String {
    let [low, high] = measured.cold.median_interval95;
    format!("{:.1} %", (high - low) / 2.0 / measured.cold.median * 100.0)
}
