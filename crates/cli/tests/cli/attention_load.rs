//! `load --route attention`: against a server on the processor, and against a stand-in that answers wrong where it is told to.
#![cfg(all(unix, feature = "serve"))]

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trifuse::ops::checksum::checksum;

use super::load::{request, write_answer};
use super::served::Served;
use super::support::{err, object, out, run, trifuse};

/// What a stand-in does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Every fourth checksum is another, once so many queries were answered.
    Checksum(u64),
    /// Outputs have a wrong sign, and their checksums are those of such outputs.
    Output,
    /// Checksums are not those of the outputs that lie in regions.
    Apart,
    /// There is no room for regions.
    Full,
}

/// A server of attention over one token, whose output is v, that goes on until the test's process ends.
struct Standin {
    url: String,
    shared: Arc<Shared>,
}

struct Shared {
    fault: Fault,
    regions: Mutex<BTreeMap<String, Vec<u8>>>,
    queries: AtomicU64,
    deleted: AtomicU64,
}

/// One token of a head of eight elements: each tensor of a set has 16 bytes.
const TINY: [&str; 8] = ["--route", "attention", "--tokens", "1", "--head-dim", "8", "--blocks", "0"];

impl Standin {
    fn new(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared { fault, regions: Mutex::default(), queries: AtomicU64::new(0), deleted: AtomicU64::new(0) });
        let own = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&own);
                std::thread::spawn(move || drop(connection(&stream, &shared)));
            }
        });
        Self { url, shared }
    }

    fn load(&self, options: &[&str]) -> (Option<i32>, Value) {
        let output = run(&[&["load", &self.url, "--json", "--quiet", "--seconds", "0.6", "--warmup", "0.1"][..], &TINY, options].concat());
        (output.status.code(), object(&output, "load"))
    }

    /// How many regions there are, and how many were.
    fn regions(&self) -> (usize, u64) {
        (self.shared.regions.lock().unwrap().len(), self.shared.deleted.load(Ordering::SeqCst))
    }
}

