use super::case::{Case, EDGES, OpKind, Posed};
use crate::oracle::checksum::Host;
use trifuse::ops::Checksum;

/// Ranges of random bytes, and random bytes between them.
fn case(name: impl std::fmt::Display, op: Checksum) -> Case {
    Case::new(OpKind::Checksum, name, move |draw| {
        let count = if op.ranges == 0 { 0 } else { op.start(op.ranges - 1) + op.bytes };
        let x = (0..count).map(|_| draw.word() as u8).collect();
        Ok(Posed { op: op.clone(), host: Host { x } }.into())
    })
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Ends of 1 to 15 bytes behind whole words and lines; ranges of an odd length begin at every byte of a word.
    cases.extend((2..18).map(|bytes| case(format!("bytes{bytes}"), Checksum::new(5, bytes))));
    cases.extend(EDGES.into_iter().filter(|bytes| *bytes > 18).map(|bytes| case(format!("bytes{bytes}"), Checksum::new(4, bytes))));
    // Where pieces of a range end, on the devices that cut it.
    cases.extend([65532, 65535, 65536, 65537, 65540, 200_003].map(|bytes| case(format!("pieces{bytes}"), Checksum::new(2, bytes))));
    cases.push(case("one_long", Checksum::new(1, 1_000_000)));
    cases.push(case("many_ranges", Checksum::new(300, 40)));
    cases.push(case("apart", Checksum::new(6, 1001).with_stride(1006)));
    cases.push(case("pieces_apart", Checksum::new(3, 140_000).with_stride(140_004)));
    cases.push(case("one_byte", Checksum::new(1, 1)).orderless("one byte"));
    cases.push(case("no_bytes", Checksum::new(3, 0)).orderless("no bytes"));
    cases.push(case("no_ranges", Checksum::new(0, 32)).zero("no ranges: nothing is written"));
    cases
}
