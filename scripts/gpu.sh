#!/usr/bin/env bash
# Everything that needs a GPU, in one call on a machine that has one but need not have Rust.
#
#   scripts/gpu.sh pack   here: builds the tests and the binary, stripped, into .gpu/ (ignored by git)
#   scripts/gpu.sh pack bench   here: the binary alone, without wgpu: what timings need
#   scripts/gpu.sh run    there, in a copy of the tree with .gpu/ beside it: conformance, contract, sanitizers,
#                         verification, then a short table; logs go to ${OUT:-.gpu/out}
#   scripts/gpu.sh run bench conformance   there: only the steps whose names begin so
#   scripts/gpu.sh sanitize TOOL   there: the edge cases under one tool of compute-sanitizer
#
# TRIFUSE_PROFILE=dev packs unoptimised programs: they are built in a fraction of the time, the device runs the same kernels,
# and what the host does is slow. TRIFUSE_PROFILE=packed is a release without link-time optimisation, for timings: the host's
# part is optimised, and reports say which it was.
#
# Every step has a time limit, so that a launch that hangs costs its step and not the run.
set -uo pipefail
cd "$(dirname "$0")/.."

tests=(conformance contract layer)

pack() {
  set -e
  rm -rf .gpu && mkdir -p .gpu
  local profile=${TRIFUSE_PROFILE:-release} features=(--features cuda) folder
  folder=$profile
  # A build with optimisation keeps this name, and its reports tell it.
  export TRIFUSE_PROFILE=$profile
  case $profile in
    # As the tests are built: another set of features would build the dependencies anew.
    dev) features=(--all-features) folder=debug ;;
    *) if [ "${1:-}" = bench ]; then features=(--no-default-features --features cpu,cuda,cli); fi ;;
  esac
  features+=(--profile "$profile")
  TRIFUSE_REVISION=$(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo '+changes')
  export TRIFUSE_REVISION
  cargo build "${features[@]}" --bin trifuse
  cp "${CARGO_TARGET_DIR:-target}/$folder/trifuse" .gpu/
  if [ "${1:-}" = bench ]; then
    strip .gpu/trifuse
    du -sh .gpu
    return
  fi
  local flags=()
  for test in "${tests[@]}"; do flags+=(--test "$test"); done
  cargo test "${features[@]}" --no-run "${flags[@]}" --message-format=json |
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
chosen=()
failed=0

