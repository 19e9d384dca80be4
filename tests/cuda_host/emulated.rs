//! The backend on an emulated GPU (`tests/cuda_emulator`): the suites of every backend, on its host side and kernels.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use libtest_mimic::{Failed, Trial};
use trifuse::backends::cuda::LIBRARY_DIR;
use trifuse::backends::cuda::jit::KERNEL_DEBUG;

/// The most operations of a case. For kernels that run a thread after the other nine in ten cases are below it: more takes minutes, and
/// shows nothing more. Products of warp groups are done as a whole, and more of them cost little.
const MOST_FLOPS: [&str; 2] = ["2e6", "5e7"];

/// What is compiled for: the architecture, and the words of the names of cases and variants.
struct Kernels {
    arch: &'static str,
    words: &'static str,
    most_flops: &'static str,
}

const SIMT: Kernels = Kernels { arch: "80", words: "(simt", most_flops: MOST_FLOPS[0] };
/// Those that run on Ampere too.
const AMPERE: Kernels = Kernels {
    arch: "80",
    words: "(sm80 | linear/ (sm80_gemv:16x16-unaligned, | attention/ (sm80_decode:block, | (gemm, | (sgmv, | (sgmv_long | (sgmv_dense, | (sgmv_simt",
    most_flops: MOST_FLOPS[0],
};
const HOPPER: Kernels = Kernels {
    arch: "90",
    words: "(sm90 | attention/ (sm90:multicast-unaligned, | attention/ (sm90:2wg-small_head, | attention/ (sm90:intra_split_kv, \
            | linear/short_k (sm90:64x192-weight_stationary, | linear/few_rows (sm90_skinny:128x40-splitk2-tile, | linear/few_rows (sm90_skinny:128x72-tile, | (gemm, | (sgmv, | (sgmv_dense:fused,",
    most_flops: MOST_FLOPS[1],
};
/// Blocks that wait for each other, one a multiprocessor: at least as many as there are adapters.
const JOINT: Kernels = Kernels { arch: "90", words: "(sgmv:fused,", most_flops: MOST_FLOPS[1] };
const WIDE: &str = "TRIFUSE_EMULATOR_UNITS=48";

/// Cases that between them walk over what the tensor-core kernels do: tiles and their edges, rings that go round, splits along K,
/// clusters, masks, lists of blocks, codes of one width and of many, adapters. `aligned` is what TMA can read.
const FEW_AMPERE: Kernels = Kernels {
    arch: "80",
    words: "checksum/pieces65537 (simt | attention/causal129_bf16 (sm80, | attention/paged16_f16 (sm80_decode, | attention/paged64_block_window_bf16 (sm80_decode:block, aligned | vectors/attention_varlen_causal (sm80_varlen_short, \
            | codebook_gemm/codes_four_f16 (sm80, | codebook_gemm/runs200_overwrite_f16 (sgmv_long, \
            | codebook_gemm/segments150_odd_three_f16 (sgmv, | codebook_gemm/lora_runs200_f16 (sgmv_dense, \
            | fused_mlp/gated_bias1_f16 (gemm | fused_mlp/tokens255_f16 (gemm, \
            | linear/tokens255_f16 (sm80 | linear/everything_bf16 (sm80, | linear/k4095_bf16 (sm80_gemv \
            | linear/wide_tokens33_f16 (sm80, aligned | linear/normed_gated16_k576_bf16 (sm80_gemv, aligned | linear/normed_gated3_k333_f16 (sm80_gemv,",
    most_flops: "1e7",
};
const FEW_HOPPER: Kernels = Kernels {
    arch: "90",
    words: "attention/causal129_bf16 (sm90, | attention/many_queries_d80_bf16 (sm90, | attention/blocks_q_shorter_causal_f16 (sm90, \
            | attention/window16_causal_f16 (sm90, | attention/many_queries_window_d107_h8_f16 (sm90:multicast-unaligned \
            | attention/ragged_d64_causal_gqa_f16 (sm90_varlen, | attention/ragged_page48_d96_window_bf16 (sm90_varlen, \
            | attention/quartet_causal_f16 (sm90:2wg-small_head, | attention/blocks128_f16 (sm90:intra_split_kv, | attention/slots_block_map128_d32_f16 (sm90, \
            | codebook_gemm/codes_four_f16 (sm90, | codebook_gemm/column_widths_bf16 (sm90, \
            | codebook_gemm/three_even_slices_f16 (sm90, | codebook_gemm/runs200_overwrite_f16 (sm90, \
            | codebook_gemm/segments150_even_fourthree_bf16 (sgmv, | codebook_gemm/lora_three_slices_f16 (sgmv_dense:fused, \
            | fused_mlp/tokens255_f16 (gemm, | fused_mlp/few_tokens17_f16 (gemm, | fused_mlp/gated_few_tokens_deep_f16 (gemm, \
            | fused_mlp/padded_w_tokens70_f16 (gemm, | fused_mlp/ahead_tiles_f16 (gemm, \
            | fused_mlp/gated_ahead_tiles_f16 (gemm, | linear/few_rows_parts_f16 (sm90_skinny:128x40-splitk2-tile, \
            | linear/few_rows_tiles_f16 (sm90_skinny:128x72-tile, \
            | linear/tokens511_f16 (sm90, | linear/odd_n331_everything_f16 (sm90 | linear/norm_tokens300_bf16 (sm90, \
            | linear/short_k_three_deltas384_f16 (sm90:64x192-weight_stationary, | linear/short_k_at_once72_bf16 (sm90, | linear/few_rows2_f16 (sm90_skinny, \
            | linear/wide_tokens9_bf16 (sm90_skinny, | linear/wide_tokens177_f16 (sm90_swap_ab, | grouped_linear/factors_tokens2_bf16 (sm90_skinny, \
            | grouped_linear/gated_tokens2_bf16 (sm90_skinny_gated, \
            | linear/few_rows_delta_one_adapter_bf16 (sm90_skinny:16x96-rank16-lora,",
    most_flops: "5e7",
};

