#!/usr/bin/env bash
# First tokens and steps of our engine and of vLLM's, under the same load on the same machine, model by model, in one table.
#
#   scripts/engine.sh [MODEL...]   folders of benches/peers/models, all of them where none is named
#
# TRIFUSE names the binary (target/dist/trifuse), OUT the folder that gets MODEL.json and MODEL.peers.json (target/bench/engine), VLLM_PYTHON the
# interpreter that has vLLM (that of PYTHON, python3), MARKDOWN the page whose table is replaced (docs/llm.md). BATCHES (1,16,64,256), ADAPTERS (0,1,16,100),
# PROMPT (128), ANSWER (128) and STEP (8192 tokens at most) are the load, RUNS (3) vLLM's measured runs of each batch.
# SECONDS_ALL shares so long among the models. The exit status is 75 where nothing was wrong but the time.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

trifuse=${TRIFUSE:-target/dist/trifuse}
out=${OUT:-target/bench/engine}
python=${VLLM_PYTHON:-${PYTHON:-python3}}
models=("$@")
if [ ${#models[@]} = 0 ]; then for folder in benches/peers/models/*/; do models+=("$(basename "$folder")"); done; fi
command -v "$trifuse" >/dev/null || { echo "error: $trifuse is not there: cargo build --profile dist --features cuda" >&2; exit 1; }
"$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("vllm") is None)' || { echo "error: $python has no vLLM: install it there, or name another by VLLM_PYTHON" >&2; exit 1; }
load=(--batch "${BATCHES:-1,16,64,256}" --drawn-adapters "${ADAPTERS:-0,1,16,100}" --prompt "${PROMPT:-128}" --answer "${ANSWER:-128}" --budget "${STEP:-8192}" --dtype f16)
mkdir -p "$out"
failed=0 cut=0 pairs=() ahead=${#models[@]}

# ended WHO STATUS: what a status says.
ended() {
  case $2 in
    0) ;;
    75 | 124 | 130) echo "$1: cut short" >&2; cut=1 ;;
    *) echo "$1: ended with status $2" >&2; failed=1 ;;
  esac
}

for model in "${models[@]}"; do
  config=benches/peers/models/$model/config.json
  [ -e "$config" ] || { echo "error: expected a folder of benches/peers/models, found $model" >&2; exit 2; }
  rm -f "$out/$model.json" "$out/$model.peers.json"
  # A fifth is more than ours needs: vLLM takes a minute or two to start, twice.
  own='' other=''
  if [ -n "${SECONDS_ALL:-}" ]; then
    left=$(((SECONDS_ALL - SECONDS - 10) / ahead))
    own=$((left / 5 > 5 ? left / 5 : 5)) other=$((left * 4 / 5 > 5 ? left * 4 / 5 : 5))
  fi
  ahead=$((ahead - 1))
  ${own:+timeout --foreground -s INT "$own"} "$trifuse" --backend "${TRIFUSE_BACKEND:-cuda}" eval --suite speed --drawn "$config" "${load[@]}" --json >"$out/$model.json"
  ended "$model" $?
  "$python" benches/peers/vllm_engine.py "$config" -o "$out/$model.peers.json" "${load[@]}" --repeats "${RUNS:-3}" ${other:+--seconds "$other"}
  ended "$model, vLLM" $?
  if [ -s "$out/$model.json" ] && [ -s "$out/$model.peers.json" ]; then pairs+=("$out/$model.json" "$out/$model.peers.json"); fi
done
if [ ${#pairs[@]} -gt 0 ]; then
  "$python" benches/peers/vllm_table.py "${pairs[@]}" ${MARKDOWN:+--markdown "$MARKDOWN"} || failed=1
fi
[ $failed = 0 ] || exit 1
[ $cut = 0 ] || exit 75
