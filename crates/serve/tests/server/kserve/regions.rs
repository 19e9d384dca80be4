//! Memory of the device that queries name.

use serde_json::{Value, json};
use trifuse::DType;
use trifuse::ops::checksum::checksum;

use super::case::{Blocks, Case, dense, listed, mapped};
use super::{REGION_BYTES, error, infer, parts, send};
use crate::Running;
use crate::support::client::Client;

fn put(client: &mut Client, name: &str, query: &str, bytes: &[u8]) -> u16 {
    send(client, "PUT", &format!("/v2/trifuse/regions/{name}{query}"), &[("content-type", "application/octet-stream")], bytes).status
}

fn place(region: &str, offset: usize, bytes: usize) -> Value {
    json!({"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": bytes})
}

/// A request whose tensors lie in the region `all`, q, k and v one behind the other at multiples of 256, and their bytes.
fn resident(case: &Case) -> (Value, Vec<u8>) {
    let (mut all, mut inputs) = (Vec::new(), Vec::new());
    for (at, bytes) in case.bytes().iter().enumerate() {
        all.resize(all.len().next_multiple_of(256), 0);
        let mut input = case.input(at);
        input["parameters"] = place("all", all.len(), bytes.len());
        inputs.push(input);
        all.extend(bytes);
    }
    let (more, parameters) = case.more();
    inputs.extend(more);
    (json!({"inputs": inputs, "parameters": parameters}), all)
}

#[test]
fn tensors_that_lie_on_the_device_give_the_same_bits() {
    let server = Running::operating();
    let mut client = server.client();
    for dtype in DType::ALL {
        for case in [dense(dtype), mapped(dtype), listed(dtype)] {
            let (mut request, all) = resident(&case);
            let expected = case.of_library();
            assert_eq!(put(&mut client, "all", "", &all), 200);
            assert_eq!(put(&mut client, "o", &format!("?byte_size={}", expected.len() + 32), b""), 200);
            request["outputs"] = json!([{"name": "o", "parameters": place("o", 16, expected.len())}, {"name": "checksum"}]);
            let (told, binary) = parts(&infer(&mut client, "op.attention", &request, b""));
            assert_eq!((binary.len(), &told["outputs"][0]["parameters"]), (0, &place("o", 16, expected.len())));
            assert_eq!(told["outputs"][1]["data"], json!([checksum(&expected)]));
            let lies = client.get("/v2/trifuse/regions/o/bytes").body;
            assert_eq!((&lies[..16], &lies[16..16 + expected.len()], &lies[16 + expected.len()..]), (&[0; 16][..], &expected[..], &[0; 16][..]));
            request["outputs"] = json!([{"name": "o", "parameters": {"binary_data": true}}, {"name": "checksum"}]);
            let (whole, binary) = parts(&infer(&mut client, "op.attention", &request, b""));
            assert_eq!((binary, &whole["outputs"][1]["data"]), (expected, &told["outputs"][1]["data"]));
        }
    }
}

#[test]
fn blocks_may_lie_on_the_device_too() {
    let server = Running::operating();
    let mut client = server.client();
    for case in [mapped(DType::F16), listed(DType::F16)] {
        let (mut request, all) = resident(&case);
        assert_eq!(put(&mut client, "all", "", &all), 200);
        let tensors: Vec<(&str, Vec<u8>)> = match &case.blocks {
            Blocks::Map(bytes, _) => vec![("block_map", bytes.clone())],
            Blocks::Rows(rows, columns, _) => {
                [("row_ptr", rows), ("col_idx", columns)].map(|(name, list)| (name, list.iter().flat_map(|value| value.to_le_bytes()).collect())).into()
            }
            Blocks::All => panic!("blocks"),
        };
        // Bytes may begin at any place, also where the device does not copy them on its own.
        for skipped in if matches!(case.blocks, Blocks::Map(..)) { vec![0, 1, 0, 4] } else { vec![0, 4] } {
            for (at, (name, bytes)) in tensors.iter().enumerate() {
                assert_eq!(put(&mut client, name, "", &[&vec![7; skipped][..], bytes].concat()), 200);
                let input = &mut request["inputs"][3 + at];
                input.as_object_mut().unwrap().shift_remove("data");
                input["parameters"] = place(name, skipped, bytes.len());
            }
            request["parameters"]["binary_data_output"] = json!(true);
            assert_eq!(parts(&infer(&mut client, "op.attention", &request, b"")).1, case.of_library(), "{skipped} bytes before");
        }
    }
}

