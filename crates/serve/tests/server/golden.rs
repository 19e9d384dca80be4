//! Whole answers as bytes: what a request of `tests/golden` is answered lies beside it, and is compared byte for byte, but for the time and for ids that the
//! server makes. The vectors are drawn by a stand-in, so that they are the same on every processor.
//!
//! `TRIFUSE_RENEW=1` writes the answers anew; what has changed is then part of the change that did it.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use trifuse::Result;
use trifuse::model::Row;
use trifuse_serve::operations::{Operate, OperationsModel};
use trifuse_serve::{Embedder, Models};

use crate::kserve::operator;
use crate::support::parrot::Parrot;
use crate::support::tiny;
use crate::{Running, config};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

/// An encoder whose vectors are the ids of a sentence, and a half behind them where there is an adapter.
#[derive(Default)]
struct Plain(VecDeque<Vec<f32>>);

impl Embedder for Plain {
    fn submit(&mut self, rows: &[Row<'_>], wanted: usize) -> Result<()> {
        let vector = |row: &Row<'_>| {
            let mut vector: Vec<f32> = row.ids.iter().map(|id| *id as f32).collect();
            vector.extend(row.adapter.map(|_| 0.5));
            vector.resize(tiny::WIDTH, 0.0);
            vector
        };
        self.0.push_back(rows.iter().take(wanted).flat_map(vector).collect());
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<f32>> {
        Ok(self.0.pop_front().unwrap())
    }
}

fn server() -> Running {
    let folder = tiny::folder();
    let embeddings = tiny::model_with(folder.path(), |opened| opened.embedder = Box::<Plain>::default());
    let open = || Ok(Box::new(operator()) as Box<dyn Operate>);
    let operations = OperationsModel { device: "cpu:0".into(), open: Box::new(open), region_bytes: 1 << 20 };
    let models = Models { embeddings: Some(embeddings), generator: Some(Arc::<Parrot>::default()), operations: Some(operations) };
    Running::start(config(|_| {}), folder, models)
}

/// All that the server says to these bytes until it closes the connection.
fn ask(addr: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    // A connection that is closed with bytes of the request unread may be reset behind the answer.
    drop(stream.read_to_end(&mut answer));
    answer
}

/// Puts `with` in the place of what follows `mark` for as long as `those` holds.
fn mask(answer: &mut Vec<u8>, mark: &str, with: &str, those: fn(u8) -> bool) {
    let mut at = 0;
    while let Some(found) = answer[at..].windows(mark.len()).position(|bytes| bytes == mark.as_bytes()) {
        let from = at + found + mark.len();
        let length = answer[from..].iter().take_while(|byte| those(**byte)).count();
        answer.splice(from..from + length, with.bytes());
        at = from;
    }
}

/// An answer without what no two servers have in common.
fn masked(mut answer: Vec<u8>) -> Vec<u8> {
    mask(&mut answer, "\r\ndate: ", "DATE", |byte| byte != b'\r');
    mask(&mut answer, "\"created\":", "TIME", |byte| byte.is_ascii_digit());
    ["\"cmpl-", "\"chatcmpl-"].into_iter().for_each(|mark| mask(&mut answer, mark, "ID", |byte| byte.is_ascii_hexdigit()));
    // The version of the server, which is told once.
    let version = concat!("\"", env!("CARGO_PKG_VERSION"), "\"");
    mask(&mut answer, "\"version\":", "\"VERSION\"", |byte| byte != b',' && byte != b'}');
    assert!(!answer.windows(version.len()).any(|bytes| bytes == version.as_bytes()), "the version is told elsewhere");
    answer
}

#[test]
fn whole_answers_are_byte_for_byte_those_that_are_kept() {
    let server = server();
    let addr = server.handle().addr();
    let mut requests: Vec<_> = std::fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path()).collect();
    requests.retain(|path| path.extension().is_some_and(|extension| extension == "request"));
    requests.sort_unstable();
    assert!(requests.len() > 40, "{} requests in {FOLDER}", requests.len());
    let renew = std::env::var_os("TRIFUSE_RENEW").is_some();
    let differs = |path: &Path| {
        let answer = masked(ask(addr, &std::fs::read(path).unwrap()));
        let kept = path.with_extension("answer");
        if renew {
            std::fs::write(&kept, &answer).unwrap();
        }
        let known = std::fs::read(&kept).unwrap_or_default();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (known != answer).then(|| format!("{}: kept:\n{}\nfound:\n{}", path.display(), text(&known), text(&answer)))
    };
    let differ: Vec<String> = requests.iter().filter_map(|path| differs(path)).collect();
    assert!(differ.is_empty(), "{}", differ.join("\n\n"));
}
