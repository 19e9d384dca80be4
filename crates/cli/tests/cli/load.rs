//! `load` against a stand-in for a server, which answers as the model's name says.
#![cfg(feature = "serve")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::support::{err, object, out, run, scratch, text, trifuse};

/// A server that goes on until the test's process ends.
struct Standin {
    url: String,
    requests: Arc<AtomicU64>,
}

/// What all connections of a stand-in share.
#[derive(Default)]
struct Shared {
    requests: Arc<AtomicU64>,
    /// When the first request came.
    first: OnceLock<Instant>,
    /// Held while all of it stalls, once.
    stall: Mutex<bool>,
}

impl Standin {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared::default());
        let requests = Arc::clone(&shared.requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&shared);
                // A client that goes away ends its connection's thread by an error.
                std::thread::spawn(move || drop(connection(&stream, &shared)));
            }
        });
        Self { url, requests }
    }

    fn load(&self, options: &[&str]) -> (Option<i32>, Value) {
        let output = run(&[&["load", &self.url, "--json", "--quiet", "--seconds", "1", "--warmup", "0.2"][..], options].concat());
        (output.status.code(), object(&output, "load"))
    }
}

/// The next request's path, headers and body; nothing at the end of the connection.
pub fn request(stream: &mut BufReader<&TcpStream>) -> std::io::Result<Option<(String, String, Vec<u8>)>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Ok(None);
        }
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    Ok(Some((path, head, body)))
}

fn connection(stream: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    writer.set_nodelay(true)?;
    let mut on_this = 0;
    while let Some((path, head, body)) = request(&mut reader)? {
        on_this += 1;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mut say = |status: u16, body: &Value| write_answer(&mut writer, status, "", body);
        if path == "/v1/models" {
            if head.contains("authorization: Bearer wrong") {
                say(401, &json!({"error": {"message": "no such key"}}))?;
                continue;
            }
            let names = ["base", "copy", "one", "two"];
            let card = |name: &str| json!({"id": name, "parent": if name == "base" { Value::Null } else { "base".into() }});
            say(200, &json!({"data": names.map(card)}))?;
            continue;
        }
        if path == "/metrics" {
            // A thousandth of a second for each request.
            let text = format!("process_cpu_seconds_total {}\n", shared.requests.load(Ordering::SeqCst) as f64 / 1e3);
            writer.write_all(format!("HTTP/1.1 200 X\r\ncontent-length: {}\r\n\r\n{text}", text.len()).as_bytes())?;
            continue;
        }
        if path.starts_with("/moved") {
            write_answer(&mut writer, 308, "location: http://there/v1\r\n", &Value::Null)?;
            continue;
        }
        let count = shared.requests.fetch_add(1, Ordering::SeqCst);
        let model = body["model"].as_str().unwrap_or_default().to_owned();
        let asked = body["input"].to_string();
        let vector = |model: &str| json!({"data": [{"embedding": format!("{model} {asked}")}]});
        match model.as_str() {
            "copy" => say(200, &vector("base"))?,
            "busy" if count % 2 == 1 => say(429, &json!({"error": {"message": "later"}}))?,
            "failing" if count % 2 == 1 => say(500, &json!({"error": {"message": "broken inside"}}))?,
            "changing" => say(200, &vector(&count.to_string()))?,
            "nobody" => say(404, &json!({"error": {"message": "there is no \"nobody\" here"}}))?,
            // An answer that is broken off, and a connection that ends between two requests.
            "vanishing" if on_this % 3 == 0 => {
                writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")?;
                return Ok(());
            }
            "brief" if on_this > 2 => return Ok(()),
            "stalling" => {
                let mut stalled = shared.stall.lock().unwrap();
                if shared.first.get_or_init(Instant::now).elapsed() > Duration::from_millis(500) && !*stalled {
                    *stalled = true;
                    std::thread::sleep(Duration::from_millis(500));
                }
                drop(stalled);
                say(200, &vector("stalling"))?;
            }
            "speaking" => speak(&mut writer)?,
            name => say(200, &vector(name))?,
        }
    }
    Ok(())
}

pub fn write_answer(writer: &mut &TcpStream, status: u16, more: &str, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    writer.write_all(format!("HTTP/1.1 {status} X\r\n{more}content-length: {}\r\n\r\n{body}", body.len()).as_bytes())
}

/// Five pieces of text, 10 ms apart.
fn speak(writer: &mut &TcpStream) -> std::io::Result<()> {
    writer.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
    let mut chunk = |text: String| writer.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes());
    for piece in 0..5 {
        std::thread::sleep(Duration::from_millis(10));
        chunk(format!("data: {}\n\n", json!({"choices": [{"text": format!("w{piece} ")}]})))?;
    }
    chunk(format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [], "usage": {"completion_tokens": 10}})))?;
    writer.write_all(b"0\r\n\r\n")
}

