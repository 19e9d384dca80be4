#!/usr/bin/env bash
# Kernels of a pack are all that the backend needs: a case that runs with it compiles nothing.
set -uo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

arch=sm_$("$PROGRAMS/trifuse" devices --json --backend cuda | grep -m 1 -oE '"cuda_arch": [0-9]+' | grep -oE '[0-9]+')
[ "$arch" != sm_90 ] || arch=sm_90a
"$PROGRAMS/trifuse" kernels --op linear --arch "$arch" --output "$folder/linear.pack" || exit 1
TRIFUSE_SUITE=cases TRIFUSE_BACKEND=cuda TRIFUSE_KERNELS=$folder/linear.pack TRIFUSE_CACHE_DIR=$folder/cache "$PROGRAMS/conformance" 'linear/bias' || exit 1
[ -z "$(find "$folder/cache" -name '*.cubin' 2>/dev/null)" ] || { echo "error: something was compiled again"; exit 1; }
echo "passed: nothing was compiled again"
