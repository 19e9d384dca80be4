//! Changes of safetensors files: of the header's JSON, of JSON inside it and inside tensors, of shapes, types, offsets and values.

use rand::Rng as _;
use serde_json::{Map, Value, json};

use super::{Rng, bytes, few, json_text, one, value};

const TYPES: [&str; 14] = ["F16", "BF16", "F32", "F64", "I8", "U8", "I32", "U32", "I64", "BOOL", "F8_E4M3", "F4", "X", "C64"];
const SIZES: [u64; 14] = [0, 1, 2, 3, 4, 8, 16, 255, 4096, 65_536, 1 << 24, 1 << 32, 1 << 62, u64::MAX];
/// The key of the header that is no tensor.
const METADATA: &str = "__metadata__";

/// A tensor as a file holds it.
struct Tensor {
    name: String,
    dtype: Value,
    shape: Value,
    bytes: Vec<u8>,
}

/// Header and data of a file, where there is a header.
fn split(file: &[u8]) -> Option<(Map<String, Value>, &[u8])> {
    let length = usize::try_from(u64::from_le_bytes(file.get(..8)?.try_into().ok()?)).ok()?;
    let end = length.checked_add(8)?;
    let Ok(Value::Object(header)) = serde_json::from_slice(file.get(8..end)?) else { return None };
    Some((header, &file[end..]))
}

/// A file from the header's text and the data.
fn join(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// A file whose tensors lie one after another.
pub fn store(metadata: Option<&Value>, tensors: &[(&str, &str, &[usize], Vec<u8>)]) -> Vec<u8> {
    let own = |&(name, dtype, shape, ref bytes): &(&str, &str, &[usize], Vec<u8>)| Tensor {
        name: name.into(),
        dtype: json!(dtype),
        shape: json!(shape),
        bytes: bytes.clone(),
    };
    laid_out(metadata, &tensors.iter().map(own).collect::<Vec<_>>())
}

fn laid_out(metadata: Option<&Value>, tensors: &[Tensor]) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    if let Some(metadata) = metadata {
        header.insert(METADATA.into(), metadata.clone());
    }
    for Tensor { name, dtype, shape, bytes } in tensors {
        let start = data.len();
        data.extend(bytes);
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] }));
    }
    join(Value::Object(header).to_string().as_bytes(), &data)
}

/// The file with some changes. One of three is of single bytes, or leaves a file whose parts do not fit; the others leave its parts where the
/// header says.
pub fn change(rng: &mut Rng, file: &[u8]) -> Vec<u8> {
    let Some((header, data)) = split(file).filter(|_| rng.random_ratio(7, 8)) else { return bytes(rng, file.to_vec()) };
    if rng.random_ratio(1, 4) {
        let mut header = Value::Object(header);
        (0..few(rng)).for_each(|_| value(rng, &mut header));
        return join(&json_text(rng, &header), data);
    }
    let mut metadata = header.get(METADATA).cloned();
    let place = |entry: &Value, side: usize| entry["data_offsets"][side].as_u64().map_or(0, |at| at as usize);
    let mut tensors: Vec<Tensor> = Vec::new();
    for (name, entry) in header.iter().filter(|(name, _)| *name != METADATA) {
        let bytes = data.get(place(entry, 0)..place(entry, 1)).unwrap_or_default().to_vec();
        tensors.push(Tensor { name: name.clone(), dtype: entry["dtype"].clone(), shape: entry["shape"].clone(), bytes });
    }
    for _ in 0..few(rng) {
        if rng.random_ratio(1, 4) || tensors.is_empty() {
            metadata.as_mut().map_or_else(|| (), |metadata| inside(rng, metadata));
        } else {
            let number = rng.random_range(0..tensors.len());
            of_tensor(rng, number, &mut tensors);
        }
    }
    laid_out(metadata.as_ref(), &tensors)
}

/// Changes the metadata: the JSON in one of its texts mostly.
fn inside(rng: &mut Rng, metadata: &mut Value) {
    let texts: Vec<String> = metadata.as_object().into_iter().flatten().filter(|(_, text)| text.is_string()).map(|(key, _)| key.clone()).collect();
    let parsed = texts.iter().find_map(|key| serde_json::from_str(metadata[key].as_str()?).ok().filter(Value::is_object).map(|inner| (key.clone(), inner)));
    match parsed {
        Some((key, mut inner)) if rng.random_ratio(5, 6) => {
            value(rng, &mut inner);
            metadata[key] = json!(String::from_utf8_lossy(&json_text(rng, &inner)));
        }
        _ => value(rng, metadata),
    }
}

