#!/usr/bin/env bash
# Kernels compiled ahead are all that the backend needs: a case that runs from that folder adds nothing to it.
set -uo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
held() { find "$folder/kernels" -type f | sort | sha256sum; }

arch=sm_$("$PROGRAMS/trifuse" devices --json --backend cuda | grep -m 1 -oE '"cuda_arch": [0-9]+' | grep -oE '[0-9]+')
[ "$arch" != sm_90 ] || arch=sm_90a
"$PROGRAMS/trifuse" kernels --op linear --arch "$arch" --output "$folder" || exit 1
before=$(held)
TRIFUSE_BACKEND=cuda TRIFUSE_CACHE_DIR=$folder "$PROGRAMS/conformance" 'linear/bias' || exit 1
[ "$before" = "$(held)" ] || { echo "error: something was compiled again"; exit 1; }
echo "passed: nothing was compiled again"
