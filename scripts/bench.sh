#!/usr/bin/env bash
# Our speed and PyTorch's on the same shapes, suite by suite in turn, in one table.
#
#   scripts/bench.sh [SUITE...]   attention, linear, projections, mlp, layer, adapters and published where none is named
#   scripts/bench.sh reports      micro, sparse and forward-pass, our side alone, each with its own columns
#   scripts/bench.sh sweep        align in f16 and bf16, every size, and PyTorch on every EVERY-th: a table, and a picture of both
#
# TRIFUSE names the binary (target/dist/trifuse), OUT the folder that gets SUITE.json and SUITE.peers.json
# (target/bench), BENCH_OPTIONS more options of `trifuse bench` (--quick), PYTHON the interpreter that has PyTorch.
# SECONDS_EACH ends a suite, and again its peers, after so long, with what is measured until then; SECONDS_ALL shares so long among
# all of them. The exit status is 75 where nothing was wrong but the time.
# DTYPES (f16 bf16) and ALIGN_OPTIONS (--step 16) narrow the sweep, EVERY (5) the peers' share of it: odd, so that every remainder by 8
# has its turn. MARKDOWN names the page whose tables are replaced (docs/performance/measured.md, reports.md or sweep.md), PICTURES a folder for SVG files of
# all reports in OUT. Without PyTorch the tables have our side alone.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

trifuse=${TRIFUSE:-target/dist/trifuse}
out=${OUT:-target/bench}
python=${PYTHON:-python3}
suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(attention linear projections mlp layer adapters published)
command -v "$trifuse" >/dev/null || { echo "error: $trifuse is not there: cargo build --profile dist --features cuda" >&2; exit 1; }
mkdir -p "$out"
failed=0 cut=0
# Parts of the time that a suite has, to one of its peers; and all parts that are ahead.
own=1 ahead=$((2 * ${#suites[@]}))

# limit PARTS: seconds for what comes next. PyTorch takes some to start, and for its ceilings.
limit() {
  if [ -n "${SECONDS_ALL:-}" ]; then
    local left=$(((SECONDS_ALL - SECONDS - 15) * $1 / (ahead > $1 ? ahead : $1)))
    echo $((left > 5 ? left : 5))
  else
    echo "${SECONDS_EACH:-}"
  fi
}

has_torch() { "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; }

# measure NAME SUITE OPTION...: our side, into NAME.json. A wrong answer or a refused time is status 1, and the report tells of it.
measure() {
  local name=$1 suite=$2 status limit
  shift 2
  rm -f "$out/$name.json" "$out/$name.peers.json"
  limit=$(limit $own) ahead=$((ahead - own))
  # shellcheck disable=SC2086 # several options
  ${limit:+timeout --foreground -s INT "$limit"} "$trifuse" bench "$suite" --json ${BENCH_OPTIONS:-} "$@" >"$out/$name.json.part"
  status=$?
  # Interrupted, by the limit or by Ctrl-C, it tells what it has.
  case $status in
    0) ;;
    124 | 130) echo "$name: cut short" >&2; cut=1 status=1 ;;
    *) failed=1 ;;
  esac
  if [ $status -gt 1 ] || ! grep -q '"results"' "$out/$name.json.part"; then
    echo "$name: trifuse bench ended with status $status" >&2
    failed=1
    return 1
  fi
  mv "$out/$name.json.part" "$out/$name.json"
}

# beside NAME OPTION...: the peers on the shapes of NAME.json.
beside() {
  local name=$1 limit
  shift
  limit=$(limit 1) ahead=$((ahead - 1))
  if has_torch; then
    "$python" benches/peers/run.py "$out/$name.json" -o "$out/$name.peers.json" ${limit:+--seconds "$limit"} "$@" || failed=1
  else
    echo "$name: $python has no PyTorch with a GPU: no peers" >&2
  fi
}

# page SECTION REPORT...: tables and pictures of reports, with the peers that lie beside them.
page() {
  local section=$1 report peers=()
  shift
  for report in "$@"; do [ ! -e "${report%.json}.peers.json" ] || peers+=(--peers "${report%.json}.peers.json"); done
  [ $# -gt 0 ] || { failed=1; return; }
  "$trifuse" bench report "$@" ${peers[@]+"${peers[@]}"} --markdown "$out/$section.md" || failed=1
  cat "$out/$section.md"
  [ -z "${MARKDOWN:-}" ] || "$python" benches/peers/table.py --page "$out/$section.md" --section "$section" --markdown "$MARKDOWN" || failed=1
}

# Draws what lies in the folder, of this run and of earlier ones: a roofline holds every point that was measured.
pictures() {
  local file all=()
  for file in "$out"/*.json; do
    [ -e "$file" ] || return
    case $file in
      *.peers.json) all+=(--peers "$file") ;;
      *) all+=("$file") ;;
    esac
  done
  "$trifuse" bench report "${all[@]}" --pictures "$PICTURES" || failed=1
}

case ${suites[0]} in
  reports)
    reports=() ahead=3
    for suite in micro sparse forward-pass; do
      if measure "$suite" "$suite"; then reports+=("$out/$suite.json"); fi
    done
    page reports ${reports[@]+"${reports[@]}"}
    ;;
  sweep)
    reports=()
    # A thousand sizes: few runs of each.
    BENCH_OPTIONS=${BENCH_OPTIONS:---warmup 2 --iterations 8}
    # shellcheck disable=SC2206 # several words
    dtypes=(${DTYPES:-f16 bf16})
    own=3 ahead=$((4 * ${#dtypes[@]}))
    for dtype in "${dtypes[@]}"; do
      # shellcheck disable=SC2086 # several options
      if measure "align-$dtype" align --dtype "$dtype" ${ALIGN_OPTIONS:-}; then
        beside "align-$dtype" --every "${EVERY:-5}"
        reports+=("$out/align-$dtype.json")
      fi
    done
    page sweep ${reports[@]+"${reports[@]}"}
    ;;
  *)
    for suite in "${suites[@]}"; do
      if measure "$suite" "$suite"; then beside "$suite"; fi
    done
    "$python" benches/peers/table.py "$out" "${suites[@]}" ${MARKDOWN:+--markdown "$MARKDOWN"} || failed=1
    ;;
esac
[ -z "${PICTURES:-}" ] || pictures
[ $failed = 0 ] || exit 1
[ $cut = 0 ] || exit 75
