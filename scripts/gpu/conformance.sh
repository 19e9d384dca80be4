#!/usr/bin/env bash
# Every case on a backend, in parts side by side: conformance.sh BACKEND [TOOL]. TOOL is one of compute-sanitizer: memcheck, racecheck,
# synccheck, initcheck. Parts whose time does not come are counted, and the status is then 75.
#
# PROCESSES run at once (half the processors, all of them under a tool), REPEATS (100) runs of each case where there is no tool,
# TRIFUSE_KERNEL_DEBUG=1: waits in kernels end with a trap where they would hang; else kernels are as users run them.
# TRIFUSE_MATCH: only the cases that it names (tests/conformance/cases.rs). RACECHECK_FLOPS (1e6): no larger case under racecheck, where a
# launch of a cluster takes seconds.
set -uo pipefail

export TRIFUSE_SUITE=cases TRIFUSE_BACKEND=${1:?a backend}
tool=${2:-}
processors=$(nproc)
processes=${PROCESSES:-$((processors / 2 > 0 ? processors / 2 : 1))} parts=48
program=("$PROGRAMS/conformance" --test-threads 2)
if [ -z "$tool" ]; then
  export TRIFUSE_REPEATS=${REPEATS:-100}
else
  command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not on the PATH"; exit 77; }
  unset TRIFUSE_REPEATS
  processes=${PROCESSES:-$processors} parts=64
  program=(compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 99 --print-limit 20 "$PROGRAMS/conformance" --test-threads 1)
  # What is hard is small: odd sizes, empty rows, ragged, paged, sparse. The simt variants on aligned operands use shared memory as on others.
  if [ "$tool" = racecheck ]; then
    export TRIFUSE_MOST_FLOPS=${RACECHECK_FLOPS:-1e6}
    parts=192
    program+=(--skip '(simt, aligned)')
  fi
fi

# Of few cases a part more is but a start more of the tool.
[ -z "${TRIFUSE_MATCH:-}" ] || parts=$((2 * processes))

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
deadline=$(($(date +%s) + ${SECONDS_ALL:-100000} - 8))
export parts deadline logs
# shellcheck disable=SC2016 # expanded in each part
part='left=$((deadline - $(date +%s)))
  [ $left -gt 0 ] || exit 0
  TRIFUSE_SHARD=$1/$parts timeout -k 2 "$left" "${@:2}" >"$logs/$1.log" 2>&1
  status=$?
  # Ended by the limit, at the second try where it did not listen.
  { [ $status = 124 ] || { [ $status = 137 ] && [ "$(date +%s)" -ge "$deadline" ]; }; } && exit 0
  [ $status = 0 ] || echo "part $1: error: status $status" >>"$logs/$1.log"
  touch "$logs/$1.ended"'
# Neighbours are of one operation: taken far apart, those that time leaves out are a little of each.
seq 0 $((parts - 1)) | awk -v parts="$parts" '{ print $1 * 37 % parts + 1 }' |
  xargs -P "$processes" -I{} bash -c "$part" part {} "${program[@]}"

told() { find "$logs" -name '*.log' -exec cat {} +; }
told
ended=$(find "$logs" -name '*.ended' | wc -l)
sum() { told | grep -aE "$1" | grep -oE "$2" | grep -oE '[0-9]+' | awk '{ n += $1 } END { print n + 0 }'; }
passed=$(sum '^test result' '[0-9]+ passed') ignored=$(sum '^test result' '[0-9]+ ignored')
# Of parts that time ended, too.
failed=$(told | grep -acE '^test .*\.\.\. *FAILED')
# A part that died has no result, and is as bad as a case that failed.
died=$(told | grep -ac '^part .*: error: status')
errors=$(sum '(ERROR|RACECHECK) SUMMARY' 'SUMMARY: [0-9]+')
told | grep -aE '^test .*FAILED|^part .*: error' | head -40
echo "summary: $passed passed, $failed failed, $ignored left out${tool:+, $errors errors of $tool}, $died parts with an error, $ended of $parts parts"
[ "$failed" = 0 ] && [ "$died" = 0 ] && [ "$errors" = 0 ] || exit 1
[ "$ended" = "$parts" ] || exit 75
[ "$passed" -gt 0 ]
