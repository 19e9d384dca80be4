#!/usr/bin/env bash
# What everything is made of, spreads, and sizes one by one: sweeps.sh [STEP...]. Called by scripts/gpu.sh.
# shellcheck source=scripts/gpu/steps.sh
source scripts/gpu/steps.sh

export TRIFUSE_BACKEND=cuda TRIFUSE=$PROGRAMS/trifuse PYTHON=${PYTHON:-python3}
suite() { plan "$1" "$2" env OUT="$out" scripts/bench.sh "$1"; }

suite micro 60
suite sparse 180
suite forward-pass 120
# Few runs of a thousand sizes. Where time ends it, what is missing are the largest heads.
known=$("$TRIFUSE" bench align --help)
axes=()
plan heads 180 scripts/gpu/heads.sh
for axis in k k-padded n gemv-k gemv-k-padded gemv-n m head-dim; do
  if grep -q -- "- $axis:" <<<"$known"; then axes+=(--axis "$axis"); fi
done
for dtype in f16 bf16; do
  plan "align-$dtype" 420 env OUT="$out" DTYPES=$dtype ALIGN_OPTIONS="${ALIGN_OPTIONS:-${axes[*]}}" BENCH_OPTIONS='' scripts/bench.sh sweep
done

carry_out
