#!/usr/bin/env bash
# Builds the emulated driver and compiler, and prints the folder where they are: one for each state of the sources, of g++ and of
# the processor. Kernels that were compiled may lie beside them.
set -euo pipefail
sources=$(cd "$(dirname "$0")" && pwd)
all=$sources/../../target/emulator
mkdir -p "$all"
all=$(cd "$all" && pwd)
state=$( (cd "$sources" && find . -type f | LC_ALL=C sort | xargs cat; g++ --version; grep -m 1 ^flags /proc/cpuinfo) | sha256sum | cut -c 1-16)
folder=$all/$state
if [[ ! -e "$folder/libcuda.so" ]]; then
  made=$(mktemp -d "$all/new-XXXXXX")
  jobs=()
  for file in "$sources"/*.cpp; do
    g++ -std=c++17 -O2 -march=native -ffp-contract=fast -Wall -Wextra -fPIC -DEMULATOR="\"$sources\"" -c "$file" -o "$made/$(basename "$file" .cpp).o" &
    jobs+=($!)
  done
  for job in "${jobs[@]}"; do wait "$job"; done
  g++ -shared -Wl,-soname,libnvrtc.so.13 "$made/compiler.o" -o "$made/libnvrtc.so.13"
  rm "$made/compiler.o"
  g++ -shared -Wl,-soname,libcuda.so "-Wl,--version-script=$sources/exports.map" "$made"/*.o -o "$made/libcuda.so" -ldl
  rm "$made"/*.o
  # Two may build at once: the first to finish gives the name.
  mv -T "$made" "$folder" 2>/dev/null || rm -r "$made"
fi
echo "$folder"
