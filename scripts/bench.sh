#!/usr/bin/env bash
# Our speed and PyTorch's on the same shapes, suite by suite in turn, in one table.
#
#   scripts/bench.sh [SUITE...]   attention, linear, mlp, layer and adapters where none is named
#   scripts/bench.sh reports      micro, sparse, forward-pass and align, our side alone, each with its own columns
#
# TRIFUSE names the binary (target/release/trifuse), OUT the folder that gets SUITE.json and SUITE.peers.json
# (target/bench), BENCH_OPTIONS more options of `trifuse bench` (--quick), PYTHON the interpreter that has PyTorch.
# ALIGN_OPTIONS narrow the sweep (--step 16). MARKDOWN names a file whose measured tables are replaced
# (docs/performance.md), PICTURES a folder for SVG files. Without PyTorch the table has our side alone.
set -uo pipefail
cd "$(dirname "$0")/.."

trifuse=${TRIFUSE:-target/release/trifuse}
out=${OUT:-target/bench}
python=${PYTHON:-python3}
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(attention linear mlp layer adapters)
mkdir -p "$out"

if [ "${suites[0]}" = reports ]; then
  failed=0 reports=()
  for suite in micro sparse forward-pass align; do
    options=
    [ $suite != align ] || options=${ALIGN_OPTIONS:-}
    # shellcheck disable=SC2086 # several options
    "$trifuse" bench $suite --json ${BENCH_OPTIONS:-} $options >"$out/$suite.json" || failed=1
    ! grep -q '"results"' "$out/$suite.json" || reports+=("$out/$suite.json")
  done
  "$trifuse" bench report "${reports[@]}" --markdown "$out/reports.md" ${PICTURES:+--pictures "$PICTURES"} || failed=1
  cat "$out/reports.md"
  [ -z "${MARKDOWN:-}" ] || "$python" benches/peers/table.py --page "$out/reports.md" --section reports --markdown "$MARKDOWN" || failed=1
  exit $failed
fi

failed=0
for suite in "${suites[@]}"; do
  rm -f "$out/$suite.json" "$out/$suite.peers.json"
  # shellcheck disable=SC2086 # several options
  "$trifuse" bench "$suite" --json ${BENCH_OPTIONS:-} >"$out/$suite.json.part"
  status=$?
  # A wrong answer or a refused time is status 1, and the report tells of it.
  if [ $status -gt 1 ] || ! grep -q '"results"' "$out/$suite.json.part"; then
    echo "$suite: trifuse bench ended with status $status" >&2
    failed=1
    continue
  fi
  [ $status = 0 ] || failed=1
  mv "$out/$suite.json.part" "$out/$suite.json"
  if "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    "$python" benches/peers/run.py "$out/$suite.json" -o "$out/$suite.peers.json" || failed=1
  else
    echo "$suite: $python has no PyTorch with a GPU: no peers" >&2
  fi
done
"$python" benches/peers/table.py "$out" "${suites[@]}" ${MARKDOWN:+--markdown "$MARKDOWN"} || failed=1
exit $failed
