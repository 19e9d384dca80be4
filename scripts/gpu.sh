#!/usr/bin/env bash
# Everything that needs a GPU, in one call on a machine that has one but need not have Rust.
#
#   scripts/gpu.sh pack   here: builds the tests and the binary, stripped, into .gpu/ (ignored by git)
#   scripts/gpu.sh run    there, in a copy of the tree with .gpu/ beside it: conformance, contract, sanitizers,
#                         verification, then a short table; logs go to ${OUT:-.gpu/out}
#
# Every step has a time limit, so that a launch that hangs costs its step and not the run.
set -uo pipefail
cd "$(dirname "$0")/.."

tests=(conformance contract)

pack() {
  set -e
  rm -rf .gpu && mkdir -p .gpu
  local features=(--features cuda)
  cargo build --release "${features[@]}" --bin trifuse
  cp "${CARGO_TARGET_DIR:-target}/release/trifuse" .gpu/
  local flags=()
  for test in "${tests[@]}"; do flags+=(--test "$test"); done
  cargo test --release "${features[@]}" --no-run "${flags[@]}" --message-format=json |
    python3 -c '
import json, shutil, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["kind"] == ["test"]:
        shutil.copy(message["executable"], ".gpu/" + message["target"]["name"])'
  strip .gpu/trifuse "${tests[@]/#/.gpu/}"
  if [ -d tests/vectors ]; then cp -r tests/vectors .gpu/; fi
  du -sh .gpu
}

rows=()

# step NAME SECONDS COMMAND...: runs it, keeps its output, adds a row to the table.
step() {
  local name=$1 limit=$2 began status last
  shift 2
  began=$(date +%s)
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  last=$(grep -E 'test result|passed|ERROR SUMMARY|error' "$out/$name.log" | tail -n 1)
  [ -n "$last" ] || last=$(tail -n 1 "$out/$name.log")
  rows+=("$(printf '%-24s %4s  %4ss  %s' "$name" "$([ $status = 0 ] && echo ok || echo "rc$status")" "$(($(date +%s) - began))" "${last:0:110}")")
}

run() {
  out=${OUT:-.gpu/out}
  mkdir -p "$out"
  export XDG_RUNTIME_DIR=/tmp TRIFUSE_CACHE_DIR=/tmp/trifuse-cache
  chmod +x .gpu/*
  step devices 60 .gpu/trifuse devices
  cat "$out/devices.log"
  step conformance-wgpu 500 .gpu/conformance '[wgpu]'
  step contract-wgpu 120 .gpu/contract '[wgpu]'
  step conformance-cuda 500 .gpu/conformance '[cuda]'
  step contract-cuda 120 .gpu/contract '[cuda]'
  step vectors 120 .gpu/trifuse verify --vectors .gpu/vectors --backend cuda
  step vectors-wgpu 120 .gpu/trifuse verify --vectors .gpu/vectors --backend wgpu
  grep -hE '^test .*FAILED|FAILED' "$out"/conformance-*.log "$out"/contract-*.log | head -40
  printf '%s\n' '' "${rows[@]}"
}

case ${1:-} in
  pack) pack ;;
  run) run ;;
  *) sed -n '2,9p' "$0" >&2; exit 2 ;;
esac