/// A whole number in the query of a path.
fn number(path: &str, name: &str) -> Option<usize> {
    path.split_once('?')?.1.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

fn connection(stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    writer.set_nodelay(true)?;
    while let Some((path, head, body)) = request(&mut reader)? {
        let mut regions = shared.regions.lock().unwrap();
        let name = path.strip_prefix("/v2/trifuse/regions/").map(|rest| rest.split(['?', '/']).next().unwrap().to_owned());
        let (status, told) = match (head.split(' ').next().unwrap(), name) {
            ("PUT", Some(_)) if shared.fault == Fault::Full => (413, json!({"error": "regions have no more bytes"})),
            ("PUT", Some(name)) => {
                let size = number(&path, "byte_size").unwrap();
                regions.insert(name, [&body[..], &vec![0; size - body.len()]].concat());
                (200, json!({}))
            }
            ("DELETE", Some(name)) => {
                shared.deleted.fetch_add(u64::from(regions.remove(&name).is_some()), Ordering::SeqCst);
                (200, json!({}))
            }
            ("GET", Some(name)) => {
                let (offset, size) = (number(&path, "offset").unwrap(), number(&path, "byte_size").unwrap());
                let bytes = regions[&name][offset..][..size].to_vec();
                writer.write_all(format!("HTTP/1.1 200 X\r\ncontent-length: {size}\r\n\r\n").as_bytes())?;
                writer.write_all(&bytes)?;
                continue;
            }
            ("POST", None) => (200, answer(shared, &mut regions, &serde_json::from_slice(&body).unwrap())),
            _ if path == "/v2/models/op.attention" => (200, json!({"name": "op.attention"})),
            _ => (404, json!({"error": "not here"})),
        };
        drop(regions);
        write_answer(&mut writer, status, "", &told)?;
    }
    Ok(())
}

/// The bytes that a tensor's parameters name.
fn place(tensor: &Value) -> (String, std::ops::Range<usize>) {
    let number = |name: &str| tensor["parameters"][name].as_u64().unwrap() as usize;
    let from = number("shared_memory_offset");
    (tensor["parameters"]["shared_memory_region"].as_str().unwrap().to_owned(), from..from + number("shared_memory_byte_size"))
}

fn answer(shared: &Shared, regions: &mut BTreeMap<String, Vec<u8>>, query: &Value) -> Value {
    let count = shared.queries.fetch_add(1, Ordering::SeqCst);
    let (name, at) = place(&query["inputs"][2]);
    let mut bytes = regions[&name][at].to_vec();
    if shared.fault == Fault::Output {
        bytes[1] ^= 0x80;
    }
    let outputs = query["outputs"].as_array().unwrap();
    let mut sum = checksum(&bytes);
    if let Some(o) = outputs.iter().find(|output| output["name"] == "o") {
        let (name, at) = place(o);
        regions.get_mut(&name).unwrap()[at].copy_from_slice(&bytes);
        sum += u64::from(shared.fault == Fault::Apart);
    }
    if matches!(shared.fault, Fault::Checksum(right) if count >= right && count.is_multiple_of(4)) {
        sum = sum.wrapping_add(1);
    }
    json!({"outputs": [{"name": "checksum", "datatype": "UINT64", "shape": [1], "data": [sum]}]})
}

#[test]
fn a_server_of_attention_is_measured_checked_and_left_as_it_was() {
    let served = Served::start(&["--operations"]);
    let rest = ["--concurrency", "1,4", "--seconds", "1", "--warmup", "0.2"];
    for (sizes, present) in [
        (&["--tokens", "200", "--block", "64", "--blocks", "9", "--sets", "3", "--heads", "2", "--head-dim", "16"][..], 9),
        (&["--tokens", "8", "--head-dim", "8", "--blocks", "0", "--sets", "1"], 0),
    ] {
        let report = served.load(&[&["--route", "attention"][..], sizes, &rest].concat());
        assert_eq!((&report["route"], &report["models"], &report["tensors"]["blocks"]), (&json!("attention"), &json!(["op.attention"]), &json!(present)));
        let proven = &report["proven"];
        assert_eq!(
            (&proven["wrong"], proven["sets"].as_u64(), proven["rows"].as_u64() > Some(0)),
            (&json!([]), report["tensors"]["sets"].as_u64().map(|sets| sets.min(2)), true),
            "{report}"
        );
        for run in report["runs"].as_array().unwrap() {
            assert!(run["answered"].as_u64().unwrap() > 5 && run["wrong"] == 0 && run["tokens_per_second"].is_null(), "{run}");
            #[cfg(target_os = "linux")]
            for name in ["server_cpu_us", "client_cpu_us", "server_cores", "client_cores"] {
                assert!(run[name].as_f64().is_some_and(|cost| cost >= 0.0), "{name}: {run}");
            }
        }
        let (status, left) = served.ask("/v2/trifuse/regions", &json!(null));
        assert_eq!((status, &left["regions"], &left["used_byte_size"]), (200, &json!([]), &json!(0)));
    }
}

#[test]
fn sets_that_the_server_has_no_room_for_are_told_and_leave_nothing() {
    let served = Served::start(&["--operations", "--region-bytes", "8192"]);
    let url = format!("http://{}", served.address());
    let output = run(&[&["load", &url, "--concurrency", "1", "--sets", "300"][..], &TINY].concat());
    assert!(output.status.code() == Some(2) && err(&output).contains("--region-bytes"), "{}", err(&output));
    let (_, left) = served.ask("/v2/trifuse/regions", &json!(null));
    assert_eq!(left["used_byte_size"], 0);
    let output = run(&[&["load", &Standin::new(Fault::Full).url, "--concurrency", "1"][..], &TINY].concat());
    assert!(output.status.code() == Some(2) && err(&output).contains("no more bytes"), "{}", err(&output));
}

#[test]
fn a_checksum_that_changes_under_load_is_counted_as_wrong() {
    let right = Standin::new(Fault::None);
    let (status, report) = right.load(&["--concurrency", "2", "--sets", "3", "--check"]);
    assert_eq!((status, &report["runs"][0]["wrong"], right.regions()), (Some(0), &json!(0), (0, 4)), "{report}");
    assert_eq!(report["runs"][0]["server_cpu_us"], Value::Null, "this one does not tell");
    // Each set is asked alone, and two of them are read back.
    let server = Standin::new(Fault::Checksum(5));
    let (status, report) = server.load(&["--concurrency", "2", "--sets", "3", "--check"]);
    let run = &report["runs"][0];
    let [answered, wrong] = ["answered", "wrong"].map(|name| run[name].as_u64().unwrap());
    assert!(status == Some(1) && wrong > 2 && wrong.abs_diff(answered / 4) <= 2 + answered / 50, "{run}");
    assert_eq!((&report["proven"]["wrong"], server.regions()), (&json!([]), (0, 4)));
    let (status, report) = Standin::new(Fault::Checksum(5)).load(&["--concurrency", "2", "--sets", "3"]);
    assert_eq!((status, &report["runs"][0]["wrong"], &report["proven"]), (Some(0), &json!(0), &Value::Null), "nothing is compared without --check");
}

#[test]
fn outputs_that_are_wrong_from_the_start_are_found_and_nothing_is_measured() {
    for (fault, words) in [(Fault::Output, "rows 0 to 0: max |error|"), (Fault::Apart, "the output's checksum is")] {
        let server = Standin::new(fault);
        let options = [&["load", &server.url, "--concurrency", "2", "--sets", "3", "--check"][..], &TINY].concat();
        let output = run(&options);
        assert!(output.status.code() == Some(1) && out(&output).contains(words), "{fault:?}: {}", out(&output));
        let (_, report) = server.load(&["--concurrency", "2", "--sets", "3", "--check"]);
        assert_eq!((&report["runs"], server.regions().0), (&json!([]), 0));
        assert!(report["proven"]["wrong"].as_array().unwrap().len() >= 2, "{report}");
    }
}

#[test]
fn an_interrupt_leaves_no_region() {
    let server = Standin::new(Fault::None);
    let began = Instant::now();
    let options = [&["load", &server.url, "--json", "--concurrency", "2", "--seconds", "60", "--sets", "3"][..], &TINY].concat();
    let child = trifuse(&options).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    while server.shared.queries.load(Ordering::SeqCst) < 50 {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing is asked");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.regions(), (3, 0));
    assert!(std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), object(&output, "load")["complete"].as_bool(), server.regions()), (Some(130), Some(false), (0, 3)));
}

