#!/usr/bin/env bash
# Variants of a shrunk SmolLM2 in one table: moments with gradients, five ways to shrink, two shares, against the model on held-out text; then perplexity and
# speed of all of them in each type.
#
#   scripts/study_texts.py .texts -o texts
#   trifuse shrink .smollm2 -o hf --keep 1 --factors svd --leave . --dense       the model as a folder, for PyTorch
#   scripts/shrink_study.sh .smollm2 hf texts OUT
#
# Writes OUT/shrink.json and OUT/shrink.md, again after every variant, so that a machine that goes away leaves what it did; then OUT/eval-DTYPE.json.
#
# TRIFUSE the command (trifuse); PYTHON the interpreter that has PyTorch (python3); BACKEND where variants are measured (cuda)
# TOKENS  of the moments, of wiki and c4 in turn (262144), in windows of LENGTH (2048)
# WINDOW  tokens of a window that is measured (1024); WINDOWS how many of each text (20); KEEPS the shares (0.9 0.8); AT_ONCE variants at once (4)
# DTYPES  in which all are measured in the end (f16 bf16; empty for none), and BATCH requests at once, of their speed (1,16)
# STAGE   moments, variants or dtypes: that part alone, where the parts before were done in WORK and OUT
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

if stage moments; then
  began=$SECONDS
  "$PYTHON" scripts/moments.py "$hf" -o "$WORK/moments.safetensors" --forward "$WORK/forward.safetensors" --tokens "${TOKENS:-262144}" \
    --window "${LENGTH:-2048}" "$TEXTS/train/wiki.txt" "$TEXTS/train/c4.txt"
  echo "moments: $((SECONDS - began)) s"
fi

# variant KEEP FACTORS RANKS [forward]: shrinks and measures. Without gradients, a few tokens of the texts tell what projections are worth.
variant() {
  local name="$1-$2-${3//:/}${4:+-$4}" began=$SECONDS shrunk
  local how=(--backend cpu shrink --moments "$WORK/${4:-moments}.safetensors")
  if [ -n "${4:-}" ]; then how+=(--calibrate "$TEXTS/train/wiki.txt" --calibrate "$TEXTS/train/c4.txt" --window 256 --tokens 256 --held-out 0); fi
  rm -rf "${WORK:?}/$name"
  "$TRIFUSE" "${how[@]}" "$MODEL" -o "$WORK/$name" --keep "$1" --factors "$2" --ranks "$3" --json >"$FOUND/$name.shrink.json"
  shrunk=$((SECONDS - began))
  "$TRIFUSE" --backend "$BACKEND" eval --baseline-model "$MODEL" --model "$WORK/$name" --dtype f32 --window "$WINDOW" --windows "$WINDOWS" \
    "$TEXTS/held-out/wiki.txt" "$TEXTS/held-out/c4.txt" --json >"$FOUND/$name.part"
  mv "$FOUND/$name.part" "$FOUND/$name.eval.json"
  echo "$name: shrunk in $shrunk s, measured in $((SECONDS - began - shrunk)) s"
  python3 scripts/shrink_table.py "$FOUND" >/dev/null
}
export -f variant

if stage variants; then
  for keep in ${KEEPS:-0.9 0.8}; do
    for how in 'whiten free forward' 'two-sided free' 'whiten uniform' 'two-sided align:16' 'two-sided nearest:8'; do
      echo "$keep $how"
    done
  done | xargs -P "${AT_ONCE:-4}" -L 1 bash -euo pipefail -c 'variant "$@"' variant
  python3 scripts/shrink_table.py "$FOUND"
fi

if stage dtypes; then
  models=(--model "$MODEL")
  for shrunk in "$FOUND"/*.eval.json; do models+=(--model "$WORK/$(basename "$shrunk" .eval.json)"); done
  for dtype in ${DTYPES-f16 bf16}; do
    "$TRIFUSE" --backend "$BACKEND" eval --baseline-model "$MODEL" "${models[@]}" --dtype "$dtype" --window "$WINDOW" --windows "$WINDOWS" \
      --suite all --batch "${BATCH:-1,16}" "$TEXTS/held-out/wiki.txt" "$TEXTS/held-out/c4.txt" --json >"$FOUND/eval-$dtype.part"
    mv "$FOUND/eval-$dtype.part" "$FOUND/eval-$dtype.json"
  done
fi
