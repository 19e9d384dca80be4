#!/usr/bin/env bash
# Writes tests/cuda_host/ledger.txt anew: what every CUDA kernel compiles to, and that it is as it should be.
#
#   scripts/ledger.sh        compiles what the ledger does not hold, drops lines of kernels that are gone
#   scripts/ledger.sh all    compiles everything (an hour of a processor's time)
#
# Kernels that are refused are named on standard error, and the exit status is 1. NVRTC, nvdisasm: ./check nvrtc
# CUDA_HOST   the test program, where it was built elsewhere (default: built here)
set -euo pipefail
cd "$(dirname "$0")/.."
[[ "${1:-}" == all ]] && export TRIFUSE_ALL_KERNELS=1
ledger=tests/cuda_host/ledger.txt
made=$(mktemp)
faults=$(mktemp)
if [[ -n "${CUDA_HOST:-}" ]]; then
    TRIFUSE_TEST_PROBE=ledger "$CUDA_HOST" >"$made" 2> >(tee "$faults" >&2)
else
    folder=$(find .cuda/lib -maxdepth 4 -type d -path '*/site-packages/nvidia/cu13' | head -n 1)
    export LD_LIBRARY_PATH="$PWD/$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PATH="$PWD/$folder/bin:$PATH"
    cargo test --locked --all-features --test conformance --no-run
    TRIFUSE_TEST_PROBE=ledger cargo test --quiet --locked --all-features --test conformance >"$made" 2> >(tee "$faults" >&2)
fi
[[ "$(head -c 6 "$made")" == "# unit" ]] || { echo "ledger: the program printed no ledger" >&2; exit 1; }
mv "$made" "$ledger"
echo "$(($(wc -l <"$ledger") - 1)) kernels" >&2
if grep -q ' for sm_' "$faults"; then exit 1; fi
