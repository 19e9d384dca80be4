//! The way from a bundle back to PEFT folders, which PEFT itself loads.

use std::collections::BTreeMap;
use std::path::Path;

use half::f16;
use serde_json::{Map, Value, json};

use super::bundle::Bundle;
use super::encoded::{EncodedAdapter, Matrix, SharedProjection};
use super::peft::{CONFIG_FILE, Config, TENSOR_FILE, inspect_bytes};
use super::whole::write_folder;
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};

/// Writes `folder/NAME/adapter_config.json` and `adapter_model.safetensors` for each of `names`, or for every adapter.
/// The folder appears whole or not at all.
///
/// The factors are `A = (I·Q)ᵀ` and `B = O`, without columns that hold nothing. All modules are padded with zeros to one rank and given one
/// scale, so that `r` and `lora_alpha` say everything. Readers other than PEFT ignore `rank_pattern` and `alpha_pattern`, and some of them
/// `use_rslora`. Where modules differ in scale, each has its own multiplied into `B`.
///
/// # Errors
/// A folder that already holds something; an adapter that the bundle does not have; damage; a value too large for `dtype`.
pub fn decompress(bundle: &Bundle, names: Option<&[String]>, folder: impl AsRef<Path>, dtype: DType) -> Result<()> {
    decompress_within(bundle, names, folder, dtype, most_bytes(bundle), &|| Ok(()))
}

/// What [`decompress`] writes at most: 256 times the bundle and 64 MiB. Factors that many adapters share are written out for each.
pub fn most_bytes(bundle: &Bundle) -> u64 {
    bundle.file_bytes().saturating_mul(256).saturating_add(64 << 20)
}

/// [`decompress`] of at most `most` bytes of tensors in all. `go_on` is asked before each adapter, and ends the work by an error: nothing is left then.
///
/// # Errors
/// Those of [`decompress`]; more bytes than `most`; what `go_on` gives.
pub fn decompress_within(
    bundle: &Bundle,
    names: Option<&[String]>,
    folder: impl AsRef<Path>,
    dtype: DType,
    most: u64,
    go_on: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let every = || bundle.adapters().map(str::to_owned).collect::<Vec<_>>();
    let names = names.map_or_else(every, <[String]>::to_vec);
    let mut shared = BTreeMap::new();
    for (module, _) in bundle.projections() {
        shared.insert(module.to_owned(), bundle.shared(module)?);
    }
    let place = folder.as_ref();
    write_folder(place, |temporary| {
        let mut bytes = 0u64;
        for name in &names {
            go_on()?;
            let adapter = bundle.adapter(name)?;
            bytes = bytes.saturating_add(tensor_bytes(name, &adapter, &shared, dtype)?);
            if bytes > most {
                let problem = format!(
                    "expected at most {most} bytes of tensors in all, found {bytes} up to this adapter: raise the limit (--max-bytes) if you trust the file"
                );
                return Err(Error::input_item(bundle.path(), name, problem));
            }
            let files = peft_files(name, &adapter, &shared, dtype, most)?;
            // What is written is read again by those who are given it: what they would refuse is told here.
            if let Some(fault) = inspect_bytes(name, &files.config, files.tensors.clone()).faults.first() {
                return Err(Error::input_item(bundle.path(), name, format!("expected what can be given back as a PEFT adapter, found {fault}")));
            }
            // Errors name what was asked for, and not the name it has until it is whole.
            let (folder, asked) = (temporary.join(name), place.join(name));
            std::fs::create_dir(&folder).map_err(Error::io(&asked, "create"))?;
            for (file, bytes) in [(CONFIG_FILE, files.config), (TENSOR_FILE, files.tensors)] {
                let path = folder.join(file);
                std::fs::write(&path, bytes).and_then(|()| std::fs::File::open(&path)?.sync_all()).map_err(Error::io(asked.join(file), "write"))?;
            }
        }
        Ok(())
    })
}

