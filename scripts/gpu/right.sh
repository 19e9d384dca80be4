#!/usr/bin/env bash
# Whether everything is right on this GPU: right.sh [STEP...]. Called by scripts/gpu.sh. What says most comes first.
# shellcheck source=scripts/gpu/steps.sh
source scripts/gpu/steps.sh

devices=$("$PROGRAMS/trifuse" devices)
backends=(cuda)
# With a driver that is hardware: software would take hours.
if grep -qE "^ *wgpu:.*(GPU|discrete|integrated)" <<<"$devices"; then backends+=(wgpu); else skipped wgpu 'no Vulkan driver of a GPU'; fi
on() { [[ " ${backends[*]} " == *" $1 "* ]]; }
# golden BACKEND DTYPE: the encoder against float64, and every row as it is alone.
golden() { beside "golden-$1-$2" 120 "$PROGRAMS/golden" "$GOLDEN" "$MODEL" "$ADAPTERS" "$1" "$2"; }

plan conformance-cuda 400 scripts/gpu/conformance.sh cuda

plan layer-cuda 120 env TRIFUSE_BACKEND=cuda "$PROGRAMS/layer" '[cuda]'
if [ -e "$MODEL/model.safetensors" ]; then
  for dtype in f32 f16 bf16; do golden cuda $dtype; done
  if on wgpu; then for dtype in f32 f16; do golden wgpu $dtype; done; fi
  beside encoder-cuda 120 "$PROGRAMS/model" '[cuda]'
else
  skipped golden "$MODEL holds no weights; scripts/get_minilm.sh fetches them"
fi
if on wgpu; then beside conformance-wgpu 200 env PROCESSES=4 REPEATS=3 scripts/gpu/conformance.sh wgpu; fi

# One test takes all the memory that there is: nothing else runs then.
plan contract-cuda 60 env TRIFUSE_SUITE=contract "$PROGRAMS/conformance" '[cuda]'
plan six-tests 90 "$PROGRAMS/trifuse" verify --backend cuda --only 1,2,3,4,5,6
plan memcheck 120 scripts/gpu/conformance.sh cuda memcheck
plan racecheck 240 scripts/gpu/conformance.sh cuda racecheck
plan initcheck 120 scripts/gpu/conformance.sh cuda initcheck
if on wgpu; then plan contract-wgpu 60 env TRIFUSE_SUITE=contract "$PROGRAMS/conformance" '[wgpu]'; fi
plan vectors-cuda 60 "$PROGRAMS/trifuse" verify --vectors tests/vectors --backend cuda
if on wgpu; then beside vectors-wgpu 60 "$PROGRAMS/trifuse" verify --vectors tests/vectors --backend wgpu; fi
beside compiled-ahead 60 scripts/gpu/ahead.sh
plan synccheck 120 scripts/gpu/conformance.sh cuda synccheck

carry_out
