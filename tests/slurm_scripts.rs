//! The jobs of `scripts/slurm/` without Slurm: their bodies with programs that are told what to say.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{create_dir_all, read_to_string, remove_dir_all, write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A folder of stubs and results; the programs write down what they were asked.
struct Cluster(PathBuf);

impl Cluster {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("slurm").join(name);
        let _ = remove_dir_all(&folder);
        create_dir_all(folder.join("programs")).unwrap();
        let cluster = Self(folder);
        cluster.stub("trifuse", "case $1 in devices) echo 'cuda: a stub' ;; *) echo 'passed: all' ;; esac");
        for name in ["layer", "conformance"] {
            cluster.stub(name, "echo 'test result: ok. 1 passed'");
        }
        cluster
    }

    /// A program that does this, and is written down.
    fn stub(&self, name: &str, body: &str) {
        let path = self.0.join("programs").join(name);
        write(&path, format!("#!/usr/bin/env bash\necho \"{name} $*\" >>{}\n{body}\n", self.0.join("calls").display())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, job: &str, environment: &[(&str, &str)]) -> Command {
        let root = env!("CARGO_MANIFEST_DIR");
        let mut command = Command::new("bash");
        // Slurm runs a copy of the job from its own folder.
        command.arg(format!("{root}/scripts/slurm/{job}.sbatch")).current_dir(&self.0).env("SLURM_SUBMIT_DIR", root);
        command.env("RESULTS", self.0.join("results")).env("PROGRAMS", self.0.join("programs")).env("PYTHON", "/bin/false").env("MODEL", "no-weights");
        for name in ["STAGES", "STEPS", "BUDGET", "SLICE", "AGAIN", "TEXTS", "CALIBRATE", "MOMENTS", "ARCHIVES", "OUT"] {
            command.env_remove(name);
        }
        command.envs(environment.iter().copied());
        command
    }

    fn run(&self, job: &str, environment: &[(&str, &str)]) -> (String, bool) {
        let Output { stdout, stderr, status } = self.command(job, environment).output().unwrap();
        let said = String::from_utf8_lossy(&stdout).into_owned();
        assert!(!said.is_empty(), "{}", String::from_utf8_lossy(&stderr));
        (said, status.success())
    }

    /// What the programs were asked since it was last looked.
    fn calls(&self) -> Vec<String> {
        let path = self.0.join("calls");
        let calls = read_to_string(&path).unwrap_or_default().lines().map(str::to_owned).collect();
        let _ = std::fs::remove_file(path);
        calls
    }

    /// The folder of a job, and what its archive lists.
    fn kept(&self, job: &str) -> (PathBuf, String) {
        let results = self.0.join("results");
        let found = std::fs::read_dir(&results).unwrap().map(|entry| entry.unwrap().path());
        let own = found.into_iter().find(|path| path.is_dir() && path.file_name().unwrap().to_string_lossy().starts_with(job)).unwrap();
        let listed = Command::new("tar").arg("-tzf").arg(own.with_extension("tar.gz")).output().unwrap();
        (own, String::from_utf8(listed.stdout).unwrap())
    }
}

/// Whether a table has a row of this name with this word.
fn told(table: &str, name: &str, word: &str) -> bool {
    table.lines().any(|line| line.strip_prefix(&format!("{name:24} ")).is_some_and(|rest| rest.starts_with(&format!("{word:12} "))))
}

#[test]
fn a_stage_goes_on_behind_the_steps_that_passed() {
    let cluster = Cluster::new("stages");
    cluster.stub("conformance", "echo 'test result: FAILED'; exit 1");
    let asked = [("STAGES", "right"), ("STEPS", "layer-cuda contract-cuda six-tests")];
    let (table, success) = cluster.run("stages", &asked);
    assert!(!success && told(&table, "right", "failed"), "{table}");
    assert!(cluster.calls().iter().any(|call| call.starts_with("layer ")));
    let (own, listed) = cluster.kept("stages");
    assert!(listed.contains("right.log") && listed.contains("archives/right.tar.gz") && listed.contains("table.txt"), "{listed}");
    assert!(read_to_string(own.join("right.log")).unwrap().contains("2 passed, 1 failed"));
    // Repaired, and again.
    cluster.stub("conformance", "echo 'test result: ok. 1 passed'");
    let (table, success) = cluster.run("stages", &asked);
    let calls = cluster.calls();
    assert!(success && told(&table, "right", "passed"), "{table}");
    assert!(calls.iter().any(|call| call.starts_with("conformance ")) && !calls.iter().any(|call| call.starts_with("layer ")), "{calls:?}");
    assert!(read_to_string(own.join("right.before.txt")).unwrap().contains("layer-cuda"));
    let (table, success) = cluster.run("stages", &asked);
    assert!(success && told(&table, "right", "passed before") && cluster.calls().is_empty(), "{table}");
}

#[test]
fn a_hunt_is_run_in_slices_of_one_ledger() {
    let cluster = Cluster::new("hunt");
    let (table, success) = cluster.run("hunt", &[("BUDGET", "90"), ("SLICE", "30"), ("SEED", "7"), ("DTYPE", "bf16")]);
    assert!(success && (1..=3).all(|slice| told(&table, &format!("slice-{slice}"), "passed")), "{table}");
    let (calls, (own, listed)) = (cluster.calls(), cluster.kept("hunt"));
    let wanted = format!(
        "trifuse bench hunt --backend cuda --budget 30 --seed 7 --dtype bf16 --suite linear,mlp,attention --ledger {}",
        own.join("ledger.jsonl").display()
    );
    assert!(calls.len() == 3 && calls.iter().all(|call| *call == wanted), "{calls:?}");
    assert!(listed.contains("slice-3.log"), "{listed}");
    // More of it later: what passed is not run again.
    let (table, _) = cluster.run("hunt", &[("BUDGET", "120"), ("SLICE", "30")]);
    assert!(told(&table, "slice-3", "passed before") && told(&table, "slice-4", "passed") && cluster.calls().len() == 1, "{table}");
}