#[test]
fn every_request_of_a_rate_is_counted_and_checked() {
    let server = Standin::new();
    let (status, report) = server.load(&["--rate", "100", "--model", "one", "--model", "two", "--check", "--seed", "5"]);
    let run = &report["runs"][0];
    assert_eq!(status, Some(0), "{report}");
    let count = |name: &str| run[name].as_u64().unwrap();
    assert!((60..150).contains(&count("requests")), "{run}");
    assert_eq!((count("answered"), run["latency"]["count"].as_u64()), (count("requests"), run["requests"].as_u64()), "{run}");
    assert_eq!(["refused", "without_answer", "unsent", "wrong"].map(count), [0; 4], "{run}");
    let cost = run["server_cpu_us"].as_f64().unwrap();
    assert!((500.0..2000.0).contains(&cost), "a thousandth of a second each, {cost}");
    assert!(server.requests.load(Ordering::SeqCst) >= count("requests") + 2, "each model is asked once before");
    assert_eq!((report["checked"].as_bool(), report["models"].as_array().unwrap().len(), report["seed"].as_u64()), (Some(true), 2, Some(5)));
    assert!(report["machine"]["cores"].as_u64().unwrap() >= 1 && report["environment"]["version"].is_string());
}

#[test]
fn answers_that_change_and_those_of_the_base_are_wrong() {
    let server = Standin::new();
    let (status, report) = server.load(&["--rate", "100", "--model", "changing", "--check", "--length", "1"]);
    assert_eq!((status, report["runs"][0]["wrong"].as_u64().unwrap() > 0), (Some(1), true), "{report}");
    let (status, report) = server.load(&["--rate", "400", "--adapters", "mixed", "--check", "--length", "1"]);
    assert_eq!((status, report["runs"][0]["wrong"].as_u64()), (Some(1), Some(0)), "{report}");
    let [compared, same] = ["compared_with_base", "answered_as_base"].map(|name| report[name].as_u64().unwrap());
    assert!(0 < same && same < compared, "one of three adapters says what the base says: {same} of {compared}");
}

#[test]
fn refusals_failures_and_answers_that_never_come_are_told_apart() {
    let server = Standin::new();
    let (status, report) = server.load(&["--rate", "80", "--model", "busy"]);
    let run = &report["runs"][0];
    assert!(run["refused"].as_u64().unwrap() > 10 && run["refusal"]["count"] == run["refused"], "{run}");
    assert_eq!((status, &run["without_answer"]), (Some(0), &json!(0)), "to refuse is no fault");
    let (_, report) = server.load(&["--rate", "80", "--model", "failing"]);
    let run = &report["runs"][0];
    assert!(run["failed"]["500"].as_u64().unwrap() > 10 && run["faults"]["500: broken inside"] == run["failed"]["500"], "{run}");
    let (status, report) = server.load(&["--rate", "80", "--model", "vanishing"]);
    let run = &report["runs"][0];
    assert!(run["without_answer"].as_u64().unwrap() > 5, "{run}");
    assert_eq!(status, Some(1));
    let sum: u64 = ["answered", "refused", "without_answer", "unsent"].map(|name| run[name].as_u64().unwrap()).iter().sum();
    assert_eq!(run["requests"].as_u64(), Some(sum), "{run}");
    // A connection that the server ends between two requests is no loss.
    let (status, report) = server.load(&["--rate", "80", "--model", "brief"]);
    assert_eq!((status, &report["runs"][0]["without_answer"]), (Some(0), &json!(0)), "{report}");
}

#[test]
fn an_open_loop_shows_a_stall_that_a_closed_one_hides() {
    let p90 = |options: &[&str]| {
        let server = Standin::new();
        let (_, report) = server.load(&[&["--model", "stalling"][..], options].concat());
        let run = &report["runs"][0];
        (run["latency"]["p90"].as_f64().unwrap(), run["sent_late"]["p90"].as_f64().unwrap(), run["latency"]["max"].as_f64().unwrap())
    };
    let (open, prompt, _) = p90(&["--rate", "200"]);
    assert!(open > 0.2, "half of the requests were due while all stood still: p90 {open} s");
    let (one, late, _) = p90(&["--rate", "200", "--connections", "1"]);
    assert!(one > 0.2 && late > 0.2, "over one connection they are late, and counted from when they were due: {one} s, {late} s");
    // Where many tests share two cores, threads of the generator wait for one too.
    assert!(prompt < late || prompt < 0.2, "over many they were sent all the same: {prompt} s late, {late} s over one");
    let (closed, _, most) = p90(&["--concurrency", "2"]);
    assert!(closed < 0.2 && most > 0.4, "a closed loop waits with the server: p90 {closed} s, most {most} s");
}

