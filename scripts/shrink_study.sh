#!/usr/bin/env bash
# Variants of a shrunk SmolLM2 in one table: moments with gradients, five ways to shrink, two shares; perplexity on held-out text against the model, in each type, and
# speed.
#
#   scripts/study_texts.py .texts -o texts
#   trifuse shrink .smollm2 -o hf --keep 1 --factors svd --leave . --dense       the model as a folder, for PyTorch
#   scripts/shrink_study.sh .smollm2 hf texts OUT
#
# Writes OUT/eval-DTYPE.json, OUT/shrink.json and OUT/shrink.md of what was measured in f32, and OUT/pictures of those whose speed was measured. A run that was
# cut off goes on where it stopped, with the same OUT and WORK: variants and types that are done are not made again.
#
# TRIFUSE the command (trifuse); PYTHON the interpreter that has PyTorch (python3); BACKEND where variants are measured (cuda)
# TOKENS  of the moments, of wiki and c4 in turn (262144), in windows of LENGTH (2048)
# WINDOW  tokens of a window that is measured (1024); WINDOWS how many of each text (20); KEEPS the shares (0.9 0.8); AT_ONCE variants at once (4)
# DTYPES  in which all are measured (f32 f16 bf16); SPEED those in which the speed is, too (f16), of BATCH requests at once (1,16)
# HOWS    how variants are made, one a line: factors, ranks and, for those without gradients, the word forward; these shrink on BACKEND, all others on the processor
# STAGE   moments, variants or measure: that part alone, where the parts before left their files in WORK and OUT
# WORK    where the folders of variants lie, 540 MB each (a temporary folder)
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -ne 4 ]; then
  echo "error: expected MODEL HF_FOLDER TEXTS OUT, found $# arguments" >&2
  exit 2
fi
export MODEL=$1 TEXTS=$3 FOUND=$4
hf=$2 PYTHON=${PYTHON:-python3}
export TRIFUSE=${TRIFUSE:-trifuse} BACKEND=${BACKEND:-cuda} WINDOW=${WINDOW:-1024} WINDOWS=${WINDOWS:-20}
if [ -z "${WORK:-}" ]; then
  WORK=$(mktemp -d)
  trap 'rm -rf "$WORK"' EXIT
fi
export WORK
mkdir -p "$FOUND" "$WORK"

stage() { [ "${STAGE:-$1}" = "$1" ]; }

if stage moments && [ ! -e "$WORK/moments.safetensors" ]; then
  began=$SECONDS
  "$PYTHON" scripts/moments.py "$hf" -o "$WORK/moments.safetensors" --forward "$WORK/forward.safetensors" --tokens "${TOKENS:-262144}" \
    --window "${LENGTH:-2048}" "$TEXTS/train/wiki.txt" "$TEXTS/train/c4.txt"
  echo "moments: $((SECONDS - began)) s"
fi

# variant KEEP FACTORS RANKS [forward]: shrinks. Without gradients, a few tokens of a text tell what projections are worth.
variant() {
  local name="$1-$2-${3//:/}${4:+-$4}" began=$SECONDS
  local how=(--backend cpu shrink --moments "$WORK/${4:-moments}.safetensors")
  if [ -n "${4:-}" ]; then
    how=(--backend "$BACKEND" shrink --moments "$WORK/$4.safetensors" --calibrate "$TEXTS/train/wiki.txt" --window 256 --tokens 256 --held-out 0)
  fi
  if [ -e "$FOUND/$name.shrink.json" ] && [ -d "$WORK/$name" ]; then return; fi
  rm -rf "${WORK:?}/$name"
  "$TRIFUSE" "${how[@]}" "$MODEL" -o "$WORK/$name" --keep "$1" --factors "$2" --ranks "$3" --json >"$FOUND/$name.part"
  mv "$FOUND/$name.part" "$FOUND/$name.shrink.json"
  echo "$name: shrunk in $((SECONDS - began)) s"
}
export -f variant

hows='two-sided free
whiten uniform
two-sided align:16
two-sided nearest:8
whiten free forward'

if stage variants; then
  while read -r how; do
    for keep in ${KEEPS:-0.9 0.8}; do
      echo "$keep $how"
    done
  done <<<"${HOWS:-$hows}" | xargs -P "${AT_ONCE:-4}" -L 1 bash -euo pipefail -c 'variant "$@"' variant
fi

if stage measure; then
  models=(--model "$MODEL")
  for shrunk in "$FOUND"/*.shrink.json; do models+=(--model "$WORK/$(basename "$shrunk" .shrink.json)"); done
  for dtype in ${DTYPES:-f32 f16 bf16}; do
    if [ -e "$FOUND/eval-$dtype.json" ]; then continue; fi
    suite=ppl began=$SECONDS
    case " ${SPEED-f16} " in *" $dtype "*) suite=all ;; esac
    "$TRIFUSE" --backend "$BACKEND" eval --baseline-model "$MODEL" "${models[@]}" --dtype "$dtype" --window "$WINDOW" --windows "$WINDOWS" \
      --suite "$suite" --batch "${BATCH:-1,16}" "$TEXTS/held-out/wiki.txt" "$TEXTS/held-out/c4.txt" --json >"$FOUND/eval-$dtype.part"
    mv "$FOUND/eval-$dtype.part" "$FOUND/eval-$dtype.json"
    echo "$dtype: measured in $((SECONDS - began)) s"
  done
  if [ -e "$FOUND/eval-f32.json" ]; then python3 scripts/shrink_table.py "$FOUND"; fi
  drawn=()
  for dtype in ${SPEED-f16}; do
    if [ -e "$FOUND/eval-$dtype.json" ]; then drawn+=(--eval "$FOUND/eval-$dtype.json"); fi
  done
  if [ ${#drawn[@]} -gt 0 ]; then "$TRIFUSE" bench shrink "${drawn[@]}" --pictures "$FOUND/pictures"; fi
fi
