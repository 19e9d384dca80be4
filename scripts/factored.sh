#!/usr/bin/env bash
# First tokens and steps of decoders of Llama's shapes, whole and factored at ranks that compressors leave, beside PyTorch's, on a machine with a GPU: about
# three minutes on an H100.
#
#   scripts/factored.sh OUT
#
# Of each shape: whole; `free`, ranks that are no multiples of 8; `repaired`, padded to those; `aligned`, the nearest multiples of 16. Weights are drawn.
# OUT gets SHAPE-FORM.json of ours, written as they are done, and peers.json.
#
# TRIFUSE the command (trifuse); PYTHON the interpreter that has PyTorch (python3); BACKEND (cuda)
# BATCH (1,4,16), PROMPT (512), ANSWER (64) and STEP (2048 tokens of a step at most) are the load; PATIENCE seconds for each of ours (60)
# FORMS (free aligned whole repaired) and PEERS of them that PyTorch runs (whole free repaired)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

if [ $# -ne 1 ]; then
  echo "error: expected OUT, found $# arguments" >&2
  exit 2
fi
out=$1 trifuse=${TRIFUSE:-trifuse} python=${PYTHON:-python3}
mkdir -p "$out/shapes"
load=(--batch "${BATCH:-1,4,16}" --prompt "${PROMPT:-512}" --answer "${ANSWER:-64}" --budget "${STEP:-2048}" --dtype f16)
declare -A base=([llama-2-7b]=benches/peers/models/llama-2-7b/config.json [llama-3-8b]=benches/peers/shapes/llama-3-8b.json)
failed=0 peers=()

# ranks SHAPE FORM: those of SVD-LLM at keep 0.8 of the first, at 0.7 of the second.
ranks() {
  local wide narrow between
  case $1-$2 in
    llama-2-7b-free) wide=1638 narrow=1638 between=2388 ;;
    llama-2-7b-repaired) wide=1640 narrow=1640 between=2392 ;;
    llama-2-7b-aligned) wide=1632 narrow=1632 between=2384 ;;
    llama-3-8b-free) wide=1433 narrow=573 between=2230 ;;
    llama-3-8b-repaired) wide=1440 narrow=576 between=2232 ;;
    llama-3-8b-aligned) wide=1440 narrow=576 between=2224 ;;
    *) return 1 ;;
  esac
  echo "q_proj,o_proj=$wide" "k_proj,v_proj=$narrow" "gate_proj,up_proj,down_proj=$between"
}

for form in ${FORMS:-free aligned whole repaired}; do
  for shape in llama-2-7b llama-3-8b; do
    config=$out/shapes/$shape-$form.json
    if [ "$form" = whole ]; then
      cp "${base[$shape]}" "$config"
    else
      # shellcheck disable=SC2046 # ranks are words
      python3 benches/peers/factored_config.py "${base[$shape]}" -o "$config" $(ranks "$shape" "$form") || exit 1
    fi
    case " ${PEERS-whole free repaired} " in *" $form "*) peers+=("$config") ;; esac
    began=$SECONDS
    timeout -k 5 "${PATIENCE:-60}" "$trifuse" --backend "${BACKEND:-cuda}" eval --suite speed --drawn "$config" "${load[@]}" --json >"$out/$shape-$form.part" || failed=1
    if [ -s "$out/$shape-$form.part" ]; then mv "$out/$shape-$form.part" "$out/$shape-$form.json"; fi
    echo "$shape, $form: $((SECONDS - began)) s"
  done
done
if [ ${#peers[@]} -gt 0 ]; then
  "$python" benches/peers/factored.py "${peers[@]}" -o "$out/peers.json" "${load[@]}" || failed=1
fi
[ $failed = 0 ]
