#!/usr/bin/env bash
# Prints what the design of the house fixed, as it is today: circles of imports, arrows, places, variants, kernels. No GPU and no NVRTC is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
counts() {
    grep -E '^(circles|arrows|places|variants|kernel|kernels)[^:]*: [0-9]+$'
}
cargo test --quiet --locked --test tidy the_house_is_counted -- --nocapture | counts
cargo test --quiet --locked --all-features --test conformance -- --test-threads=1 'house:' | counts
echo "lines of Rust in backends/cuda: $(find backends/cuda -name '*.rs' -print0 | xargs -0 cat | wc -l)"
echo "lines of CUDA in kernels: $(find kernels -type f -print0 | xargs -0 cat | wc -l)"