#[test]
fn a_stream_is_timed_from_the_first_token_on() {
    let server = Standin::new();
    let (status, report) = server.load(&["--concurrency", "2", "--model", "speaking", "--route", "completions", "--stream", "--check", "--length", "1"]);
    let run = &report["runs"][0];
    assert_eq!(status, Some(0), "{report}");
    let p50 = |name: &str| run[name]["p50"].as_f64().unwrap();
    assert!(p50("first_token") >= 0.01 && p50("first_token") < p50("latency"), "{run}");
    assert!(p50("between_tokens") >= 0.01 && p50("latency") >= 0.05, "{run}");
    assert_eq!(run["between_tokens"]["count"].as_u64().unwrap(), run["first_token"]["count"].as_u64().unwrap() * 4);
    let tokens = run["tokens_per_second"].as_f64().unwrap() / run["goodput"].as_f64().unwrap();
    assert!((tokens - 10.0).abs() < 1e-6, "the server counts ten tokens an answer, {tokens}");
}

#[test]
fn several_rates_make_a_table_a_file_and_a_picture() {
    let (server, folder) = (Standin::new(), scratch());
    let [file, picture] = ["load.json", "load.svg"].map(|name| folder.path().join(name));
    let options = ["load", &server.url, "--rate", "50,100", "--seconds", "0.5", "--warmup", "0", "-o", text(&file), "--picture", text(&picture)];
    let output = run(&options);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    for word in ["50/s", "100/s", "p99.9", "no answer", "Poisson"] {
        assert!(out(&output).contains(word), "{word} is not in\n{}", out(&output));
    }
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!((report["command"].as_str(), report["runs"].as_array().unwrap().len(), &report["runs"][1]["rate"]), (Some("load"), 2, &json!(100.0)));
    let drawn = std::fs::read_to_string(&picture).unwrap();
    for word in ["<svg", "by percentile", "by rate", "100/s", "p99.9"] {
        assert!(drawn.contains(word), "{word} is not in the picture");
    }
}

#[test]
fn what_cannot_be_asked_is_told_before_anything_is_measured() {
    let server = Standin::new();
    let folder = scratch();
    let [key, odd] = ["key", "odd"].map(|name| folder.path().join(name));
    std::fs::write(&key, "wrong\n").unwrap();
    std::fs::write(&odd, "two words").unwrap();
    let closed = { TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let closed = format!("http://{closed}");
    let (url, moved) = (server.url.as_str(), format!("{}/moved", server.url));
    for (options, status, told) in [
        (vec![closed.as_str(), "--rate", "1"], 4, "trifuse serve"),
        (vec!["https://localhost", "--rate", "1"], 2, "behind it"),
        (vec![url], 2, "--rate"),
        (vec![url, "--rate", "0"], 2, "0.001"),
        (vec![url, "--rate", "1", "--concurrency", "1"], 2, "--concurrency"),
        (vec![url, "--rate", "1", "--model", "nobody"], 2, "there is no"),
        (vec![url, "--rate", "1", "--api-key-file", text(&key)], 2, "no such key"),
        (vec![url, "--rate", "1", "--api-key-file", text(&odd)], 4, "one line"),
        (vec![moved.as_str(), "--rate", "1"], 2, "http://there/v1"),
        (vec![url, "--rate", "1", "--stream"], 2, "--route completions"),
        (vec![url, "--rate", "1", "--ids", "--texts", "x"], 2, "--ids"),
        (vec![url, "--rate", "1", "--texts", "not-there.txt"], 4, "not-there.txt"),
    ] {
        let output = run(&[&["load"][..], &options].concat());
        assert_eq!(output.status.code(), Some(status), "{options:?}: {}", err(&output));
        assert!(err(&output).contains(told), "{options:?}: {}", err(&output));
    }
    assert!(server.requests.load(Ordering::SeqCst) <= 1, "nothing but the model that is not there was asked");
}

#[cfg(unix)]
#[test]
fn an_interrupt_keeps_what_was_measured() {
    let server = Standin::new();
    let began = Instant::now();
    let options = ["load", &server.url, "--json", "--rate", "100,200", "--seconds", "60", "--warmup", "0"];
    let child = trifuse(&options).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    while server.requests.load(Ordering::SeqCst) < 50 {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing is asked");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let report = object(&output, "load");
    assert_eq!((output.status.code(), report["complete"].as_bool()), (Some(130), Some(false)), "{report}");
    assert!(began.elapsed() < Duration::from_secs(40));
    let runs = report["runs"].as_array().unwrap();
    assert!(runs.len() == 1 && runs[0]["answered"].as_u64().unwrap() > 30 && runs[0]["seconds"].as_f64().unwrap() < 30.0, "{report}");
}
