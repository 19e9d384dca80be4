//! A bundle back to PEFT folders, which PEFT itself loads.

use std::collections::BTreeMap;
use std::path::Path;

use half::f16;
use serde_json::{Map, Value, json};

use super::bundle::Bundle;
use super::encoded::{EncodedAdapter, Matrix, SharedProjection};
use super::peft::{CONFIG_FILE, Config, TENSOR_FILE};
use super::whole::write_folder;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Writes `folder/NAME/adapter_config.json` and `adapter_model.safetensors` for each of `names`, or for every adapter.
/// The folder appears whole or not at all.
///
/// The factors are `A = (I·Q)ᵀ` and `B = O`, with the columns that hold nothing left out; so the rank may differ from
/// the original's, and the configuration then gives every module its own by `rank_pattern` and `alpha_pattern`.
///
/// # Errors
/// A folder that already holds something; an adapter that the bundle does not have; damage; a value too large for `dtype`.
pub fn decompress(bundle: &Bundle, names: Option<&[String]>, folder: impl AsRef<Path>, dtype: DType) -> Result<()> {
    let every = || bundle.adapters().map(str::to_owned).collect::<Vec<_>>();
    let names = names.map_or_else(every, <[String]>::to_vec);
    let mut shared = BTreeMap::new();
    for (module, _) in bundle.projections() {
        shared.insert(module.to_owned(), bundle.shared(module)?);
    }
    let place = folder.as_ref();
    write_folder(place, |temporary| {
        for name in &names {
            let files = peft_files(name, &bundle.adapter(name)?, &shared, dtype)?;
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

/// The two files of a PEFT folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeftFiles {
    /// `adapter_config.json`.
    pub config: Vec<u8>,
    /// `adapter_model.safetensors`.
    pub tensors: Vec<u8>,
}

/// One encoded adapter as PEFT saves adapters; `name` is what errors name.
///
/// # Errors
/// A projection that does not fit `shared`; a value too large for `dtype`.
pub fn peft_files(name: &str, adapter: &EncodedAdapter, shared: &BTreeMap<String, SharedProjection>, dtype: DType) -> Result<PeftFiles> {
    let mut tensors = BTreeMap::new();
    let mut modules = BTreeMap::new();
    for (module, projection) in &adapter.projections {
        let subject = format!("{name}: {module}");
        let shared = shared.get(module).ok_or_else(|| Error::invalid(&subject, "a projection of the population", "one that it lacks"))?;
        let (mut a, mut b) = projection.factors(shared)?;
        if dtype == DType::F16 {
            (0..a.rows).for_each(|column| balance(&mut a, &mut b, column));
        }
        modules.insert(module.as_str(), (a.rows as u64, projection.scaling));
        for (letter, matrix) in [("A", a), ("B", b)] {
            let bytes = dtype.encode(&matrix.data);
            if let Some(value) = dtype.decode(&bytes).into_iter().zip(&matrix.data).find_map(|(kept, value)| (!kept.is_finite()).then_some(value)) {
                return Err(Error::invalid(format!("{subject}: lora_{letter}"), format!("values that {dtype} holds"), format!("{value}; ask for f32")));
            }
            tensors.insert(format!("base_model.model.{module}.lora_{letter}.weight"), (vec![matrix.rows, matrix.cols], bytes));
        }
    }
    let mut config = serde_json::to_vec_pretty(&configuration(&adapter.config, &modules)).map_err(|error| Error::invalid(name, "a configuration", error))?;
    config.push(b'\n');
    Ok(PeftFiles { config, tensors: safetensors(name, &tensors, dtype)? })
}

/// Moves a power of two between column `column` of B and its row of A, where f16 would otherwise overflow or lose
/// digits to its least exponent. The product is the same to the last bit.
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

/// The original configuration where it still gives each module its rank and scale; else with those keys rewritten.
fn configuration(original: &Value, modules: &BTreeMap<&str, (u64, f32)>) -> Value {
    let parsed = Config::parse(Path::new(CONFIG_FILE), original.to_string().as_bytes());
    let same = |config: &Config| {
        let agrees = |(module, &(rank, scaling)): (&&str, &(u64, f32))| {
            config.targets(module) && config.rank(module) == rank && config.scaling(module) as f32 == scaling
        };
        modules.iter().all(agrees)
    };
    if parsed.as_ref().is_ok_and(same) {
        return original.clone();
    }
    // PEFT divides by the rank again: with alpha = scaling · r, a product of 24 and 12 bits, that is exact in float64.
    let alpha = |rank: u64, scaling: f32| {
        let alpha = f64::from(scaling) * rank as f64;
        if alpha.fract() == 0.0 && alpha.abs() < 1e15 { json!(alpha as i64) } else { json!(alpha) }
    };
    let mut counts = BTreeMap::<(u64, u32), usize>::new();
    modules.values().for_each(|&(rank, scaling)| *counts.entry((rank, scaling.to_bits())).or_default() += 1);
    let common = counts.into_iter().max_by_key(|&(_, count)| count).map_or((1, 1.0), |((rank, scaling), _)| (rank, f32::from_bits(scaling)));
    let (mut ranks, mut alphas) = (Map::new(), Map::new());
    // The longest path first: PEFT takes the first key that a module's path ends in.
    let mut paths: Vec<_> = modules.iter().collect();
    paths.sort_by_key(|(module, _)| std::cmp::Reverse(module.len()));
    let varied = modules.values().any(|&module| module != common);
    for (module, &(rank, scaling)) in paths.into_iter().filter(|_| varied) {
        // PEFT reads the key as an expression. A plain path is left as it is: old versions look it up by equality.
        let plain = module.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c));
        let key = if plain { (*module).to_owned() } else { regex::escape(module) };
        ranks.insert(key.clone(), json!(rank));
        alphas.insert(key, alpha(rank, scaling));
    }
    let mut config = match original {
        Value::Object(map) => map.clone(),
        _ => Map::new(),
    };
    let targeted = parsed.is_ok_and(|config| modules.keys().all(|module| config.targets(module)));
    let changes = [
        ("r", json!(common.0)),
        ("lora_alpha", alpha(common.0, common.1)),
        ("use_rslora", json!(false)),
        ("rank_pattern", ranks.into()),
        ("alpha_pattern", alphas.into()),
    ];
    config.extend(changes.map(|(key, value)| (key.to_owned(), value)));
    if !targeted {
        config.insert("target_modules".into(), modules.keys().copied().collect());
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
