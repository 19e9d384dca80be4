//! Case files of `verify --vectors`.

use trifuse_testkit::casefile;

use super::super::mutate::{Rng, one, tensors};
use super::{Answer, Subject, refused};

pub const SUBJECT: Subject = Subject { name: "case_file", sound: |rng: &mut Rng| one(rng, &SOUND).to_vec(), change: tensors, parse };

macro_rules! vectors {
    ($($name:literal)*) => { [$(include_bytes!(concat!("../../tests/vectors/", $name, ".safetensors"))),*] };
}

/// The smallest of each operation and form.
const SOUND: [&[u8]; 12] = vectors!(
    "linear_bias" "linear_no_tokens" "linear_residual" "linear_silu" "fused_mlp_gelu_erf_bias1" "fused_mlp_gated_bias1_bias2_residual"
    "codebook_gemm_no_tokens" "codebook_gemm_base_only" "codebook_gemm_core_accumulate_rank1" "attention_causal_q_shorter" "attention_paged"
    "attention_window"
);

fn parse(bytes: &[u8]) -> Answer {
    let case = casefile::parse("fuzz.safetensors".as_ref(), bytes).map_err(|error| refused(&error))?;
    assert!(!case.expected.is_empty(), "a case has an answer to be held against");
    Ok(())
}