#[test]
fn a_job_whose_time_ends_keeps_what_it_has_and_goes_on() {
    let cluster = Cluster::new("ended");
    let ready = cluster.0.join("ready");
    cluster.stub("trifuse", &format!("trap 'echo kept; exit 130' TERM\ntouch {}\nfor n in $(seq 600); do sleep 0.1; done", ready.display()));
    let child = cluster.command("hunt", &[("BUDGET", "60"), ("SLICE", "30")]).stdout(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while !ready.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "it was not begun");
        std::thread::sleep(Duration::from_millis(50));
    }
    // As Slurm does before the end: to the job's shell alone.
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(!output.status.success() && told(&table, "slice-1", "cut short") && told(&table, "slice-2", "not reached"), "{table}");
    let (own, listed) = cluster.kept("hunt");
    assert!(read_to_string(own.join("slice-1.log")).unwrap().contains("kept") && listed.contains("slice-1.log"));
    cluster.stub("trifuse", "echo done");
    let (table, success) = cluster.run("hunt", &[("BUDGET", "60"), ("SLICE", "30")]);
    assert!(success && told(&table, "slice-1", "passed") && told(&table, "slice-2", "passed"), "{table}");
}

#[test]
fn the_study_shrinks_repairs_measures_and_draws() {
    let cluster = Cluster::new("shrink");
    // A model where one is to be written.
    cluster.stub("trifuse", r#"while [ $# -gt 0 ]; do if [ "$1" = -o ]; then case $2 in *.json) touch "$2" ;; *) mkdir "$2" ;; esac; fi; shift; done"#);
    let asked = [("MODEL", "org/model"), ("CALIBRATE", "one.txt two.txt"), ("TEXTS", "wiki.txt c4.txt"), ("KEEPS", "0.9"), ("DTYPES", "f16")];
    let (table, success) = cluster.run("shrink", &asked);
    let calls = cluster.calls();
    assert!(success && told(&table, "eval-0.9-f16", "passed") && told(&table, "peers-f16", "skipped") && told(&table, "pictures", "passed"), "{table}");
    let has = |parts: &[&str]| calls.iter().any(|call| parts.iter().all(|part| call.contains(part)));
    assert!(
        has(&["profile org/model", "--dtype f16"]) && has(&["shrink org/model", "--ranks nearest:8", "--calibrate one.txt --calibrate two.txt", "--keep 0.9"])
    );
    assert!(has(&["--budget time", "profile-f16.json"]) && has(&["repair ", "models/free-0.9", "--to 8"]), "{calls:?}");
    let models = ["free", "repaired", "nearest8", "align16", "time"].map(|name| format!("models/{name}-0.9"));
    assert!(models.iter().all(|model| has(&["eval ", "--baseline-model org/model", model, "wiki.txt c4.txt"])), "{calls:?}");
    assert!(has(&["bench shrink", "--eval", "eval-0.9-f16.json", "--profile", "--pictures"]), "{calls:?}");
    // A second run draws, and no more.
    cluster.run("shrink", &asked);
    let again = cluster.calls();
    assert!(again.len() == 1 && again[0].contains("bench shrink"), "{again:?}");
    let output = cluster.command("shrink", &[("MODEL", "org/model")]).output().unwrap();
    assert!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("expected MODEL, TEXTS"));
}

#[test]
fn every_job_names_what_it_needs_and_jobs_are_submitted_for_each_gpu() {
    let cluster = Cluster::new("submit");
    cluster.stub("sbatch", "");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for job in ["stages", "hunt", "shrink"] {
        let text = read_to_string(root.join(format!("scripts/slurm/{job}.sbatch"))).unwrap();
        let wanted = ["#!/usr/bin/env bash\n#SBATCH ", "--gpus=1", "--cpus-per-task=", "--mem=", "--time=", "--signal=B:TERM@", "--output=%x-%j.log"];
        assert!(wanted.iter().all(|line| text.contains(line)), "{job}");
    }
    let submit = |jobs: &[&str]| {
        let path = format!("{}:{}", cluster.0.join("programs").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(root.join("scripts/slurm/submit.sh"));
        command.args(jobs).env("PATH", path).env("OPTIONS", "--account=mine --test-only").env_remove("GPUS").output().unwrap()
    };
    assert!(submit(&["hunt", "shrink"]).status.success());
    let calls = cluster.calls();
    assert_eq!(calls.len(), 4);
    assert_eq!(calls[0], "sbatch --account=mine --test-only --gpus=a100:1 --job-name=trifuse-hunt-a100 scripts/slurm/hunt.sbatch");
    assert!(calls[3].contains("--gpus=h100:1") && calls[3].ends_with("shrink.sbatch"), "{calls:?}");
    let wrong = submit(&["hunt", "dinner"]);
    assert!(wrong.status.code() == Some(2) && String::from_utf8_lossy(&wrong.stderr).contains("found: dinner") && cluster.calls().is_empty());
}
