#!/usr/bin/env bash
# Compiles what the sweep over heads runs, on every processor: nearly each of 193 heads has kernels of its own, and one after the other they
# take ten minutes. Called by scripts/gpu.sh; TRIFUSE names the binary. What is timed meanwhile is thrown away, and what time leaves out the
# sweep compiles itself.
set -uo pipefail

each=4
export each
# shellcheck disable=SC2016 # expanded in each part
part='to=$(($2 + each - 1))
  exec "$TRIFUSE" bench align --axis head-dim --from "$2" --to "$((to < 256 ? to : 256))" --dtype "$1" --warmup 1 --iterations 1 --json --quiet >/dev/null'
for dtype in f16 bf16; do seq -f "$dtype %g" 64 $each 256; done | xargs -P "$(nproc)" -L 1 bash -c "$part" part || exit 1
echo "passed: the kernels of every head are compiled"
