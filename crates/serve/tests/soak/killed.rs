//! Client processes that are killed in the middle of what they ask: this program, started again.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::life::Life;
use super::mutate::Rng;
use super::support::client::Client;
use super::world::World;

/// The variable of the environment that has this program be a client process: the file of its requests, behind an address and a seed.
const BE_CLIENT: &str = "TRIFUSE_SOAK_BE_CLIENT";
/// How long it is from one kill to the next.
const PERIOD: Duration = Duration::from_millis(500);
/// Connections of a client process.
const CONNECTIONS: usize = 3;

/// A request of a client process, and what a right answer has in it.
#[derive(Serialize, Deserialize)]
struct Ask {
    path: String,
    body: String,
    has: String,
}

/// What a client process tells of a request, a byte each: before it is sent, and what came of it.
const SENT: u8 = b'.';
const RIGHT: u8 = b'r';
const REFUSED: u8 = b'-';
const FAILED: u8 = b'f';
const LOST: u8 = b'l';
const WRONG: u8 = b'!';

/// Writes the requests of client processes: vectors, streams, and checksums of attention.
pub fn write_asks(world: &World, file: &Path) {
    let mut asks = Vec::new();
    for vector in &world.vectors {
        let bytes: Vec<u8> = vector.bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        let body = json!({"model": vector.model, "input": vector.text, "encoding_format": "base64"}).to_string();
        asks.push(Ask { path: "/v1/embeddings".into(), body, has: format!("\"embedding\":\"{}\"", BASE64_STANDARD.encode(bytes)) });
    }
    for writing in &world.writings {
        let mut body = writing.ask.clone();
        body["stream"] = true.into();
        asks.push(Ask { path: "/v1/completions".into(), body: body.to_string(), has: "data: [DONE]".into() });
    }
    for query in world.queries.iter().flatten() {
        let mut body = query.case.in_json();
        body["outputs"] = json!([{"name": "checksum"}]);
        asks.push(Ask { path: "/v2/models/op.attention/infer".into(), body: body.to_string(), has: format!("\"data\":[{}]", query.sum) });
    }
    std::fs::write(file, serde_json::to_vec(&asks).unwrap()).unwrap();
}

/// Whether this program was started as a client process, which it then was.
pub fn was_client() -> bool {
    let Ok(told) = std::env::var(BE_CLIENT) else { return false };
    let [addr, seed, file] = told.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
    let asks: Vec<Ask> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let (addr, seed): (SocketAddr, u64) = (addr.parse().unwrap(), seed.parse().unwrap());
    std::thread::scope(|scope| {
        for number in 0..CONNECTIONS as u64 {
            let (asks, rng) = (&asks, Rng::seed_from_u64(seed + number));
            scope.spawn(move || ask_until_killed(addr, asks, rng));
        }
    });
    true
}

/// Asks and tells, until it is killed or the server is gone.
fn ask_until_killed(addr: SocketAddr, asks: &[Ask], mut rng: Rng) {
    let tell = |byte: u8| {
        let mut out = std::io::stdout().lock();
        out.write_all(&[byte]).and_then(|()| out.flush()).is_ok()
    };
    while let Ok(mut client) = Client::to(addr) {
        loop {
            let ask = &asks[rng.random_range(0..asks.len())];
            if !tell(SENT) {
                return;
            }
            let Ok(answer) = client.send("POST", &ask.path, &[], ask.body.as_bytes()) else { break };
            let told = match answer.status {
                200 if String::from_utf8_lossy(&answer.body).contains(&ask.has) => RIGHT,
                500 => FAILED,
                // No room, or a lost device: it may have been let in, or not.
                503 if !String::from_utf8_lossy(&answer.body).contains("ending") => LOST,
                429 | 503 => REFUSED,
                _ => WRONG,
            };
            tell(told);
            if told != RIGHT {
                std::thread::sleep(Duration::from_millis(20));
            }
            if answer.closes() {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts client processes and kills them, one after the other, until the server is to end.
pub fn kill_clients(life: &Life<'_>) {
    let mut rng = life.rng(300);
    let program = std::env::current_exe().unwrap();
    while !life.is_ending() {
        let began = Instant::now();
        let told = format!("{} {} {}", life.addr(), rng.random::<u32>(), life.world.asks().display());
        let mut client = Command::new(&program).env(BE_CLIENT, told).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(rng.random_range(250..480)));
        count(life, &mut client);
        std::thread::sleep(PERIOD.saturating_sub(began.elapsed()));
    }
}

/// Kills a client process, and counts what it has told. What it had asked for when it died may have been let in or not.
fn count(life: &Life<'_>, client: &mut Child) {
    // By SIGKILL, where there are signals.
    client.kill().unwrap();
    let mut told = Vec::new();
    client.stdout.take().unwrap().read_to_end(&mut told).unwrap();
    let status = client.wait().unwrap();
    assert!(!status.success() || life.is_ending(), "a client process ended by itself");
    let of = |byte: u8| told.iter().filter(|told| **told == byte).count() as u64;
    let counts = &life.counts;
    assert_eq!(of(WRONG), 0, "a client process had a wrong answer: {}", String::from_utf8_lossy(&told));
    let known = of(RIGHT) + of(REFUSED) + of(FAILED);
    counts.right.many(of(RIGHT));
    counts.failed.many(of(FAILED));
    counts.strange.many(of(SENT) - known);
    counts.of_processes.many(of(SENT));
    counts.killed.one();
}