fn of_tensor(rng: &mut Rng, number: usize, tensors: &mut Vec<Tensor>) {
    let other = rng.random_range(0..tensors.len());
    let tensor = &mut tensors[number];
    match rng.random_range(0..12) {
        // A tensor may hold JSON itself.
        0..4 if tensor.bytes.starts_with(b"{") => {
            if let Ok(mut inner) = serde_json::from_slice(&tensor.bytes) {
                (0..few(rng)).for_each(|_| value(rng, &mut inner));
                tensor.bytes = json_text(rng, &inner);
                tensor.shape = json!([tensor.bytes.len()]);
            }
        }
        0..3 => odd_numbers(rng, tensor),
        3 => tensor.shape.as_array_mut().map_or_else(|| (), |shape| shape.reverse()),
        4 => value(rng, &mut tensor.shape),
        5 => tensor.dtype = json!(one(rng, &TYPES)),
        6 => tensor.shape = json!((0..rng.random_range(0..5)).map(|_| *one(rng, &SIZES)).collect::<Vec<_>>()),
        7 => {
            // A row more or less, with its bytes.
            let rows = tensor.shape[0].as_u64().unwrap_or(0);
            let row = tensor.bytes.len() / (rows as usize).max(1);
            let rows = if rng.random() { rows.saturating_add(1) } else { rows.saturating_sub(1) };
            tensor.bytes.resize(row * rows.min(1 << 12) as usize, 0x3c);
            if tensor.shape[0].is_u64() {
                tensor.shape[0] = json!(rows);
            }
        }
        8 => {
            let Tensor { name, dtype, .. } = tensor;
            let added = Tensor { name: format!("{name}x"), dtype: dtype.clone(), shape: json!([0, one(rng, &SIZES)]), bytes: Vec::new() };
            tensors.push(added);
        }
        9 => {
            let name = tensors[other].name.clone();
            tensors[other].name = std::mem::replace(&mut tensors[number].name, name);
        }
        10 => drop(tensors.remove(number)),
        _ => {
            let mut name = json!(tensor.name);
            value(rng, &mut name);
            tensor.name = name.as_str().unwrap_or("x").into();
        }
    }
}

/// Writes numbers at the ends of the type's range, NaN among them, over one or all.
fn odd_numbers(rng: &mut Rng, tensor: &mut Tensor) {
    let patterns: &[u64] = match tensor.dtype.as_str() {
        Some("F64") => &[0x7ff8 << 48, 0x7ff0 << 48, 0x7fef_ffff_ffff_ffff, 1, 1 << 63],
        Some("F32") => &[0x7fc0_0000, 0x7f80_0000, 0xff80_0000, 0x7f7f_ffff, 0xff7f_ffff, 1, 0x8000_0000, 0x0080_0000],
        Some("F16") => &[0x7e00, 0x7c00, 0xfc00, 0x7bff, 1, 0x8000, 0x0400],
        Some("BF16") => &[0x7fc0, 0x7f80, 0xff80, 0x7f7f, 1, 0x8000],
        _ => &[0, 1, 0x7fff_ffff, 0xffff_ffff, 0x8000_0000, 0x00ff, 0x0100],
    };
    let size = match tensor.dtype.as_str() {
        Some("F64" | "I64") => 8,
        Some("F16" | "BF16") => 2,
        Some("U8" | "I8" | "BOOL") => 1,
        _ => 4,
    };
    let count = tensor.bytes.len() / size;
    if count == 0 {
        return;
    }
    let pattern = one(rng, patterns).to_le_bytes();
    let (start, end) = if rng.random_ratio(1, 8) { (0, count) } else { (0..count).nth(rng.random_range(0..count)).map_or((0, 0), |at| (at, at + 1)) };
    tensor.bytes[start * size..end * size].chunks_exact_mut(size).for_each(|number| number.copy_from_slice(&pattern[..size]));
}