/// Bytes of an adapter's tensors as [`peft_files`] writes them, without decoding any.
fn tensor_bytes(name: &str, adapter: &EncodedAdapter, shared: &BTreeMap<String, SharedProjection>, dtype: DType) -> Result<u64> {
    let (rank, mut rows) = (one_rank(name, adapter, shared)? as u64, 0u64);
    for module in adapter.projections.keys() {
        let of = of(name, module, shared)?;
        rows = rows.saturating_add((of.d_in + of.d_out) as u64);
    }
    Ok(rows.saturating_mul(rank).saturating_mul(dtype.size()))
}

/// What the population shares of one module.
fn of<'a>(name: &str, module: &str, shared: &'a BTreeMap<String, SharedProjection>) -> Result<&'a SharedProjection> {
    shared.get(module).ok_or_else(|| Error::invalid(format!("{name}: {module}"), "a projection of the population", "one that it lacks"))
}

/// The rank that every module is padded to.
fn one_rank(name: &str, adapter: &EncodedAdapter, shared: &BTreeMap<String, SharedProjection>) -> Result<usize> {
    let mut rank = 1;
    for (module, projection) in &adapter.projections {
        rank = rank.max(projection.plain_rank(of(name, module, shared)?)?);
    }
    Ok(rank)
}

/// The two files of a PEFT folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeftFiles {
    /// The bytes of `adapter_config.json`.
    pub config: Vec<u8>,
    /// The bytes of `adapter_model.safetensors`.
    pub tensors: Vec<u8>,
}

/// One encoded adapter as PEFT saves adapters, with tensors of at most `most` bytes. Errors name `name`.
///
/// A few bytes of a bundle can describe a wide projection that holds nothing: [`most_bytes`] is what [`decompress`] allows.
///
/// # Errors
/// A projection that does not fit `shared`; a value too large for `dtype`; more bytes than `most`.
pub fn peft_files(name: &str, adapter: &EncodedAdapter, shared: &BTreeMap<String, SharedProjection>, dtype: DType, most: u64) -> Result<PeftFiles> {
    let (rank, bytes) = (one_rank(name, adapter, shared)?, tensor_bytes(name, adapter, shared, dtype)?);
    ensure(bytes <= most, name, format_args!("at most {most} bytes of tensors"), format_args!("{bytes}; raise the limit if you trust the bundle"))?;
    let scaling = one_scaling(adapter, rank);
    let mut tensors = BTreeMap::new();
    for (module, projection) in &adapter.projections {
        let subject = format!("{name}: {module}");
        let (a, b) = projection.factors(of(name, module, shared)?)?;
        let own = if scaling.is_some() { 1.0 } else { f64::from(projection.scaling) };
        let (mut a, mut b) = padded(a, b.map(|value| own * value), rank);
        if dtype == DType::F16 {
            (0..a.rows).for_each(|column| balance(&mut a, &mut b, column));
        }
        for (letter, matrix) in [("A", a), ("B", b)] {
            let bytes = dtype.encode(&matrix.data);
            if let Some(value) = dtype.decode(&bytes).into_iter().zip(&matrix.data).find_map(|(kept, value)| (!kept.is_finite()).then_some(value)) {
                return Err(Error::invalid(format!("{subject}: lora_{letter}"), format!("values that {dtype} holds"), format!("{value}; ask for f32")));
            }
            tensors.insert(format!("base_model.model.{module}.lora_{letter}.weight"), (vec![matrix.rows, matrix.cols], bytes));
        }
    }
    let mut config = serde_json::to_vec_pretty(&configuration(adapter, rank, scaling)).map_err(|error| Error::invalid(name, "a configuration", error))?;
    config.push(b'\n');
    Ok(PeftFiles { config, tensors: safetensors(name, &tensors, dtype)? })
}

/// Moves a power of two between column `column` of B and its row of A, where f16 would otherwise overflow or lose digits to its least
/// exponent. The product is equal to the last bit.
fn balance(a: &mut Matrix<f64>, b: &mut Matrix<f64>, column: usize) {
    let row = column * a.cols..(column + 1) * a.cols;
    let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0f64, |largest, value| largest.max(value.abs()));
    let exact = |value: f64| f16::from_f64(value).to_f64() == value;
    let normal = |value: f64| exact(value) || (f16::MIN_POSITIVE.to_f64()..=f16::MAX.to_f64()).contains(&value.abs());
    let b_column = || (0..b.rows).map(|row| b.at(row, column));
    if a.data[row.clone()].iter().all(|&value| normal(value)) && b_column().all(normal) {
        return;
    }
    let (in_a, in_b) = (largest(&mut a.data[row.clone()].iter().copied()), largest(&mut b_column()));
    if in_a == 0.0 || in_b == 0.0 {
        return;
    }
    let scale = 2f64.powi(((in_b / in_a).log2() / 2.0).round() as i32);
    a.data[row].iter_mut().for_each(|value| *value *= scale);
    let cols = b.cols;
    b.data.iter_mut().skip(column).step_by(cols).for_each(|value| *value /= scale);
}

