#!/usr/bin/env bash
# Everything that needs a GPU, in stages; each ends with a short table: passed, failed, cut short, not reached, skipped.
#
#   scripts/gpu.sh all      all of it, on a machine that has a GPU, Rust and PyTorch; the tables of docs/ are made anew
#
#   scripts/gpu.sh pack     builds the programs, stripped, into .gpu/ (ignored by git); `pack right` and `pack speed` those of one stage
#   scripts/gpu.sh right    conformance with repeats, contract, layer, encoder, the six tests, sanitizers
#   scripts/gpu.sh speed    every suite beside its peers, variants that wait for a decision, embeddings, engines, counters
#   scripts/gpu.sh sweeps   micro, sparse, forward-pass, then every size, f16 and bf16
#   scripts/gpu.sh home     tables and pictures in docs/ from what lies in .gpu/out, or from the folders and archives that are named;
#                           it says what is missing, and leaves that as it was
#
# `right`, `speed` and `sweeps` take names of steps, or how they begin: `scripts/gpu.sh right conformance-cuda golden`. They need .gpu/
# and this tree, and no Rust: where the GPU is on another machine, copy both there, and the archives back.
#
# BUDGET      seconds for a stage; its steps share them, by their limits and the first ones first. None: each step has its limit
# ARCHIVES    a folder that gets STAGE.tar.gz, written again after every step, so that a machine that goes away leaves what it did
# OUT         the folder of logs and reports (.gpu/out); PROGRAMS that of the programs (.gpu)
# MODEL       weights of MiniLM (.minilm; scripts/get_minilm.sh). GOLDEN, ADAPTERS: what the example `golden` compares
#             (tests/golden/minilm.safetensors, crates/cli/data/adapters). PAIRS: JSON lines with `a` and `b`, whose lengths `embed_speed` takes
# REPEATS     runs of each case in conformance (100)
# PYTHON      the interpreter that has PyTorch (python3); VLLM and FLASH_ATTENTION_4 name more peers, VLLM_PYTHON the interpreter
#             that has vLLM's engine (docs/performance/running.md)
# TRIFUSE_KERNEL_DEBUG=1 has waits in kernels end with a trap where they would hang; TRIFUSE_KERNEL_LINES=1 gives profilers the sources' lines
# TRIFUSE_PROFILE=dev packs programs that are built in a fraction of the time of `dist`, and whose host side is slow.
#             TRIFUSE_PROFILE=packed is `dist` without link-time optimisation, for timings; reports say which it was.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

export PROGRAMS=${PROGRAMS:-.gpu} OUT=${OUT:-.gpu/out} MODEL=${MODEL:-.minilm}
export GOLDEN=${GOLDEN:-tests/golden/minilm.safetensors} ADAPTERS=${ADAPTERS:-crates/cli/data/adapters}
export XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/tmp} TRIFUSE_CACHE_DIR=${TRIFUSE_CACHE_DIR:-/tmp/trifuse-cache}

need_gpu() {
  local devices
  devices=$("$PROGRAMS/trifuse" devices)
  echo "$devices"
  grep -q '^ *cuda:' <<<"$devices" || { echo "error: no GPU for the backend cuda (see above)" >&2; exit 1; }
}

case ${1:-} in
  pack | home) exec scripts/gpu/"$1".sh "${@:2}" ;;
  right | speed | sweeps)
    if [ ! -x "$PROGRAMS/trifuse" ]; then
      echo "error: $PROGRAMS/trifuse is not there; scripts/gpu.sh pack builds it" >&2
      exit 1
    fi
    need_gpu
    exec scripts/gpu/"$1".sh "${@:2}"
    ;;
  all)
    failed=0
    scripts/gpu/pack.sh || exit 1
    need_gpu
    for stage in right speed sweeps; do scripts/gpu/$stage.sh || failed=1; done
    scripts/gpu/home.sh || failed=1
    for stage in right speed sweeps; do cat "$OUT/$stage/table.txt"; done
    exit $failed
    ;;
  *)
    sed -n '2,26p' "$0" >&2
    exit 2
    ;;
esac