# wanted NAME: whether the step is to run: all are, unless some were named.
wanted() {
  local prefix
  [ ${#chosen[@]} -gt 0 ] || return 0
  for prefix in "${chosen[@]}"; do
    if [[ $1 == "$prefix"* ]]; then return 0; fi
  done
  return 1
}

# step NAME SECONDS COMMAND...: runs it, keeps its output, adds a row to the table.
step() {
  local name=$1 limit=$2 began status last
  wanted "$name" || return 0
  shift 2
  began=$(date +%s)
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  [ "$status" = 0 ] || failed=1
  last=$(grep -E 'test result|passed|ERROR SUMMARY|error' "$out/$name.log" | tail -n 1)
  [ -n "$last" ] || last=$(tail -n 1 "$out/$name.log")
  rows+=("$(printf '%-24s %4s  %4ss  %s' "$name" "$([ $status = 0 ] && echo ok || echo "rc$status")" "$(($(date +%s) - began))" "${last:0:110}")")
}

# The cases under one tool of compute-sanitizer, in parts side by side, with kernels that are compiled already. What is hard
# is small: odd sizes, empty rows, ragged, paged, sparse. Only racecheck, which is slow, leaves out cases of more work, and
# the simt variants on aligned operands, which use shared memory as on others.
sanitize() {
  local tool=$1 parts=64 folder deadline most=1e12 skip=nothing
  command -v compute-sanitizer >/dev/null || { echo "error: compute-sanitizer is not on the PATH"; exit 1; }
  # A launch of a cluster takes racecheck seconds: small parts, so that no one of them is long.
  [ "$tool" = racecheck ] && most=${RACECHECK_FLOPS:-1e6} skip='(simt, aligned)' parts=192
  folder=$(mktemp -d)
  deadline=$(($(date +%s) + ${2:-100}))
  export TRIFUSE_BACKEND=cuda TRIFUSE_MOST_FLOPS=$most folder tool parts deadline skip
  # shellcheck disable=SC2016 # expanded in each part
  seq "$parts" | xargs -P "$(nproc)" -I{} bash -c 'left=$((deadline - $(date +%s))); [ $left -gt 0 ] || exit 0
    TRIFUSE_SHARD={}/$parts timeout "$left" compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 99 \
      --print-limit 20 .gpu/conformance --test-threads 1 --skip "$skip" >"$folder/{}.log" 2>&1 || echo "part {}: status $?"'
  cat "$folder"/*.log
  # A part that died, or in which a test failed, is as bad as an error that the tool counts.
  local counted errors passed ignored failed
  counted=$(cat "$folder"/*.log | grep -cE '(ERROR|RACECHECK) SUMMARY')
  errors=$(cat "$folder"/*.log | grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' | grep -oE ': [0-9]+ ' | awk '{ n += $2 } END { print n + 0 }')
  read -r passed failed ignored < <(cat "$folder"/*.log | grep -E '^test result' | awk '{ p += $4; f += $6; i += $8 } END { print p + 0, f + 0, i + 0 }')
  echo "$tool: $passed passed, $failed failed, $ignored left out, ERROR SUMMARY: $errors errors in $counted of $parts parts"
  rm -rf "$folder"
  [ "$errors" = 0 ] && [ "$failed" = 0 ] && [ "$counted" = "$parts" ] && [ "$passed" -gt 0 ]
}

# Kernels compiled ahead are all that the backend needs: a case that runs from that folder adds nothing to it.
ahead() {
  local folder before
  folder=$(mktemp -d)
  .gpu/trifuse kernels --op linear --arch sm_90a --output "$folder" || exit 1
  before=$(ls "$folder/kernels" | sort | sha256sum)
  TRIFUSE_BACKEND=cuda TRIFUSE_CACHE_DIR=$folder .gpu/conformance 'linear/bias' || exit 1
  [ "$before" = "$(ls "$folder/kernels" | sort | sha256sum)" ] || { echo "error: something was compiled again"; exit 1; }
  echo "passed: nothing was compiled again"
}

run() {
  chosen=("$@")
  out=${OUT:-.gpu/out}
  mkdir -p "$out"
  export XDG_RUNTIME_DIR=/tmp TRIFUSE_CACHE_DIR=/tmp/trifuse-cache
  chmod +x .gpu/*
  .gpu/trifuse devices
  step conformance-wgpu 500 .gpu/conformance '[wgpu]'
  step contract-wgpu 120 .gpu/contract '[wgpu]'
  TRIFUSE_REPEATS=100 step conformance-cuda 500 .gpu/conformance '[cuda]'
  step contract-cuda 120 .gpu/contract '[cuda]'
  step layer-cuda 120 .gpu/layer '[cuda]'
  step vectors 120 .gpu/trifuse verify --vectors .gpu/vectors --backend cuda
  step vectors-wgpu 120 .gpu/trifuse verify --vectors .gpu/vectors --backend wgpu
  for tool in memcheck synccheck initcheck; do step "$tool" 120 "$PWD/scripts/gpu.sh" sanitize "$tool"; done
  step racecheck 240 "$PWD/scripts/gpu.sh" sanitize racecheck 220
  step compiled-ahead 60 "$PWD/scripts/gpu.sh" ahead
  step six-tests 200 .gpu/trifuse verify --backend cuda --only 1,2,3,4,5,6
  OUT=$out/bench TRIFUSE=.gpu/trifuse TRIFUSE_BACKEND=cuda step bench 600 scripts/bench.sh
  grep -hE '^test .*FAILED|FAILED' "$out"/conformance-*.log "$out"/contract-*.log 2>/dev/null | head -40
  if [ -e "$out/bench.log" ]; then cat "$out/bench.log"; fi
  printf '%s\n' '' "${rows[@]}"
  return $failed
}

case ${1:-} in
  pack) pack "${2:-}" ;;
  run) run "${@:2}" ;;
  sanitize) sanitize "${2:?a tool: memcheck, racecheck, synccheck or initcheck}" "${3:-100}" ;;
  ahead) ahead ;;
  *) sed -n '2,17p' "$0" >&2; exit 2 ;;
esac
