//! A process that serves, and whose devices fail one after the other.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use trifuse::Error;
use trifuse_serve::{Config, Models, Server};

use super::until_ended;
use support::client::Client;
use support::{faulty, tiny};

#[path = "../../../../serve/tests/support/mod.rs"]
mod support;

/// Set in the process that serves.
const SERVES: &str = "TRIFUSE_TEST_SERVES";
/// Batches after which a device fails.
const BATCHES: usize = 3;

/// Set in a process that begins anew: the file by which it knows that it has.
const BEGUN: &str = "TRIFUSE_TEST_BEGUN";

/// Serves until no device is left, and ends as the command does, or begins anew.
fn serve() -> ! {
    let begun = std::env::var_os(BEGUN);
    if begun.as_ref().is_some_and(|file| std::path::Path::new(file).exists()) {
        println!("\nserves again");
        std::process::exit(0);
    }
    let folder = tiny::folder();
    let failing = || {
        let mut batches = 0;
        faulty::before(move |_| {
            batches += 1;
            if batches > BATCHES { Err(Error::device("a launch", "gone, as planned")) } else { Ok(()) }
        })
    };
    let model = tiny::model_with(folder.path(), failing()).and("cpu:0", tiny::opens(folder.path(), failing()));
    let mut config = Config::new(([127, 0, 0, 1], 0).into());
    config.limits.drain_delay = Duration::ZERO;
    let handle = Server::serve(config, Models { embeddings: Some(model), ..Models::default() }).unwrap();
    println!("\nserves on {}", handle.addr());
    let ended = until_ended(&handle, || false);
    handle.wait();
    if let (Err(_), Some(file)) = (&ended, begun) {
        std::fs::write(file, "").unwrap();
        panic!("{}", super::again::begin());
    }
    std::process::exit(ended.map_or_else(|error| error.exit_status().into(), |()| 0));
}

type Lines = Box<dyn Iterator<Item = String>>;

/// This program again, as the test of that name, and what it says.
fn started(test: &str, begun: Option<&std::path::Path>) -> (Child, Lines) {
    let name = format!("cli::serve::tests::{test}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &name, "--nocapture"]).env(SERVES, "1").stdout(Stdio::piped()).stderr(Stdio::null());
    if let Some(file) = begun {
        command.env(BEGUN, file);
    }
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    (child, Box::new(lines))
}

/// A client of the server that says where it is.
fn client(lines: &mut Lines) -> Client {
    let address = lines.find_map(|line| line.strip_prefix("serves on ").map(str::to_owned)).unwrap();
    Client::to(address.parse().unwrap()).unwrap()
}

#[test]
fn the_process_ends_with_status_1_once_all_devices_are_lost() {
    if std::env::var_os(SERVES).is_some() {
        serve();
    }
    let (mut child, mut lines) = started("the_process_ends_with_status_1_once_all_devices_are_lost", None);
    let mut client = client(&mut lines);
    let mut statuses = Vec::new();
    // Each batch is one request: the request with which the first device fails is answered by the second.
    while statuses.last() != Some(&503) {
        let answer = client.post("/v1/embeddings", &json!({"model": tiny::NAME, "input": "w1 w2"}));
        statuses.push(answer.status);
        assert!(statuses.len() <= 2 * BATCHES + 1, "{statuses:?}");
    }
    assert!(statuses[..statuses.len() - 1].iter().all(|status| *status == 200) && statuses.len() == 2 * BATCHES + 1, "{statuses:?}");
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it goes on without a device");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(status.code(), Some(1));
}

#[cfg(unix)]
#[test]
fn a_process_that_begins_anew_is_the_same_with_the_same_arguments() {
    if std::env::var_os(SERVES).is_some() {
        serve();
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut child, mut lines) = started("a_process_that_begins_anew_is_the_same_with_the_same_arguments", Some(&folder.path().join("begun")));
    let mut client = client(&mut lines);
    while client.post("/v1/embeddings", &json!({"model": tiny::NAME, "input": "w1 w2"})).status == 200 {}
    // The test that it was told to run is run again, by the process that was started here.
    assert!(lines.any(|line| line == "serves again"));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
