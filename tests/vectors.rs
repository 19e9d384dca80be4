//! The float64 oracle against float64 answers computed elsewhere (`scripts/make_vectors.py`), and case files that are
//! not what they should be.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use trifuse::ops::CodebookGemm;
use trifuse::ops::attention::Scale;
use trifuse::{DType, Error, Result};
use trifuse_testkit::casefile;
use trifuse_testkit::cases::{OpKind, Posed, Problem, Work};
use trifuse_testkit::oracle::codebook_gemm::Host;
use trifuse_testkit::oracle::{Define, Exact, Output, Stepwise};

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors"))
}

struct Reference;

impl Work for Reference {
    type Out = Result<Vec<Output>>;

    fn on<O: Define>(self, Posed { op, host }: &Posed<O>) -> Self::Out {
        op.evaluate(host, Exact)
    }
}

#[test]
fn the_oracle_agrees_with_independent_float64() {
    let mut seen = HashMap::new();
    for path in casefile::list(folder()).unwrap() {
        let case = casefile::read(&path).unwrap();
        *seen.entry(case.problem.kind()).or_insert(0) += 1;
        let ours = case.problem.with(Reference).unwrap();
        assert_eq!(ours.len(), case.expected.len(), "{}", case.name);
        for (ours, theirs) in ours.iter().zip(&case.expected) {
            assert_eq!(ours.elements.len(), theirs.elements.len(), "{}", case.name);
            let largest = theirs.elements.iter().flatten().filter(|value| value.is_finite()).fold(1e-300, |most: f64, value| most.max(value.abs()));
            for (index, (ours, theirs)) in ours.elements.iter().zip(&theirs.elements).enumerate() {
                let near = match (ours, theirs) {
                    (Some(a), Some(b)) => a == b || (a - b).abs() <= 1e-12 * largest,
                    (a, b) => a == b,
                };
                assert!(near, "{}: element {index}: ours {ours:?}, theirs {theirs:?}", case.name);
            }
        }
    }
    // Every operation that case files know has several.
    for kind in [OpKind::CodebookGemm, OpKind::Attention, OpKind::FusedMlp, OpKind::Linear] {
        assert!(seen[&kind] >= 7, "{kind:?}: {:?}", seen.get(&kind));
    }
}

/// A file in parts that can be changed.
struct Parts {
    metadata: HashMap<String, String>,
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

impl Parts {
    fn of(name: &str) -> Self {
        let bytes = std::fs::read(folder().join(format!("{name}.safetensors"))).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let parts = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = parts.tensors().into_iter().map(|(name, view)| (name, view.dtype(), view.shape().to_vec(), view.data().to_vec()));
        Self { metadata: header.metadata().clone().unwrap(), tensors: tensors.collect() }
    }

    fn tensor(&mut self, name: &str) -> &mut (String, Dtype, Vec<usize>, Vec<u8>) {
        self.tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap()
    }

    fn set_integers(&mut self, name: &str, change: impl Fn(&mut Vec<i32>)) {
        let tensor = self.tensor(name);
        let mut values: Vec<i32> = tensor.3.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect();
        change(&mut values);
        tensor.3 = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    }

    fn param(&mut self, name: &str, value: serde_json::Value) {
        let mut params: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&self.metadata["params"]).unwrap();
        params.insert(name.into(), value);
        self.metadata.insert("params".into(), serde_json::Value::Object(params).to_string());
    }