/// The scale of every module, where all have one and `lora_alpha` can say it. None where each scale goes into its own `B`.
fn one_scaling(adapter: &EncodedAdapter, rank: usize) -> Option<f32> {
    let mut scalings = adapter.projections.values().map(|projection| projection.scaling);
    let first = scalings.next()?;
    let sayable = (1e-6..=1e6).contains(&(first.abs() * rank as f32));
    (sayable && scalings.all(|scaling| scaling == first)).then_some(first)
}

/// The factors with rows of A and columns of B padded to `rank` with zeros.
fn padded(mut a: Matrix<f64>, b: Matrix<f64>, rank: usize) -> (Matrix<f64>, Matrix<f64>) {
    a.data.resize(rank * a.cols, 0.0);
    let zeros = vec![0.0; rank.saturating_sub(b.cols)];
    let data = b.data.chunks_exact(b.cols).flat_map(|row| row.iter().chain(&zeros)).copied().collect();
    (Matrix { rows: rank, ..a }, Matrix { rows: b.rows, cols: rank, data })
}

/// The original configuration, where it holds for every module without a pattern; else with the rank and the scale rewritten.
fn configuration(adapter: &EncodedAdapter, rank: usize, scaling: Option<f32>) -> Value {
    let parsed = Config::parse(Path::new(CONFIG_FILE), adapter.config.to_string().as_bytes()).ok();
    let scaling = scaling.unwrap_or(1.0);
    let readable = parsed.is_some();
    let targeted = parsed.as_ref().is_some_and(|config| adapter.projections.keys().all(|module| config.targets(module)));
    let plain = parsed.and_then(|config| config.plain());
    if targeted && plain.is_some_and(|(r, scale)| r == rank as u64 && scale as f32 == scaling) {
        return adapter.config.clone();
    }
    // Readers divide by the rank again. With alpha = scaling · r, a product of 24 and 12 bits, that is exact in float64.
    let alpha = f64::from(scaling) * rank as f64;
    let mut config = match &adapter.config {
        Value::Object(map) if readable => map.clone(),
        // A configuration that this crate itself refuses says what the product does not hold, such as a bias.
        _ => Map::new(),
    };
    let changes = [
        ("r", json!(rank)),
        ("lora_alpha", if alpha.fract() == 0.0 { json!(alpha as i64) } else { json!(alpha) }),
        ("use_rslora", json!(false)),
        ("rank_pattern", json!({})),
        ("alpha_pattern", json!({})),
    ];
    config.extend(changes.map(|(key, value)| (key.to_owned(), value)));
    if !targeted {
        config.insert("target_modules".into(), adapter.projections.keys().cloned().collect());
    }
    if !config.contains_key("peft_type") {
        config.insert("peft_type".into(), json!("LORA"));
    }
    Value::Object(config)
}

fn safetensors(name: &str, tensors: &BTreeMap<String, (Vec<usize>, Vec<u8>)>, dtype: DType) -> Result<Vec<u8>> {
    use safetensors::tensor::{Dtype, TensorView, serialize};
    let dtype = match dtype {
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
    };
    let fault = |error: safetensors::SafeTensorError| Error::invalid(name, "tensors that safetensors can hold", error);
    let views: Vec<_> =
        tensors.iter().map(|(name, (shape, bytes))| Ok((name, TensorView::new(dtype, shape.clone(), bytes).map_err(fault)?))).collect::<Result<_>>()?;
    // PEFT and transformers ask for this entry.
    let metadata = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    serialize(views, Some(metadata)).map_err(fault)
}
