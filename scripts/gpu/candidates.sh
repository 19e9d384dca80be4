#!/usr/bin/env bash
# Variants that may become the first choice: each against what is taken today, in one run, by `trifuse bench compare`.
#
# A row of the list is NAME|SUITE OPTIONS|SHAPE|BEFORE|AFTER: BEFORE and AFTER are options or VARIABLE=VALUE, SHAPE a part of the shapes'
# names; the last that was decided stays until another comes. OUT is the folder for NAME.before.json and NAME.after.json.
# docs/tried/ says what follows from each.
set -uo pipefail

candidates=(
  'pages-ahead|attention|over pages|--variant sm90_ragged|--variant sm90_ragged_ahead'
  'few-tiles-of-pages|attention|q512 over pages of 64, b1 h8|--variant sm90_ragged|--variant sm90_ragged_ahead'
  'adapters-in-the-stream|adapters|m16 n4096 k4096 + r16|--variant sm90_stream|--variant sm90_stream_adapted'
  'ahead-gated|mlp --gated --sizes 128x4096x14336 --sizes 72x4096x14336 --sizes 128x4096x11008 --sizes 128x3584x18944 --sizes 128x8192x28672||--variant sm90_stream|--variant sm90_ahead_any'
  'ahead-linear|linear --sizes 72x4608x3584 --sizes 128x4608x3584 --sizes 72x3072x768 --sizes 96x2304x2304 --sizes 96x18944x3584 --sizes 96x14336x3584 --sizes 72x128256x4096||--variant sm90_stream|--variant sm90_ahead'
  'adapters-in-one-launch-256-32|adapters|chained 128 x 4096 r16 tokens256 adapters32|--variant sm90|--variant joint'
  'adapters-in-one-launch-256-100|adapters|chained 128 x 4096 r16 tokens256 adapters100|--variant segments_sm80|--variant joint'
  'adapters-in-one-launch-1024-100|adapters|chained 128 x 4096 r16 tokens1024 adapters100|--variant segments_sm80|--variant joint'
  'tokens-as-n|linear --sizes 300x3584x18944 --sizes 700x18944x3584 --sizes 700x6144x4096 --sizes 700x4096x14336 --sizes 129x4096x4096 --sizes 129x14336x4096 --sizes 512x1432x4096 --sizes 512x896x4864 --sizes 1000x384x1536 --sizes 500x1152x384 --sizes 300x4096x1432 --sizes 2048x768x3072|m|TRIFUSE_BACKEND=cuda|--variant sm90_across'
)

mkdir -p "$OUT"
failed=0
variants=$("$TRIFUSE" kernels --quiet)
each=$(((${SECONDS_ALL:-100000} - 5) / (2 * ${#candidates[@]})))

# measure FILE SUITE SHAPE WORD...: words are options, or variables of the environment.
measure() {
  local file=$1 suite=$2 shape=$3 word options=() variables=()
  for word in "${@:4}"; do
    if [[ $word == *=* && $word != --* ]]; then variables+=("$word"); else options+=("$word"); fi
  done
  # shellcheck disable=SC2086 # a suite and its options
  env ${variables[@]+"${variables[@]}"} timeout --foreground -s INT "$each" "$TRIFUSE" bench $suite --shape "$shape" ${options[@]+"${options[@]}"} --json --quiet >"$file"
  # Cut short, it tells what it has.
  grep -q '"median"' "$file"
}

for candidate in "${candidates[@]}"; do
  IFS='|' read -r name suite shape before after <<<"$candidate"
  echo "== $name: $suite $shape: $before against $after"
  if [[ $after =~ --variant\ ([a-z0-9_]+) ]] && [[ $variants != *" ${BASH_REMATCH[1]} "* ]]; then
    echo "$name: this build has no variant ${BASH_REMATCH[1]}"
    continue
  fi
  # shellcheck disable=SC2086 # several words
  if measure "$OUT/$name.before.json" "$suite" "$shape" $before && measure "$OUT/$name.after.json" "$suite" "$shape" $after; then
    # Its status says whether something became slower, which is an answer and no failure.
    "$TRIFUSE" bench compare "$OUT/$name.before.json" "$OUT/$name.after.json"
    [ $? -le 1 ] || failed=1
  else
    echo "$name: error: not measured"
    failed=1
  fi
done
exit $failed
