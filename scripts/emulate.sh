#!/usr/bin/env bash
# Conformance of the CUDA backend on an emulated GPU (tests/cuda_emulator): it needs g++ on Linux, x86-64, and no GPU.
#
#   scripts/emulate.sh 90 linear/ '(sm90'          cases whose names hold both words, on compute capability 9.0
#   scripts/emulate.sh 90 attention/ '|' '(sm90)'   either of them
#   scripts/emulate.sh 90 linear/ '(sm90_skinny:16x96-rank16-lora,'   one configuration, whether the choice takes it or not
#   scripts/emulate.sh 80 '(sm80' --list           which there are
#   scripts/emulate.sh 90 --models tiny            language models end to end: trials of crates/cli/tests/llm whose names hold the word
#
# The order of threads and of what arrives is the other way round with TRIFUSE_EMULATOR_BACKWARDS=1. Cases of more than
# TRIFUSE_MOST_FLOPS=2e6 operations are left out. TRIFUSE_CONFIGS=all runs every configuration of a variant, not only the chosen one. What was compiled is kept in target/emulator.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=${1:?expected a compute capability, 80 or 90, and parts of names}
shift
program=conformance
[[ "${1:-}" != --models ]] || { program=llm && shift; }
words=() options=()
for word in "$@"; do
  case $word in
    -*) options+=("$word") ;;
    *) words+=("$word") ;;
  esac
done

# The suite that cargo built last: what kernels are compiled from is inside it. Where it does not build, cargo says why.
suite=$(cargo test --locked --quiet --all-features --no-run --test "$program" --message-format=json-render-diagnostics |
  sed -n 's/.*"executable":"\([^"]*'"$program"'-[^"]*\)".*/\1/p' | tail -n 1)

folder=$(tests/cuda_emulator/build.sh)
export LD_LIBRARY_PATH=$folder TRIFUSE_CUDA_LIB_DIR=$folder TRIFUSE_CACHE_DIR=$folder/kernels
# Waits in kernels give up, as in the tests.
export TRIFUSE_KERNEL_DEBUG=${TRIFUSE_KERNEL_DEBUG:-1}
export TRIFUSE_SUITE=cases TRIFUSE_CONFIGS=${TRIFUSE_CONFIGS:-chosen}
export TRIFUSE_EMULATOR_ARCH=$arch TRIFUSE_BACKEND=cuda TRIFUSE_MATCH="${words[*]}" TRIFUSE_MOST_FLOPS=${TRIFUSE_MOST_FLOPS:-2e6}
[[ $program == conformance ]] || { cd crates/cli && exec "$suite" "[cuda] ${words[*]}" "${options[@]}"; }
exec "$suite" "${options[@]}"
