#!/usr/bin/env bash
# Makes the archive of the command that is given away, and prints where it lies: target/dist/trifuse-VERSION-TARGET.tar.gz, with one folder
# of that name that holds the program, the README, the changes and the licences. CARGO_TARGET_DIR is not looked at.
#
#   scripts/dist.sh [FEATURES]     cuda where none are named: the driver is loaded when it is asked for, and need not be there
set -euo pipefail
cd "$(dirname "$0")/.."
unset CARGO_TARGET_DIR CARGO_BUILD_TARGET_DIR

cargo build --locked --profile dist -p trifuse-cli --bin trifuse --features "${1:-cuda}" >&2
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
name=trifuse-$version-$(rustc -vV | sed -n 's/^host: //p')
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir "$made/$name"
cp target/dist/trifuse README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$made/$name"
strip "$made/$name/trifuse"
tar -czf "target/dist/$name.tar.gz" -C "$made" "$name"
echo "target/dist/$name.tar.gz"
