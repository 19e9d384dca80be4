# shellcheck shell=bash
# Sourced by the stages: a plan of steps with time limits, the table of what became of them, and the archive.
#
#   plan NAME SECONDS COMMAND...     a step
#   beside NAME SECONDS COMMAND...   one that runs at the same time as the step before it
#   skipped NAME REASON              one that cannot run here
#   carry_out                        runs them, prints the table; its status is 1 where a step failed or was not reached
#
# A command finds its seconds in SECONDS_ALL. It ends with 0 (passed), 75 (its time ended it, and what it did was right), 77 (skipped,
# the reason in its last line), or anything else (failed).

stage=$(basename "$0" .sh)
out=$OUT/$stage
chosen=("$@")
names=() limits=() commands=() turns=() reasons=() running=()
# The turn that is being planned, and the longest limit of each: of what runs at the same time only that counts.
turn=0 spans=()
mkdir -p "$out"
rm -f "$out"/*.row "$out/table.txt"

plan() {
  turn=$((turn + 1))
  beside "$@"
}

beside() {
  names+=("$1") limits+=("$2") turns+=("$turn") reasons+=('')
  commands+=("$(printf '%q ' "${@:3}")")
}

skipped() {
  plan "$1" 0 true
  reasons[${#names[@]} - 1]=$2
}

# Whether a step is to run: all are, unless some were chosen, by their names, or by how names begin where no step has just that one.
wanted() {
  local word
  [ ${#chosen[@]} -gt 0 ] || return 0
  for word in "${chosen[@]}"; do
    if [[ $1 = "$word" || ($1 = "$word"* && " ${planned[*]} " != *" $word "*) ]]; then return 0; fi
  done
  return 1
}

# Leaves in the plan what is to run.
choose() {
  local planned=("${names[@]}") word place
  for word in ${chosen[@]+"${chosen[@]}"}; do
    if [[ " ${planned[*]}" != *" $word"* ]]; then
      echo "error: expected steps of: ${planned[*]}; found: $word" >&2
      exit 2
    fi
  done
  for place in "${!names[@]}"; do
    if ! wanted "${names[place]}"; then
      unset "names[place]"
    elif [ -n "${reasons[place]}" ]; then
      row "$place" "${names[place]}" skipped 0 "${reasons[place]}"
    elif [ "${limits[place]}" -gt "${spans[turns[place]]:-0}" ]; then
      spans[turns[place]]=${limits[place]}
    fi
  done
}

# row PLACE NAME WORD SECONDS SAID: one line of the table, whatever runs beside it.
row() { printf '%-22s %-12s %5s s  %s\n' "$2" "$3" "$4" "${5:0:120}" >"$(printf '%s/%03d.row' "$out" "$1")"; }

# The line of a log that tells most.
telling() {
  local last
  last=$(grep -aE 'test result|^passed|^summary|passed,|ERROR SUMMARY|error[: ]|cut short|no time left|geometric mean of|ended with status' "$1" | tail -n 1)
  [ -n "$last" ] || last=$(grep -av '^[[:space:]]*$' "$1" | tail -n 1)
  tr -s '\t ' ' ' <<<"${last# }"
}

run_step() {
  local place=$1 allowed=$2 name=${names[$1]} began=$SECONDS status word said
  local log=$out/$name.log child
  trap 'kill "$child" 2>/dev/null' TERM
  SECONDS_ALL=$allowed timeout -k 5 "$allowed" bash -c "${commands[$place]}" >"$log" 2>&1 </dev/null &
  child=$!
  wait "$child"
  status=$?
  case $status in
    0) word=passed ;;
    75 | 124 | 137 | 143) word='cut short' ;;
    77) word=skipped ;;
    *) word=failed ;;
  esac
  said=$(telling "$log")
  # A suite that ran nothing has shown nothing.
  if [[ $word = passed && $said = 'test result: ok. 0 passed'* ]]; then word=failed; fi
  row "$place" "$name" "$word" $((SECONDS - began)) "$said"
}

# How many rows say so.
count() { cat "$out"/*.row 2>/dev/null | grep -cE "^.{22} $1 "; }

archive() {
  [ -n "${ARCHIVES:-}" ] || return 0
  mkdir -p "$ARCHIVES"
  # Under another name first: a machine that goes away meanwhile leaves the one before.
  tar -czf "$ARCHIVES/.$stage.part" -C "$OUT" "$stage" && mv "$ARCHIVES/.$stage.part" "$ARCHIVES/$stage.tar.gz"
}

finish() {
  local place
  for place in "${!names[@]}"; do
    [ -e "$(printf '%s/%03d.row' "$out" "$place")" ] || row "$place" "${names[$place]}" 'not reached' 0 ''
  done
  {
    echo
    echo "$stage: $(count passed) passed, $(count failed) failed, $(count 'cut short') cut short, $(count 'not reached') not reached, $(count skipped) skipped; $SECONDS s${BUDGET:+ of $BUDGET}"
    cat "$out"/*.row
    grep -hasE '^test .*\.\.\. *FAILED' "$out"/*.log | sort -u | head -n 20
  } >"$out/table.txt"
  archive
  cat "$out/table.txt"
}

carry_out() {
  local now later place rest left allowed
  choose
  trap 'kill "${running[@]}" 2>/dev/null; wait; finish; exit 130' INT TERM
  for ((now = 1; now <= turn; now++)); do
    [ "${spans[now]:-0}" -gt 0 ] || continue
    allowed=${spans[now]}
    if [ -n "${BUDGET:-}" ]; then
      rest=0
      for ((later = now + 1; later <= turn; later++)); do rest=$((rest + ${spans[later]:-0})); done
      # What tells most comes first: it may take all but a third of what the later ones ask for, and has its share at least.
      left=$((BUDGET - SECONDS))
      allowed=$((left * spans[now] / (spans[now] + rest)))
      [ "$allowed" -ge $((left - rest / 3)) ] || allowed=$((left - rest / 3))
      [ "$allowed" -ge 5 ] || allowed=5
      [ "$allowed" -le "$left" ] || allowed=$left
      [ "$allowed" -ge 2 ] || continue
    fi
    running=()
    for place in "${!names[@]}"; do
      [ "${turns[place]}" = "$now" ] || continue
      run_step "$place" "$((limits[place] < allowed ? limits[place] : allowed))" &
      running+=($!)
    done
    wait "${running[@]}"
    archive
  done
  finish
  [ "$(count failed)" = 0 ] && [ "$(count 'not reached')" = 0 ]
}