#[test]
fn options_that_do_not_go_together_are_refused_before_anything_is_sent() {
    let server = Standin::new(Fault::None);
    let url = server.url.as_str();
    for (options, told) in [
        (&["--sets", "3"][..], "--route attention"),
        (&["--route", "completions", "--blocks", "0"], "--route attention"),
        (&["--route", "attention", "--model", "base"], "--model"),
        (&["--route", "attention", "--adapters", "mixed"], "--adapters"),
        (&["--route", "attention", "--ids"], "--ids"),
        (&["--route", "attention", "--stream"], "--stream"),
        (&["--route", "attention", "--inputs", "2"], "--inputs"),
        (&["--route", "attention", "--length", "2"], "--length"),
        (&["--route", "attention", "--texts", "not-there.txt"], "--texts"),
        (&["--route", "attention", "--block", "32"], "64 or 128"),
        (&["--route", "attention", "--blocks", "3"], "63 to 3969"),
        (&["--route", "attention", "--blocks", "0", "--block", "64"], "--block"),
        (&["--route", "attention", "--tokens", "7", "--head-dim", "7"], "multiple of 8"),
        (&["--route", "attention", "--sets", "0"], "--sets"),
    ] {
        let output = run(&[&["load", url, "--rate", "1"][..], options].concat());
        assert!(output.status.code() == Some(2) && err(&output).contains(told), "{options:?}: {}", err(&output));
    }
    assert_eq!(server.shared.queries.load(Ordering::SeqCst) + server.shared.deleted.load(Ordering::SeqCst), 0);
    let other = Served::start(&["--operations"]);
    let output = run(&["load", &format!("http://{}/elsewhere", other.address()), "--rate", "1", "--route", "attention"]);
    assert!(output.status.code() == Some(2) && err(&output).contains("op.attention"), "{}", err(&output));
}
