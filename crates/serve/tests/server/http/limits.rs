//! Keys, sizes and times: what goes past its limit is told, or its connection ends.

use std::time::{Duration, Instant};

use serde_json::json;
use trifuse_serve::Keys;

use crate::Running;
use crate::support::client::Client;

fn ask() -> Vec<u8> {
    json!({"model": "tiny", "input": "w1 w2"}).to_string().into_bytes()
}

/// Who has the key "secret", as a line of a key file: its SHA-256.
const ANN: &str = "ann:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
/// Who has the key "other".
const BOB: &str = "bob:d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";

/// The keys of a file with these lines.
fn keys(lines: &str) -> Keys {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    Keys::open(file.path()).unwrap()
}

#[test]
fn who_has_no_key_is_refused() {
    let keys = keys(ANN);
    let server = Running::with(move |config| config.keys = keys, |_| {});
    let mut client = server.client();
    for given in [None, Some("secret"), Some("Bearer other"), Some("Bearer"), Some("Basic secret")] {
        let headers: Vec<(&str, &str)> = given.map(|given| ("authorization", given)).into_iter().collect();
        let answer = client.send("POST", "/v1/embeddings", &headers, &ask()).unwrap();
        assert_eq!((answer.status, answer.code().as_str()), (401, "invalid_api_key"), "{given:?}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
    }
    assert_eq!(client.get("/v1/models").status, 401);
    assert_eq!(client.get("/health").status, 200);
    for given in ["Bearer secret", "bearer  secret"] {
        assert_eq!(client.send("POST", "/v1/embeddings", &[("authorization", given)], &ask()).unwrap().status, 200, "{given:?}");
    }
}

#[test]
fn keys_change_while_the_server_runs_and_metrics_ask_for_one_where_they_are_told_to() {
    let first = keys(ANN);
    let server = Running::with(move |config| (config.keys, config.metrics_key) = (first, true), |_| {});
    // A connection that is kept is asked for its key by each request.
    let mut client = server.client();
    let mut statuses = || {
        let of = |key: &str| format!("Bearer {key}");
        ["/v1/models", "/metrics", "/status"]
            .map(|path| ["secret", "other"].map(|key| client.send("GET", path, &[("authorization", &of(key))], b"").unwrap().status))
    };
    assert_eq!(statuses(), [[200, 401]; 3]);
    server.handle().renew_keys(keys(BOB));
    assert_eq!(statuses(), [[401, 200]; 3]);
    assert_eq!([server.client().get("/metrics").status, server.client().get("/health").status], [401, 200]);
}

#[test]
fn a_body_that_is_too_large_or_of_another_type_is_not_read() {
    let server = Running::with(|config| config.limits.embeddings_bytes = 1000, |_| {});
    let mut client = server.client();
    let answer = client.send("POST", "/v1/embeddings", &[], &[b' '; 1001]).unwrap();
    assert_eq!((answer.status, answer.code().as_str(), answer.closes()), (413, "request_too_large", true));
    let mut client = server.client();
    client.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    (0..3).for_each(|_| client.write(&[b"190\r\n", &[b' '; 400][..], b"\r\n"].concat()).unwrap());
    assert_eq!(client.answer().unwrap().code(), "request_too_large");
    for kind in ["content-type: text/plain\r\n", "", "content-type: application/jsonl\r\n"] {
        let mut client = server.client();
        client.write(format!("POST /v1/embeddings HTTP/1.1\r\nhost: x\r\n{kind}content-length: 2\r\n\r\n{{}}").as_bytes()).unwrap();
        let answer = client.answer().unwrap();
        assert_eq!((answer.status, answer.code().as_str()), (415, "unsupported_media_type"), "{kind:?}");
    }
    let mut client = server.client();
    let body = ask();
    let head = format!("POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: Application/JSON; charset=utf-8\r\ncontent-length: {}\r\n\r\n", body.len());
    client.write(&[head.as_bytes(), &body].concat()).unwrap();
    assert_eq!(client.answer().unwrap().status, 200);
}

#[test]
fn bodies_of_all_together_have_a_bound() {
    let server = Running::with(|config| config.limits.held_bytes = 4 << 10, |_| {});
    let mut slow = server.client();
    slow.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 3500\r\n\r\n{").unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let answer = server.client().send("POST", "/v1/embeddings", &[], &ask()).unwrap();
    assert_eq!((answer.status, answer.code().as_str(), answer.closes()), (429, "overloaded", true));
    drop(slow);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(server.client().send("POST", "/v1/embeddings", &[], &ask()).unwrap().status, 200);
}

#[test]
fn a_slow_body_is_told_and_its_connection_ends() {
    let server = Running::with(|config| config.limits.body = Duration::from_millis(200), |_| {});
    let mut client = server.client();
    client.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{").unwrap();
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (408, "request_timeout"));
    assert!(client.ends());
}

#[test]
fn a_slow_header_and_an_idle_connection_end() {
    let (short, long) = (Duration::from_millis(300), Duration::from_secs(60));
    for (header, idle, sent) in [(short, long, &b"GET /health HTT"[..]), (long, short, b"")] {
        let server = Running::with(move |config| (config.limits.header, config.limits.idle) = (header, idle), |_| {});
        let mut client = server.client();
        assert_eq!(client.get("/health").status, 200);
        client.write(sent).unwrap();
        let began = Instant::now();
        assert!(client.ends());
        assert!((short..Duration::from_secs(10)).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}

#[test]
fn connections_past_the_limit_wait_their_turn() {
    let server = Running::with(|config| config.limits.connections = 2, |_| {});
    let mut two = [server.client(), server.client()];
    assert!(two.iter_mut().all(|client| client.get("/health").status == 200));
    let addr = server.handle().addr();
    let third = std::thread::spawn(move || Client::to(addr).unwrap().get("/health").status);
    std::thread::sleep(Duration::from_millis(200));
    assert!(!third.is_finished());
    drop(two);
    assert_eq!(third.join().unwrap(), 200);
}

#[test]
fn a_key_that_has_had_what_it_may_a_second_is_told_when_to_ask_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let open = |lines: &str| {
        std::fs::write(file.path(), lines).unwrap();
        Keys::open(file.path()).unwrap()
    };
    // The SHA-256 of "secret" and of "other".
    let [secret, other] =
        ["2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b", "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"];
    let keys = open(&format!("ann:{secret}:requests=3\nbob:{other}:tokens=5"));
    let server = Running::with(move |config| config.keys = keys, |_| {});
    let mut client = server.client();
    let mut send = |key: &str, ids: &[u32]| {
        let body = json!({"model": "tiny", "input": ids}).to_string();
        let answer = client.send("POST", "/v1/embeddings", &[("authorization", &format!("Bearer {key}"))], body.as_bytes()).unwrap();
        let code = if answer.status == 200 { String::new() } else { answer.code() };
        (answer.status, code, answer.headers.get("retry-after").cloned())
    };
    let refused = (429, "rate_limit_exceeded".to_owned(), Some("1".to_owned()));
    let began = Instant::now();
    let (few, later): (Vec<_>, _) = ((0..3).map(|_| send("secret", &[0, 5, 1])).collect(), send("secret", &[0, 5, 1]));
    // On a machine that stands still for a third of a second a fourth has come in.
    if began.elapsed() < Duration::from_millis(300) {
        assert_eq!((few.iter().all(|(status, ..)| *status == 200), &later), (true, &refused));
    }
    // Tokens are counted, whatever the requests; what is asked at once may be more, and is made up for: 9 tokens take 0.8 s and then some.
    assert_eq!([send("other", &[0, 5, 6, 7, 8, 9, 10, 11, 1]).0, send("other", &[7; 4]).0], [200, 429]);
    let began = Instant::now();
    while send("other", &[7; 4]).0 == 429 {
        assert!(began.elapsed() < Duration::from_secs(20), "it is never let in again");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(began.elapsed() > Duration::from_millis(1200), "{:?}", began.elapsed());
    // Where the file says nothing more nobody is counted.
    server.handle().renew_keys(open(&format!("ann:{secret}")));
    assert!((0..20).all(|_| send("secret", &[0, 5, 1]).0 == 200));
}
