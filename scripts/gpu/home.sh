#!/usr/bin/env bash
# Tables and pictures of what was measured: home.sh [FOLDER|ARCHIVE...]. Called by scripts/gpu.sh.
#
# Takes the archives and folders of `right`, `speed` and `sweeps`, those of $OUT where none is named; of two reports of one name the
# later one. A table whose reports are there is made anew; another stays as it is, and is named. DOCS is the folder of the pages (docs),
# TRIFUSE the binary that draws ($PROGRAMS/trifuse), BEFORE a folder of earlier reports, against which what became slower is named. What the text around the tables says is for a person to read again.
set -uo pipefail

docs=${DOCS:-docs}
trifuse=${TRIFUSE:-$PROGRAMS/trifuse}
python=${PYTHON:-python3}
sources=("$@")
[ ${#sources[@]} -gt 0 ] || sources=("$OUT"/right "$OUT"/speed "$OUT"/sweeps)
all=$OUT/home
rm -rf "$all"
mkdir -p "$all/ncu" "$all/engine" "$all/logs"

for source in "${sources[@]}"; do
  folder=$source
  if [ -f "$source" ]; then
    folder=$(mktemp -d)
    tar -xf "$source" -C "$folder" || { echo "error: $source is no archive" >&2; exit 1; }
  elif [ ! -d "$source" ]; then
    echo "$source is not there" >&2
    # Stages that were not run leave no folder; what somebody names is meant.
    [ $# -eq 0 ] || exit 1
    continue
  fi
  # Reports of other variants lie in folders of their own, and belong to no table; those of engines are of another form.
  find "$folder" -name '*.json' -not -path '*/candidates/*' -not -path '*/sm80/*' -not -path '*/engine/*' -exec cp -p {} "$all" \;
  find "$folder" -path '*/engine/*.json' -exec cp -p {} "$all/engine" \;
  find "$folder" -path '*/ncu/*' -type f -exec cp -p {} "$all/ncu" \;
  find "$folder" \( -name '*.log' -o -name 'table.txt' \) -exec cp -p {} "$all/logs" \;
  find "$folder" -name table.txt -exec cat {} +
  if [ -f "$source" ]; then rm -rf "$folder"; fi
done

done_with=() missing=() failed=0
# made WHAT COMMAND...: a table or picture that its command makes.
made() {
  local what=$1
  if "${@:2}" >"$all/logs/home.log" 2>&1; then
    done_with+=("$what")
  else
    missing+=("$what: $(tail -n 1 "$all/logs/home.log" | cut -c1-400)")
    # What says that is no failure: there is less than the table needs.
    grep -q '^not measured: ' "$all/logs/home.log" || failed=1
  fi
}
# there NAME...: those of the reports that were measured, with their peers, as arguments of `bench report`.
there() {
  local name
  for name in "$@"; do
    if [ ! -e "$all/$name.json" ]; then
      missing+=("$name")
      continue
    fi
    reports+=("$all/$name.json")
    if [ -e "$all/$name.peers.json" ]; then reports+=(--peers "$all/$name.peers.json"); else missing+=("$name: its peers"); fi
    grep -q '"complete": *true' "$all/$name.json" || missing+=("$name: the rest; it was cut short")
  done
}
# shellcheck disable=SC2329 # `made` calls it
pages() {
  "$trifuse" bench report "${reports[@]}" --markdown "$all/$1.md" &&
    "$python" benches/peers/table.py --page "$all/$1.md" --section "$1" --markdown "$docs/performance/$1.md"
}
# page SECTION: what lies in `reports`, on the page of that name, between the marks of that section.
page() { [ ${#reports[@]} = 0 ] || made "$1" pages "$1"; }

reports=()
suites=(attention linear projections mlp adapters layer published)
there "${suites[@]}"
[ ${#reports[@]} = 0 ] || made 'measured' "$python" benches/peers/table.py "$all" "${suites[@]}" --markdown "$docs/performance/measured.md"
reports=()
there micro sparse forward-pass
page reports
reports=()
there align-f16 align-bf16
page sweep

shopt -s nullglob
counted=()
if [ -e "$all/ncu/shapes.txt" ]; then mapfile -t counted < <(sed "s|=|=$all/ncu/|" "$all/ncu/shapes.txt"); fi
if [ ${#counted[@]} -gt 0 ]; then
  made 'counters' "$python" scripts/ncu_table.py "${counted[@]}" --markdown "$docs/performance/counters.md"
else
  missing+=(counters)
fi

if [ -s "$all/logs/embed.log" ] && [ -s "$all/logs/embed-peers.log" ]; then
  made 'sentences' "$python" benches/peers/embed_table.py "$all/logs/embed.log" "$all/logs/embed-peers.log" --markdown "$docs/embedding.md"
else
  missing+=(sentences)
fi
engines=()
for model in benches/peers/models/*/; do
  report=$all/engine/$(basename "$model").json
  if [ -s "$report" ] && [ -s "${report%.json}.peers.json" ]; then engines+=("$report" "${report%.json}.peers.json"); else missing+=("engine: $(basename "$model")"); fi
done
if [ ${#engines[@]} -gt 0 ] && [[ "${missing[*]}" != *'engine: '* ]]; then
  made 'engine' "$python" benches/peers/vllm_table.py "${engines[@]}" --markdown "$docs/llm.md"
fi
made 'references' "$python" benches/peers/references.py "$all" --markdown "$docs/references.md"
rows=$(grep -a '^not in these reports: ' "$all/logs/home.log") && missing+=("references: ${rows#*: }")

reports=()
for file in "$all"/*.json; do
  case $file in
    # Of a processor: for the references alone.
    *-cpu.json) ;;
    *.peers.json) reports+=(--peers "$file") ;;
    *) reports+=("$file") ;;
  esac
done
[ ${#reports[@]} = 0 ] || made 'pictures' "$trifuse" bench report "${reports[@]}" --pictures "$docs/pictures"

# Figures for the text: distances from float64, and what the candidates gave.
for log in "$all"/logs/golden-*.log; do
  awk -v name="$(basename "$log" .log)" '/^emb\./ { sets++; for (i = 1; i < NF; i++) if ($i == "max" && $(i + 1) > most) most = $(i + 1) + 0 }
    END { printf "%s: %d sets, at most %.1e\n", name, sets, most }' "$log"
done
if [ -e "$all/prefix.json" ]; then "$python" benches/peers/table.py "$all" prefix; fi
if [ -e "$all/logs/candidates.log" ]; then cat "$all/logs/candidates.log"; fi

for file in "${BEFORE:-/nowhere}"/*.json; do
  new=$all/$(basename "$file")
  [[ $file != *.peers.json && -e $new ]] || continue
  printf '\n%s against %s:\n' "$new" "$file"
  "$trifuse" bench compare "$file" "$new" 2>&1 | grep -E 'regression|broken|slower|error'
done

printf '\nmade anew in %s: %s\n' "$docs" "${done_with[*]:-nothing}"
printf 'missing, and left as it was: %s\n' "${missing[@]:-nothing}"
exit $failed