/// The folder of the emulated driver and compiler, and of kernels that were compiled before.
struct Emulator(PathBuf);

impl Emulator {
    /// Built once, by the first trial that wants it.
    fn build() -> &'static Self {
        static BUILT: OnceLock<Emulator> = OnceLock::new();
        BUILT.get_or_init(|| {
            let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda_emulator/build.sh");
            let output = Command::new("bash").arg(script).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Self(String::from_utf8(output.stdout).unwrap().trim().into())
        })
    }

    /// Runs a suite's tests of this backend on it: all, or those of these kernels.
    fn run(&self, suite: &str, kernels: &Kernels, settings: &[&str]) -> Output {
        self.run_named(suite, "[cuda]", kernels, settings)
    }

    /// Those whose names hold `name`.
    fn run_named(&self, suite: &str, name: &str, kernels: &Kernels, settings: &[&str]) -> Output {
        let mut command = super::this_program();
        command.env(crate::SUITE, suite).arg(name).env("LD_LIBRARY_PATH", &self.0).env(LIBRARY_DIR, &self.0).env("TRIFUSE_CACHE_DIR", &self.0);
        // A kernel that would wait for ever, as one with a fault on purpose may, gives up. The flags of a release are compiled elsewhere.
        command.env(KERNEL_DEBUG, "1").env("TRIFUSE_BACKEND", "cuda").env("TRIFUSE_MOST_FLOPS", kernels.most_flops).env("TRIFUSE_EMULATOR_ARCH", kernels.arch);
        command
            .env("TRIFUSE_MATCH", kernels.words)
            .env("TRIFUSE_CONFIGS", "chosen")
            .env("RUST_BACKTRACE", "0")
            .envs(settings.iter().map(|&setting| setting.split_once('=').unwrap_or((setting, "1"))));
        command.output().unwrap()
    }
}

/// How many tests a suite says it passed and failed.
fn counts(output: &Output) -> (usize, usize) {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("test result:")).unwrap_or_default();
    let before = |word: &str| line.split_once(word).and_then(|(head, _)| head.rsplit(' ').nth(1)?.parse().ok()).unwrap_or(0);
    (before("passed"), before("failed;"))
}

fn expect_success(output: &Output, least: usize) -> Result<(), Failed> {
    let (passed, failed) = counts(output);
    if output.status.success() && failed == 0 && passed >= least {
        return Ok(());
    }
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    Err(format!("{passed} passed, {failed} failed, {}\n{}", output.status, String::from_utf8_lossy(&text)).into())
}

