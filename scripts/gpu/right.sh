#!/usr/bin/env bash
# Whether everything is right on this GPU: right.sh [STEP...]. Called by scripts/gpu.sh. What says most comes first.
# shellcheck source=scripts/gpu/steps.sh
source scripts/gpu/steps.sh

"$PROGRAMS/trifuse" devices
golden() { "$1" "golden-$2-$3" "$4" "$PROGRAMS/golden" "$GOLDEN" "$MODEL" "$ADAPTERS" "$2" "$3"; }

plan conformance-cuda 400 scripts/gpu/conformance.sh cuda

if [ -e "$MODEL/model.safetensors" ]; then
  golden plan cuda f32 120
  for dtype in f16 bf16; do golden beside cuda $dtype 120; done
  for dtype in f32 f16; do golden beside wgpu $dtype 120; done
  beside encoder-cuda 120 "$PROGRAMS/model" '[cuda]'
else
  skipped golden "$MODEL holds no weights; scripts/get_minilm.sh fetches them"
fi
beside layer-cuda 120 env TRIFUSE_BACKEND=cuda "$PROGRAMS/layer" '[cuda]'
beside conformance-wgpu 200 env PROCESSES=4 REPEATS=3 scripts/gpu/conformance.sh wgpu

# One test takes all the memory that there is: nothing else runs then.
plan contract-cuda 90 "$PROGRAMS/contract" '[cuda]'
plan six-tests 120 "$PROGRAMS/trifuse" verify --backend cuda --only 1,2,3,4,5,6
plan memcheck 150 scripts/gpu/conformance.sh cuda memcheck
plan racecheck 260 scripts/gpu/conformance.sh cuda racecheck
plan initcheck 150 scripts/gpu/conformance.sh cuda initcheck
plan contract-wgpu 90 "$PROGRAMS/contract" '[wgpu]'
plan vectors-cuda 60 "$PROGRAMS/trifuse" verify --vectors tests/vectors --backend cuda
beside vectors-wgpu 60 "$PROGRAMS/trifuse" verify --vectors tests/vectors --backend wgpu
beside compiled-ahead 60 scripts/gpu/ahead.sh
plan synccheck 150 scripts/gpu/conformance.sh cuda synccheck

carry_out
