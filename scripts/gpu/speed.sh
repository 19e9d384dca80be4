#!/usr/bin/env bash
# How fast everything is, beside its peers in the same run: speed.sh [STEP...]. Called by scripts/gpu.sh.
# shellcheck source=scripts/gpu/steps.sh
source scripts/gpu/steps.sh

export TRIFUSE_BACKEND=cuda TRIFUSE=$PROGRAMS/trifuse PYTHON=${PYTHON:-python3}
suite() { plan "$1" "$2" env OUT="$out" "${@:3}" scripts/bench.sh "$1"; }

suite attention 180
suite linear 90
suite mlp 90
suite adapters 120
plan candidates 60 env OUT="$out/candidates" scripts/gpu/candidates.sh
if [ -e "$MODEL/model.safetensors" ]; then
  # shellcheck disable=SC2086 # a file, or none
  plan embed 120 "$PROGRAMS/embed_speed" "$MODEL" "$ADAPTERS/A" cuda f16 ${PAIRS:-}
  if "$PYTHON" -c 'import torch, transformers, peft' 2>/dev/null; then
    plan embed-peers 180 "$PYTHON" benches/peers/embed.py
  else
    skipped embed-peers "$PYTHON lacks torch, transformers or peft"
  fi
else
  skipped embed "$MODEL holds no weights; scripts/get_minilm.sh fetches them"
fi
suite layer 240
suite projections 180
suite published 60
suite prefix 60
# The kernels of older GPUs, whose peer on any GPU is FlashAttention-2.
plan attention-sm80 150 env OUT="$out/sm80" BENCH_OPTIONS="${BENCH_OPTIONS:-} --variant sm80" scripts/bench.sh attention
# Engines, ours and vLLM's: vLLM's takes a minute or two to start, twice for each model.
for engine in benches/peers/models/*/; do
  engine=$(basename "$engine")
  if "${VLLM_PYTHON:-$PYTHON}" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("vllm") is None)' 2>/dev/null; then
    plan "engine-$engine" 420 env OUT="$out/engine" scripts/engine.sh "$engine"
  else
    skipped "engine-$engine" "${VLLM_PYTHON:-$PYTHON} lacks vLLM"
  fi
done
if command -v ncu >/dev/null; then
  plan counters 60 env OUT="$out/ncu" SECONDS_EACH=20 scripts/ncu.sh
else
  skipped counters 'ncu is not on the PATH'
fi

carry_out