/// A run in either order of threads, and of what arrives.
fn both_orders(emulator: &Emulator, kernels: &Kernels, least: usize) -> Result<(), Failed> {
    expect_success(&emulator.run("cases", kernels, &[]), least)?;
    expect_success(&emulator.run("cases", kernels, &["TRIFUSE_EMULATOR_BACKWARDS"]), least)
}

/// The suite is worth something only if it fails where a kernel is wrong: of every operation named here.
fn expect_faults(output: &Output, ops: &[&str]) -> Result<(), Failed> {
    let (passed, failed) = counts(output);
    let text = String::from_utf8_lossy(&output.stdout);
    let faults = |op: &str| text.lines().any(|line| line.starts_with("test [cuda]") && line.contains(op) && line.contains("FAILED"));
    let all = ops.iter().all(|op| faults(op));
    if all { Ok(()) } else { Err(format!("{passed} passed, {failed} failed\n{text}").into()) }
}

const OPS: [&str; 4] = ["attention", "codebook_gemm", "fused_mlp", "linear"];

pub fn trials() -> Vec<Trial> {
    let compiler = Command::new("g++").arg("--version").output().is_ok();
    let lacks = (!compiler || !cfg!(all(target_os = "linux", target_arch = "x86_64"))).then_some("g++ on Linux, x86-64");
    // All cases take an hour here, and seconds on a GPU.
    let long = lacks.or_else(|| std::env::var_os("TRIFUSE_EMULATE").is_none().then_some("TRIFUSE_EMULATE=1: it is long"));
    let trial = |name: &str, lacks: Option<&str>, body: fn(&Emulator) -> Result<(), Failed>| {
        super::trial(&format!("emulated: {name}"), lacks, move || body(Emulator::build()))
    };
    vec![
        trial("the contract of a device", lacks, |emulator| expect_success(&emulator.run("contract", &SIMT, &[]), 20)),
        trial("a few cases on sm_80", lacks, |emulator| both_orders(emulator, &FEW_AMPERE, 16)),
        // One trial, for its kernels are compiled once.
        trial("a few cases on sm_90, and a missing wait is found", lacks, |emulator| {
            both_orders(emulator, &FEW_HOPPER, 20)?;
            expect_faults(&emulator.run("cases", &FEW_HOPPER, &["TRIFUSE_EMULATOR_SKIP_WAITS"]), &OPS)
        }),
        // Blocks of one launch that tell each other what they summed; and one that hears nothing in time makes all of it itself.
        trial("a codebook GEMM in one launch", lacks, |emulator| {
            for settings in [&[WIDE][..], &[WIDE, "TRIFUSE_EMULATOR_BACKWARDS", "TRIFUSE_EMULATOR_OVERLAP"], &[WIDE, "TRIFUSE_EMULATOR_DEAF"]] {
                expect_success(&emulator.run("cases", &JOINT, settings), 5)?;
            }
            Ok(())
        }),
        // Launches of a graph that start early, and the ones before them at the latest moment.
        trial("launches that start early, and a missing wait is found", lacks, |emulator| {
            for (name, word) in [("decoding over keys that were just appended", "decoding"), ("launches on places of one memory", "places")] {
                let run = |settings: &[&str]| emulator.run_named("contract", &format!("[cuda] {name}"), &HOPPER, settings);
                expect_success(&run(&["TRIFUSE_EMULATOR_OVERLAP"]), 1)?;
                expect_success(&run(&["TRIFUSE_EMULATOR_OVERLAP", "TRIFUSE_EMULATOR_BACKWARDS"]), 1)?;
                expect_faults(&run(&["TRIFUSE_EMULATOR_OVERLAP", "TRIFUSE_EMULATOR_SKIP_GRID_WAITS"]), &[word])?;
            }
            Ok(())
        }),
        trial("every case on the simt variants", long, |emulator| both_orders(emulator, &SIMT, 300)),
        trial("every case on the variants for sm_80", long, |emulator| both_orders(emulator, &AMPERE, 300)),
        trial("every case on the variants for sm_90", long, |emulator| both_orders(emulator, &HOPPER, 300)),
        trial("a missing barrier is found", long, |emulator| expect_faults(&emulator.run("cases", &SIMT, &["TRIFUSE_EMULATOR_SKIP_BARRIERS"]), &OPS)),
    ]
}