    fn read(&self) -> Result<casefile::CaseFile> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("case.safetensors");
        let views = self.tensors.iter().map(|(name, dtype, shape, data)| (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
        std::fs::write(&path, safetensors::serialize(views, Some(self.metadata.clone())).unwrap()).unwrap();
        casefile::read(&path)
    }

    /// Asserts that the file is refused, with the name of `item` and with `words` in the message.
    fn refused(&self, item: &str, words: &str) {
        match self.read() {
            Err(error @ Error::Input { .. }) => {
                let Error::Input { item: found, .. } = &error else { unreachable!() };
                assert_eq!(found.as_deref(), Some(item), "{error}");
                assert!(error.to_string().contains(words) && error.to_string().contains("case.safetensors"), "{error}");
                assert_eq!(error.exit_status(), 4);
            }
            other => panic!("expected a refusal that names {item}, found {other:?}"),
        }
    }
}

/// The file of that name, changed.
fn changed(name: &str, change: impl FnOnce(&mut Parts)) -> Parts {
    let mut parts = Parts::of(name);
    change(&mut parts);
    parts
}

#[test]
fn an_unchanged_file_is_read_back() {
    assert!(Parts::of("linear_bias").read().is_ok());
    assert!(Parts::of("attention_blocks").read().is_ok());
}

#[test]
fn operations_and_parameters_that_are_not_known_are_refused() {
    changed("linear_bias", |file| drop(file.metadata.insert("op".into(), "conv".into()))).refused("op", "conv");
    changed("linear_bias", |file| drop(file.metadata.remove("op"))).refused("__metadata__", "\"op\"");
    changed("linear_bias", |file| drop(file.metadata.insert("params".into(), "{".into()))).refused("params", "EOF");
    changed("linear_bias", |file| file.param("dtype", "f64".into())).refused("params", "f64");
    changed("linear_bias", |file| file.param("activation", "mish".into())).refused("params", "mish");
    changed("linear_bias", |file| file.param("dropout", 0.into())).refused("params", "dropout");
    changed("attention_dense_f16", |file| file.param("window", (-2).into())).refused("params", "-2");
    changed("attention_dense_f16", |file| file.param("scale", 1e39.into())).refused("params", "range of f32");
    changed("attention_dense_f16", |file| file.param("block", 64.into())).refused("row_ptr", "block 64");
    changed("attention_blocks", |file| file.param("block", 48.into())).refused("params", "48");
    changed("codebook_gemm_no_base", |file| file.param("scaling", vec![1.0].into())).refused("params", "scaling");
    changed("codebook_gemm_no_base", |file| file.param("scaling", vec![-1e39; 6].into())).refused("params", "range of f32");
}

/// What a number is rounded to, f32, is the operation's business: the reference is of the number as the file has it.
#[test]
fn numbers_are_read_as_f64_and_rounded_once() {
    let case = Parts::of("codebook_gemm_scaling_thirds").read().unwrap();
    let Problem::CodebookGemm(posed) = &case.problem else { panic!("{:?}", case.problem.kind()) };
    assert_eq!(posed.host.scaling, [1.0 / 3.0, 2.0 / 3.0, 1.0, 4.0 / 3.0]);
    // Had they been rounded on the way in, the reference would be off by far more than float64 is.
    let early: Vec<f64> = posed.host.scaling.iter().map(|&scaling| f64::from(scaling as f32)).collect();
    let early = Posed { op: posed.op.clone(), host: Host { scaling: early, ..posed.host.clone() } };
    let off = |posed: &Posed<CodebookGemm>| {
        let ours = posed.op.evaluate(&posed.host, Exact).unwrap();
        let pairs = ours[0].elements.iter().zip(&case.expected[0].elements);
        pairs.map(|(ours, theirs)| (ours.unwrap() - theirs.unwrap()).abs()).fold(0.0, f64::max)
    };
    assert!(off(posed) < 1e-13 && off(&early) > 1e-9, "{} {}", off(posed), off(&early));
    // A step by step run has what a device has, so that the bound knows of the rounding.
    let plain = |posed: &Posed<CodebookGemm>| posed.op.evaluate(&posed.host, Stepwise(DType::F32)).unwrap()[0].elements.clone();
    assert_eq!(plain(posed), plain(&early));

    let scale_of = |scale: f64| match changed("attention_scale_no_lse", |file| file.param("scale", scale.into())).read().unwrap().problem {
        Problem::Attention(posed) => posed.op.scale,
        other => panic!("{:?}", other.kind()),
    };
    assert_eq!(scale_of(0.1), Scale::from(0.1f32));
    // Just above the middle between 1 and the next f32: rounded once, it is not 1.
    assert_eq!(scale_of(1.0 + 2f64.powi(-24) + 2f64.powi(-50)), Scale::from(1.0 + f32::EPSILON));
    assert_eq!((scale_of(0.0), scale_of(1e-50)), (Scale::Default, Scale::from(0f32)));
}

#[test]
fn tensors_that_are_missing_or_left_over_are_refused() {
    changed("linear_bias", |file| file.tensors.retain(|tensor| tensor.0 != "w")).refused("w", "found none");
    changed("linear_bias", |file| file.tensors.retain(|tensor| tensor.0 != "y")).refused("y", "found none");
    changed("linear_bias", |file| file.tensor("bias").0 = "biases".into()).refused("biases", "no such tensor");
    changed("fused_mlp_gated_silu", |file| file.param("gated", false.into())).refused("wg", "no such tensor");
    changed("codebook_gemm_no_base", |file| file.param("accumulate", false.into())).refused("y_in", "no such tensor");
    changed("attention_varlen", |file| file.tensors.retain(|tensor| tensor.0 != "cu_seqlens_k")).refused("cu_seqlens_q", "all of");
}

#[test]
fn shapes_and_types_that_do_not_fit_are_refused() {
    changed("linear_bias", |file| file.tensor("w").2.reverse()).refused("w", "shape");
    changed("linear_bias", |file| file.tensor("y").2 = vec![85]).refused("y", "shape");
    changed("linear_bias", |file| file.tensor("x").2 = vec![100]).refused("x", "2 axes");
    changed("linear_bias", |file| file.param("dtype", "bf16".into())).refused("x", "BF16");
    changed("linear_bias", |file| file.tensor("w").1 = Dtype::BF16).refused("w", "F16");
    changed("attention_dense_f16", |file| file.tensor("v").2.swap(0, 1)).refused("v", "shape");
}

#[test]
fn indices_and_codes_out_of_range_are_refused() {
    changed("codebook_gemm_no_base", |file| file.tensor("codes1").3[5] = 16).refused("codes1", "16 at element 5");
    changed("codebook_gemm_no_base", |file| file.tensor("codes2").3[0] = 8).refused("codes2", "8 at element 0");
    changed("codebook_gemm_no_base", |file| file.set_integers("token_adapter", |ids| ids[1] = 6)).refused("token_adapter", "6");
    changed("attention_blocks", |file| file.set_integers("col_idx", |columns| columns.reverse())).refused("col_idx", "rising");
    changed("attention_blocks", |file| file.set_integers("col_idx", |columns| columns[0] = 99)).refused("col_idx", "99");
    changed("attention_varlen", |file| file.set_integers("cu_seqlens_q", |starts| starts[0] = 1)).refused("cu_seqlens_q", "start at 0");
    changed("attention_paged", |file| file.set_integers("page_table", |pages| pages[0] = 1000)).refused("page_table", "1000");
    changed("attention_paged", |file| file.set_integers("kv_len", |lengths| lengths[0] = 1000)).refused("page_table", "1000");
}

#[test]
fn a_few_bytes_that_ask_for_hours_are_refused() {
    // One stored page, named again and again.
    let mut parts = Parts::of("attention_paged");
    let page = parts.tensor("k").2[1];
    let (batch, pages) = (parts.tensor("page_table").2[0], 1 << 20);
    let table = parts.tensor("page_table");
    (table.2, table.3) = (vec![batch, pages], vec![0; batch * pages * 4]);
    parts.set_integers("kv_len", |lengths| lengths.fill((pages * page) as i32));
    parts.refused("kv_len", "at most");
    // Queries and keys of one element each.
    let mut parts = Parts::of("attention_dense_f32");
    let length = 30_000;
    for name in ["q", "k", "v"] {
        let tensor = parts.tensor(name);
        (tensor.2, tensor.3) = (vec![1, length, 1, 1], vec![0; length * 4]);
    }
    parts.refused("q", "cut the case");
}

#[test]
fn answers_that_cannot_be_right_are_refused() {
    let nan = changed("linear_bias", |file| file.tensor("y").3[..8].copy_from_slice(&f64::NAN.to_le_bytes()));
    nan.refused("y", "NaN at element 0");
    let moved = changed("codebook_gemm_base_only", |file| file.tensor("y").3[..8].copy_from_slice(&9f64.to_le_bytes()));
    moved.refused("y", "without an adapter");
    // Sums of 6e4 · 6e4, which f16 does not hold: whatever a device gives would be as near.
    let overflown = changed("linear_bias", |file| {
        for name in ["x", "w"] {
            file.tensor(name).3.chunks_exact_mut(2).for_each(|element| element.copy_from_slice(&half::f16::from_f32(6e4).to_le_bytes()));
        }
    });
    let refused = overflown.read();
    assert!(matches!(&refused, Err(error @ Error::Input { .. }) if error.to_string().contains("overflow")), "{refused:?}");
}

#[test]
fn what_is_no_case_file_at_all_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("case.safetensors");
    assert!(matches!(casefile::read(&path), Err(Error::Io { .. })));
    assert!(matches!(casefile::list(folder.path()), Err(Error::Input { .. })));
    let good = std::fs::read(self::folder().join("linear_bias.safetensors")).unwrap();
    // Sixteen tensors that end at the last byte a u64 can count: with the header's own, the sum of sizes has no place in it.
    let vast: Vec<String> = (0..16u64)
        .map(|i| (i << 60, ((i + 1) << 60).wrapping_sub(u64::from(i == 15))))
        .map(|(start, end)| format!(r#""t{start}":{{"dtype":"U8","shape":[{}],"data_offsets":[{start},{end}]}}"#, end.wrapping_sub(start)))
        .collect();
    let vast = format!("{{{}}}", vast.join(","));
    let vast = [&(vast.len() as u64).to_le_bytes(), vast.as_bytes()].concat();
    for bytes in [&[][..], b"not a safetensors file", &good[..good.len() - 1], &good[..40], &vast] {
        std::fs::write(&path, bytes).unwrap();
        assert!(matches!(casefile::read(&path), Err(Error::Input { .. })), "{} bytes", bytes.len());
    }
}

#[test]
fn descriptors_too_large_for_any_machine_are_refused() {
    // No element, so no data: only the shape is absurd.
    let huge = changed("attention_dense_f16", |file| {
        for name in ["q", "k", "v", "o"] {
            let tensor = file.tensor(name);
            (tensor.2, tensor.3) = (vec![0, 1 << 40, 1 << 10, 32], Vec::new());
        }
    });
    huge.refused("q", "2^31");
    let wide = changed("linear_no_tokens", |file| {
        for name in ["x", "w"] {
            file.tensor(name).2 = vec![0, usize::MAX >> 1];
            file.tensor(name).3.clear();
        }
    });
    assert!(matches!(wide.read(), Err(Error::Input { .. })));
}
