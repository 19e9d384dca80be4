#!/usr/bin/env bash
# Trains the adapters of SmolLM2, compresses and measures them, and runs the study of shrinking, on a machine with a GPU: about four minutes on an H100.
#
#   scripts/study.sh .smollm2 .texts OUT
#
# OUT gets results.tar.gz (tables, JSON, logs; written again while the stages run), two adapters as PEFT folders, a bundle of all 24 at each setting
# (one of more than 15 MiB in parts, which `cat` joins). Every stage has a limit; one that fails or is cut short leaves what it did.
#
# TRIFUSE the command (trifuse); PYTHON the interpreter that has PyTorch, transformers and peft (python3); BACKEND where texts are scored (cuda)
# PARTS   processes that train at once, 12 GB of the GPU each (3); TRAIN options of the trainer, SHRINK settings of scripts/shrink_study.sh, TABLE options of scripts/adapter_table.py
# WORK    where all else lies (/tmp/study); PARALLEL=0 runs the study of shrinking after the adapters, not beside them; PATIENCE times every limit (1)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

if [ $# -ne 3 ]; then
  echo "error: expected MODEL TEXTS OUT, found $# arguments" >&2
  exit 2
fi
model=$1 texts=$2 out=$3
export TRIFUSE=${TRIFUSE:-trifuse} PYTHON=${PYTHON:-python3} BACKEND=${BACKEND:-cuda} WORK=${WORK:-/tmp/study}
export TRIFUSE_CACHE_DIR=${TRIFUSE_CACHE_DIR:-/tmp/trifuse-cache} HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 PYTHONHASHSEED=0
mkdir -p "$out" "$WORK"/{found,adapters}
rm -f "$WORK/failed"

# stage NAME SECONDS COMMAND...: runs it under a limit, with a log of its own, and says what became of it.
stage() {
  local name=$1 limit=$(($2 * ${PATIENCE:-1})) began=$SECONDS status=0
  shift 2
  timeout -k 5 "$limit" "$@" >"$WORK/found/$name.log" 2>&1 </dev/null || status=$?
  echo "$name: status $status, $((SECONDS - began)) s, ended at $SECONDS s" | tee -a "$WORK/found/stages.txt"
  if [ $status != 0 ]; then
    tail -n 5 "$WORK/found/$name.log"
    touch "$WORK/failed"
  fi
  return $status
}

save() {
  tar -czf "$WORK/.results.part" -C "$WORK" --exclude='*.s2lc' found 2>/dev/null
  mv "$WORK/.results.part" "$out/results.tar.gz"
}

# hand_over FILE: what goes back in files of 15 MiB at most.
hand_over() {
  if [ "$(stat -c %s "$1")" -gt $((15 << 20)) ]; then split -b 15M "$1" "$out/$(basename "$1")."; else cp "$1" "$out/"; fi
}

shrinking() {
  # shellcheck disable=SC2086 # settings are words
  stage shrink 170 env ${SHRINK:-} WORK="$WORK/variants" nice -n 5 scripts/shrink_study.sh "$model" "$WORK/hf" "$WORK/texts" "$WORK/found/shrink"
}

{
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,memory.total --format=csv,noheader 2>/dev/null
  nproc
  "$TRIFUSE" --version
} >"$WORK/found/machine.txt" 2>&1
stage texts 20 "$PYTHON" scripts/study_texts.py "$texts" -o "$WORK/texts"
stage hf 60 "$TRIFUSE" --backend cpu shrink "$model" -o "$WORK/hf" --keep 1 --factors svd --leave . --dense || exit 1
(while sleep 10; do save; done) &
saver=$!
trap 'kill $saver 2>/dev/null' EXIT

# Kernels are compiled while Python starts.
stage warm 60 "$TRIFUSE" --backend "$BACKEND" eval --baseline-model "$model" --dtype f32 --window 512 --windows 1 "$WORK/texts/held-out/kjv.txt" &
others=($!)
for part in $(seq "${PARTS:-3}"); do
  # shellcheck disable=SC2086 # options are words
  stage "train$part" 150 "$PYTHON" scripts/train_smollm2_adapters.py "$WORK/hf" "$WORK/texts" -o "$WORK/adapters" --part "$part/${PARTS:-3}" --until 120 ${TRAIN:-} &
  others+=($!)
done
if [ "${PARALLEL:-1}" = 1 ]; then
  shrinking &
  study=$!
fi
wait "${others[@]}"
mkdir -p "$WORK/found/adapters"
cp "$WORK"/adapters/*.json "$WORK/found/adapters/"
for name in kjv-r8-common wiki-r4-own; do
  if [ -d "$WORK/adapters/$name" ]; then tar -cf "$out/$name.tar" -C "$WORK/adapters" "$name"; fi
done
save
# shellcheck disable=SC2086 # options are words
stage table 150 python3 scripts/adapter_table.py "$TRIFUSE" "$model" "$WORK/adapters" "$WORK/texts" -o "$WORK/found/adapters" --backend "$BACKEND" ${TABLE:-}
for bundle in "$WORK"/found/adapters/*.s2lc; do
  if [ -e "$bundle" ]; then hand_over "$bundle"; fi
done
save
if [ "${PARALLEL:-1}" = 1 ]; then wait "$study"; else shrinking; fi
save
cat "$WORK/found/stages.txt" "$WORK"/found/adapters/adapters.md "$WORK"/found/shrink/shrink.md 2>/dev/null
ls -l "$out"
[ ! -e "$WORK/failed" ]
