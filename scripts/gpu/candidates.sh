#!/usr/bin/env bash
# Variants that may become the first choice: each against what is taken today, in one run, by `trifuse bench compare`.
#
# A row of the list is NAME|SUITE OPTIONS|SHAPE|BEFORE|AFTER: BEFORE and AFTER are options or VARIABLE=VALUE, --variant takes a variant or its
# configuration (sm90:128x192), SHAPE is a part of the shapes' names; what was decided last stays until another comes. OUT is the folder for NAME.before.json and NAME.after.json.
# lab/ says what follows from each.
set -uo pipefail

candidates=(
  'adapters-in-the-stream|adapters|m16 n4096 k4096 + r16|--variant sm90_skinny:16x128-splitk2|--variant sm90_skinny'
  'adapters-in-one-launch|adapters|chained 128 x 4096 r16 tokens256 adapters32|--variant sm90|--variant sgmv:fused'
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