#[test]
fn a_region_is_made_read_written_replaced_and_removed() {
    let server = Running::operating();
    let mut client = server.client();
    assert_eq!(put(&mut client, "a", "", b"12345678"), 200);
    assert_eq!(client.get("/v2/trifuse/regions/a").json(), json!({"name": "a", "byte_size": 8}));
    assert_eq!(put(&mut client, "a", "?offset=4", b"ab"), 200);
    assert_eq!(client.get("/v2/trifuse/regions/a/bytes").body, b"1234ab78");
    assert_eq!(client.get("/v2/trifuse/regions/a/bytes?offset=3&byte_size=2").body, b"4a");
    assert_eq!(put(&mut client, "a", "?byte_size=6", b"xyz"), 200);
    assert_eq!(client.get("/v2/trifuse/regions/a/bytes").body, b"xyz\0\0\0");
    let told = client.get("/v2/trifuse/regions").json();
    assert_eq!(told, json!({"regions": [{"name": "a", "byte_size": 6}], "used_byte_size": 4096, "max_byte_size": REGION_BYTES}));
    for (name, query, bytes, status) in [
        ("a", "?offset=5", &b"ab"[..], 400),
        ("a", "?offset=18446744073709551615", b"ab", 400),
        ("b", "?offset=0", b"ab", 404),
        ("a", "?offset=0&byte_size=8", b"ab", 400),
        ("a", "?byte_size=1", b"ab", 400),
        ("a", "?byte_size=0", b"", 400),
        ("a", "?byte_size=x", b"", 400),
        ("a", "?byte_size=1&byte_size=1", b"", 400),
        ("a", "?size=1", b"", 400),
        ("a", "", b"", 400),
        ("b%2Fc", "", b"1", 400),
        ("b%20c", "", b"1", 400),
    ] {
        assert_eq!(put(&mut client, name, query, bytes), status, "{name}{query}");
    }
    for query in ["?offset=7", "?byte_size=7", "?offset=1&byte_size=18446744073709551615", "?other=1"] {
        assert_eq!(client.get(&format!("/v2/trifuse/regions/a/bytes{query}")).status, 400, "{query}");
    }
    assert_eq!(client.get("/v2/trifuse/regions/a/bytes").body, b"xyz\0\0\0", "what is refused changes nothing");
    assert_eq!(send(&mut client, "DELETE", "/v2/trifuse/regions/a", &[], b"").status, 200);
    assert_eq!(client.get("/v2/trifuse/regions/a/bytes").status, 404);
}

#[test]
fn more_than_the_quota_is_413_and_room_comes_back() {
    let server = Running::operating();
    let mut client = server.client();
    assert_eq!(put(&mut client, "a", &format!("?byte_size={}", REGION_BYTES / 2), b""), 200);
    assert_eq!(put(&mut client, "b", &format!("?byte_size={}", REGION_BYTES / 2), b""), 200);
    let answer = send(&mut client, "PUT", "/v2/trifuse/regions/c?byte_size=1", &[], b"");
    assert!(answer.status == 413 && error(&answer).contains("regions"), "{}", answer.text());
    for bytes in [REGION_BYTES + 1, u64::MAX, i64::MAX as u64] {
        assert_eq!(put(&mut client, "c", &format!("?byte_size={bytes}"), b""), 413, "{bytes}");
    }
    assert_eq!(send(&mut client, "DELETE", "/v2/trifuse/regions/a", &[], b"").status, 200);
    assert_eq!(put(&mut client, "c", "?byte_size=1", b""), 200);
}

#[test]
fn a_place_outside_of_its_region_is_refused() {
    let server = Running::operating();
    let mut client = server.client();
    let case = dense(DType::F32);
    let (request, all) = resident(&case);
    assert_eq!(put(&mut client, "all", "", &all), 200);
    let (q, end) = (case.bytes()[0].len(), all.len());
    for (place, status) in [
        (place("nothing", 0, q), 404),
        (place("all", end - q + 4, q), 400),
        (place("all", i64::MAX as usize - q, q), 400),
        (place("all", i64::MAX as usize, q), 400),
        (place("all", 2, q), 400),
        (place("all", 0, q - 4), 400),
    ] {
        let mut request = request.clone();
        request["inputs"][0]["parameters"] = place.clone();
        let answer = infer(&mut client, "op.attention", &request, b"");
        assert_eq!(answer.status, status, "{place}: {}", answer.text());
        error(&answer);
    }
    for place in [place("all", 0, q), place("all", 0, q - 1), place("nothing", 0, q)] {
        let mut request = request.clone();
        request["outputs"] = json!([{"name": "o", "parameters": place}]);
        let answer = infer(&mut client, "op.attention", &request, b"");
        assert!((400..=404).contains(&answer.status), "{place}: an output over an input, too small, or nowhere: {}", answer.text());
    }
    assert_eq!(infer(&mut client, "op.attention", &request, b"").status, 200);
}
